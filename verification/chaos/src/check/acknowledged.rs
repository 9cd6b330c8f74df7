//! Checks invariant I9: every acknowledged write is in the store, also entries of the repair queue unless their removal
//! was requested.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::invariants::{Id, Violation, check_no_lost_writes};
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;

use super::Verdicts;
use crate::history::Call;
use crate::observer::{PREFIX, Revision};

/// Judges every acknowledged write by the store's revisions. `written` are the acknowledged writes directly to the store.
pub fn judge_acknowledged_writes<'a>(
    calls: impl IntoIterator<Item = &'a Call>,
    written: impl IntoIterator<Item = &'a (i64, Vec<String>)>,
    revisions: &[Revision],
    verdicts: &mut Verdicts,
) {
    let history: BTreeMap<i64, BTreeSet<String>> = revisions
        .iter()
        .map(|revision| {
            let keys = revision.changes.iter().map(|change| change.key.clone()).collect();
            (revision.revision, keys)
        })
        .collect();
    let mut acknowledged: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for call in calls {
        if let Some(revision) = call.written_revision() {
            verdicts.count_judged(Id::I9, 1);
            acknowledged.entry(revision).or_default().insert(call.object.clone());
        }
    }
    for (revision, keys) in written {
        verdicts.count_judged(Id::I9, 1);
        acknowledged.entry(*revision).or_default().extend(keys.iter().cloned());
    }
    let mut entries: BTreeMap<&str, bool> = BTreeMap::new();
    for change in revisions.iter().flat_map(|revision| &revision.changes) {
        let Some(key) = change.key.strip_prefix(PREFIX).filter(|key| key.starts_with(keys::REPAIRS)) else {
            continue;
        };
        let entry = change.value.as_deref().map(serde_json::from_slice::<RepairQueueEntry>);
        match entry {
            Some(entry) => drop(entries.insert(key, entry.is_ok_and(|entry| entry.deleted))),
            None => {
                verdicts.count_judged(Id::I9, 1);
                if entries.remove(key) != Some(true) {
                    let what = format!("{key} disappeared without a request to delete it");
                    verdicts.count_violated(&Violation { invariant: Id::I9, what });
                }
            }
        }
    }
    for violation in check_no_lost_writes(&acknowledged, &history) {
        verdicts.count_violated(&violation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::linear::{CallResult, ObjectOperation};
    use crate::history::RequestEnd;
    use crate::observer::Change;

    fn revision(number: i64, key: &str, value: Option<&str>) -> Revision {
        let value = value.map(|value| value.as_bytes().to_vec());
        let change = Change { key: key.to_owned(), value, created: number, modified: number, lease: 0 };
        Revision { revision: number, at: 0, changes: vec![change] }
    }

    fn acknowledged(key: &str, revision: i64) -> Call {
        let result = CallResult::Done { value: None, deleting: false };
        let end = RequestEnd::Answered { status: 200, result, revision: Some(revision) };
        let op = ObjectOperation::Create { value: 1 };
        Call {
            client: 1,
            instance: 1,
            object: key.to_owned(),
            op,
            expected: None,
            called: 0,
            returned: 1,
            end,
        }
    }

    fn broken(calls: &[Call], written: &[(i64, Vec<String>)], revisions: &[Revision]) -> u64 {
        let mut verdicts = Verdicts::default();
        judge_acknowledged_writes(calls, written, revisions, &mut verdicts);
        verdicts.verdict_of("I9").broken
    }

    #[test]
    fn a_missing_acknowledged_write_counts_as_lost() {
        let there = [revision(4, "/a", Some("1"))];
        assert_eq!(broken(&[acknowledged("/a", 4)], &[(4, vec!["/a".to_owned()])], &there), 0);
        assert_eq!(broken(&[acknowledged("/a", 5)], &[], &there), 1);
        assert_eq!(broken(&[], &[(4, vec!["/b".to_owned()])], &there), 1);
    }

    #[test]
    fn entry_disappears_only_after_a_request() {
        let key = format!("{PREFIX}{}", keys::repair(0));
        let entry = |deleted| {
            let entry = RepairQueueEntry { deleted, ..RepairQueueEntry::new("unreachable", "t", "10.0.0.1") };
            serde_json::to_string(&entry).unwrap()
        };
        let history = |deleted| [revision(2, &key, Some(&entry(deleted))), revision(3, &key, None)];
        assert_eq!(broken(&[], &[], &history(true)), 0);
        assert_eq!(broken(&[], &[], &history(false)), 1);
    }
}
