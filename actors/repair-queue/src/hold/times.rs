//! When the state of each reported machine changed, though clocks are set.
//!
//! What an answer tells is our time less a duration by the registry's clock. When one of the two clocks is set, or drifts, the
//! times of all reports move, while no machine changed its state. A time that is remembered stands for a report for as long as it
//! is the same one; this decides which are.
//!
//! # The rule
//! A report is the one of before unless its time is *later*, by more than [`SAME_REPORT`], than clocks explain: a state that changes
//! anew never does so earlier. Clocks explain
//! - a move that nearly all reports have in common: any that is earlier; one that is later only when machines share it that
//!   did not fail together. Those that fail together once may do so again, but not hours apart in the same order;
//! - a time that lies before the last answer, in which the machine was reported as it is now: nothing changed since. How
//!   long ago that answer came is measured by a clock that nobody sets.
//!
//! Where neither is known, as of the machines of one rack after a new leader began, a later time is a new report: a rack that
//! is held once too often is let go by a word, repairs of a whole rack cannot be taken back.
//!
//! # Guarantees
//! Each machine of an answer has one time. It does not change while the report is the same one, whatever the clocks do.
//!
//! # Assumes
//! A machine that was not in the last answer has recovered: it is not remembered.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::machine::Machine;
use madako_domain::repair::hold::{HoldSettings, Label};
use madako_domain::repair::report::Seen;
use time::OffsetDateTime;

use super::KnownHolds;
use crate::indexed::{Indexed, Who, who};
use crate::limits::SAME_MOVE;
pub use crate::limits::SAME_REPORT;

/// Reports that a move must be known of: two may agree by chance.
const FEWEST: usize = 3;

/// Longest time in one state that is told apart, in seconds: 1,900 years. Go's durations end at 292.
const LONGEST: f64 = 60e9;

/// How long a machine has been in its state, by the registry's clock.
fn age(machine: &Machine) -> time::Duration {
    time::Duration::saturating_seconds_f64(machine.status.duration.clamp(-LONGEST, LONGEST))
}

/// When the state of a machine changed that was reported at a time.
#[must_use]
pub fn changed_at(machine: &Machine, at: OffsetDateTime) -> OffsetDateTime {
    at.saturating_sub(age(machine))
}

/// Whether two times of one machine are those of one change.
#[must_use]
pub fn is_same(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    (one - other).unsigned_abs() <= SAME_REPORT
}

/// What is remembered of an answer: the time of each machine in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times {
    /// By serial and address, sorted.
    machines: Vec<((String, String), Time)>,
    /// What is looked up in the answer; `None`: nobody remembers one.
    indexed: Option<Arc<Indexed>>,
    /// When the answer came; `None`: nobody remembers an answer.
    seen: Option<Seen>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Time {
    /// What the last answer told.
    told: OffsetDateTime,
    /// What stands for it.
    changed: OffsetDateTime,
}

impl Times {
    /// The times of an answer that came at `at`, which was `seen` on the clock that ages are measured by; `before` are those of
    /// the last one. While there was none, what is kept in the store is remembered instead.
    #[must_use]
    pub fn of(
        machines: &[Machine],
        (at, seen): (OffsetDateTime, Option<Seen>),
        settings: Option<&HoldSettings>,
        kept: &dyn KnownHolds,
        before: &Self,
    ) -> Self {
        let Some(settings) = settings else {
            let indexed = Indexed::of(machines, None, |place| changed_at(&machines[place], at));
            return Self { indexed: Some(Arc::new(indexed)), seen, ..Self::default() };
        };
        let mut remembered = Remembered::new(kept, before);
        let reports = machines;
        let mut order: Vec<usize> = (0..machines.len()).collect();
        // Of two reports of one machine the first counts: this keeps their order.
        order.sort_by_key(|place| who(&machines[*place]));
        let mut places = vec![0; machines.len()];
        let mut known: Vec<(&Machine, OffsetDateTime, Option<Time>)> = Vec::with_capacity(machines.len());
        for place in order {
            let machine = &machines[place];
            if known.last().is_none_or(|(last, ..)| who(last) != who(machine)) {
                let told = changed_at(machine, at);
                known.push((machine, told, remembered.time(who(machine), told)));
            }
            places[place] = known.len() - 1;
        }
        let moves = known.iter().filter_map(|(_, told, before)| {
            let before = before.as_ref()?;
            Some((*told - before.told, before.told))
        });
        let common = common_move(moves.collect(), settings.within);
        let elapsed = seen.zip(before.seen).map(|(now, then)| now.saturating_duration_since(then));
        let machines = known.into_iter().map(|(machine, told, before)| {
            let same = before.filter(|before| {
                is_same(told, before.changed)
                    || told - before.told - common <= SAME_REPORT
                    || elapsed.is_some_and(|elapsed| is_older(age(machine), common, elapsed))
            });
            let time = Time { told, changed: same.map_or(told, |before| before.changed) };
            let (serial, address) = who(machine);
            ((serial.to_owned(), address.to_owned()), time)
        });
        let machines: Vec<_> = machines.collect();
        let changed = |place: usize| machines[places[place]].1.changed;
        let indexed = Some(Arc::new(Indexed::of(reports, Some(&settings.label), changed)));
        Self { machines, indexed, seen }
    }

    /// What is looked up in the answer that these times are of, and in others made anew.
    pub(crate) fn indexed(
        &self,
        reports: &[Machine],
        label: Option<&Label>,
        at: OffsetDateTime,
    ) -> Arc<Indexed> {
        match self.indexed.as_ref().filter(|indexed| indexed.is_of(reports, label)) {
            Some(indexed) => Arc::clone(indexed),
            None => Arc::new(Indexed::of(reports, label, |place| {
                self.changed(who(&reports[place])).unwrap_or_else(|| changed_at(&reports[place], at))
            })),
        }
    }

    /// When the state of a machine changed that is in the answer: of that serial and address.
    #[must_use]
    pub fn changed(&self, (serial, address): (&str, &str)) -> Option<OffsetDateTime> {
        let of = |known: &(String, String)| (known.0.as_str(), known.1.as_str()).cmp(&(serial, address));
        let place = self.machines.binary_search_by(|(known, _)| of(known)).ok()?;
        Some(self.machines[place].1.changed)
    }
}

/// What is remembered of machines: the last answer, or what the store keeps of them.
struct Remembered<'a> {
    before: Peekable<Iter<'a, ((String, String), Time)>>,
    kept: BTreeMap<Who<'a>, Vec<OffsetDateTime>>,
}

impl<'a> Remembered<'a> {
    fn new(holds: &'a dyn KnownHolds, before: &'a Times) -> Self {
        let mut kept: BTreeMap<Who<'_>, Vec<OffsetDateTime>> = BTreeMap::new();
        if before.seen.is_none() {
            for (_, hold) in holds.racks() {
                let held = hold.events.iter().flat_map(|event| &event.machines);
                for report in held.chain(&hold.released) {
                    kept.entry(report.who()).or_default().push(report.changed);
                }
            }
        }
        Self { before: before.machines.iter().peekable(), kept }
    }

    /// What is remembered of a machine; who asks does so in their order.
    fn time(&mut self, machine: Who<'_>, told: OffsetDateTime) -> Option<Time> {
        let who = |known: &'a (String, String)| (known.0.as_str(), known.1.as_str());
        while self.before.next_if(|(known, _)| who(known) < machine).is_some() {}
        let before = self.before.peek().filter(|(known, _)| who(known) == machine).map(|(_, time)| *time);
        let kept = || {
            let times = self.kept.get(&machine)?.iter();
            let nearest = *times.min_by_key(|time| (**time - told).unsigned_abs())?;
            Some(Time { told: nearest, changed: nearest })
        };
        before.or_else(kept)
    }
}

/// By how much clocks moved the times, as far as that can be believed; `moves` is, for each report, by how much its time did, and
/// what it was before.
fn common_move(mut moves: Vec<(time::Duration, OffsetDateTime)>, together: Duration) -> time::Duration {
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
        // By the quarters: one machine that agrees by chance must not speak for those that failed together.
        agree.sort_unstable();
        let quarter = agree.len() / 4;
        let spread = agree[agree.len() - 1 - quarter] - agree[quarter];
        if spread.unsigned_abs() <= together {
            return none;
        }
    }
    median
}

/// Whether a machine has been in its state since before the last answer, `elapsed` ago. Its age is by the registry's clock of now;
/// by that of before it was moved by `common`, it was older.
fn is_older(age: time::Duration, common: time::Duration, elapsed: Duration) -> bool {
    let least = elapsed.saturating_add(SAME_REPORT);
    let by_before = age.saturating_add(common);
    let in_future = age.is_negative() && age.unsigned_abs() > SAME_REPORT;
    // A state that begins in the future began before the registry's clock was set back; by how much is not always known.
    if in_future {
        return common.is_zero() || by_before > least;
    }
    age.min(by_before) > least
}

#[cfg(test)]
mod tests;
