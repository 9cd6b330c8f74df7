//! Judges the store's watchers: each receives each revision of its prefix once, in order and without gaps, up to the
//! last one.

use std::collections::BTreeMap;

use super::Verdicts;
use crate::history::{Event, Micros};
use crate::observer::{PREFIX, Revision};

pub(crate) const WATCHES: &str = "watches";

pub fn judge_watches(events: &[(Micros, Event)], revisions: &[Revision], verdicts: &mut Verdicts) {
    let ours: BTreeMap<i64, u64> = revisions
        .iter()
        .filter_map(|revision| {
            let keys = revision.changes.iter().filter(|change| change.key.starts_with(PREFIX)).count();
            (keys > 0).then_some((revision.revision, keys as u64))
        })
        .collect();
    let mut last: BTreeMap<u32, i64> = BTreeMap::new();
    verdicts.verdict_of(WATCHES);
    for (_, event) in events {
        match event {
            Event::Watch { member, from } => drop(last.insert(*member, *from)),
            Event::Missed { member, until } => drop(last.insert(*member, *until)),
            Event::Heard { member, revision, keys } => {
                verdicts.verdict_of(WATCHES).judged += 1;
                let before = last.insert(*member, *revision).unwrap_or(0);
                let next = ours.range(before + 1..).next();
                if next != Some((revision, keys)) {
                    let what = format!(
                        "a watcher of store={member} received revision {revision} with {keys} keys after {before}; the \
                         next revision with its count of keys is {next:?}"
                    );
                    verdicts.count_violation(WATCHES, what);
                }
            }
            Event::WatchEnds { member, until } => {
                let Some(before) = last.get(member) else {
                    verdicts.count_violation(
                        WATCHES,
                        format!("store={member} answered no watch of the observer"),
                    );
                    continue;
                };
                let silent = (before + 1..=*until).find(|revision| ours.contains_key(revision));
                if let Some(next) = silent {
                    let what = format!(
                        "a watcher of store={member} heard nothing after revision {before}, though there were \
                         {next} and more up to {until}"
                    );
                    verdicts.count_violation(WATCHES, what);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Change;

    fn heard(revisions: &[(i64, u64)]) -> u64 {
        ends(revisions, None)
    }

    /// Violations of a watcher that ends after enough time for everything up to revision `until`.
    fn ends(revisions: &[(i64, u64)], until: Option<i64>) -> u64 {
        let change =
            |key: &str| Change { key: key.to_owned(), value: None, created: 0, modified: 0, lease: 0 };
        let revision = |number: i64, keys: &[&str]| Revision {
            revision: number,
            at: 0,
            changes: keys.iter().map(|key| change(key)).collect(),
        };
        let there = [
            revision(2, &["/cke/a"]),
            revision(3, &["/other"]),
            revision(4, &["/cke/a", "/cke/b"]),
            revision(5, &["/cke/a"]),
        ];
        let mut events = vec![(0, Event::Watch { member: 1, from: 1 })];
        events.extend(
            revisions
                .iter()
                .map(|(revision, keys)| (0, Event::Heard { member: 1, revision: *revision, keys: *keys })),
        );
        events.extend(until.map(|until| (0, Event::WatchEnds { member: 1, until })));
        let mut verdicts = Verdicts::default();
        judge_watches(&events, &there, &mut verdicts);
        assert_eq!(verdicts.verdict_of(WATCHES).judged, revisions.len() as u64);
        verdicts.verdict_of(WATCHES).broken
    }

    #[test]
    fn each_revision_is_observed_once_in_order_and_complete() {
        assert_eq!(heard(&[(2, 1), (4, 2), (5, 1)]), 0);
        assert_eq!(heard(&[(2, 1), (5, 1)]), 1, "a gap");
        assert_eq!(heard(&[(2, 1), (2, 1)]), 1, "twice");
        assert_eq!(heard(&[(2, 1), (4, 1)]), 1, "a part");
        assert_eq!(heard(&[(4, 2)]), 1, "the first is missing");
    }

    #[test]
    fn a_watcher_that_falls_silent_before_the_last_revision_is_found() {
        assert_eq!(ends(&[(2, 1), (4, 2), (5, 1)], Some(5)), 0);
        assert_eq!(ends(&[(2, 1), (4, 2)], Some(4)), 0, "5 was written later");
        assert_eq!(ends(&[(2, 1)], Some(3)), 0, "3 is of others");
        assert_eq!(ends(&[(2, 1), (4, 2)], Some(5)), 1);
        assert_eq!(ends(&[], Some(5)), 1);
        let mut verdicts = Verdicts::default();
        judge_watches(&[(0, Event::WatchEnds { member: 2, until: 5 })], &[], &mut verdicts);
        assert_eq!(verdicts.verdict_of(WATCHES).broken, 1, "it never began");
    }
}
