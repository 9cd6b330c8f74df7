//! The back-off of each object: of one that the API server refuses, and of one that differs again after each apply because
//! another client keeps changing it.

use std::collections::BTreeMap;

use madako_domain::resource::ResourceKey;
use time::OffsetDateTime;

use super::apply::FailedApply;

#[derive(Debug, Default)]
pub struct ObjectFailures {
    failed: BTreeMap<ResourceKey, FailedApply>,
    /// The wanted contents of objects that were changed since the last collection.
    applied: BTreeMap<ResourceKey, String>,
}

impl ObjectFailures {
    #[must_use]
    pub fn failed(&self) -> &BTreeMap<ResourceKey, FailedApply> {
        &self.failed
    }

    /// Counts a failed change of an object.
    pub fn record_failure(&mut self, key: ResourceKey, wanted: &str, why: &str, now: OffsetDateTime) {
        let failed = FailedApply::new(self.failed.get(&key), wanted, why.to_owned(), now);
        self.failed.insert(key, failed);
    }

    /// Notes a change that succeeded. The next collection shows whether it lasts.
    pub fn record_success(&mut self, key: ResourceKey, wanted: String) {
        self.applied.insert(key, wanted);
    }

    /// Compares the changes that succeeded with the ones that are due after the next read of their objects. Returns whether
    /// an object backs off that did not before.
    pub fn observe(
        &mut self,
        due: &BTreeMap<ResourceKey, String>,
        is_read: impl Fn(&ResourceKey) -> bool,
        now: OffsetDateTime,
    ) -> bool {
        let mut is_changed = false;
        for (key, wanted) in std::mem::take(&mut self.applied) {
            if !is_read(&key) {
                self.applied.insert(key, wanted);
            } else if due.get(&key) == Some(&wanted) {
                self.record_failure(
                    key,
                    &wanted,
                    "it differs again after it was applied: another client changes it",
                    now,
                );
                is_changed = true;
            } else {
                self.failed.remove(&key);
            }
        }
        is_changed
    }

    /// The next time after `now` at which a failed object is tried again, or holds others no more.
    #[must_use]
    pub fn next_change(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        self.failed.values().filter_map(|failed| failed.next_change(now)).min()
    }

    /// Forgets the failures of objects that are not wanted any more.
    pub fn retain(&mut self, is_wanted: impl Fn(&ResourceKey) -> bool) {
        self.failed.retain(|key, _| is_wanted(key));
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-21 12:00 UTC);

    #[test]
    fn an_object_that_another_client_changes_back_is_applied_more_and_more_seldom() {
        let key = ResourceKey::parse("Service/a/s").unwrap();
        let due = BTreeMap::from([(key.clone(), "1".to_owned())]);
        let mut failures = ObjectFailures::default();
        let mut pauses = Vec::new();
        for _ in 0..3 {
            failures.record_success(key.clone(), "1".to_owned());
            assert!(!failures.observe(&due, |_| false, NOW), "its state is not known yet");
            assert!(failures.observe(&due, |_| true, NOW));
            assert!(!failures.observe(&due, |_| true, NOW), "one success is one observation");
            let waits = |seconds: &i64| {
                let at = NOW + time::Duration::seconds(*seconds);
                failures.failed()[&key].reason(at).is_some()
            };
            pauses.push((0..2000).take_while(waits).count());
        }
        assert_eq!(pauses, [30, 60, 120]);
        let at = |seconds| NOW + time::Duration::seconds(seconds);
        let changes = [0, 29, 30, 119, 120].map(|seconds| failures.next_change(at(seconds)));
        assert_eq!(changes, [Some(at(30)), Some(at(30)), Some(at(120)), Some(at(120)), None]);
        // It stays as wanted, or something else is wanted.
        failures.record_success(key.clone(), "1".to_owned());
        assert!(!failures.observe(&BTreeMap::new(), |_| true, NOW));
        assert!(failures.failed().is_empty());
        failures.record_success(key.clone(), "1".to_owned());
        assert!(!failures.observe(&BTreeMap::from([(key, "2".to_owned())]), |_| true, NOW));
    }
}
