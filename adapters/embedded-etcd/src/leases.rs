//! Leases: their TTLs, attached keys and expiry.
//!
//! The writer's table is ahead of the file and has no times; the readers' table follows the file and has times. The
//! same [`LeaseChange`]s update both. Times are `tokio::time`'s, so paused time applies to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use crate::limits::{MAX_TTL_SECONDS, MIN_TTL_SECONDS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    Granted { id: i64, ttl_seconds: i64, owner: Option<Arc<str>> },
    Revoked { id: i64 },
    Attached { id: i64, key: Vec<u8> },
    Detached { id: i64, key: Vec<u8> },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) ttl_seconds: i64,
    /// Mark of the owner whose own client holds the lease ([`crate::Options::owner`]).
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) keys: BTreeSet<Vec<u8>>,
}

/// Leases without expiry times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeaseTable {
    leases: BTreeMap<i64, Lease>,
}

impl LeaseTable {
    pub(crate) fn get(&self, id: i64) -> Option<&Lease> {
        self.leases.get(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    pub(crate) fn apply(&mut self, change: &LeaseChange) {
        match change {
            LeaseChange::Granted { id, ttl_seconds, owner } => {
                let lease = Lease { ttl_seconds: *ttl_seconds, owner: owner.clone(), keys: BTreeSet::new() };
                self.leases.insert(*id, lease);
            }
            LeaseChange::Revoked { id } => {
                self.leases.remove(id);
            }
            LeaseChange::Attached { id, key } => {
                if let Some(lease) = self.leases.get_mut(id) {
                    lease.keys.insert(key.clone());
                }
            }
            LeaseChange::Detached { id, key } => {
                if let Some(lease) = self.leases.get_mut(id) {
                    lease.keys.remove(key);
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    Renewed {
        ttl_seconds: i64,
    },
    /// The lease has expired; it must be revoked before the client gets the answer.
    Ended,
    Unknown,
}

#[derive(Debug, Default)]
pub(crate) struct TimedLeases {
    table: LeaseTable,
    ends: BTreeMap<i64, Instant>,
    by_end: BTreeSet<(Instant, i64)>,
}

impl TimedLeases {
    /// Every lease of `table` gets its full TTL from `now`, as in etcd after a restart.
    pub(crate) fn with_full_ttls(table: LeaseTable, now: Instant) -> Self {
        let mut leases = Self { table, ..Self::default() };
        let all: Vec<_> = leases.table.iter().map(|(id, lease)| (id, lease.ttl_seconds)).collect();
        for (id, ttl_seconds) in all {
            leases.set_end(id, now + ttl_duration(ttl_seconds));
        }
        leases
    }

    /// Replaces the leases by those of the file; leases that remain keep their expiry times.
    pub(crate) fn with_known_ends(&self, table: LeaseTable, now: Instant) -> Self {
        let mut leases = Self::with_full_ttls(table, now);
        for (id, end) in &self.ends {
            if leases.table.get(*id).is_some() {
                leases.set_end(*id, *end);
            }
        }
        leases
    }

    pub(crate) fn table(&self) -> &LeaseTable {
        &self.table
    }

    pub(crate) fn apply(&mut self, change: &LeaseChange, now: Instant) {
        self.table.apply(change);
        match change {
            LeaseChange::Granted { id, ttl_seconds, .. } => {
                self.set_end(*id, now + ttl_duration(*ttl_seconds))
            }
            LeaseChange::Revoked { id } => {
                if let Some(end) = self.ends.remove(id) {
                    self.by_end.remove(&(end, *id));
                }
            }
            LeaseChange::Attached { .. } | LeaseChange::Detached { .. } => {}
        }
    }

    pub(crate) fn renew(&mut self, id: i64, now: Instant) -> Renewal {
        let (Some(lease), Some(end)) = (self.table.get(id), self.ends.get(&id)) else {
            return Renewal::Unknown;
        };
        if *end <= now {
            return Renewal::Ended;
        }
        let ttl_seconds = lease.ttl_seconds;
        self.set_end(id, now + ttl_duration(ttl_seconds));
        Renewal::Renewed { ttl_seconds }
    }

    pub(crate) fn remaining_time(&self, id: i64, now: Instant) -> Option<Duration> {
        self.ends.get(&id).map(|end| end.saturating_duration_since(now))
    }

    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(end, _)| *end)
    }

    /// Expired leases, in order of expiry.
    pub(crate) fn expired_leases(&self, now: Instant) -> impl Iterator<Item = i64> + '_ {
        self.by_end.iter().take_while(move |(end, _)| *end <= now).map(|(_, id)| *id)
    }

    pub(crate) fn in_order_of_end(&self) -> impl Iterator<Item = i64> + '_ {
        self.by_end.iter().map(|(_, id)| *id)
    }

    fn set_end(&mut self, id: i64, end: Instant) {
        if let Some(previous) = self.ends.insert(id, end) {
            self.by_end.remove(&(previous, id));
        }
        self.by_end.insert((end, id));
    }
}

fn ttl_duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{LeaseChange, LeaseTable, Renewal, TimedLeases};
    use std::time::Duration;
    use tokio::time::Instant;

    fn granted(id: i64, ttl_seconds: i64) -> LeaseChange {
        LeaseChange::Granted { id, ttl_seconds, owner: None }
    }

    #[test]
    fn a_renewed_lease_ends_later_and_an_ended_one_is_not_renewed() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut leases = TimedLeases::default();
        leases.apply(&granted(1, 10), start);
        leases.apply(&granted(2, 5), start);
        assert_eq!(leases.next_end(), Some(at(5)));
        assert_eq!(leases.renew(2, at(4)), Renewal::Renewed { ttl_seconds: 5 });
        assert_eq!(leases.in_order_of_end().collect::<Vec<_>>(), [2, 1]);
        assert_eq!(leases.expired_leases(at(9)).collect::<Vec<_>>(), [2]);
        assert_eq!(leases.renew(2, at(9)), Renewal::Ended);
        assert_eq!(leases.renew(3, at(9)), Renewal::Unknown);
        leases.apply(&LeaseChange::Revoked { id: 2 }, at(9));
        assert_eq!(leases.next_end(), Some(at(10)));
    }

    #[test]
    fn after_a_start_every_lease_has_its_full_time_and_after_a_reload_its_own() {
        let start = Instant::now();
        let mut table = LeaseTable::default();
        table.apply(&granted(1, 10));
        let mut leases = TimedLeases::with_full_ttls(table.clone(), start);
        assert_eq!(leases.remaining_time(1, start), Some(Duration::from_secs(10)));
        leases.apply(&granted(2, 10), start);
        let later = start + Duration::from_secs(6);
        let reloaded = leases.with_known_ends(table, later);
        assert_eq!(reloaded.remaining_time(1, later), Some(Duration::from_secs(4)));
        assert_eq!(reloaded.remaining_time(2, later), None);
    }
}
