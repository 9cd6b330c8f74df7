//! The writes of actions on entries, each with the conditions under which it may be committed.

use std::time::Duration;

use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::queue::RepairQueue;
use madako_domain::store::{Condition, Transaction, Write};
use madako_json::go::escaped;
use time::OffsetDateTime;

use crate::limits::{BACK_OFF_BASE, BACK_OFF_MOST};

/// Time until the next drain after `count` aborted ones: 300 s, twice as long each further time, at most 1200 s, and a
/// random part below 300 s (CKE). `draw` is a number from 0 to below 1.
#[must_use]
pub fn back_off(count: u32, draw: f64) -> Duration {
    let doubled = BACK_OFF_BASE.saturating_mul(1 << count.saturating_sub(1).min(16)).min(BACK_OFF_MOST);
    let random = (BACK_OFF_BASE.as_secs_f64() * draw.clamp(0.0, 1.0)).floor();
    doubled + Duration::try_from_secs_f64(random).unwrap_or_default()
}

/// An entry at the revision of a decision.
#[derive(Debug, Clone)]
pub struct Transition<'a> {
    queue: &'a RepairQueue,
    index: i64,
    entry: RebootQueueEntry,
    now: OffsetDateTime,
}

impl<'a> Transition<'a> {
    /// `None`: the entry does not exist.
    #[must_use]
    pub fn new(queue: &'a RepairQueue, index: i64, now: OffsetDateTime) -> Option<Self> {
        let entry = queue.reboots.get(&index)?.value.clone();
        // CKE writes whole seconds in UTC.
        let now = now.to_offset(time::UtcOffset::UTC);
        Some(Self { queue, index, entry, now: now.replace_nanosecond(0).unwrap_or(now) })
    }

    /// The drain begins.
    ///
    /// # Errors
    /// The entry cannot be encoded.
    pub fn drain(mut self) -> Result<Transaction, serde_json::Error> {
        self.become_status(RebootStatus::Draining);
        self.put(true)
    }

    /// The reboot command begins after the commit.
    ///
    /// # Errors
    /// The entry cannot be encoded.
    pub fn reboot(mut self) -> Result<Transaction, serde_json::Error> {
        self.become_status(RebootStatus::Rebooting);
        self.put(true)
    }

    /// The drain was aborted. `draw` as of [`back_off`].
    ///
    /// # Errors
    /// The entry cannot be encoded.
    pub fn back_off(mut self, draw: f64) -> Result<Transaction, serde_json::Error> {
        self.become_status(RebootStatus::Queued);
        self.entry.drain_backoff_count = self.entry.drain_backoff_count.saturating_add(1);
        let pause = back_off(self.entry.drain_backoff_count, draw);
        self.entry.drain_backoff_expire = Some(self.now + pause);
        self.put(false)
    }

    #[must_use]
    pub fn remove(&self) -> Transaction {
        let writes = vec![Write::Delete { key: keys::reboot(self.index) }];
        Transaction { conditions: vec![self.unchanged()], writes }
    }

    fn become_status(&mut self, status: RebootStatus) {
        self.entry.status = status;
        self.entry.last_transition_time = Some(self.now);
    }

    /// An entry that ckecli cancelled meanwhile is not overwritten.
    fn unchanged(&self) -> Condition {
        let revision = self.queue.reboots.get(&self.index).map_or(0, |item| item.revision);
        Condition::Unchanged { key: keys::reboot(self.index), revision }
    }

    /// `begins`: no repair and no reboot changed since the decision, so that only one of two decisions on control plane
    /// nodes is committed.
    fn put(self, begins: bool) -> Result<Transaction, serde_json::Error> {
        let mut conditions = vec![self.unchanged()];
        if begins {
            let revision = self.newest();
            let none_since = |prefix: &str| Condition::NoneSince { prefix: prefix.to_owned(), revision };
            conditions.extend([none_since(keys::REBOOTS), none_since(keys::REPAIRS)]);
        }
        let value = escaped(serde_json::to_string(&self.entry)?).into_bytes().into();
        let writes = vec![Write::Put { key: keys::reboot(self.index), value, lease: 0 }];
        Ok(Transaction { conditions, writes })
    }

    /// The newest revision of both queues.
    fn newest(&self) -> i64 {
        let reboots = self.queue.reboots.values().map(|item| item.revision);
        let repairs = self.queue.entries.values().map(|item| item.revision);
        let unreadable = self.queue.unreadable.entries.values().copied();
        reboots.chain(repairs).chain(unreadable).max().unwrap_or(0)
    }
}

/// The value of `reboots/running` (CKE): true while the queue is enabled and has entries.
#[must_use]
pub fn runs(queue: &RepairQueue) -> bool {
    !queue.reboots_disabled && !queue.reboots.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, Store};

    #[test]
    fn back_offs_are_ckes() {
        let seconds = |count, draw| back_off(count, draw).as_secs();
        assert_eq!([1, 2, 3, 4, 9, u32::MAX].map(|count| seconds(count, 0.0)), [300, 600, 1200, 1200, 1200, 1200]);
        assert_eq!((seconds(1, 0.5), seconds(1, 0.999_999)), (450, 599));
    }

    #[test]
    fn entries_have_ckes_bytes() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Queued);
        let now = NOW + Duration::from_millis(700);
        let bytes = |transaction: Transaction| match &transaction.writes[..] {
            [Write::Put { value, .. }] => String::from_utf8(value.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        let state = store.state();
        let transition = Transition::new(&state.repair, 0, now).unwrap();
        assert_eq!(
            bytes(transition.clone().drain().unwrap()),
            r#"{"index":"0","node":"w","status":"draining","last_transition_time":"2026-01-02T03:04:05Z","drain_backoff_expire":"0001-01-01T00:00:00Z"}"#
        );
        assert_eq!(
            bytes(transition.back_off(0.1).unwrap()),
            r#"{"index":"0","node":"w","status":"queued","last_transition_time":"2026-01-02T03:04:05Z","drain_backoff_count":1,"drain_backoff_expire":"2026-01-02T03:09:35Z"}"#
        );
    }

    #[test]
    fn cancelled_entry_is_not_overwritten() {
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "w", RebootStatus::Draining);
        let state = store.state();
        let transition = || Transition::new(&state.repair, 0, NOW).unwrap();
        store.reboot(0, "w", RebootStatus::Cancelled);
        for late in [transition().reboot().unwrap(), transition().back_off(0.0).unwrap(), transition().remove()] {
            assert!(!store.commit(&late), "{late:?}");
        }
        assert_eq!(store.state().repair.reboots[&0].value.status, RebootStatus::Cancelled);
    }

    #[test]
    fn drain_that_was_decided_before_a_repair_is_refused() {
        let mut store = Store::new(&["a", "b"], &[]);
        store.reboot(0, "a", RebootStatus::Queued);
        let state = store.state();
        let drain = Transition::new(&state.repair, 0, NOW).unwrap().drain().unwrap();
        store.repair(0, "b");
        assert!(!store.commit(&drain));
    }

    #[test]
    fn queue_runs_while_it_is_enabled_and_has_entries() {
        let mut store = Store::new(&["a"], &["w"]);
        assert!(!runs(&store.state().repair));
        store.reboot(0, "w", RebootStatus::Cancelled);
        assert!(runs(&store.state().repair));
        store.text(keys::REBOOTS_DISABLED, "true");
        assert!(!runs(&store.state().repair));
    }
}
