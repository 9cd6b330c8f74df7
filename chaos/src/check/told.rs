//! What clients were told is there: I9.

use std::collections::{BTreeMap, BTreeSet};

use madako_messages::invariants::{Id, nothing_lost};

use super::Verdicts;
use crate::history::Call;
use crate::observer::Revision;

/// Judges every acknowledged write by the revisions of the store.
pub fn judge<'a>(calls: impl IntoIterator<Item = &'a Call>, revisions: &[Revision], verdicts: &mut Verdicts) {
    let history: BTreeMap<i64, BTreeSet<String>> = revisions
        .iter()
        .map(|revision| {
            let keys = revision.changes.iter().map(|change| change.key.clone()).collect();
            (revision.revision, keys)
        })
        .collect();
    let mut acknowledged: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for call in calls {
        if let Some(revision) = call.wrote() {
            verdicts.judged(Id::I9, 1);
            acknowledged.entry(revision).or_default().insert(call.object.clone());
        }
    }
    for violation in nothing_lost(&acknowledged, &history) {
        verdicts.violated(&violation);
    }
}
