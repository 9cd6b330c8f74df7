//! The time of the next backup: its interval, and the pause after failures.

use std::time::Duration;

use madako_domain::backup::{BackupRecord, BackupSchedule};
use madako_protocol::permit::Moment;
use time::OffsetDateTime;

use crate::limits::{CLOCK_SKEW, FIRST_PAUSE, LONGEST_PAUSE};

/// Failures since the last backup that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failures {
    pub(crate) count: u32,
    /// Time of the newest one.
    pub(crate) last: Moment,
}

impl Failures {
    pub(crate) fn add_failure(before: Option<Self>, now: Moment) -> Self {
        Self { count: before.map_or(0, |before| before.count).saturating_add(1), last: now }
    }

    fn pause(self, every: Duration) -> Duration {
        let doublings = self.count.saturating_sub(1).min(u32::BITS - 1);
        FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE).min(every)
    }
}

/// The age of the last backup that counts; `None` without one.
pub(crate) fn age_of_last_backup(
    schedule: &BackupSchedule,
    last: Option<&BackupRecord>,
    now: OffsetDateTime,
) -> Option<Duration> {
    let last = last.filter(|last| last.counts_as_backup(schedule.prove))?;
    if last.at - now > CLOCK_SKEW {
        return None;
    }
    Some(Duration::try_from(now - last.at).unwrap_or_default())
}

/// Time until the next backup begins; zero if it begins now.
pub(crate) fn time_until_next(
    schedule: &BackupSchedule,
    last: Option<&BackupRecord>,
    failures: Option<Failures>,
    (now, moment): (OffsetDateTime, Moment),
) -> Duration {
    let due = age_of_last_backup(schedule, last, now)
        .map_or(Duration::ZERO, |age| schedule.every.saturating_sub(age));
    let paused = failures.map_or(Duration::ZERO, |failures| {
        (failures.last + failures.pause(schedule.every)).saturating_duration_since(moment)
    });
    due.max(paused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn schedule(prove: bool) -> BackupSchedule {
        BackupSchedule { every: HOUR * 6, dir: "/b".to_owned(), keep: 3, prove }
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_700_000_000 + seconds).unwrap()
    }

    fn record(seconds: i64, proved: bool) -> BackupRecord {
        BackupRecord {
            at: at(seconds),
            host: "h".to_owned(),
            file: "/b/f".to_owned(),
            size: 1,
            revision: 1,
            keys: None,
            hash: None,
            proved_at: proved.then(|| at(seconds)),
        }
    }

    #[test]
    fn a_backup_is_due_an_interval_after_the_last_one_that_counts() {
        let now = (at(0), Moment::now());
        for (prove, last, expected) in [
            (true, None, Duration::ZERO),
            (true, Some(record(-3600, true)), HOUR * 5),
            (true, Some(record(-6 * 3600, true)), Duration::ZERO),
            (true, Some(record(-7 * 3600, true)), Duration::ZERO),
            // Without its proof it counts only if none is wanted.
            (true, Some(record(-3600, false)), Duration::ZERO),
            (false, Some(record(-3600, false)), HOUR * 5),
            (false, Some(record(-3600, true)), HOUR * 5),
            // A leader whose clock is ahead, and one whose clock is wrong.
            (true, Some(record(60, true)), HOUR * 6),
            (true, Some(record(3600, true)), Duration::ZERO),
        ] {
            assert_eq!(
                time_until_next(&schedule(prove), last.as_ref(), None, now),
                expected,
                "{prove} {last:?}"
            );
        }
    }

    #[test]
    fn pauses_after_failures_double_up_to_an_hour_and_never_exceed_the_interval() {
        let moment = Moment::now();
        let mut failures = None;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            failures = Some(Failures::add_failure(failures, moment));
            pauses.push(time_until_next(&schedule(true), None, failures, (at(0), moment)).as_secs() / 60);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let many = Some(Failures { count: u32::MAX, last: moment });
        assert_eq!(time_until_next(&schedule(true), None, many, (at(0), moment)), LONGEST_PAUSE);
        let often = BackupSchedule { every: Duration::from_secs(600), ..schedule(true) };
        assert_eq!(time_until_next(&often, None, many, (at(0), moment)), often.every);
        assert_eq!(time_until_next(&often, None, many, (at(0), moment + often.every)), Duration::ZERO);
        // A pause does not bring a backup forward.
        let one = Some(Failures { count: 1, last: moment });
        assert_eq!(time_until_next(&schedule(true), Some(&record(0, true)), one, (at(0), moment)), HOUR * 6);
    }

    #[test]
    fn the_age_is_that_of_the_last_backup_that_counts() {
        assert_eq!(age_of_last_backup(&schedule(true), None, at(0)), None);
        assert_eq!(
            age_of_last_backup(&schedule(true), Some(&record(-5, true)), at(0)),
            Some(Duration::from_secs(5))
        );
        assert_eq!(age_of_last_backup(&schedule(true), Some(&record(-5, false)), at(0)), None);
        assert_eq!(
            age_of_last_backup(&schedule(false), Some(&record(-5, false)), at(0)),
            Some(Duration::from_secs(5))
        );
        assert_eq!(age_of_last_backup(&schedule(true), Some(&record(60, true)), at(0)), Some(Duration::ZERO));
        assert_eq!(age_of_last_backup(&schedule(true), Some(&record(301, true)), at(0)), None);
    }
}
