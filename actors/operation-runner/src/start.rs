//! The rows `etcd-start` and `etcd-wait` of CKE's table of operations: members with data are started, and etcd becomes
//! healthy.

use madako_domain::canary::{Canary, is_planted};
use madako_domain::containers::Container;
use madako_domain::status::OperationPhase;

use crate::certificates;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::operation::{self, Operation, OperationName};
use crate::view::{NodeView, OperationNeed, View};

/// Starts the members that are down. A member without data never starts: etcd would form a cluster of its own.
pub(crate) fn start_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let name = OperationName::EtcdStart;
    let down = view.control_plane_nodes().filter(|node| {
        !node.status.runs(Container::Etcd) && is_added(view, node) && !view.is_stale(node.address)
    });
    let needs = [OperationNeed::Name(Container::Etcd), OperationNeed::Volume];
    let targets = view.select_usable_nodes(name, &needs, down, held);
    if targets.is_empty() {
        return None;
    }
    if let Some(reason) = view.older_image() {
        held.push(Held { what: name, reason, targets });
        return None;
    }
    Some((OperationPhase::EtcdStart, vec![operation::start(targets)]))
}

/// True if the node has the data of a member, as far as is known.
///
/// A mark shows it, and so does a healthy etcd that lists the member with a name. A member without a name never started,
/// so its volume must be known to have content. Without an answer of etcd, a stopped container with the node's own
/// parameters shows it as well: it is made after the member was added.
fn is_added(view: &View<'_>, node: &NodeView<'_>) -> bool {
    let is_volume_enough = node.status.etcd_data && is_planted(Canary::EmptyVolumeStarted);
    let has_data = is_volume_enough
        || node.status.has_data()
        || (node.status.etcd_other_volume && node.status.etcd_mark);
    if !has_data {
        return false;
    }
    if view.is_healthy() || view.is_member(node.address) {
        let mut own = view.members.iter().filter(|member| member.address == node.address);
        let has_content = node.status.etcd_empty == Some(false);
        return own.any(|member| !member.member.name.is_empty() || has_content || is_volume_enough);
    }
    node.status.etcd_mark || was_started(node)
}

fn was_started(node: &NodeView<'_>) -> bool {
    let name = format!("--name={}", node.address);
    node.status.own_container(Container::Etcd).is_some_and(|container| container.builtin.args.contains(&name))
}

/// Waits until etcd is healthy, and renews certificates meanwhile: members do not reach each other with certificates that
/// have ended. Nothing is removed meanwhile: without a majority, no member can be given up.
pub(crate) fn wait_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    if view.is_healthy() || view.control_plane.is_empty() {
        return None;
    }
    let renewal = certificates::renewal_row(view, held);
    if let (Some((_, due)), Some(why)) = (&renewal, view.input.authorities) {
        let reason = BlockedBy::Authorities { why: why.to_owned() };
        let hold =
            |it: &Operation| Held { what: it.name, reason: reason.clone(), targets: it.targets.clone() };
        held.extend(due.iter().map(hold));
    } else if renewal.is_some() {
        return renewal;
    }
    if let (Some(why), None) = (view.input.authorities, &view.input.status.etcd) {
        // Without a certificate, no client can ask etcd for its health.
        let wait = view.command_maker().wait_cluster();
        held.push(Held {
            what: wait.name,
            reason: BlockedBy::Authorities { why: why.to_owned() },
            targets: wait.targets,
        });
        return Some((OperationPhase::EtcdWait, Vec::new()));
    }
    let is_down = |address: &str| {
        view.node(address).is_none_or(|node| !node.status.reachable || !node.status.runs(Container::Etcd))
    };
    let known = if view.members.is_empty() { view.control_plane.clone() } else { view.out_of_sync() };
    let down: Vec<String> = known.iter().filter(|address| is_down(address)).cloned().collect();
    let lost = if down.is_empty() { known } else { down };
    if !lost.is_empty() {
        let violation = "etcd does not answer: a majority of its voting members must run".to_owned();
        let reason = BlockedBy::Quorum { violation, needed: lost.clone() };
        held.push(Held { what: OperationName::EtcdRemoveMember, reason, targets: lost });
    }
    Some((OperationPhase::EtcdWait, vec![view.command_maker().wait_cluster()]))
}
