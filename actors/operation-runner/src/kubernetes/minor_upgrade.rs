//! Kubelets that get another minor version, which may restart all containers of their nodes: where that is not wanted, their
//! nodes are drained first, by entries of the reboot queue's kind that CKE does not see.
//!
//! The runner requests a drain, and removes the entry when the kubelet is updated or the drain is not wanted any more. The
//! reboot queue drains by its own rules, gives up drains, and tells by [`RebootStatus::Drained`] that a node is empty. The
//! repair queue uncordons the nodes without an entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::whole_second;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::repair::queue::{Item, Items};
use madako_domain::rollout::Rollout;
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use super::decide::KubernetesInput;
use super::held::KubernetesBlockedBy;
use super::operation::KubernetesOperationName;
use super::outdated::Wanted;
use super::row;
use super::status::{ComponentStatus, KubernetesStatus};
use crate::held::{BlockedBy, Held};
use crate::input::{Input, KubernetesMode};
use crate::operation::OperationName;

/// The treatment of kubelets that get another minor version (`kubernetes.minor_upgrade`).
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantNames
)]
#[strum(serialize_all = "kebab-case")]
pub enum MinorUpgrade {
    /// Their nodes are drained first.
    #[default]
    Drain,
    /// They restart as with any other image.
    InPlace,
    /// They get the version when their nodes boot.
    OnReboot,
}

/// Addresses of the nodes on which a kubelet may get another minor version at once: the node is drained, for an upgrade or
/// for a reboot that has begun, or it has no Node object and thus no pods. `registered` are the names of the Node objects, as
/// far as they are known. `None`: all nodes.
#[must_use]
pub(crate) fn emptied_nodes(
    mode: MinorUpgrade,
    reboots: &Items<RebootQueueEntry>,
    cluster: &Cluster,
    registered: Option<&BTreeSet<String>>,
) -> Option<BTreeSet<String>> {
    let emptied = || {
        let away = reboots.values().map(|item| &item.value).filter(|entry| is_emptied(entry));
        let away = away.map(|entry| entry.node.clone());
        let lost = cluster.nodes.iter().filter(|node| is_lost(node, registered));
        away.chain(lost.map(|node| node.address.clone())).collect()
    };
    (mode != MinorUpgrade::InPlace).then(emptied)
}

/// True if the Node object of a node does not exist.
fn is_lost(node: &Node, registered: Option<&BTreeSet<String>>) -> bool {
    registered.is_some_and(|registered| !registered.contains(node.name()))
}

/// Addresses of the nodes whose kubelets have the wanted minor version, or had it before the present wave (`watched`) restarted
/// them: a wave of other arguments, or of a patch release, restarts no container there. `before`: the last answer. After a
/// change of the leader, the nodes of a wave are not known, so that restarts of their containers count as accepted.
pub(crate) fn nodes_with_wanted_minor(
    cluster: &Cluster,
    status: &KubernetesStatus<'_>,
    watched: Option<&BTreeMap<String, String>>,
    before: &BTreeSet<String>,
) -> BTreeSet<String> {
    let has_wanted = |address: &String| {
        if watched.is_some_and(|watched| watched.contains_key(address)) {
            return before.contains(address);
        }
        let running = status.versions.version_on(Component::Kubelet, address);
        let versions = running.zip(status.wanted_version.as_ref());
        versions.is_some_and(|(running, wanted)| running.is_same_minor(wanted))
    };
    cluster.nodes.iter().map(|node| &node.address).filter(|address| has_wanted(address)).cloned().collect()
}

/// The reason for which a kubelet does not get another minor version now. `None`: its node is drained, or needs no drain.
pub(crate) fn obstacle(input: &KubernetesInput<'_>, node: &Node) -> Option<KubernetesBlockedBy> {
    if is_lost(node, input.status.registered.as_ref()) {
        return None;
    }
    let address = node.address.as_str();
    let mut of_node = input.reboots.values().map(|item| &item.value).filter(|entry| entry.node == address);
    match input.minor_upgrade {
        MinorUpgrade::InPlace => None,
        _ if of_node.clone().any(is_emptied) => None,
        MinorUpgrade::OnReboot => Some(KubernetesBlockedBy::NextBoot),
        // One drain brings both, if the reboot comes first.
        MinorUpgrade::Drain if of_node.clone().any(is_requested_reboot) => {
            Some(KubernetesBlockedBy::NextBoot)
        }
        MinorUpgrade::Drain => {
            let entry = of_node.find(|entry| entry.status == RebootStatus::Queued);
            let aborted = entry.filter(|entry| !entry.abort_reason.is_empty());
            Some(match aborted {
                Some(entry) => KubernetesBlockedBy::DrainAborted {
                    why: entry.abort_reason.clone(),
                    until: entry.drain_backoff_expire,
                },
                None => KubernetesBlockedBy::DrainedFirst,
            })
        }
    }
}

/// True if the node of an entry has been drained.
fn is_emptied(entry: &RebootQueueEntry) -> bool {
    matches!(entry.status, RebootStatus::Drained | RebootStatus::Rebooting)
}

/// True if a client requested a reboot of the node.
fn is_requested_reboot(entry: &RebootQueueEntry) -> bool {
    !entry.is_upgrade() && entry.status != RebootStatus::Cancelled
}

/// The change of the requested drains after a decision, which held these operations; `None`: all are as they should be.
pub(crate) fn request_drains(input: &Input<'_>, held: &[Held], state: &ClusterState) -> Option<RepairChange> {
    let part = input.kubernetes.filter(|_| input.settings.kubernetes == KubernetesMode::Act)?;
    let options = part.options.ok()?;
    let waiting = nodes_to_drain(held);
    let reboots = &state.repair.reboots;
    let requested = || reboots.range(..0).map(|(index, item)| (*index, item));
    if waiting.is_empty() && requested().next().is_none() {
        return None;
    }
    let rollout = part.rollout.ok().flatten();
    let wanted = row::wanted(input, options);
    // Failures of another image do not count.
    let is_halted = |rollout: &Rollout| rollout.halted && rollout.image == wanted.image;
    let request = Requests {
        wanted,
        status: row::status(input),
        rollout,
        reboots,
        unwanted: nodes_to_release(held),
        is_withdrawn: input.settings.minor_upgrade != MinorUpgrade::Drain
            || rollout.is_some_and(|rollout| rollout.paused || is_halted(rollout)),
    };
    let mut writes: Vec<(i64, RepairWrite)> = requested()
        .filter(|(_, item)| request.is_over(&item.value))
        .map(|(index, _)| (index, RepairWrite::RebootRemoved { index }))
        .collect();
    let tries = |(_, item): &(i64, &Arc<Item<RebootQueueEntry>>)| {
        item.value.drain_backoff_expire.is_none_or(|until| until <= input.now)
    };
    // Drains that back off do not keep others from their turn.
    let free = input.settings.max_concurrent_updates.saturating_sub(requested().filter(tries).count());
    let known: BTreeSet<&str> = requested().map(|(_, item)| item.value.node.as_str()).collect();
    let new = waiting.into_iter().filter(|node| !known.contains(node)).take(free);
    let indexes = (1..).map(|number: i64| -number).filter(|index| !reboots.contains_key(index));
    writes.extend(indexes.zip(new).map(|(index, node)| (index, new_drain(index, node, input.now))));
    if writes.is_empty() {
        return None;
    }
    let conditions = writes.iter().map(|(index, _)| state.repair.require_unchanged_reboot(*index)).collect();
    let writes = writes.into_iter().map(|(_, write)| write).collect();
    Some(RepairChange { what: "upgrade-drains", conditions, writes })
}

fn new_drain(index: i64, node: &str, now: OffsetDateTime) -> RepairWrite {
    RepairWrite::Reboot(RebootQueueEntry {
        index,
        last_transition_time: Some(whole_second(now)),
        ..RebootQueueEntry::new(node)
    })
}

/// Addresses of the nodes that a decision wants to be drained.
fn nodes_to_drain(held: &[Held]) -> BTreeSet<&str> {
    let drained = |held: &&Held| {
        let BlockedBy::Kubernetes(reason) = &held.reason else { return false };
        matches!(reason, KubernetesBlockedBy::DrainedFirst | KubernetesBlockedBy::DrainAborted { .. })
    };
    held.iter().filter(drained).flat_map(|held| &held.targets).map(String::as_str).collect()
}

/// Addresses of drained control plane nodes that the restart of an API server waits for: kubelets come after it, so that each
/// would wait for the other.
fn nodes_to_release(held: &[Held]) -> BTreeSet<&str> {
    let restart = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
    let busy = held.iter().filter(|held| held.what == restart).filter_map(|held| match &held.reason {
        BlockedBy::Kubernetes(KubernetesBlockedBy::ControlPlaneBusy { nodes }) => Some(nodes),
        _ => None,
    });
    busy.flatten().map(String::as_str).collect()
}

/// The inputs of decisions on requested drains.
struct Requests<'a> {
    wanted: Wanted<'a>,
    status: KubernetesStatus<'a>,
    rollout: Option<&'a Rollout>,
    reboots: &'a Items<RebootQueueEntry>,
    /// Addresses of nodes whose drain keeps another operation waiting.
    unwanted: BTreeSet<&'a str>,
    /// No drain is wanted.
    is_withdrawn: bool,
}

impl Requests<'_> {
    /// True if the drain is not needed any more. The reboot queue removes the entry of a node that left the cluster. Nothing is
    /// known of an unreachable node: its drain ends by the rules of the reboot queue.
    fn is_over(&self, entry: &RebootQueueEntry) -> bool {
        let address = entry.node.as_str();
        if self.is_withdrawn || self.unwanted.contains(address) {
            return true;
        }
        let is_queued = entry.status == RebootStatus::Queued;
        let mut of_node = self.reboots.values().map(|item| &item.value).filter(|it| it.node == address);
        if is_queued && of_node.any(is_requested_reboot) {
            return true;
        }
        let rollout = self.rollout.filter(|rollout| rollout.image == self.wanted.image);
        let is_in = |nodes: &BTreeMap<String, String>| nodes.contains_key(address);
        // A node that is not Ready after the update stays cordoned until the reboot queue gives it up.
        if rollout.is_some_and(|it| is_in(&it.watched) || (is_in(&it.failed) && !is_queued)) {
            return false;
        }
        let on_node = self.status.nodes.get(address).filter(|on_node| on_node.reachable);
        let kubelet = on_node.and_then(|on_node| on_node.components.get(&Component::Kubelet));
        kubelet.filter(|kubelet| ComponentStatus::runs(kubelet)).is_some_and(|kubelet| {
            let versions = self.status.versions.version_on(Component::Kubelet, address);
            let versions = versions.zip(self.status.wanted_version.as_ref());
            kubelet.container.image == self.wanted.image
                || versions.is_some_and(|(running, wanted)| running.is_same_minor(wanted))
        })
    }
}
