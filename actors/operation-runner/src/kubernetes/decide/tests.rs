use std::borrow::Cow;
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::images::ImageName;
use madako_domain::node_status::ContainerStatus;
use madako_domain::reboot::RebootStatus;
use madako_domain::repair::queue::Item;
use madako_domain::rollout::Rollout;
use madako_domain::skew::Versions;
use madako_json::go::RawJson;
use proptest::prelude::*;

use super::*;
use crate::kubernetes::configuration::{Configuration, Unknown};
use crate::kubernetes::minor_upgrade::nodes_with_wanted_minor;
use crate::kubernetes::options::KubernetesOptions;
use crate::kubernetes::params::builtin_parameters;
use crate::kubernetes::status::KubernetesNode;
use crate::kubernetes::versions::is_component_of;

mod renewal;
mod rotation;
mod waves;

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";
const C: &str = "10.0.0.3";
const D: &str = "10.0.0.4";
const OLD: &str = "old:1";
const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

/// A fleet in which everything runs as it should, and the rest of an input.
#[derive(Debug)]
struct Fleet {
    cluster: Cluster,
    options: KubernetesOptions,
    status: KubernetesStatus<'static>,
    is_etcd_in_sync: bool,
    busy: BTreeSet<String>,
    settling: BTreeSet<String>,
    ending: BTreeSet<(String, Component)>,
    backing_off: BTreeSet<String>,
    rollout: Rollout,
    rollout_fault: Option<&'static str>,
    minor_upgrade: MinorUpgrade,
    reboots: Items<RebootQueueEntry>,
    reboot_ends: BTreeMap<String, OffsetDateTime>,
}

impl Fleet {
    /// Sets the size of the next wave of kubelets and of proxies.
    fn set_wave(&mut self, nodes: usize) {
        let of_nodes = [Component::Kubelet, Component::Proxy];
        self.rollout.waves = of_nodes.map(|component| (component.name().to_owned(), nodes)).into();
    }

    fn new(control_plane: usize, workers: usize) -> Self {
        let node = |number: usize| Node {
            address: format!("10.0.0.{number}"),
            control_plane: number <= control_plane,
            ..Node::default()
        };
        let nodes = (1..=control_plane + workers).map(node).collect();
        let cluster = Cluster { name: "c".to_owned(), nodes, ..Cluster::default() };
        let options = r#"{"kubelet": {"boot_taints": [{"key": "a", "effect": "NoSchedule"}]}}"#;
        let options = KubernetesOptions::read(&RawJson::from_text(options.to_owned()).unwrap()).unwrap();
        let mut fleet = Self {
            cluster,
            options,
            status: KubernetesStatus::default(),
            is_etcd_in_sync: true,
            busy: BTreeSet::new(),
            settling: BTreeSet::new(),
            ending: BTreeSet::new(),
            backing_off: BTreeSet::new(),
            rollout: Rollout::new(ImageName::Kubernetes.default_image()),
            rollout_fault: None,
            minor_upgrade: MinorUpgrade::default(),
            reboots: Items::new(),
            reboot_ends: BTreeMap::new(),
        };
        let nodes = fleet.cluster.nodes.clone();
        fleet.status.registered = Some(nodes.iter().map(|node| node.name().to_owned()).collect());
        for node in nodes {
            let components =
                Component::ALL.into_iter().filter(|it| node.control_plane || !it.is_of_control_plane());
            let components = components.map(|it| (it, fleet.running(it, &node))).collect();
            fleet.status.nodes.insert(
                node.address,
                KubernetesNode { reachable: true, components, ..KubernetesNode::default() },
            );
        }
        fleet
    }

    fn running(&self, component: Component, node: &Node) -> ComponentStatus<'static> {
        let file = Configuration::build_wanted(component, &self.options, node, None, Unknown::Drop);
        ComponentStatus {
            container: Cow::Owned(ContainerStatus {
                running: true,
                image: ImageName::Kubernetes.default_image().to_owned(),
                builtin: builtin_parameters(component, &self.cluster, &self.options, node),
                ..ContainerStatus::default()
            }),
            file: Some(file.map(|file| Cow::Owned(file.to_yaml().unwrap()))),
            health: Some(Ok(())),
            leads: node.address == A && component.is_of_control_plane(),
            ..ComponentStatus::default()
        }
    }

    fn of(&mut self, address: &str, component: Component) -> &mut ComponentStatus<'static> {
        self.status.nodes.get_mut(address).unwrap().components.get_mut(&component).unwrap()
    }

    /// Gives a component another image than the wanted one, on all nodes.
    fn outdate(&mut self, component: Component) {
        for node in self.status.nodes.values_mut() {
            if let Some(state) = node.components.get_mut(&component) {
                OLD.clone_into(&mut state.container.to_mut().image);
            }
        }
    }

    fn input(&self) -> KubernetesInput<'_> {
        let image = ImageName::Kubernetes.default_image();
        KubernetesInput {
            now: NOW,
            wanted: Wanted { cluster: &self.cluster, options: &self.options, image },
            status: &self.status,
            is_etcd_in_sync: self.is_etcd_in_sync,
            busy: &self.busy,
            settling: &self.settling,
            ending: &self.ending,
            backing_off: &self.backing_off,
            max_concurrent_updates: 2,
            rollout: self.rollout_fault.map_or(Ok(Some(&self.rollout)), Err),
            minor_upgrade: self.minor_upgrade,
            reboots: &self.reboots,
            reboot_ends: &self.reboot_ends,
        }
    }

    fn decide(&self) -> KubernetesDecision {
        decide(&self.input())
    }

    /// Gives kubelets the old image, whose minor version is another one than that of the wanted image.
    fn outdate_minor(&mut self, kubelets: &[&str]) {
        for address in kubelets {
            OLD.clone_into(&mut self.of(address, Component::Kubelet).container.to_mut().image);
            let version = "1.29.0".parse().unwrap();
            self.status.versions.insert(Component::Kubelet, address, version);
        }
        self.status.wanted_version = Some("1.30.5".parse().unwrap());
    }

    fn reboot(&mut self, index: i64, node: &str, status: RebootStatus, abort_reason: &str) {
        let abort_reason = abort_reason.to_owned();
        let value = RebootQueueEntry { index, status, abort_reason, ..RebootQueueEntry::new(node) };
        self.reboots.insert(index, Arc::new(Item { value, created: 1, revision: 1 }));
    }

    /// `operation: targets` and `held operation reason: targets`.
    fn rows(&self) -> Vec<String> {
        let decision = self.decide();
        let due = decision.operations.iter().map(|due| format!("{}: {}", due.name, due.targets.join(" ")));
        let held = decision
            .held
            .iter()
            .map(|held| format!("held {} {}: {}", held.what, held.reason.name(), held.targets.join(" ")));
        due.chain(held).collect()
    }
}

#[test]
fn versions_that_the_policy_forbids_are_held_with_the_rule() {
    let mut fleet = Fleet::new(3, 1);
    for component in Component::ALL {
        fleet.outdate(component);
    }
    let mut versions = |servers: &str, others: &str| {
        let mut versions = Versions::default();
        for node in &fleet.cluster.nodes {
            for component in Component::ALL.into_iter().filter(|it| is_component_of(*it, node)) {
                let version = if component == Component::ApiServer { servers } else { others };
                versions.insert(component, &node.address, version.parse().unwrap());
            }
        }
        fleet.status.versions = versions;
        fleet.status.wanted_version = Some("1.31.0".parse().unwrap());
        fleet.rows()
    };
    let allowed = versions("1.30.5", "1.30.5");
    assert_eq!(allowed[0], "kube-apiserver-restart: 10.0.0.1", "{allowed:#?}");
    assert!(allowed.iter().all(|row| !row.contains("version-skew")), "{allowed:#?}");
    let first = "held kubelet-restart api-servers-first: 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4";
    assert!(allowed.iter().any(|row| row == first), "{allowed:#?}");
    let skipped = versions("1.29.5", "1.29.5");
    assert_eq!(skipped[0], "held kube-apiserver-restart version-skew: 10.0.0.1 10.0.0.2 10.0.0.3");
    assert!(skipped.iter().all(|row| row.starts_with("held")), "{skipped:#?}");
    let old = versions("1.30.5", "1.27.0");
    assert_eq!(old[0], "held kube-apiserver-restart version-skew: 10.0.0.1 10.0.0.2 10.0.0.3");
}

#[test]
fn kubelets_of_another_minor_version_wait_for_drained_nodes() {
    let mut fleet = Fleet::new(3, 1);
    fleet.outdate_minor(&[B, C, D]);
    OLD.clone_into(&mut fleet.of(A, Component::Kubelet).container.to_mut().image);
    fleet.status.versions.insert(Component::Kubelet, A, "1.30.1".parse().unwrap());
    let in_wave = |targets: &str| format!("kubelet-restart: {targets}");
    assert_eq!(
        fleet.rows(),
        [in_wave(A), "held kubelet-restart drained-first: 10.0.0.2 10.0.0.3 10.0.0.4".to_owned()],
        "a patch release needs no drain"
    );
    fleet.reboot(-1, B, RebootStatus::Drained, "");
    fleet.reboot(-2, C, RebootStatus::Queued, "the pod a/p cannot be evicted");
    fleet.reboot(-3, D, RebootStatus::Draining, "");
    fleet.set_wave(2);
    let held =
        ["held kubelet-restart drain-aborted: 10.0.0.3", "held kubelet-restart drained-first: 10.0.0.4"];
    assert_eq!(fleet.rows(), [&*in_wave("10.0.0.1 10.0.0.2"), held[0], held[1]]);
    fleet.rollout.paused = true;
    assert_eq!(fleet.rows(), ["held kubelet-restart roll-paused: 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"]);
}

#[test]
fn a_kubelet_without_a_node_object_needs_no_drain() {
    let mut fleet = Fleet::new(3, 1);
    fleet.outdate_minor(&[C, D]);
    fleet.status.registered.as_mut().unwrap().remove(D);
    let held = "held kubelet-restart drained-first: 10.0.0.3";
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.4", held]);
    fleet.minor_upgrade = MinorUpgrade::OnReboot;
    assert_eq!(fleet.rows()[0], "kubelet-restart: 10.0.0.4");
    fleet.status.registered = None;
    assert_eq!(fleet.rows(), ["held kubelet-restart next-boot: 10.0.0.3 10.0.0.4"], "no API server tells");
}

#[test]
fn the_setting_decides_on_kubelets_of_another_minor_version() {
    let mut fleet = Fleet::new(3, 1);
    fleet.outdate_minor(&[B, D]);
    fleet.set_wave(2);
    fleet.minor_upgrade = MinorUpgrade::InPlace;
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.2 10.0.0.4"]);
    fleet.minor_upgrade = MinorUpgrade::OnReboot;
    assert_eq!(fleet.rows(), ["held kubelet-restart next-boot: 10.0.0.2 10.0.0.4"]);
    fleet.reboot(0, B, RebootStatus::Rebooting, "");
    fleet.reboot(1, D, RebootStatus::Queued, "");
    let held = "held kubelet-restart next-boot: 10.0.0.4";
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.2", held]);
    fleet.minor_upgrade = MinorUpgrade::Drain;
    assert_eq!(fleet.rows(), ["kubelet-restart: 10.0.0.2", held], "its reboot brings the kubelet");
    // A kubelet that does not run starts with the wanted image, whatever the setting is.
    fleet.minor_upgrade = MinorUpgrade::OnReboot;
    fleet.of(D, Component::Kubelet).container.to_mut().running = false;
    assert_eq!(fleet.rows(), ["kubelet-bootstrap: 10.0.0.4", "kubelet-restart: 10.0.0.2"]);
}

#[test]
fn containers_may_restart_in_place_only_with_another_minor_version() {
    let mut fleet = Fleet::new(1, 2);
    fleet.status.wanted_version = Some("1.34.5".parse().unwrap());
    for (address, version) in [(A, "1.34.4"), (B, "1.33.9"), (C, "1.34.4")] {
        fleet.status.versions.insert(Component::Kubelet, address, version.parse().unwrap());
    }
    let none = BTreeSet::new();
    let same = nodes_with_wanted_minor(&fleet.cluster, &fleet.status, None, &none);
    assert_eq!(same, [A, C].map(str::to_owned).into());
    // After their restart, the kubelets of the wave have the wanted version, and their former versions still count.
    fleet.status.versions.insert(Component::Kubelet, B, "1.34.5".parse().unwrap());
    let watched = [A, B].map(|node| (node.to_owned(), "kubelet".to_owned())).into();
    assert_eq!(nodes_with_wanted_minor(&fleet.cluster, &fleet.status, Some(&watched), &same), same);
    assert_eq!(
        nodes_with_wanted_minor(&fleet.cluster, &fleet.status, Some(&watched), &none),
        [C.to_owned()].into(),
        "a new leader"
    );
    fleet.cluster.nodes.truncate(1);
    assert_eq!(nodes_with_wanted_minor(&fleet.cluster, &fleet.status, None, &same), [A.to_owned()].into());
}

#[test]
fn a_drain_of_an_earlier_leader_tells_of_another_minor_version() {
    let mut fleet = Fleet::new(1, 2);
    fleet.outdate_minor(&[B, C]);
    fleet.status.versions = Versions::default();
    fleet.reboot(-1, B, RebootStatus::Draining, "");
    let rows = ["kubelet-restart: 10.0.0.3", "held kubelet-restart drained-first: 10.0.0.2"];
    assert_eq!(fleet.rows(), rows, "the command asks for the version of the other one");
}

#[test]
fn nothing_is_due_on_a_fleet_that_is_as_wanted() {
    assert_eq!(Fleet::new(3, 2).rows(), [""; 0]);
}

#[test]
fn all_api_servers_start_together_if_none_runs() {
    let mut fleet = Fleet::new(3, 0);
    for address in [A, B, C] {
        fleet.status.nodes.get_mut(address).unwrap().components.clear();
    }
    fleet.status.registered = None;
    assert_eq!(
        fleet.rows(),
        [
            "kube-apiserver-restart: 10.0.0.1 10.0.0.2 10.0.0.3",
            "kube-proxy-bootstrap: 10.0.0.1 10.0.0.2",
            "held kube-controller-manager-bootstrap api-servers-unhealthy: 10.0.0.1 10.0.0.2 10.0.0.3",
            "held kube-scheduler-bootstrap api-servers-unhealthy: 10.0.0.1 10.0.0.2 10.0.0.3",
            "held kubelet-bootstrap api-servers-unhealthy: 10.0.0.1 10.0.0.2 10.0.0.3",
            "held kube-proxy-bootstrap wave: 10.0.0.3",
        ]
    );
    fleet.status.registered = Some(BTreeSet::new());
    assert!(fleet.rows().contains(&"kubelet-bootstrap: 10.0.0.1 10.0.0.2".to_owned()), "{:?}", fleet.rows());
}

#[test]
fn an_api_server_that_ended_for_a_reboot_starts_after_the_reboot() {
    let mut fleet = Fleet::new(3, 0);
    fleet.of(A, Component::ApiServer).container.to_mut().running = false;
    let [start, held] =
        [["kube-apiserver-restart: 10.0.0.1"], ["held kube-apiserver-restart reboots: 10.0.0.1"]];
    let mut rows_since = |status, seconds: i64, kubelet_runs, ended: Option<i64>| {
        let ago = |seconds| Some(NOW - time::Duration::seconds(seconds));
        fleet.reboot_ends = ended.and_then(ago).map(|end| (A.to_owned(), end)).into_iter().collect();
        let last_transition_time = ago(seconds);
        let entry = RebootQueueEntry { status, last_transition_time, ..RebootQueueEntry::new(A) };
        fleet.reboots.insert(0, Arc::new(Item { value: entry, created: 1, revision: 1 }));
        fleet.of(A, Component::Kubelet).container.to_mut().running = kubelet_runs;
        fleet.rows().into_iter().filter(|row| row.contains("apiserver")).collect::<Vec<_>>()
    };
    assert_eq!(rows_since(RebootStatus::Rebooting, 179, true, None), held);
    assert_eq!(rows_since(RebootStatus::Rebooting, 100, false, None), start, "the node went down");
    assert_eq!(rows_since(RebootStatus::Rebooting, 900, true, None), start, "it did not go down");
    assert_eq!(rows_since(RebootStatus::Rebooting, -1, true, None), start, "a time of another clock");
    assert_eq!(rows_since(RebootStatus::Draining, 100, true, None), start);
    assert_eq!(rows_since(RebootStatus::Rebooting, 100, true, Some(59)), held);
    assert_eq!(rows_since(RebootStatus::Rebooting, 100, true, Some(60)), start, "the command failed");
    assert_eq!(rows_since(RebootStatus::Rebooting, 100, true, Some(101)), held, "an earlier reboot");
}

#[test]
fn one_healthy_api_server_restarts_at_a_time() {
    let mut fleet = Fleet::new(3, 0);
    fleet.outdate(Component::ApiServer);
    let rows =
        ["kube-apiserver-restart: 10.0.0.1", "held kube-apiserver-restart one-by-one: 10.0.0.2 10.0.0.3"];
    assert_eq!(fleet.rows(), rows);
    let why = &fleet.decide().operations[0].why[A];
    assert!(matches!(&why[..], [Outdated::Image { has, .. }] if has == OLD), "{why:?}");
    assert!(!fleet.decide().operations[0].is_gap);

    fleet.of(C, Component::ApiServer).health = None;
    assert_eq!(
        fleet.rows(),
        ["held kube-apiserver-restart api-servers-unhealthy: 10.0.0.1 10.0.0.2 10.0.0.3"]
    );
    fleet.of(C, Component::ApiServer).health = Some(Ok(()));
    fleet.is_etcd_in_sync = false;
    assert_eq!(fleet.rows(), ["held kube-apiserver-restart etcd-not-in-sync: 10.0.0.1 10.0.0.2 10.0.0.3"]);
    fleet.is_etcd_in_sync = true;
    fleet.busy.insert(B.to_owned());
    assert_eq!(fleet.rows(), ["held kube-apiserver-restart control-plane-busy: 10.0.0.1 10.0.0.2 10.0.0.3"]);
    fleet.busy.clear();
    fleet.settling.insert(B.to_owned());
    assert_eq!(fleet.rows(), ["held kube-apiserver-restart api-servers-new: 10.0.0.1 10.0.0.2 10.0.0.3"]);
    fleet.settling = BTreeSet::from([A.to_owned()]);
    assert_eq!(fleet.rows(), rows, "the server itself need not serve for long");
}

#[test]
fn an_unhealthy_outdated_api_server_comes_first_and_waits_for_nothing() {
    let mut fleet = Fleet::new(3, 0);
    fleet.outdate(Component::ApiServer);
    fleet.of(B, Component::ApiServer).health = Some(Err("silence".to_owned()));
    (fleet.is_etcd_in_sync, fleet.busy) = (false, BTreeSet::from([C.to_owned()]));
    let rows =
        ["kube-apiserver-restart: 10.0.0.2", "held kube-apiserver-restart one-by-one: 10.0.0.1 10.0.0.3"];
    assert_eq!(fleet.rows(), rows);
}

/// Under the load of a fleet with one API server less, another one may miss a health check.
#[test]
fn an_argument_that_keeps_an_api_server_from_serving_reaches_no_other_one() {
    let mut fleet = Fleet::new(3, 0);
    fleet.outdate(Component::ApiServer);
    let image = ImageName::Kubernetes.default_image();
    image.clone_into(&mut fleet.of(A, Component::ApiServer).container.to_mut().image);
    for address in [A, B] {
        fleet.of(address, Component::ApiServer).health = Some(Err("silence".to_owned()));
    }
    let held = "held kube-apiserver-restart api-servers-unhealthy: 10.0.0.2 10.0.0.3";
    assert_eq!(fleet.rows(), [held]);
    fleet.of(A, Component::ApiServer).container.to_mut().running = false;
    assert_eq!(fleet.rows(), ["kube-apiserver-restart: 10.0.0.1", held]);
    fleet.backing_off.insert(A.to_owned());
    assert_eq!(fleet.rows(), ["held kube-apiserver-restart backing-off: 10.0.0.1", held]);
}

#[test]
fn the_gap_of_a_single_api_server_is_announced() {
    let mut fleet = Fleet::new(1, 1);
    fleet.outdate(Component::ApiServer);
    assert!(fleet.decide().operations[0].is_gap);
}

#[test]
fn controller_managers_and_schedulers_follow_the_api_servers_and_the_leading_one_is_last() {
    let mut fleet = Fleet::new(3, 0);
    fleet.outdate(Component::ControllerManager);
    fleet.outdate(Component::Scheduler);
    assert_eq!(
        fleet.rows(),
        [
            "kube-controller-manager-restart: 10.0.0.2",
            "held kube-controller-manager-restart one-by-one: 10.0.0.3 10.0.0.1",
            "held kube-scheduler-restart one-by-one: 10.0.0.2 10.0.0.3 10.0.0.1",
        ]
    );
    fleet.of(B, Component::ApiServer).health = Some(Err("silence".to_owned()));
    let rows = fleet.rows();
    assert_eq!(
        rows[0],
        "held kube-controller-manager-restart api-servers-unhealthy: 10.0.0.2 10.0.0.3 10.0.0.1"
    );
    fleet.of(B, Component::ApiServer).health = Some(Ok(()));
    fleet.of(C, Component::ControllerManager).health = Some(Err("silence".to_owned()));
    let rows = fleet.rows();
    assert_eq!(rows[0], "held kube-controller-manager-restart one-by-one: 10.0.0.2 10.0.0.3 10.0.0.1");
}

#[test]
fn a_disabled_proxy_stops_and_a_kubelet_with_another_runtime_is_held() {
    let mut fleet = Fleet::new(1, 1);
    fleet.options.is_proxy_disabled = true;
    fleet.options.cri_endpoint = "/other.sock".to_owned();
    fleet.outdate(Component::Kubelet);
    let rows = [
        "stop-kube-proxy: 10.0.0.1 10.0.0.2",
        "held kubelet-restart other-runtime: 10.0.0.1",
        "held kubelet-restart other-runtime: 10.0.0.2",
    ];
    assert_eq!(fleet.rows(), rows);
}

#[test]
fn nodes_that_do_not_answer_back_off_or_have_a_foreign_container_are_held() {
    let mut fleet = Fleet::new(1, 3);
    fleet.outdate(Component::Kubelet);
    fleet.status.nodes.get_mut(B).unwrap().reachable = false;
    fleet.of(C, Component::Kubelet).container.to_mut().foreign = true;
    fleet.backing_off.insert(A.to_owned());
    let rows = [
        "kubelet-restart: 10.0.0.4",
        "held kubelet-bootstrap unreachable: 10.0.0.2",
        "held kubelet-bootstrap foreign-container: 10.0.0.3",
        "held kubelet-restart backing-off: 10.0.0.1",
        "held kube-proxy-bootstrap unreachable: 10.0.0.2",
    ];
    assert_eq!(fleet.rows(), rows);
}

#[test]
fn a_component_that_ends_after_each_start_waits_alone() {
    let mut fleet = Fleet::new(1, 2);
    fleet.of(A, Component::Scheduler).container.to_mut().running = false;
    fleet.of(B, Component::Proxy).container.to_mut().running = false;
    fleet.outdate(Component::Kubelet);
    fleet.ending.insert((A.to_owned(), Component::Scheduler));
    let rows = [
        "kubelet-restart: 10.0.0.1",
        "kube-proxy-bootstrap: 10.0.0.2",
        "held kube-scheduler-bootstrap ends-after-start: 10.0.0.1",
        "held kubelet-restart wave: 10.0.0.2 10.0.0.3",
    ];
    assert_eq!(fleet.rows(), rows);
    // A kubelet of other arguments that runs has not ended.
    fleet.ending = BTreeSet::from([(A.to_owned(), Component::Kubelet)]);
    assert!(fleet.rows().contains(&"kubelet-restart: 10.0.0.1".to_owned()), "{:?}", fleet.rows());
}

#[test]
fn an_api_server_that_failed_after_its_start_halts_the_others_until_its_next_start_or_a_resume() {
    let mut fleet = Fleet::new(3, 0);
    fleet.outdate(Component::ApiServer);
    let image = ImageName::Kubernetes.default_image();
    image.clone_into(&mut fleet.of(A, Component::ApiServer).container.to_mut().image);
    fleet.rollout.failed_servers.insert(A.to_owned(), "silence".to_owned());
    assert_eq!(fleet.rows(), ["held kube-apiserver-restart api-servers-failed: 10.0.0.2 10.0.0.3"]);
    // A corrected argument reaches the failed one first.
    OLD.clone_into(&mut fleet.of(A, Component::ApiServer).container.to_mut().image);
    assert_eq!(fleet.rows()[0], "kube-apiserver-restart: 10.0.0.1");
    fleet.rollout.resume();
    assert_eq!(fleet.rows()[0], "kube-apiserver-restart: 10.0.0.1");
}

/// Random states of a fleet of three control plane nodes and two workers.
fn fleets() -> impl Strategy<Value = Fleet> {
    let component = (0..5_u8, any::<bool>(), prop::option::weighted(0.8, any::<bool>()), any::<bool>());
    let nodes = prop::collection::vec((0..8_u8, prop::collection::vec(component, 5)), 5);
    (nodes, any::<bool>(), any::<bool>(), 1..4_usize).prop_map(|(nodes, in_sync, busy, wave)| {
        let mut fleet = Fleet::new(3, 2);
        fleet.is_etcd_in_sync = in_sync;
        fleet.set_wave(wave);
        if busy {
            fleet.busy.insert(B.to_owned());
        }
        for ((absence, components), node) in nodes.into_iter().zip(fleet.cluster.nodes.clone()) {
            let state = fleet.status.nodes.get_mut(&node.address).unwrap();
            state.reachable = absence != 0;
            if absence == 1 {
                fleet.backing_off.insert(node.address.clone());
            }
            for (component, (change, leads, healthy, registered)) in
                Component::ALL.into_iter().zip(components)
            {
                let Some(it) = state.components.get_mut(&component) else { continue };
                it.leads = leads;
                it.health = healthy.map(|up| if up { Ok(()) } else { Err("silence".to_owned()) });
                match change {
                    0 => OLD.clone_into(&mut it.container.to_mut().image),
                    1 => it.container.to_mut().extra.args.push("--v=2".to_owned()),
                    2 => it.container.to_mut().running = false,
                    _ => {}
                }
                if !registered && component == Component::Kubelet {
                    fleet.status.registered.as_mut().unwrap().remove(node.name());
                }
            }
        }
        fleet
    })
}

proptest! {
    #[test]
    fn a_healthy_api_server_is_taken_away_only_while_all_others_serve(fleet in fleets()) {
        let healthy = |address: &str| {
            let node = &fleet.status.nodes[address];
            node.reachable && node.components[&Component::ApiServer].is_healthy()
        };
        let decision = fleet.decide();
        let taken: Vec<&String> = decision
            .operations
            .iter()
            .filter(|due| due.name == Name::KubeApiserverRestart)
            .flat_map(|due| &due.targets)
            .filter(|address| healthy(address))
            .collect();
        prop_assert!(taken.len() <= 1);
        if let [address] = taken[..] {
            let others = [A, B, C].into_iter().filter(|other| other != address);
            prop_assert!(others.into_iter().all(healthy) && fleet.is_etcd_in_sync && fleet.busy.is_empty());
        }
    }

    #[test]
    fn no_component_gets_an_image_that_a_running_api_server_lacks(fleet in fleets()) {
        let older = [A, B, C].iter().any(|address| {
            let container = &fleet.status.nodes[*address].components[&Component::ApiServer].container;
            container.running && container.image == OLD
        });
        let on_nodes = |due: &&Due| matches!(due.name.component(), Component::Kubelet | Component::Proxy);
        let decision = fleet.decide();
        prop_assert!(!older || !decision.operations.iter().any(|due| on_nodes(&due)), "{decision:?}");
    }

    #[test]
    fn each_component_that_is_due_is_in_one_operation_or_held(fleet in fleets()) {
        let decision = fleet.decide();
        for node in &fleet.cluster.nodes {
            let state = &fleet.status.nodes[&node.address];
            for (component, it) in &state.components {
                let wanted = Wanted {
                    cluster: &fleet.cluster, options: &fleet.options, image: ImageName::Kubernetes.default_image(),
                };
                let is_due = state.reachable
                    && (!it.runs() || wanted.compare_running_container(*component, node, &it.container, it.file()) != ComponentComparison::Current);
                let rows = decision.operations.iter().map(|due| (due.name, &due.targets));
                let rows = rows.chain(decision.held.iter().map(|held| (held.what, &held.targets)));
                let shown = rows
                    .filter(|(name, targets)| name.component() == *component && targets.contains(&node.address))
                    .count();
                prop_assert!(shown <= 1 && (!is_due || shown == 1), "{component} on {}: {decision:?}", node.address);
            }
        }
        for due in &decision.operations {
            for address in &due.targets {
prop_assert!(fleet.status.nodes[address].reachable && !fleet.backing_off.contains(address), "{due:?}");
            }
        }
    }
}
