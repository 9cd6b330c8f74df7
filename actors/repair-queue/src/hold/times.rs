//! Determines when the state of each reported machine changed, even if clocks are set.
//!
//! An answer gives the local time less a duration on the registry's clock. When one of the two clocks is set or
//! drifts, the times of all reports move although no machine changed its state. A remembered time stands for a report
//! as long as the report is the same; this module decides which reports are.
//!
//! # The rule
//! A report is the previous one unless its time is *later*, by more than [`SAME_REPORT`], than clocks explain: a new
//! change of state never has an earlier time. Clocks explain
//! - a move that nearly all reports share: any move to an earlier time; a move to a later time only if the reports
//!   that share it are of machines that did not fail together. Machines that failed together once may do so again,
//!   but not hours apart in the same order;
//! - a time before the last answer that reported the machine in its present state: nothing has changed since. The age
//!   of that answer is measured on the monotonic clock.
//!
//! Where neither is known, as for the machines of one rack after a leader change, a later time is a new report: an
//! operator can release a rack that is held unnecessarily, but cannot undo repairs of a whole rack.
//!
//! # Guarantees
//! Each machine of an answer has one time. It does not change while the report is the same, whatever the clocks do.
//!
//! # Assumes
//! A machine that is missing from the last answer has recovered: it is not remembered.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::machine::Machine;
use madako_domain::repair::hold::{HoldSettings, Label};
use madako_domain::repair::report::Monotonic;
use time::OffsetDateTime;

use super::KnownHolds;
use crate::indexed::{IndexedReports, MachineIdentity, identity};
use crate::limits::SAME_MOVE;
pub use crate::limits::SAME_REPORT;

/// Minimum reports for a common move: two may agree by chance.
const FEWEST: usize = 3;

/// Maximum duration of a state, in seconds: 1,900 years. Go's durations end at 292 years.
const LONGEST: f64 = 60e9;

/// Duration of the machine's state, by the registry's clock.
fn age_of_state(machine: &Machine) -> time::Duration {
    time::Duration::saturating_seconds_f64(machine.status.duration.clamp(-LONGEST, LONGEST))
}

/// Time at which the state of a machine changed, for a report that arrived at `at`.
#[must_use]
pub fn changed_at(machine: &Machine, at: OffsetDateTime) -> OffsetDateTime {
    at.saturating_sub(age_of_state(machine))
}

/// True if two times of one machine belong to one change.
#[must_use]
pub fn is_same(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    (one - other).unsigned_abs() <= SAME_REPORT
}

/// Times of the machines of one answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    /// By serial and address, sorted.
    machines: Vec<((String, String), ReportTime)>,
    /// Index of the answer; `None`: there was no answer.
    indexed: Option<Arc<IndexedReports>>,
    /// Arrival of the answer; `None`: there was no answer.
    received: Option<Monotonic>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct ReportTime {
    /// By the last answer alone.
    reported: OffsetDateTime,
    /// After correction: the time that counts.
    changed: OffsetDateTime,
}

impl Times {
    /// Times of an answer that arrived at `at`, which is `received` on the monotonic clock; `before` has the times of the
    /// previous answer. Without a previous answer, the holds in the store replace it.
    #[must_use]
    pub fn from_answer(
        machines: &[Machine],
        (at, received): (OffsetDateTime, Option<Monotonic>),
        settings: Option<&HoldSettings>,
        kept: &dyn KnownHolds,
        before: &Self,
    ) -> Self {
        let Some(settings) = settings else {
            let indexed = IndexedReports::new(machines, None, |place| changed_at(&machines[place], at));
            return Self { indexed: Some(Arc::new(indexed)), received, ..Self::default() };
        };
        let mut remembered = PreviousTimes::new(kept, before);
        let reports = machines;
        let mut order: Vec<usize> = (0..machines.len()).collect();
        // The first of two reports of one machine counts: the stable sort keeps their order.
        order.sort_by_key(|place| identity(&machines[*place]));
        let mut places = vec![0; machines.len()];
        let mut known: Vec<(&Machine, OffsetDateTime, Option<ReportTime>)> =
            Vec::with_capacity(machines.len());
        for place in order {
            let machine = &machines[place];
            if known.last().is_none_or(|(last, ..)| identity(last) != identity(machine)) {
                let reported = changed_at(machine, at);
                known.push((machine, reported, remembered.time(identity(machine), reported)));
            }
            places[place] = known.len() - 1;
        }
        let moves = known.iter().filter_map(|(_, reported, before)| {
            let before = before.as_ref()?;
            Some((*reported - before.reported, before.reported))
        });
        let common = common_clock_move(moves.collect(), settings.within);
        let elapsed = received.zip(before.received).map(|(now, then)| now.saturating_duration_since(then));
        let machines = known.into_iter().map(|(machine, reported, before)| {
            let same = before.filter(|before| {
                is_same(reported, before.changed)
                    || reported - before.reported - common <= SAME_REPORT
                    || elapsed.is_some_and(|elapsed| is_older(age_of_state(machine), common, elapsed))
            });
            let time = ReportTime { reported, changed: same.map_or(reported, |before| before.changed) };
            let (serial, address) = identity(machine);
            ((serial.to_owned(), address.to_owned()), time)
        });
        let machines: Vec<_> = machines.collect();
        let changed = |place: usize| machines[places[place]].1.changed;
        let indexed = Some(Arc::new(IndexedReports::new(reports, Some(&settings.label), changed)));
        Self { machines, indexed, received }
    }

    /// Index of these reports: the cached one if it fits, else a new one.
    pub(crate) fn indexed(
        &self,
        reports: &[Machine],
        label: Option<&Label>,
        at: OffsetDateTime,
    ) -> Arc<IndexedReports> {
        match self.indexed.as_ref().filter(|indexed| indexed.is_of(reports, label)) {
            Some(indexed) => Arc::clone(indexed),
            None => Arc::new(IndexedReports::new(reports, label, |place| {
                self.changed(identity(&reports[place])).unwrap_or_else(|| changed_at(&reports[place], at))
            })),
        }
    }

    /// Change time of the machine with this serial and address, if the answer has it.
    #[must_use]
    pub fn changed(&self, (serial, address): (&str, &str)) -> Option<OffsetDateTime> {
        let of = |known: &(String, String)| (known.0.as_str(), known.1.as_str()).cmp(&(serial, address));
        let place = self.machines.binary_search_by(|(known, _)| of(known)).ok()?;
        Some(self.machines[place].1.changed)
    }
}

/// Previous times: of the last answer, or from the store's holds.
struct PreviousTimes<'a> {
    before: Peekable<Iter<'a, ((String, String), ReportTime)>>,
    kept: BTreeMap<MachineIdentity<'a>, Vec<OffsetDateTime>>,
}

impl<'a> PreviousTimes<'a> {
    fn new(holds: &'a dyn KnownHolds, before: &'a Times) -> Self {
        let mut kept: BTreeMap<MachineIdentity<'_>, Vec<OffsetDateTime>> = BTreeMap::new();
        if before.received.is_none() {
            for (_, hold) in holds.racks() {
                let held = hold.events.iter().flat_map(|event| &event.machines);
                for report in held.chain(&hold.released) {
                    kept.entry(report.identity()).or_default().push(report.changed);
                }
            }
        }
        Self { before: before.machines.iter().peekable(), kept }
    }

    /// Previous time of a machine; callers ask in sorted order.
    fn time(&mut self, machine: MachineIdentity<'_>, reported: OffsetDateTime) -> Option<ReportTime> {
        let who = |known: &'a (String, String)| (known.0.as_str(), known.1.as_str());
        while self.before.next_if(|(known, _)| who(known) < machine).is_some() {}
        let before = self.before.peek().filter(|(known, _)| who(known) == machine).map(|(_, time)| *time);
        let kept = || {
            let times = self.kept.get(&machine)?.iter();
            let nearest = *times.min_by_key(|time| (**time - reported).unsigned_abs())?;
            Some(ReportTime { reported: nearest, changed: nearest })
        };
        before.or_else(kept)
    }
}

/// Common move of the times due to clocks, as far as it is credible; `moves` has, for each report, the move and the
/// previous time.
fn common_clock_move(mut moves: Vec<(time::Duration, OffsetDateTime)>, together: Duration) -> time::Duration {
    let none = time::Duration::ZERO;
    if moves.len() < FEWEST {
        return none;
    }
    moves.sort_unstable();
    let median = moves[moves.len() / 2].0;
    let agree = moves.iter().filter(|(by, _)| (*by - median).unsigned_abs() <= SAME_MOVE);
    let mut agree: Vec<OffsetDateTime> = agree.map(|(_, before)| *before).collect();
    if median.unsigned_abs() <= SAME_REPORT || agree.len() * 4 < moves.len() * 3 {
        return none;
    }
    if median.is_positive() {
        // Quartiles: one machine that agrees by chance must not vouch for machines that failed together.
        agree.sort_unstable();
        let quarter = agree.len() / 4;
        let spread = agree[agree.len() - 1 - quarter] - agree[quarter];
        if spread.unsigned_abs() <= together {
            return none;
        }
    }
    median
}

/// True if a machine was in its state before the last answer, `elapsed` ago. `age` is by the registry's present
/// clock; by its clock before a move of `common`, the machine was older.
fn is_older(age: time::Duration, common: time::Duration, elapsed: Duration) -> bool {
    let least = elapsed.saturating_add(SAME_REPORT);
    let by_before = age.saturating_add(common);
    let in_future = age.is_negative() && age.unsigned_abs() > SAME_REPORT;
    // A state that begins in the future began before the registry's clock was set back, by an amount that is not
    // always known.
    if in_future {
        return common.is_zero() || by_before > least;
    }
    age.min(by_before) > least
}

#[cfg(test)]
mod tests;
