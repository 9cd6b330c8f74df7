//! The drains that the runner requests before kubelets get another minor version.

use std::collections::BTreeSet;
use std::sync::Arc;

use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::change::RepairWrite;
use madako_domain::repair::queue::Item;
use madako_domain::rollout::Rollout;
use madako_domain::state::ClusterState;
use madako_domain::store::Condition;

use super::fleet::{A, Fleet, NOW, X, Y, Z};
use super::kubernetes::running;
use crate::KubernetesMode;
use crate::held::{BlockedBy, Held};
use crate::kubernetes::held::KubernetesBlockedBy;
use crate::kubernetes::minor_upgrade::{MinorUpgrade, emptied_nodes, request_drains};
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::plan::{DRAIN, Durations, plan};
use crate::operation::OperationName;

/// A fleet whose kubelets on the given nodes have another minor version than the wanted one, and the entries of the queue.
struct World {
    fleet: Fleet,
    state: ClusterState,
    rollout: Option<Rollout>,
}

const OLD: &str = "k:1.29";

impl World {
    fn new(outdated: &[&str]) -> Self {
        let mut fleet = running();
        let wanted = fleet.settings.images.kubernetes.clone();
        let versions = &mut fleet.status.kubernetes.as_mut().unwrap().image_versions;
        versions.insert(wanted, "1.30.5".parse().unwrap());
        versions.insert(OLD.to_owned(), "1.29.0".parse().unwrap());
        for address in outdated {
            fleet.status.nodes.get_mut(*address).unwrap().containers.get_mut("kubelet").unwrap().image =
                OLD.to_owned();
        }
        Self { fleet, state: ClusterState::default(), rollout: None }
    }

    fn entry(&mut self, index: i64, node: &str, status: RebootStatus) {
        let value = RebootQueueEntry { index, status, ..RebootQueueEntry::new(node) };
        self.insert(value);
    }

    fn insert(&mut self, value: RebootQueueEntry) {
        let queue = Arc::make_mut(&mut self.state.repair);
        queue.reboots.insert(value.index, Arc::new(Item { value, created: 1, revision: 9 }));
    }

    /// Index and node of each added entry, and index alone of each removed one.
    fn changes(&self) -> Vec<String> {
        let mut input = self.fleet.input();
        if let Some(part) = &mut input.kubernetes {
            part.reboots = &self.state.repair.reboots;
            part.rollout = Ok(self.rollout.as_ref());
        }
        let decision = crate::decide(&input);
        let Some(change) = request_drains(&input, &decision.held, &self.state) else { return Vec::new() };
        assert_eq!(change.conditions.len(), change.writes.len());
        assert!(change.conditions.iter().all(|it| matches!(it, Condition::Unchanged { .. })));
        let describe = |write: &RepairWrite| match write {
            RepairWrite::Reboot(entry) => format!("{} {} {}", entry.index, entry.node, entry.status),
            RepairWrite::RebootRemoved { index } => format!("{index} removed"),
            other => panic!("{other:?}"),
        };
        change.writes.iter().map(describe).collect()
    }
}

#[test]
fn a_drain_is_requested_for_each_node_that_needs_one() {
    let mut world = World::new(&[X, Y, Z]);
    world.fleet.settings.max_concurrent_updates = 2;
    assert_eq!(world.changes(), ["-1 10.0.0.21 queued", "-2 10.0.0.22 queued"]);
    world.entry(-1, X, RebootStatus::Draining);
    world.entry(-2, Y, RebootStatus::Queued);
    assert_eq!(world.changes(), [""; 0], "two at a time");
    // A drain that backs off does not keep others from their turn.
    let mut aborted = world.state.repair.reboots[&-2].value.clone();
    aborted.drain_backoff_expire = Some(NOW + time::Duration::seconds(1));
    world.insert(aborted);
    assert_eq!(world.changes(), ["-3 10.0.0.23 queued"]);
    world.fleet.settings.minor_upgrade = MinorUpgrade::InPlace;
    assert_eq!(world.changes(), ["-2 removed", "-1 removed"]);
}

#[test]
fn no_drain_is_requested_where_none_is_needed() {
    assert_eq!(World::new(&[]).changes(), [""; 0]);
    for mode in [MinorUpgrade::InPlace, MinorUpgrade::OnReboot] {
        let mut world = World::new(&[X]);
        world.fleet.settings.minor_upgrade = mode;
        assert_eq!(world.changes(), [""; 0], "{mode:?}");
    }
    let mut rebooted = World::new(&[X]);
    rebooted.entry(3, X, RebootStatus::Queued);
    assert_eq!(rebooted.changes(), [""; 0], "its reboot brings the kubelet");
    rebooted.entry(-1, X, RebootStatus::Queued);
    assert_eq!(rebooted.changes(), ["-1 removed"]);
    let mut observed = World::new(&[X]);
    observed.fleet.settings.kubernetes = KubernetesMode::Observe;
    assert_eq!(observed.changes(), [""; 0]);
}

#[test]
fn a_node_is_released_when_its_kubelet_is_good_at_the_new_version() {
    let mut world = World::new(&[X]);
    world.entry(-1, X, RebootStatus::Drained);
    assert_eq!(world.changes(), [""; 0], "its kubelet is to be updated");
    let mut updated = World::new(&[]);
    updated.entry(-1, X, RebootStatus::Drained);
    let mut rollout = Rollout::new(&updated.fleet.settings.images.kubernetes);
    rollout.begin_wave("kubelet", &[X.to_owned()]);
    updated.rollout = Some(rollout.clone());
    assert_eq!(updated.changes(), [""; 0], "its wave is watched");
    rollout.watched.clear();
    rollout.failed.insert(X.to_owned(), "the node is not Ready".to_owned());
    updated.rollout = Some(rollout.clone());
    assert_eq!(updated.changes(), [""; 0], "it is not Ready");
    rollout.failed.clear();
    updated.rollout = Some(rollout.clone());
    assert_eq!(updated.changes(), ["-1 removed"]);
    updated.fleet.status.nodes.get_mut(X).unwrap().reachable = false;
    assert_eq!(updated.changes(), [""; 0], "nothing is known of it");
}

#[test]
fn drains_end_with_a_pause_and_do_not_stand_in_the_way_of_an_api_server() {
    let mut world = World::new(&[A, X]);
    world.entry(-1, A, RebootStatus::Drained);
    world.entry(-2, X, RebootStatus::Draining);
    let paused = Rollout { paused: true, ..Rollout::new(&world.fleet.settings.images.kubernetes) };
    world.rollout = Some(paused);
    assert_eq!(world.changes(), ["-2 removed", "-1 removed"]);
    let restart = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
    let reason = BlockedBy::Kubernetes(KubernetesBlockedBy::ControlPlaneBusy { nodes: vec![A.to_owned()] });
    let held = [Held { what: restart, reason, targets: vec![A.to_owned()] }];
    let change = request_drains(&world.fleet.input(), &held, &world.state).unwrap();
    assert_eq!(change.writes, [RepairWrite::RebootRemoved { index: -1 }]);
}

#[test]
fn kubelets_change_their_minor_version_on_drained_nodes_alone() {
    let mut world = World::new(&[]);
    world.entry(-1, X, RebootStatus::Drained);
    world.entry(2, Y, RebootStatus::Rebooting);
    world.entry(-3, Z, RebootStatus::Draining);
    let cluster = &world.fleet.cluster;
    let mut names: BTreeSet<String> = cluster.nodes.iter().map(|node| node.name().to_owned()).collect();
    let emptied = |mode, names: Option<&BTreeSet<String>>| {
        emptied_nodes(mode, &world.state.repair.reboots, cluster, names)
    };
    assert_eq!(emptied(MinorUpgrade::InPlace, None), None);
    for names in [None, Some(&names)] {
        assert_eq!(emptied(MinorUpgrade::Drain, names), Some([X, Y].map(str::to_owned).into()));
    }
    let lost = cluster.nodes.iter().find(|node| node.address == Z).unwrap();
    names.remove(lost.name());
    let expected = Some([X, Y, Z].map(str::to_owned).into());
    assert_eq!(emptied(MinorUpgrade::Drain, Some(&names)), expected, "it has no Node object");
}

/// A wave is watched after its kubelet has restarted, while the entry of the drained node remains.
#[test]
fn a_plan_goes_on_with_drains_beside_a_node_whose_kubelet_is_updated() {
    let mut world = World::new(&[Y, Z]);
    for (index, node) in [(-1, X), (-2, Y)] {
        world.entry(index, node, RebootStatus::Drained);
    }
    let mut input = world.fleet.input();
    if let Some(part) = &mut input.kubernetes {
        part.reboots = &world.state.repair.reboots;
    }
    let planned = plan(&input, world.fleet.kubernetes.as_ref().unwrap(), &Durations::new());
    let steps: Vec<_> = planned.steps.iter().map(|step| (step.operation, step.nodes.join(" "))).collect();
    let restart = "kubelet-restart";
    assert_eq!(steps, [(restart, Y.to_owned()), (DRAIN, Z.to_owned()), (restart, Z.to_owned())]);
    assert!(planned.held.iter().all(|held| !held.remains), "{:?}", planned.held);
}
