//! Restores of etcd from a snapshot (`madako etcd restore`), and members that are older than the last restore.
//!
//! A restore begins only if no majority of the members answers. It makes a cluster of one member; the maintenance adds the
//! other members anew, one after another, which removes their former data. Until its data are replaced or removed, a node is
//! *stale*: its member is stopped wherever it runs, never started, and never asked. Otherwise the former members could form
//! a majority of their own.
//!
//! A restore that has begun goes on until etcd answers with the restored member, whatever the former members do meanwhile.
//! It stops no restored member: the node of the restore is stale only until its data are replaced.

use madako_domain::canary::{Canary, is_planted};
use madako_domain::containers::Container;
use madako_domain::node_status::EtcdStatus;
use madako_domain::status::OperationPhase;

use crate::command::Command;
use crate::decide::{Decision, Row};
use crate::held::{BlockedBy, Held};
use crate::input::{Input, RequestedRestore};
use crate::operation::{Operation, OperationName, single_command_operation};
use crate::view::{NodeView, OperationNeed, View};

const NAME: OperationName = OperationName::EtcdRestore;
/// The reason against a restore while etcd lives.
pub(crate) const LIVING_MAJORITY: &str =
    "a majority of the members of etcd answers, and a restore would lose their data";

/// Stops the members of before the last restore. Their votes do not count any more, so invariant I2 does not judge it.
pub(crate) fn stop_stale_members(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let name = OperationName::StopEtcd;
    let running =
        view.nodes.iter().filter(|node| view.is_stale(node.address) && node.status.runs(Container::Etcd));
    let targets = view.select_usable_nodes(name, &[], running, held);
    let stop = Operation {
        is_requested: true,
        ..single_command_operation(name, targets, Command::KillContainers(Container::Etcd))
    };
    (!stop.targets.is_empty()).then_some((OperationPhase::StopControlPlane, vec![stop]))
}

/// Carries out the operator's request. Before the restore has begun, an obstacle lets the next rows count. Afterwards it
/// does not: they would start or form another cluster.
pub(crate) fn restore_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let restore = view.input.restore?;
    let waits = || restore.is_under_way.then_some((OperationPhase::EtcdWait, Vec::new()));
    let is_replaced = restore.is_under_way && !view.is_stale(&restore.request.address);
    if is_replaced && is_done(view.input.status.etcd.as_ref(), &restore.request.address) {
        return None;
    }
    let refused = restore.request.refused.clone();
    let refused = refused.or_else(|| reason_to_refuse(view, &restore));
    if let Some(why) = refused {
        let targets = vec![restore.request.address.clone()];
        held.push(Held { what: NAME, reason: BlockedBy::RestoreRefused { why }, targets });
        return waits();
    }
    let node = view.node(&restore.request.address);
    let needs = [OperationNeed::Name(Container::Etcd), OperationNeed::Volume];
    let Some(target) = view.select_usable_nodes(NAME, &needs, node, held).into_iter().next() else {
        return waits();
    };
    let operation = if is_replaced {
        view.command_maker().start_restored(target)
    } else {
        let stopped =
            view.control_plane_nodes().filter(|node| is_to_stop(node)).map(|node| node.address.to_owned());
        view.command_maker().restore(target, stopped.collect(), &restore)
    };
    let phase = if restore.is_under_way { OperationPhase::EtcdWait } else { OperationPhase::EtcdMaintain };
    Some((phase, vec![operation]))
}

/// The restore of the input alone, whatever else is due: its operation, or the reason why it does not begin.
#[must_use]
pub fn plan_restore(input: &Input<'_>) -> Decision {
    let view = View::new(input);
    let mut held = Vec::new();
    let (phase, operations) =
        restore_row(&view, &mut held).unwrap_or((OperationPhase::Completed, Vec::new()));
    Decision { phase, operations, held }
}

fn is_to_stop(node: &NodeView<'_>) -> bool {
    node.is_ready() && node.status.own_container(Container::Etcd).is_some()
}

/// True if etcd answers with the restored member alone: others are added only after the restore.
pub(crate) fn is_done(etcd: Option<&EtcdStatus>, address: &str) -> bool {
    etcd.is_some_and(|etcd| etcd.healthy && etcd.members.iter().all(|member| member.address() == address))
}

/// The reason to refuse the request. The former members count only before the restore has begun.
fn reason_to_refuse(view: &View<'_>, restore: &RequestedRestore<'_>) -> Option<String> {
    if view.is_healthy() && !restore.is_under_way && !is_planted(Canary::RestoreBesideMajority) {
        return Some(LIVING_MAJORITY.to_owned());
    }
    let address = &restore.request.address;
    let is_member = view.node(address).is_some_and(|node| node.control_plane);
    (!is_member).then(|| format!("{address} is not a control plane node"))
}
