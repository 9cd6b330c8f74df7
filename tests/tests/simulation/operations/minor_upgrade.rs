//! Upgrades of Kubernetes to another minor version on nodes with pods: kubelets restart on drained nodes, in place, or when their
//! nodes boot, and never newer than an API server that serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::host::{CommandBehaviour, SimulatedHost};
use madako_datacenter_sim::nodes::{NodeFault, NodePlace};
use madako_domain::component::Component;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_operation_runner::MinorUpgrade;
use madako_simulation::drains::{Drains, PROTECTED};
use madako_simulation::repair::RepairJudge;
use madako_simulation::world::CommandHosts;
use serde_json::json;

use super::site::{INTERVAL, OUTAGE, PATIENCE, Site, address};
use super::{at_a_site, kubernetes};

const CONTROL_PLANE: [usize; 3] = [0, 1, 2];
const NODES: [usize; 5] = [0, 1, 2, 3, 4];
/// Longer than the jobs among the pods run.
const JOBS_END: Duration = Duration::from_secs(1800);
/// Time in which a wave of kubelets without drains restarts.
const WAVE_TAKES: Duration = Duration::from_secs(600);

/// A cluster with pods of every kind, whose nodes drains can empty, and the judges of drains.
pub struct Pods {
    pub drains: Drains,
    judge: RepairJudge,
}

impl Pods {
    /// Bootstraps a site with pods, and waits until it is calm.
    async fn bootstrap(site: &mut Site, mode: MinorUpgrade) -> Self {
        let host = SimulatedHost::new(site.world.registry.clone(), CommandBehaviour::demo());
        let pods = Self::start(site, host);
        site.minor_upgrade = mode;
        site.reboot = json!({
            "protected_namespaces": {"matchLabels": {"team": PROTECTED}}, "evict_retries": 20, "evict_interval": 3,
        });
        kubernetes::bootstrap(site).await.unwrap();
        site.pass(JOBS_END).await;
        pods
    }

    /// Lets the nodes of a site have pods. Later instances run commands on the host.
    pub fn start(site: &mut Site, host: SimulatedHost) -> Self {
        let drains = Drains::new(1, Arc::clone(&site.world.clock));
        let judge =
            RepairJudge::new(site.world.history.clone(), drains.clone()).with_facts(site.world.facts.clone());
        tokio::spawn(judge.clone().watch(site.world.store.clone()));
        let kubernetes = drains.kubernetes.clone();
        site.world.hosts = Some(CommandHosts { host, kubernetes, judge: judge.clone() });
        site.nodes.run_pods_of(&drains.kubernetes);
        Self { drains, judge }
    }

    /// No promise is broken, and no node stays cordoned.
    pub fn check_end(&self, site: &Site) {
        assert!(!site.world.facts.has_findings(), "{:?}", site.world.facts.verdicts());
        let found = self.judge.finish();
        assert!(found.is_empty(), "{found:?}");
    }

    fn is_cordoned(&self, node: &str) -> bool {
        let nodes = self.drains.kubernetes.with_cluster(|cluster| cluster.nodes());
        nodes.iter().any(|known| known.name == node && known.unschedulable)
    }
}

async fn upgrade(site: &mut Site) {
    site.kubernetes = Some("kubernetes:2".to_owned());
    site.images("etcd:1").await;
}

/// The drains for upgrades in the store.
async fn stored_drains(site: &mut Site) -> Vec<RebootQueueEntry> {
    let options = etcd_client::GetOptions::new().with_prefix();
    let key = format!("/cke/{}", keys::UPGRADE_DRAINS);
    let stored = site.client.get(key, Some(options)).await.unwrap();
    stored.kvs().iter().map(|kv| serde_json::from_slice(kv.value()).unwrap()).collect()
}

/// Addresses of the nodes whose kubelets have the new image.
fn upgraded(site: &Site) -> BTreeSet<String> {
    let has_it = |address: &String| {
        let view = site.nodes.view_node(address).unwrap();
        view.containers[Component::Kubelet.name()].image == "kubernetes:2"
    };
    NODES.map(address).into_iter().filter(has_it).collect()
}

/// Names and nodes of the leader's held operations, with the reason in words.
fn held(site: &Site, reason: &str) -> BTreeMap<String, String> {
    let page = site.running.as_ref().unwrap().instance.view().operations.newest().unwrap();
    let held = page.held.iter().filter(|held| held.held.reason.name() == reason);
    held.flat_map(|held| held.held.targets.iter().map(|node| (node.clone(), held.why.clone()))).collect()
}

#[test]
fn a_minor_upgrade_restarts_no_pod_on_drained_nodes() {
    at_a_site(async |site| {
        let pods = Pods::bootstrap(site, MinorUpgrade::Drain).await;
        upgrade(site).await;
        site.settled(&CONTROL_PLANE).await.unwrap();
        // The last wave ends, and its node is uncordoned.
        site.pass(OUTAGE).await;
        assert_eq!(site.nodes.restarted_pods(), BTreeMap::new());
        let records = site.records.lock().unwrap().clone();
        let drained = records.iter().filter(|it| it.record.operation == "reboot-drain-start");
        let drained: BTreeSet<String> = drained.flat_map(|it| it.record.targets.clone()).collect();
        assert_eq!(drained, NODES.map(address).into());
        assert_eq!(stored_drains(site).await, []);
        pods.check_end(site);
    });
}

#[test]
fn a_leader_that_ends_in_mid_drain_is_followed_by_one_that_goes_on() {
    at_a_site(async |site| {
        let pods = Pods::bootstrap(site, MinorUpgrade::Drain).await;
        upgrade(site).await;
        // Once in each state of a drain: the successor meets the entry in that state.
        for status in [RebootStatus::Queued, RebootStatus::Draining, RebootStatus::Drained] {
            let patience = site.began.elapsed() + PATIENCE;
            while !stored_drains(site).await.iter().any(|entry| entry.status == status) {
                assert!(site.began.elapsed() < patience, "no node is {status}");
                site.pass(Duration::from_millis(50)).await;
            }
            site.kill_leader().await;
        }
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        assert_eq!(site.nodes.restarted_pods(), BTreeMap::new());
        assert_eq!(stored_drains(site).await, []);
        pods.check_end(site);
    });
}

#[test]
fn a_node_that_cannot_be_drained_is_given_up_and_named_with_the_pod() {
    at_a_site(async |site| {
        let pods = Pods::bootstrap(site, MinorUpgrade::Drain).await;
        pods.drains.forbid_evictions(true);
        let forbidden: BTreeSet<String> =
            NODES.map(address).into_iter().filter(|node| pods.drains.is_forbidden_on(node)).collect();
        assert!(!forbidden.is_empty());
        upgrade(site).await;
        site.pass(PATIENCE).await;
        let aborted = held(site, "drain-aborted");
        assert!(!aborted.is_empty(), "{:?}", stored_drains(site).await);
        for (node, why) in &aborted {
            assert!(why.contains(&format!("the pod {PROTECTED}/ledger")), "{node}: {why}");
            assert!(!pods.is_cordoned(node), "{node}");
            assert!(!upgraded(site).contains(node), "{node}");
        }
        pods.drains.forbid_evictions(false);
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        assert_eq!(site.nodes.restarted_pods(), BTreeMap::new());
        pods.check_end(site);
    });
}

#[test]
fn a_minor_upgrade_in_place_drains_no_node_and_restarts_pods() {
    at_a_site(async |site| {
        let pods = Pods::bootstrap(site, MinorUpgrade::InPlace).await;
        upgrade(site).await;
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        assert!(!site.nodes.restarted_pods().is_empty());
        let records = site.records.lock().unwrap().clone();
        assert!(records.iter().all(|it| it.record.operation != "reboot-drain-start"));
        pods.check_end(site);
    });
}

#[test]
fn no_kubelet_starts_newer_than_an_api_server_that_serves_on_a_node_without_a_known_state() {
    at_a_site(async |site| {
        kubernetes::bootstrap(site).await.unwrap();
        site.pass(OUTAGE).await;
        upgrade(site).await;
        let has_old = |site: &Site, number: usize| {
            let node = site.nodes.view_node(&address(number)).unwrap();
            let server = node.containers.get(Component::ApiServer.name());
            server.is_none_or(|server| server.image == "kubernetes:1")
        };
        // The engine of the last node hangs before the turn of its API server.
        let patience = site.began.elapsed() + PATIENCE;
        let last = loop {
            let old: Vec<usize> = CONTROL_PLANE.into_iter().filter(|number| has_old(site, *number)).collect();
            if let [last] = old[..] {
                break last;
            }
            assert!(site.began.elapsed() < patience, "the API servers of {old:?} are old");
            site.pass(Duration::from_millis(50)).await;
        };
        let place = NodePlace::Address(address(last));
        site.nodes.begin(&place, NodeFault::EngineHangs);
        site.nodes.end_container(&address(4), Component::Kubelet);
        site.pass(WAVE_TAKES).await;
        assert!(has_old(site, last));
        assert!(!upgraded(site).contains(&address(4)));
        let held = held(site, "api-servers-first");
        assert!(held.get(&address(4)).is_some_and(|why| why.contains(&address(last))), "{held:?}");
        site.nodes.end(&place, NodeFault::EngineHangs);
        site.settled(&CONTROL_PLANE).await.unwrap();
        site.pass(OUTAGE).await;
        assert_eq!(upgraded(site), NODES.map(address).into());
        assert!(!site.world.facts.has_findings(), "{:?}", site.world.facts.verdicts());
    });
}

#[test]
fn a_minor_upgrade_on_reboot_waits_for_each_node_to_boot() {
    at_a_site(async |site| {
        let pods = Pods::bootstrap(site, MinorUpgrade::OnReboot).await;
        upgrade(site).await;
        site.pass(WAVE_TAKES * 3).await;
        assert_eq!((upgraded(site), site.nodes.restarted_pods()), (BTreeSet::new(), BTreeMap::new()));
        assert_eq!(held(site, "next-boot").into_keys().collect::<BTreeSet<_>>(), NODES.map(address).into());
        // The other components are not kept waiting.
        let proxy = &site.nodes.view_node(&address(4)).unwrap().containers[Component::Proxy.name()];
        assert_eq!(proxy.image, "kubernetes:2");
        let place = NodePlace::Address(address(4));
        site.nodes.begin(&place, NodeFault::Kill);
        site.pass(INTERVAL).await;
        site.nodes.end(&place, NodeFault::Kill);
        site.pass(WAVE_TAKES).await;
        assert_eq!(upgraded(site), [address(4)].into());
        pods.check_end(site);
    });
}
