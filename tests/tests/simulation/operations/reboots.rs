//! Reboots of all nodes of a large cluster with pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{BOOT_CHECK, CommandBehaviour, REBOOT, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
use madako_domain::component::Component;
use madako_domain::keys;
use madako_domain::reboot::RebootQueueEntry;
use madako_simulation::drains::PROTECTED;
use madako_simulation::run::reboot_machines;
use serde_json::json;

use super::at_a_site;
use super::kubernetes::{CONTROL_PLANE, bootstrap_large};
use super::minor_upgrade::Pods;
use super::site::{OUTAGE, Site, address, start};

const COUNT: usize = 500;
/// Longest time of all reboots.
const REBOOTS_TAKE: Duration = Duration::from_secs(24 * 3600);

/// A host whose commands act on the machines of the nodes. Each reboot succeeds, and each machine boots in time: three others
/// would hold the queue until an operator releases them.
fn host(site: &Site) -> SimulatedHost {
    let config = DatacenterConfig::new(1, start(), 1, &[("compute", u32::try_from(COUNT).unwrap())]);
    let machines = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&site.world.clock));
    for (number, machine) in machines.list_machines().into_iter().enumerate().take(COUNT) {
        machines.set_addresses(&machine.spec.serial, &[address(number).parse().unwrap()]).unwrap();
    }
    let reliable = CommandBehaviour { fails_percent: 0, hangs_percent: 0, ..CommandBehaviour::demo() };
    let host = SimulatedHost::new(machines, reliable);
    host.end_hanging_boots();
    host
}

/// Requests the reboots of all nodes, as `ckecli reboot-queue add` does.
async fn request_all(site: &mut Site) {
    for (index, number) in (0..).zip(0..COUNT) {
        let entry = RebootQueueEntry { index, ..RebootQueueEntry::new(address(number)) };
        site.put(&keys::reboot(index), &serde_json::to_string(&entry).unwrap()).await;
    }
    site.put(keys::REBOOTS_WRITE_INDEX, &COUNT.to_string()).await;
}

/// Number of entries that are left.
async fn count_left(site: &mut Site) -> i64 {
    let options = etcd_client::GetOptions::new().with_prefix().with_count_only();
    site.client.get(format!("/cke/{}", keys::REBOOTS), Some(options)).await.unwrap().count()
}

/// Every few minutes the kubelet of another worker ends, and now and then an API server does.
#[test]
#[ignore = "minutes: five hundred nodes (make test-long)"]
fn reboots_of_five_hundred_nodes_end_while_kubelets_and_api_servers_fail() {
    at_a_site(async |site| {
        let host = host(site);
        let pods = Pods::start(site, host.clone());
        reboot_machines(site.world.hosts.as_ref().unwrap(), Some(site.nodes.clone()));
        site.reboot = json!({
            "reboot_command": [REBOOT], "boot_check_command": [BOOT_CHECK], "max_concurrent_reboots": 20,
            "command_retries": 1, "protected_namespaces": {"matchLabels": {"team": PROTECTED}},
            "evict_retries": 20, "evict_interval": 3,
        });
        let workers = bootstrap_large(site, COUNT).await;
        request_all(site).await;
        let began = site.began.elapsed();
        let mut round = 0_usize;
        while count_left(site).await > 0 {
            let left = count_left(site).await;
            assert!(site.began.elapsed() < began + REBOOTS_TAKE, "{left} reboots are left");
            site.nodes.end_container(&address(workers[round * 97 % workers.len()]), Component::Kubelet);
            if round.is_multiple_of(3) {
                site.nodes.end_container(&address(CONTROL_PLANE[round / 3 % 3]), Component::ApiServer);
            }
            site.pass(Duration::from_secs(180)).await;
            assert!(!site.world.facts.has_findings(), "{:?}", site.world.facts.verdicts());
            round += 1;
        }
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        let rebooted: BTreeSet<String> =
            host.runs().into_iter().filter(|run| run.program == REBOOT).map(|run| run.address).collect();
        assert_eq!(rebooted, (0..COUNT).map(address).collect());
        pods.check_end(site);
    });
}
