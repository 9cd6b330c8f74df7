//! Changes of a restore of etcd that come with the records of operations: its request, and the nodes with older data.

use std::collections::BTreeSet;

use madako_domain::keys;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::restore::{RestoreRequest, Restored};
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use super::{AnnouncedStep, Failed};
use crate::command::{Command, Volume};
use crate::decide::Decision;
use crate::held::BlockedBy;
use crate::operation::OperationName;

/// The request that the operation carries out. An operator may have replaced it meanwhile. An operation without a snapshot
/// starts the member of the restore that has begun.
fn pending_request<'s>(state: &'s ClusterState, step: &AnnouncedStep) -> Option<&'s RestoreRequest> {
    let staged = step.operation.commands.iter().find_map(|command| match command {
        Command::StageSnapshot { id, .. } => Some(id),
        _ => None,
    });
    let is_its = |request: &&RestoreRequest| match staged {
        Some(id) => *id == request.id(),
        None => step.operation.name == OperationName::EtcdRestore && state.is_restoring(),
    };
    state.restore.as_ref().filter(is_its)
}

/// The end of a restore whose request an operator has replaced or deleted: it begins no other command.
pub(super) fn replaced_restore_failure(state: &ClusterState, step: &AnnouncedStep) -> Option<Failed> {
    let is_restore = step.operation.name == OperationName::EtcdRestore;
    (is_restore && pending_request(state, step).is_none()).then(|| Failed {
        why: "the request of the restore is another one, or gone".to_owned(),
        is_final: false,
    })
}

/// The writes with the end of a command. `next` is the next command of the operation.
pub(super) fn successful_restore_writes(
    state: &ClusterState,
    step: &AnnouncedStep,
    next: Option<&AnnouncedStep>,
    now: OffsetDateTime,
) -> Vec<RepairWrite> {
    if let Some(request) = pending_request(state, step) {
        let begins = next.is_some_and(|next| matches!(next.command(), Command::StopEtcdMembers { .. }));
        if begins && !state.is_restoring() {
            return vec![RepairWrite::Restored(restore_begun_write(state, request, now))];
        }
        if next.is_none() {
            return vec![RepairWrite::Restore(None)];
        }
    }
    without_data(state, step).into_iter().collect()
}

/// The restore begins: all control plane nodes may have data of before it, the restored one until its data are replaced.
fn restore_begun_write(state: &ClusterState, request: &RestoreRequest, now: OffsetDateTime) -> Restored {
    let cluster = state.cluster.iter().flat_map(|cluster| cluster.value.control_plane());
    let before = state.restored.iter().flat_map(|restored| &restored.stale);
    let stale: BTreeSet<String> = cluster.map(|node| &node.address).chain(before).cloned().collect();
    Restored {
        address: request.address.clone(),
        path: request.path.clone(),
        requested_at: request.requested_at,
        began_at: now,
        stale,
    }
}

/// After the removal or the replacement of their data, nodes have none of before the restore.
fn without_data(state: &ClusterState, step: &AnnouncedStep) -> Option<RepairWrite> {
    let is_without =
        matches!(step.command(), Command::VolumeRemove(Volume::Data(_)) | Command::UseSnapshot { .. });
    if !is_without {
        return None;
    }
    let mut restored = Restored::clone(state.restored.as_ref()?);
    let before = restored.stale.len();
    restored.stale.retain(|address| !step.operation.targets.contains(address));
    (restored.stale.len() < before).then_some(RepairWrite::Restored(restored))
}

/// Notes a failure for good, so that no other attempt follows. A restore that has begun goes on, except without a usable
/// snapshot.
pub(super) fn refused_restore_writes(
    state: &ClusterState,
    step: &AnnouncedStep,
    failed: &Failed,
) -> Vec<RepairWrite> {
    let is_of_snapshot = matches!(step.command(), Command::StageSnapshot { .. });
    let request = pending_request(state, step).filter(|_| failed.is_final);
    let request = request.filter(|_| is_of_snapshot || !state.is_restoring());
    let refused =
        request.map(|request| RestoreRequest { refused: Some(failed.why.clone()), ..request.clone() });
    refused.map(|request| RepairWrite::Restore(Some(request))).into_iter().collect()
}

/// Notes in the request that the decision refuses it: etcd that is silent for a moment later must not be replaced then.
pub(crate) fn refuse_request(state: &ClusterState, decision: &Decision) -> Option<RepairChange> {
    let request = state.restore.as_ref().filter(|request| request.refused.is_none())?;
    let refused = decision.held.iter().find_map(|held| match &held.reason {
        BlockedBy::RestoreRefused { why } if held.what == OperationName::EtcdRestore => Some(why.clone()),
        _ => None,
    })?;
    let refused = RestoreRequest { refused: Some(refused), ..request.clone() };
    (!state.is_restoring()).then(|| restore_change(state, "restore-refuse", Some(refused)))
}

/// Deletes a request that did not begin in time, or whose restore is done.
pub(crate) fn forget_old_request(
    state: &ClusterState,
    is_done: bool,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let request = state.restore.as_ref()?;
    let is_over = if state.is_restoring() { is_done } else { !request.is_valid(now) };
    is_over.then(|| restore_change(state, "restore-forget", None))
}

fn restore_change(state: &ClusterState, what: &'static str, request: Option<RestoreRequest>) -> RepairChange {
    RepairChange {
        what,
        conditions: vec![state.require_unchanged(keys::ETCD_RESTORE)],
        writes: vec![RepairWrite::Restore(request)],
    }
}
