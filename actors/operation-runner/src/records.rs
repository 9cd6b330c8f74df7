//! The records of operations in etcd: each change of a record as one transaction.

pub(crate) mod restoring;
mod rotating;

use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::record::{self, Record};
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::state::ClusterState;
use madako_domain::store::Condition;
use time::OffsetDateTime;

use crate::command::Command;
use crate::operation::{Operation, OperationName};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) why: String,
    /// Another attempt fails, too.
    pub(crate) is_final: bool,
}

/// A command of an operation that a record announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnnouncedStep {
    pub(crate) record: i64,
    pub(crate) operation: Arc<Operation>,
    pub(crate) index: usize,
}

impl AnnouncedStep {
    pub(crate) fn command(&self) -> &Command {
        &self.operation.commands[self.index]
    }

    /// The next command of the operation.
    fn next(&self) -> Option<Self> {
        let index = self.index + 1;
        (index < self.operation.commands.len()).then(|| Self { index, ..self.clone() })
    }

    fn command_record(&self) -> record::Command {
        let command = self.command();
        record::Command {
            name: command.name().to_owned(),
            target: command.target(),
            ..record::Command::default()
        }
    }

    pub(crate) fn is_announced_by(&self, record: &Record) -> bool {
        record.is_unfinished()
            && record.operation == self.operation.name.name()
            && record.command.name == self.command().name()
            && record.command.target == self.command().target()
    }
}

/// Registers an operation and announces its first command. `None`: the counter of records is unreadable, or another
/// record is unfinished.
pub(crate) fn begin(
    state: &ClusterState,
    operation: &Arc<Operation>,
    now: OffsetDateTime,
) -> Option<(RepairChange, AnnouncedStep)> {
    let records = &state.repair.records;
    if !records.unfinished.is_empty() {
        return None;
    }
    let (id, _) = records.next?;
    let step = AnnouncedStep { record: id, operation: Arc::clone(operation), index: 0 };
    let mut record = Record::new(id, operation.name.name(), operation.targets.clone(), now);
    record.start(step.command_record());
    // The operation was decided on this cluster.
    let conditions =
        state.repair.require_unchanged_records().into_iter().chain([state.require_unchanged(keys::CLUSTER)]);
    let mut writes = vec![RepairWrite::Record(record)];
    if matches!(operation.name, OperationName::EtcdStart | OperationName::EtcdRestart) {
        let requested = operation.targets.iter().filter(|target| state.restarts.contains_key(*target));
        writes.extend(requested.map(|address| RepairWrite::RestartTaken { address: address.clone() }));
    }
    Some((RepairChange { what: "operation-begin", conditions: conditions.collect(), writes }, step))
}

/// Records the end of a command: announces the next one, or ends the operation. `failed` is the failure of the command.
/// `None`: the record has ended already.
pub(crate) fn end(
    state: &ClusterState,
    step: &AnnouncedStep,
    failed: Option<&Failed>,
    now: OffsetDateTime,
) -> Option<(RepairChange, Option<AnnouncedStep>)> {
    let replaced = restoring::replaced_restore_failure(state, step);
    let failed = failed.or(replaced.as_ref());
    let error = failed.map(|failed| failed.why.as_str());
    let item = state.repair.records.unfinished.get(&step.record)?;
    let mut record = item.value.clone();
    let next = step.next().filter(|_| error.is_none());
    let what = match (&next, error) {
        (Some(next), _) => {
            record.start(next.command_record());
            "operation-command"
        }
        (None, None) => {
            record.complete(now);
            "operation-complete"
        }
        (None, Some(error)) => {
            record.cancel(now, error);
            "operation-cancel"
        }
    };
    let mut writes = vec![RepairWrite::Record(record)];
    if error.is_none() && matches!(step.command(), Command::UpgradeVersion { .. }) {
        writes.push(RepairWrite::ConfigVersion);
    }
    let mut conditions =
        vec![Condition::Unchanged { key: keys::record(step.record), revision: item.revision }];
    let restore = match failed {
        Some(failed) => restoring::refused_restore_writes(state, step, failed),
        None => restoring::successful_restore_writes(state, step, next.as_ref(), now),
    };
    let rotation = error.is_none().then(|| rotating::rotation_after(state, step, next.is_none())).flatten();
    if let Some(rotation) = rotation {
        conditions.push(state.require_unchanged(keys::ENCRYPTION_ROTATION));
        writes.push(RepairWrite::EncryptionRotation(rotation));
    }
    if !restore.is_empty() {
        conditions.extend([keys::ETCD_RESTORE, keys::ETCD_RESTORED].map(|key| state.require_unchanged(key)));
        writes.extend(restore);
    }
    Some((RepairChange { what, conditions, writes }, next))
}

/// Cancels an unfinished record of an operation on nodes that this actor does not run: its predecessor in the same
/// reign began it. `runs` is the own record.
pub(crate) fn disown_interrupted_record(
    state: &ClusterState,
    runs: Option<i64>,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let (id, item) =
        state.repair.records.unfinished.iter().filter(|_| !is_planted(Canary::OrphanKept)).find(
            |(id, item)| {
                Some(**id) != runs && OperationName::from_record_name(&item.value.operation).is_some()
            },
        )?;
    let mut record = item.value.clone();
    record.cancel(now, "outcome unknown: the actor that ran it is gone");
    let unchanged = Condition::Unchanged { key: keys::record(*id), revision: item.revision };
    Some(RepairChange {
        what: "operation-disown",
        conditions: vec![unchanged],
        writes: vec![RepairWrite::Record(record)],
    })
}

/// Deletes a request of a restart that is too old, or whose node has left the control plane.
pub(crate) fn forget_restart(
    state: &ClusterState,
    cluster: &Cluster,
    now: OffsetDateTime,
) -> Option<RepairChange> {
    let is_member = |address: &str| cluster.control_plane().any(|node| node.address == address);
    let mut requests = state.restarts.iter();
    let (address, _) = requests.find(|(address, request)| !request.is_valid(now) || !is_member(address))?;
    Some(RepairChange {
        what: "restart-forget",
        conditions: vec![state.require_unchanged(&keys::etcd_restart(address))],
        writes: vec![RepairWrite::RestartTaken { address: address.clone() }],
    })
}
