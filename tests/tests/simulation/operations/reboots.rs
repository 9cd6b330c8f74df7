//! Reboots of all nodes of a cluster with pods.

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
use tokio::time::Instant;

use super::at_a_site;
use super::kubernetes::{CONTROL_PLANE, bootstrap};
use super::large::bootstrap_large;
use super::minor_upgrade::Pods;
use super::site::{INTERVAL, NODES, OUTAGE, PATIENCE, Site, Stopped, address, start};

const COUNT: usize = 500;
/// Longest time of all reboots.
const REBOOTS_TAKE: Duration = Duration::from_secs(24 * 3600);

/// A host whose commands act on the machines of the nodes. Each reboot succeeds, and each machine boots in time: three others
/// would hold the queue until an operator releases them.
fn host(site: &Site, count: usize) -> SimulatedHost {
    let config = DatacenterConfig::new(1, start(), 1, &[("compute", u32::try_from(count).unwrap())]);
    let machines = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::clone(&site.world.clock));
    for (number, machine) in machines.list_machines().into_iter().enumerate().take(count) {
        machines.set_addresses(&machine.spec.serial, &[address(number).parse().unwrap()]).unwrap();
    }
    let reliable = CommandBehaviour { fails_percent: 0, hangs_percent: 0, ..CommandBehaviour::demo() };
    let host = SimulatedHost::new(machines, reliable);
    host.end_hanging_boots();
    host
}

/// Lets the nodes of a site have pods, and reboots take them away.
fn start_pods(site: &mut Site, count: usize) -> (SimulatedHost, Pods) {
    let host = host(site, count);
    let pods = Pods::start(site, host.clone());
    reboot_machines(site.world.hosts.as_ref().unwrap(), Some(site.nodes.clone()));
    site.reboot = json!({
        "reboot_command": [REBOOT], "boot_check_command": [BOOT_CHECK], "max_concurrent_reboots": 20,
        "command_retries": 1, "protected_namespaces": {"matchLabels": {"team": PROTECTED}},
        "evict_retries": 20, "evict_interval": 3,
    });
    (host, pods)
}

/// Requests the reboots of nodes, as `ckecli reboot-queue add` does.
async fn request(site: &mut Site, nodes: &[usize]) {
    for (index, number) in (0..).zip(nodes) {
        let entry = RebootQueueEntry { index, ..RebootQueueEntry::new(address(*number)) };
        site.put(&keys::reboot(index), &serde_json::to_string(&entry).unwrap()).await;
    }
    site.put(keys::REBOOTS_WRITE_INDEX, &nodes.len().to_string()).await;
}

/// Three control plane nodes reboot, one after another.
pub async fn reboot_control_plane(site: &mut Site) -> Result<(), Stopped> {
    let _host = start_pods(site, NODES);
    bootstrap(site).await?;
    request(site, &CONTROL_PLANE).await;
    wait_rebooted(site).await
}

async fn wait_rebooted(site: &mut Site) -> Result<(), Stopped> {
    let patience = Instant::now() + PATIENCE;
    while count_left(site).await > 0 {
        site.pass(INTERVAL).await;
        if site.world.facts.has_findings() {
            return Err(Stopped);
        }
        if Instant::now() > patience {
            let left = count_left(site).await;
            site.restless = Some(format!("{left} reboots are left\n{}", site.world.history.last_lines(40)));
            return Err(Stopped);
        }
    }
    site.settled(&CONTROL_PLANE).await
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
        let (host, pods) = start_pods(site, COUNT);
        let workers = bootstrap_large(site, COUNT).await;
        request(site, &(0..COUNT).collect::<Vec<_>>()).await;
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

#[test]
fn a_control_plane_node_reboots_after_its_api_server_ended_beside_healthy_ones() {
    at_a_site(async |site| {
        reboot_control_plane(site).await.unwrap();
        let verdicts = site.world.facts.verdicts();
        for name in ["ended-before-reboot", "api-kept", "endpoints-withdrawn"] {
            let judged = verdicts.iter().find(|(promise, _)| promise.name() == name).unwrap().1.judged;
            assert!(judged >= 3, "{name}: {verdicts:?}");
        }
    });
}

/// Its successor ends the record, and prepares the node again before the command.
#[test]
fn a_leader_that_ends_within_each_preparation_has_a_successor_that_reboots_the_node_once() {
    at_a_site(async |site| {
        let (host, _pods) = start_pods(site, NODES);
        bootstrap(site).await.unwrap();
        request(site, &CONTROL_PLANE).await;
        let mut known = 0;
        for _ in CONTROL_PLANE {
            let prepared = site.wait_begun("reboot-prepare", known).await.unwrap();
            site.pass(Duration::from_secs(1)).await;
            site.kill_leader().await;
            known = site.records.lock().unwrap().len();
            assert_eq!(site.wait_begun("reboot-prepare", known).await.unwrap(), prepared);
            assert_eq!(site.wait_begun("reboot-reboot", known).await.unwrap(), prepared);
            known = site.records.lock().unwrap().len();
        }
        wait_rebooted(site).await.unwrap();
        let runs = host.runs().into_iter().filter(|run| run.program == REBOOT);
        let mut rebooted: Vec<String> = runs.map(|run| run.address).collect();
        rebooted.sort();
        assert_eq!(rebooted, CONTROL_PLANE.map(address));
    });
}
