//! Limits and times of this crate, with their units and derivations.

use std::time::Duration;

use madako_domain::backup::BACKUP_EVERY;

/// Interval at which the age of the last backup is shown and a due backup begins: a scrape interval of Prometheus.
pub(crate) const TICK: Duration = Duration::from_secs(15);
/// Pause after a failed backup, doubled after each further failure: long enough for an election of etcd.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Longest pause after failures. An alert fires before.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Maximum clock skew between leaders. A backup whose time is later came from a wrong clock and counts for nothing.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

const _: () =
    assert!(TICK.as_secs() <= FIRST_PAUSE.as_secs() && FIRST_PAUSE.as_secs() < LONGEST_PAUSE.as_secs());
const _: () = assert!(
    CLOCK_SKEW.as_secs() < BACKUP_EVERY.start().as_secs(),
    "a backup of a clock that is ahead delays the next one by less than an interval"
);
