//! Turns mutations into transactions of conditions and writes. Pure.

use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::choices::{Choices, choices_after};
use madako_domain::cluster::Cluster;
use madako_domain::invariants::{ClusterChange, Violation, check_cluster_change};
use madako_domain::keys;
use madako_domain::plan::{Action, Change, Plan, Reason};
use madako_domain::record::Record;
use madako_domain::repair::queue::RepairQueue;
use madako_domain::settings::Settings;
use madako_domain::status::{OperationPhase, ServerStatus};
use madako_domain::store::{Condition, Entry, Epoch, Snapshot, Transaction, Write};
use madako_json::go::stored_json;
use madako_protocol::actors::{ClusterMutation, CommitError, Evidence};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub use crate::limits::{MOST_CHANGES_KEPT, MOST_REASONS_KEPT};

/// The kept summary of the last committed plan (`madako/decisions/cluster-plan`).
#[derive(Debug, Serialize)]
pub struct LastPlan<'a> {
    /// Time of the commit, RFC 3339.
    pub at: String,
    pub epoch: i64,
    pub action: Option<Action>,
    pub changes_total: usize,
    /// The first [`MOST_CHANGES_KEPT`](crate::limits::MOST_CHANGES_KEPT).
    pub changes: &'a [Change],
    pub reasons_total: usize,
    /// The first [`MOST_REASONS_KEPT`](crate::limits::MOST_REASONS_KEPT).
    pub reasons: &'a [Reason],
}

/// The stored values that the transaction of a planned cluster depends on, as the leader last saw them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeenValues<'a> {
    /// The present lease of the status.
    pub(crate) status_lease: Option<i64>,
    /// The choices of the nodes.
    pub(crate) choices: Option<&'a Entry>,
}

/// Checks the invariants and builds the transaction of a planned cluster; `repairs` is the newest observed queue.
///
/// If the lease of the status is not the epoch's lease, the status is written together with the cluster.
pub(crate) fn cluster_transaction(
    epoch: &Epoch,
    mutation: &ClusterMutation,
    repairs: &RepairQueue,
    present: SeenValues<'_>,
    now: OffsetDateTime,
) -> Result<Transaction, CommitError> {
    let ClusterMutation { plan, template_revision, basis, evidence } = mutation;
    let cluster = plan.cluster.as_ref().ok_or(CommitError::NoCluster)?;
    let violations = check_cluster(cluster, evidence, repairs);
    if !violations.is_empty() {
        return Err(CommitError::Invariant { violations });
    }
    let mut conditions = vec![epoch.fencing_condition()];
    conditions.extend(basis.iter().filter(|_| !is_planted(Canary::BasisNotCompared)).cloned());
    // A repair that begins registers a record: none began since the check of the queue.
    if grows_control_plane(evidence.before.as_deref(), cluster) {
        conditions.extend(repairs.require_unchanged_records());
    }
    // The form that CKE stores. A section that CKE's types cannot hold (for example a duplicated field) stays as it
    // was read.
    let stored = match stored_json(cluster) {
        Ok(json) => Write::Put { key: keys::CLUSTER.to_owned(), value: json.into(), lease: 0 },
        Err(_) => put_json(keys::CLUSTER, cluster, 0)?,
    };
    let revision = template_revision.to_string().into();
    let mut writes = vec![
        stored,
        Write::Put { key: keys::CLUSTER_REVISION.to_owned(), value: revision, lease: 0 },
        put_json(keys::LAST_PLAN, &last_plan(plan, epoch, now)?, 0)?,
    ];
    // Choices that cannot be read explain nothing, and new ones take their place.
    let known: Option<Choices> = present.choices.and_then(|entry| serde_json::from_slice(&entry.value).ok());
    let choices = choices_after(known.clone().unwrap_or_default(), plan, cluster, now);
    if known.as_ref() != Some(&choices) {
        writes.push(put_json(keys::CHOICES, &choices, 0)?);
    }
    if present.status_lease != Some(epoch.lease) {
        // The operation runner, if there is one, replaces the phase after its next pass.
        writes.push(status_write(epoch, &OperationPhase::Completed, now)?);
    }
    Ok(Transaction { conditions, writes })
}

/// Writes or deletes one of Madako's own keys, which was read at a revision (0: it was missing).
pub(crate) fn kept_transaction<T: Serialize>(
    epoch: &Epoch,
    key: &str,
    value: Option<&T>,
    revision: i64,
) -> Result<Transaction, CommitError> {
    let unchanged = Condition::Unchanged { key: key.to_owned(), revision };
    let write = match value {
        Some(value) => put_json(key, value, 0)?,
        None => Write::Delete { key: key.to_owned() },
    };
    Ok(Transaction { conditions: vec![epoch.fencing_condition(), unchanged], writes: vec![write] })
}

pub(crate) fn settings_transaction(epoch: &Epoch, settings: &Settings) -> Result<Transaction, CommitError> {
    Ok(Transaction {
        conditions: vec![epoch.fencing_condition()],
        writes: vec![put_json(keys::SETTINGS, settings, 0)?],
    })
}

/// Writes the phase of an epoch.
pub(crate) fn status_transaction(
    epoch: &Epoch,
    phase: &OperationPhase,
    now: OffsetDateTime,
) -> Result<Transaction, CommitError> {
    Ok(Transaction {
        conditions: vec![epoch.fencing_condition()],
        writes: vec![status_write(epoch, phase, now)?],
    })
}

/// Writes the URL of the leader's pages, on its lease.
pub(crate) fn url_transaction(epoch: &Epoch, url: &str) -> Transaction {
    let write =
        Write::Put { key: keys::LEADER_URL.to_owned(), value: url.to_owned().into(), lease: epoch.lease };
    Transaction { conditions: vec![epoch.fencing_condition()], writes: vec![write] }
}

/// Info of an orphaned record: the outcome is unknown, and the operation is not repeated.
const OUTCOME_UNKNOWN: &str = "outcome unknown: the leader that ran it is gone";

/// Action of a new leader on an unfinished record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnfinishedRecord {
    None,
    /// The record cannot be read and is left alone.
    Unreadable {
        key: String,
        why: String,
    },
    Cancel {
        id: i64,
        transaction: Transaction,
    },
}

/// Finds an unfinished record (the design: a new leader first marks it `cancelled`). It need not be the newest: short
/// actions are recorded while a command runs.
pub(crate) fn find_unfinished_record(
    records: &Snapshot,
    epoch: &Epoch,
    now: OffsetDateTime,
) -> Result<UnfinishedRecord, CommitError> {
    let mut newest_first =
        records.entries.iter().rev().filter(|(key, _)| key.starts_with(keys::RECORDS)).peekable();
    let newest = newest_first.peek().map(|(key, _)| key.as_str());
    let mut unreadable = UnfinishedRecord::None;
    let unfinished = newest_first.find_map(|(key, Entry { value, mod_revision, .. })| {
        match serde_json::from_slice::<Record>(value) {
            Ok(record) => record.is_unfinished().then_some((key, record, mod_revision)),
            Err(error) => {
                // An unreadable older record is history and does no harm.
                if newest == Some(key) {
                    unreadable = UnfinishedRecord::Unreadable { key: key.clone(), why: error.to_string() };
                }
                None
            }
        }
    });
    let unfinished = unfinished.filter(|_| !is_planted(Canary::RecordLeftOpen));
    let Some((key, mut record, mod_revision)) = unfinished else { return Ok(unreadable) };
    let id = record.id;
    record.cancel(now, OUTCOME_UNKNOWN);
    let transaction = Transaction {
        conditions: vec![
            epoch.fencing_condition(),
            Condition::Unchanged { key: key.clone(), revision: *mod_revision },
        ],
        writes: vec![put_json(key, &record, 0)?],
    };
    Ok(UnfinishedRecord::Cancel { id, transaction })
}

fn grows_control_plane(before: Option<&Cluster>, after: &Cluster) -> bool {
    let control_plane = |cluster: Option<&'_ Cluster>| -> BTreeSet<String> {
        cluster.into_iter().flat_map(Cluster::control_plane).map(|node| node.address.clone()).collect()
    };
    !control_plane(Some(after)).is_subset(&control_plane(before))
}

fn check_cluster(cluster: &Cluster, evidence: &Evidence, repairs: &RepairQueue) -> Vec<Violation> {
    check_cluster_change(&ClusterChange {
        before: evidence.before.as_deref(),
        after: cluster,
        constraints: &evidence.constraints,
        observed: &evidence.observed,
        template_changed: evidence.template_changed,
        repairs,
    })
}

fn last_plan<'a>(plan: &'a Plan, epoch: &Epoch, now: OffsetDateTime) -> Result<LastPlan<'a>, CommitError> {
    Ok(LastPlan {
        at: now.format(&Rfc3339).map_err(|error| CommitError::Encoding {
            key: keys::LAST_PLAN.to_owned(),
            why: format!("the time {now} cannot be written in RFC 3339: {error}"),
        })?,
        epoch: epoch.number,
        action: plan.action,
        changes_total: plan.changes.len(),
        changes: &plan.changes[..plan.changes.len().min(MOST_CHANGES_KEPT)],
        reasons_total: plan.reasons.len(),
        reasons: &plan.reasons[..plan.reasons.len().min(MOST_REASONS_KEPT)],
    })
}

fn status_write(epoch: &Epoch, phase: &OperationPhase, now: OffsetDateTime) -> Result<Write, CommitError> {
    put_json(keys::STATUS, &ServerStatus::new(phase.clone(), now), epoch.lease)
}

fn put_json<T: Serialize>(key: &str, value: &T, lease: i64) -> Result<Write, CommitError> {
    let key = key.to_owned();
    match serde_json::to_vec(value) {
        Ok(value) => Ok(Write::Put { key, value: value.into(), lease }),
        Err(error) => Err(CommitError::Encoding { key, why: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use bytes::Bytes;
    use madako_domain::cluster::{Cluster, Node};
    use madako_domain::constraints::Constraints;
    use madako_domain::guard::GuardState;
    use madako_domain::repair::queue::Item;
    use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

    fn epoch() -> Epoch {
        Epoch { number: 7, key: "leader//1f".to_owned(), lease: 0x1f }
    }

    fn checked_transaction(
        mutation: &ClusterMutation,
        status_lease: Option<i64>,
    ) -> Result<Transaction, CommitError> {
        let present = SeenValues { status_lease, ..SeenValues::default() };
        cluster_transaction(&epoch(), mutation, &RepairQueue::default(), present, NOW)
    }

    fn planned(observed: &[&str]) -> ClusterMutation {
        let node = |address: &str, control_plane| Node {
            address: address.to_owned(),
            control_plane,
            ..Node::default()
        };
        let cluster = Cluster { nodes: vec![node("a", true), node("b", false)], ..Cluster::default() };
        let plan = Plan { action: Some(Action::Initialize), cluster: Some(cluster), ..Plan::default() };
        ClusterMutation {
            plan: Arc::new(plan),
            template_revision: 5,
            basis: vec![Condition::Unchanged { key: keys::CLUSTER.to_owned(), revision: 0 }],
            evidence: Evidence {
                before: None,
                constraints: Arc::new(Constraints::default()),
                observed: Arc::new(observed.iter().map(|address| (*address).to_owned()).collect()),
                template_changed: false,
            },
        }
    }

    fn written(transaction: &Transaction) -> BTreeMap<&str, (&[u8], i64)> {
        transaction
            .writes
            .iter()
            .filter_map(|write| match write {
                Write::Put { key, value, lease } => Some((key.as_str(), (&value[..], *lease))),
                Write::Delete { .. } => None,
            })
            .collect()
    }

    #[test]
    fn every_transaction_is_fenced_by_the_leader_key() {
        let guard = kept_transaction(&epoch(), keys::REMOVAL_GUARD, None::<&GuardState>, 3);
        for transaction in [checked_transaction(&planned(&["a", "b"]), None), guard] {
            let transaction = transaction.unwrap();
            assert_eq!(
                transaction.conditions[0],
                Condition::Created { key: "leader//1f".to_owned(), revision: 7 }
            );
            assert_eq!(transaction.conditions.len(), 2, "and by what it was decided on");
        }
        assert_eq!(
            status_transaction(&epoch(), &OperationPhase::Completed, NOW).unwrap().conditions,
            [epoch().fencing_condition()]
        );
    }

    #[test]
    fn the_commit_of_a_first_cluster_has_revision_reasons_and_status() {
        let transaction = checked_transaction(&planned(&["a", "b"]), None).unwrap();
        let written = written(&transaction);
        assert_eq!(
            written.keys().copied().collect::<BTreeSet<_>>(),
            BTreeSet::from([
                keys::CHOICES,
                keys::CLUSTER,
                keys::CLUSTER_REVISION,
                keys::LAST_PLAN,
                keys::STATUS
            ])
        );
        assert_eq!(written[keys::CLUSTER_REVISION], (&b"5"[..], 0));
        assert_eq!(
            written[keys::STATUS],
            (&br#"{"phase":"completed","timestamp":"2026-01-02T03:04:05Z"}"#[..], 0x1f)
        );
    }

    #[test]
    fn choices_are_written_when_they_change() {
        let stored = |value: &str| Entry {
            value: Bytes::copy_from_slice(value.as_bytes()),
            create_revision: 1,
            mod_revision: 2,
            lease: 0,
        };
        let gone = stored(r#"{"gone":{"at":"2026-01-01T00:00:00Z","why":"once"}}"#);
        let kept = stored(r#"{"a":{"at":"2026-01-01T00:00:00Z","why":"once"}}"#);
        let after = |entry| {
            let present = SeenValues { choices: Some(entry), ..SeenValues::default() };
            let transaction =
                cluster_transaction(&epoch(), &planned(&["a", "b"]), &RepairQueue::default(), present, NOW)
                    .unwrap();
            written(&transaction)
                .get(keys::CHOICES)
                .map(|(value, _)| String::from_utf8_lossy(value).into_owned())
        };
        assert_eq!(after(&gone).as_deref(), Some("{}"));
        assert_eq!(after(&kept), None);
        assert_eq!(after(&stored("no JSON")).as_deref(), Some("{}"), "an unreadable value is replaced");
    }

    #[test]
    fn a_status_that_hangs_on_the_epochs_lease_is_not_written_again() {
        let transaction = checked_transaction(&planned(&["a", "b"]), Some(0x1f)).unwrap();
        assert!(!written(&transaction).contains_key(keys::STATUS));
    }

    #[test]
    fn a_plan_that_breaks_an_invariant_becomes_no_transaction() {
        let error = checked_transaction(&planned(&["a"]), None).unwrap_err();
        let CommitError::Invariant { violations } = error else { panic!("{error}") };
        assert_eq!(violations.len(), 1);
        assert!(violations[0].to_string().starts_with("I6: the node b"), "{}", violations[0]);
    }

    #[test]
    fn a_plan_without_a_cluster_becomes_no_transaction() {
        let plan = Arc::new(Plan::default());
        let error = checked_transaction(&ClusterMutation { plan, ..planned(&["a", "b"]) }, None).unwrap_err();
        assert_eq!(error, CommitError::NoCluster);
    }

    /// The repair queue while machines with these addresses are watched after the commands of their repairs.
    fn repairs(addresses: &[&str]) -> RepairQueue {
        let entry = |(index, address): (i64, &&str)| {
            let value = RepairQueueEntry {
                index,
                status: RepairStatus::Processing,
                step_status: RepairStepStatus::Watching,
                ..RepairQueueEntry::new("o", "t", *address)
            };
            (index, Arc::new(Item { value, created: 1, revision: 1 }))
        };
        let mut queue =
            RepairQueue { entries: (0..).zip(addresses).map(entry).collect(), ..RepairQueue::default() };
        queue.records.next = Some((8, 40));
        queue
    }

    /// The same plan for an existing cluster, in which `b` joins the control plane.
    fn promoting() -> ClusterMutation {
        let ClusterMutation { plan, template_revision, basis, evidence } = planned(&["a", "b"]);
        let mut plan = (*plan).clone();
        let before = plan.cluster.clone().map(Arc::new);
        plan.cluster.as_mut().unwrap().nodes[1].control_plane = true;
        let constraints =
            Constraints { control_plane_count: 2, minimum_workers: 0, ..Constraints::default() };
        let evidence = Evidence { before, constraints: Arc::new(constraints), ..evidence };
        ClusterMutation { plan: Arc::new(plan), template_revision, basis, evidence }
    }

    #[test]
    fn no_machine_joins_the_control_plane_as_its_second_node_under_repair() {
        let commit = |repairs: &RepairQueue| {
            cluster_transaction(&epoch(), &promoting(), repairs, SeenValues::default(), NOW)
        };
        let CommitError::Invariant { violations } = commit(&repairs(&["b", "a"])).unwrap_err() else {
            panic!()
        };
        assert_eq!(violations.len(), 1);
        assert!(
            violations[0].to_string().starts_with("I8: the control plane nodes a, b"),
            "{}",
            violations[0]
        );
        assert!(commit(&repairs(&["b"])).is_ok());
    }

    #[test]
    fn a_larger_control_plane_is_committed_only_while_no_repair_begins() {
        let began = Condition::Unchanged { key: keys::RECORD_ID.to_owned(), revision: 40 };
        let conditions = |mutation| {
            cluster_transaction(&epoch(), &mutation, &repairs(&[]), SeenValues::default(), NOW)
                .unwrap()
                .conditions
        };
        assert!(conditions(promoting()).contains(&began));
        assert!(conditions(planned(&["a", "b"])).contains(&began), "a first cluster is all new");
        let mut same = promoting();
        same.evidence.before = same.plan.cluster.clone().map(Arc::new);
        same.evidence.template_changed = true;
        assert!(!conditions(same).contains(&began), "the control plane stays as it is");
    }

    #[test]
    fn kept_value_is_put_or_deleted_only_if_unchanged() {
        let state = GuardState { agreed: 1, ..GuardState::default() };
        let put = kept_transaction(&epoch(), keys::REMOVAL_GUARD, Some(&state), 4).unwrap();
        let read = Condition::Unchanged { key: keys::REMOVAL_GUARD.to_owned(), revision: 4 };
        assert_eq!(put.conditions, [epoch().fencing_condition(), read]);
        assert_eq!(written(&put)[keys::REMOVAL_GUARD].0, br#"{"vanished":[],"agreed":1,"confirmed":false}"#);
        let delete = kept_transaction(&epoch(), keys::REMOVAL_GUARD, None::<&GuardState>, 2).unwrap();
        assert_eq!(delete.writes, [Write::Delete { key: keys::REMOVAL_GUARD.to_owned() }]);
    }

    fn records(values: &[(i64, &str)]) -> Snapshot {
        let entry = |value: &str| Entry {
            value: Bytes::from(value.to_owned()),
            create_revision: 4,
            mod_revision: 4,
            lease: 0,
        };
        Snapshot {
            revision: 9,
            entries: values.iter().map(|(id, value)| (keys::record(*id), entry(value))).collect(),
        }
    }

    #[test]
    fn only_an_unfinished_record_is_cancelled() {
        let done = r#"{"id":"1","status":"completed","operation":"x","targets":null}"#;
        let running = r#"{"id":"2","status":"running","operation":"x","targets":null,"later":1}"#;
        let look = |values: &[(i64, &str)]| find_unfinished_record(&records(values), &epoch(), NOW).unwrap();
        assert_eq!(look(&[]), UnfinishedRecord::None);
        assert_eq!(look(&[(1, done)]), UnfinishedRecord::None);
        let UnfinishedRecord::Cancel { id, .. } = look(&[(2, running), (3, done)]) else { panic!() };
        assert_eq!(id, 2, "an instant operation was recorded after it");
        let UnfinishedRecord::Cancel { id, transaction } = look(&[(1, done), (2, running)]) else { panic!() };
        assert_eq!(id, 2);
        assert_eq!(
            transaction.conditions,
            [epoch().fencing_condition(), Condition::Unchanged { key: keys::record(2), revision: 4 }]
        );
        let key = keys::record(2);
        let value: serde_json::Value = serde_json::from_slice(written(&transaction)[key.as_str()].0).unwrap();
        assert_eq!(value["status"], "cancelled");
        assert_eq!(value["error"], "outcome unknown: the leader that ran it is gone");
        assert_eq!(value["later"], 1, "what is not known is kept");
        assert!(matches!(look(&[(1, done), (2, "{")]), UnfinishedRecord::Unreadable { .. }));
    }
}
