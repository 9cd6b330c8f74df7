//! The invariants (table in `docs/ARCHITECTURE.md`) as pure predicates over plain data.
//!
//! Unit tests, property tests, the simulation and the leader call these functions. This module has I1 to
//! I13, I15, I17 and I18, [`skew`](crate::skew) has I14, and a drain has I16. Each predicate returns all violations.

mod api;
mod boot;
mod cordon;
mod disruption;
mod placement;
mod quorum;
pub mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use madako_json::named;
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use crate::cluster::Cluster;
use crate::constraints::Constraints;
use crate::repair::queue::RepairQueue;

pub use self::api::api_available;
pub use self::boot::check_boot_taints;
pub use self::cordon::{check_cordon, cordoned_nodes};
pub use self::disruption::{check_drain, check_wave};
pub use self::placement::{
    BindingCheck, BindingEvidence, PlacementChange, check_allowed_bindings, evidence_conditions,
};
pub use self::quorum::{MemberLoss, check_quorum, quorum_of_plan, quorum_of_repair};

/// The id of an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr, VariantArray)]
pub enum Id {
    /// One writer: every write comes from the leader of its revision.
    I1,
    /// Quorum: the members in sync stay a majority of the voting members.
    I2,
    /// Control plane size: as many control plane nodes as the constraint asks for.
    I3,
    /// Workers: the number of workers keeps its minimum and maximum.
    I4,
    /// Few changes: less than half of the control plane is replaced at once.
    I5,
    /// Honest nodes: each node is a machine of the observation.
    I6,
    /// One repair a machine: no machine has two repairs in processing.
    I7,
    /// One API server: at most one control plane node is drained, rebooting or under repair.
    I8,
    /// Nothing lost: the store's history has every acknowledged write.
    I9,
    /// Records: at most one is unfinished, at most 1,000 are kept.
    I10,
    /// Placed where allowed: an application's cluster meets its constraints.
    I11,
    /// Calm: a write changes the stored value.
    I12,
    /// API available: a healthy API server is taken away only while every other configured one is healthy.
    I13,
    /// Version skew: no start of a component makes versions that the policy of Kubernetes forbids.
    I14,
    /// Disruption limit: a wave of a roll begins only after a good one, and a drain for a reboot or an upgrade only while few nodes
    /// are unreachable.
    I15,
    /// Drained: a reboot command meets a node that this system cordoned and that holds only pods that may stay.
    I16,
    /// Owned cordons: each cordon of this system belongs to a repair, a reboot or the upgrade of a kubelet.
    I17,
    /// Boot taints first: no kubelet starts on a registered node without them.
    I18,
}

named!(Id all);

/// A finding of an invariant's check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Id of the broken invariant.
    pub invariant: Id,
    /// The finding, and the required state.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant.name(), self.what)
    }
}

/// A cluster before its commit, with the data that the invariants compare it with.
#[derive(Debug, Clone, Copy)]
pub struct ClusterChange<'a> {
    /// The committed cluster; `None` at initialization.
    pub before: Option<&'a Cluster>,
    /// The cluster to commit.
    pub after: &'a Cluster,
    /// The constraints of the plan.
    pub constraints: &'a Constraints,
    /// Addresses of the machines in the plan's observation.
    pub observed: &'a BTreeSet<String>,
    /// True if the plan's template differs from that of `before`.
    pub template_changed: bool,
    /// The repairs and reboots at the time of the commit.
    pub repairs: &'a RepairQueue,
}

/// All invariants of a cluster before its commit: I3, I4, I5, I6, I8, I12.
#[must_use]
pub fn check_cluster_change(change: &ClusterChange<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(control_plane_size(change));
    violations.extend(check_workers(change));
    violations.extend(check_few_replacements(change));
    violations.extend(honest_nodes(change));
    violations.extend(repair::check_api_servers_of_cluster(change.before, change.after, change.repairs));
    violations.extend(check_change(change));
    violations
}

/// I3: at least `control-plane-count` control plane nodes, and more only if there were more before.
#[must_use]
pub fn control_plane_size(change: &ClusterChange<'_>) -> Option<Violation> {
    let wanted = change.constraints.control_plane_count as usize;
    let after = change.after.control_plane().count();
    let before = change.before.map_or(0, |cluster| cluster.control_plane().count());
    let allowed = wanted.max(before);
    (after < wanted || after > allowed).then(|| Violation {
        invariant: Id::I3,
        what: format!(
            "the plan leaves {after} control plane nodes; there were {before} and {wanted} are wanted"
        ),
    })
}

/// I4: at least `minimum-workers` workers, and no increase beyond `maximum-workers` when that is not 0.
#[must_use]
pub fn check_workers(change: &ClusterChange<'_>) -> Option<Violation> {
    let after = change.after.workers().count();
    let before = change.before.map_or(0, |cluster| cluster.workers().count());
    let minimum = change.constraints.minimum_workers as usize;
    let maximum = change.constraints.maximum_workers as usize;
    if after < minimum {
        return Some(Violation {
            invariant: Id::I4,
            what: format!("the plan leaves {after} workers; at least {minimum} must be left"),
        });
    }
    (maximum != 0 && after > maximum && after > before).then(|| Violation {
        invariant: Id::I4,
        what: format!("the plan raises the workers from {before} to {after}; the maximum is {maximum}"),
    })
}

/// I5: less than half of the control plane is replaced at once.
#[must_use]
pub fn check_few_replacements(change: &ClusterChange<'_>) -> Option<Violation> {
    let before: BTreeSet<&str> = collect_addresses(change.before?.control_plane());
    let after: BTreeSet<&str> = collect_addresses(change.after.control_plane());
    let left = before.difference(&after).count();
    let entered = after.difference(&before).count();
    let replaced = left.min(entered);
    (replaced > 0 && replaced * 2 >= before.len()).then(|| Violation {
        invariant: Id::I5,
        what: format!("the plan replaces {replaced} of {} control plane nodes at once", before.len()),
    })
}

/// I6: each node is a machine of the plan's observation.
#[must_use]
pub fn honest_nodes(change: &ClusterChange<'_>) -> Vec<Violation> {
    change
        .after
        .nodes
        .iter()
        .filter(|node| !change.observed.contains(&node.address))
        .map(|node| Violation {
            invariant: Id::I6,
            what: format!("the node {} is not a machine of the observation", node.address),
        })
        .collect()
}

/// I12 of a cluster: a write changes the stored cluster, unless the template changed.
#[must_use]
pub fn check_change(change: &ClusterChange<'_>) -> Option<Violation> {
    (!change.template_changed && change.before == Some(change.after)).then(|| Violation {
        invariant: Id::I12,
        what: "the plan writes the cluster without a change".to_owned(),
    })
}

/// A write of the service in the store's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenKey {
    /// Revision of the write.
    pub revision: i64,
    /// Create revision of the leader key of the writer's epoch.
    pub epoch: i64,
}

/// The lifetime of a leader key in the store's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochLifetime {
    /// Create revision of the leader key.
    pub epoch: i64,
    /// Revision of its deletion; `None` if it exists.
    pub ended: Option<i64>,
}

/// I1: the writer of each revision held the oldest leader key of that revision.
#[must_use]
pub fn check_one_writer(writes: &[WrittenKey], terms: &[EpochLifetime]) -> Vec<Violation> {
    writes
        .iter()
        .filter_map(|write| {
            let leader = terms
                .iter()
                .filter(|term| {
                    term.epoch < write.revision && term.ended.is_none_or(|end| end >= write.revision)
                })
                .map(|term| term.epoch)
                .min();
            (leader != Some(write.epoch)).then(|| Violation {
                invariant: Id::I1,
                what: format!(
                    "epoch {} wrote revision {} while {}",
                    write.epoch,
                    write.revision,
                    leader.map_or_else(|| "no epoch led".to_owned(), |epoch| format!("epoch {epoch} led")),
                ),
            })
        })
        .collect()
}

/// I9: the store's history has every acknowledged write at its acknowledged revision.
///
/// `acknowledged` and `history` map a revision to the keys written in it.
#[must_use]
pub fn check_no_lost_writes(
    acknowledged: &BTreeMap<i64, BTreeSet<String>>,
    history: &BTreeMap<i64, BTreeSet<String>>,
) -> Vec<Violation> {
    let none = BTreeSet::new();
    acknowledged
        .iter()
        .flat_map(|(revision, keys)| {
            let kept = history.get(revision).unwrap_or(&none);
            keys.difference(kept).map(move |key| Violation {
                invariant: Id::I9,
                what: format!("{key} was acknowledged at revision {revision} and is missing"),
            })
        })
        .collect()
}

fn collect_addresses<'a>(nodes: impl Iterator<Item = &'a crate::cluster::Node>) -> BTreeSet<&'a str> {
    nodes.map(|node| node.address.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Node;

    fn cluster(control_plane: &[&str], workers: &[&str]) -> Cluster {
        let node = |address: &&str, control_plane| Node {
            address: (*address).to_owned(),
            control_plane,
            ..Node::default()
        };
        Cluster {
            nodes: control_plane
                .iter()
                .map(|address| node(address, true))
                .chain(workers.iter().map(|address| node(address, false)))
                .collect(),
            ..Cluster::default()
        }
    }

    /// The violations of a valid change after `spoil` modified it.
    fn judged(
        before: Option<&Cluster>,
        after: &Cluster,
        spoil: impl FnOnce(&mut Constraints, &mut BTreeSet<String>),
    ) -> Vec<Id> {
        let mut constraints = Constraints {
            control_plane_count: 3,
            minimum_workers: 2,
            maximum_workers: 3,
            ..Constraints::default()
        };
        let mut observed: BTreeSet<String> = ('a'..='z').map(String::from).collect();
        spoil(&mut constraints, &mut observed);
        check_cluster_change(&ClusterChange {
            before,
            after,
            constraints: &constraints,
            observed: &observed,
            template_changed: false,
            repairs: &RepairQueue::default(),
        })
        .into_iter()
        .map(|violation| violation.invariant)
        .collect()
    }

    #[test]
    fn a_valid_change_has_no_violation_and_each_spoiled_one_has_its_own() {
        let before = cluster(&["a", "b", "c"], &["d", "e"]);
        let after = cluster(&["a", "b", "f"], &["c", "d", "e"]);
        assert_eq!(judged(Some(&before), &after, |_, _| {}), []);
        assert_eq!(judged(Some(&before), &after, |c, _| c.control_plane_count = 4), [Id::I3]);
        assert_eq!(judged(None, &after, |c, _| c.control_plane_count = 2), [Id::I3]);
        assert_eq!(judged(Some(&before), &after, |c, _| c.minimum_workers = 4), [Id::I4]);
        assert_eq!(judged(Some(&before), &after, |c, _| c.maximum_workers = 2), [Id::I4]);
        assert_eq!(
            judged(Some(&before), &after, |_, observed| {
                observed.remove("f");
            }),
            [Id::I6]
        );
        let two_replaced = cluster(&["a", "f", "g"], &["d", "e"]);
        assert_eq!(judged(Some(&before), &two_replaced, |_, _| {}), [Id::I5]);
        assert_eq!(judged(Some(&before), &before, |_, _| {}), [Id::I12]);
    }

    #[test]
    fn the_only_control_plane_node_is_never_replaced() {
        let before = cluster(&["a"], &["d", "e"]);
        let after = cluster(&["b"], &["d", "e"]);
        assert_eq!(judged(Some(&before), &after, |c, _| c.control_plane_count = 1), [Id::I5]);
    }

    #[test]
    fn the_first_control_plane_node_replaces_no_node() {
        let before = cluster(&[], &["d", "e"]);
        let after = cluster(&["a"], &["d", "e"]);
        assert_eq!(judged(Some(&before), &after, |c, _| c.control_plane_count = 1), []);
    }

    #[test]
    fn lowering_the_control_plane_replaces_no_node() {
        let before = cluster(&["a", "b", "c", "f", "g"], &["d", "e"]);
        let after = cluster(&["a", "b", "c"], &["d", "e", "f"]);
        assert_eq!(judged(Some(&before), &after, |_, _| {}), []);
    }

    #[test]
    fn a_write_belongs_to_the_oldest_leader_key_of_its_revision() {
        let terms = [EpochLifetime { epoch: 2, ended: Some(9) }, EpochLifetime { epoch: 5, ended: None }];
        let write = |revision, epoch| WrittenKey { revision, epoch };
        assert_eq!(check_one_writer(&[write(3, 2), write(8, 2), write(10, 5)], &terms), []);
        assert_eq!(check_one_writer(&[write(7, 5)], &terms).len(), 1);
        assert_eq!(check_one_writer(&[write(12, 2)], &terms).len(), 1);
        assert_eq!(check_one_writer(&[write(1, 2)], &terms).len(), 1);
    }

    #[test]
    fn an_acknowledged_key_that_is_missing_is_lost() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<_>>();
        let history = BTreeMap::from([(4, keys(&["cluster", "cluster-revision"]))]);
        assert_eq!(check_no_lost_writes(&BTreeMap::from([(4, keys(&["cluster"]))]), &history), []);
        assert_eq!(check_no_lost_writes(&BTreeMap::from([(5, keys(&["cluster"]))]), &history).len(), 1);
        assert_eq!(check_no_lost_writes(&BTreeMap::from([(4, keys(&["status"]))]), &history).len(), 1);
    }
}
