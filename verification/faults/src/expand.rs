//! Expands the faults of a scenario into a schedule of injections.
//!
//! Guarantees: equal faults, length and generator give an equal schedule, on every machine and in every build. A fault
//! appended to the list does not change the draws of the others. Every fault begins before the run ends and has ended
//! when the run ends. The number of events is bounded.
//!
//! Does not: know which instance leads or which processes run. A schedule may contain a fault that cannot be injected
//! at its time.

use std::collections::BTreeMap;
use std::fmt;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::fault::{Act, Fault, FaultTimes, Target};
use crate::span::Span;
use crate::suits::{FaultLength, fault_length};

/// Limit on the beginnings of all faults of a run: one every 26 seconds for thirty days. A longer list is a state, not
/// a series of events, and no reader surveys its report.
pub const MAX_STRIKES: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// Index of the fault in the list, from 0. For injections merged into one: the fault that began first.
    pub fault: usize,
    pub act: Act,
    pub target: Target,
    pub begins: Span,
    /// `None`: the act strikes once.
    pub ends: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectionChange {
    Ends,
    /// Start an act that holds until its end.
    Begins,
    /// Do an act that has nothing to undo.
    Strikes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// Since the beginning of the run.
    pub at: Span,
    pub change: InjectionChange,
    /// Index in [`Schedule::injections`].
    pub injection: usize,
}

/// A drawn beginning of a fault of the kind `random`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DrawnBeginning {
    /// Index of the fault in the list, from 0.
    pub fault: usize,
    pub pause: Span,
    pub begins: Span,
}

/// All changes of a run with their times. Printed, it has a line for each draw and each event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of their beginnings.
    pub injections: Vec<Injection>,
    /// In the order of execution: at equal times ends come before beginnings.
    pub events: Vec<Event>,
    /// In the order of the faults.
    pub draws: Vec<DrawnBeginning>,
}

/// The faults begin too often within the run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the faults begin more than {MAX_STRIKES} times in {length}: \"{fault}\" exceeds the limit; make it less frequent"
)]
pub struct TooManyFaults {
    pub length: Span,
    /// The fault that reached the limit, in its one-line form.
    pub fault: String,
}

/// Expands the faults of a run of the given length. Two faults with the same act and the same target (as written) that
/// overlap or touch become one fault that ends with the later of them. All other faults hold side by side.
///
/// # Errors
/// The faults begin more than [`MAX_STRIKES`] times.
pub fn schedule(faults: &[Fault], length: Span, chance: &mut ChaCha8Rng) -> Result<Schedule, TooManyFaults> {
    let mut draws = Vec::new();
    let mut strikes: BTreeMap<(Act, Target), Vec<Injection>> = BTreeMap::new();
    let mut count = 0;
    for (number, fault) in faults.iter().enumerate() {
        // Each fault has a generator of its own, drawn whether it needs one or not: a change of one fault does not
        // reshuffle the others.
        let own = ChaCha8Rng::from_rng(chance);
        let begins = BeginTimes { fault, number, own, draws: &mut draws, last: None };
        for begins in begins.take_while(|begins| *begins < length) {
            count += 1;
            if count > MAX_STRIKES {
                return Err(TooManyFaults { length, fault: fault.to_string() });
            }
            let injection = draw_injection(number, fault, begins, length);
            strikes.entry((fault.act, fault.target.clone())).or_default().push(injection);
        }
    }
    // A draw beyond the end of the run begins no fault.
    draws.retain(|draw: &DrawnBeginning| draw.begins < length);
    let mut injections: Vec<Injection> = strikes.into_values().flat_map(merge_injections).collect();
    injections.sort_by_key(|one| (one.begins, one.fault));
    let events = events_of(&injections);
    Ok(Schedule { injections, events, draws })
}

fn draw_injection(number: usize, fault: &Fault, begins: Span, length: Span) -> Injection {
    let ends = match fault_length(fault.act, fault.target.kind()) {
        FaultLength::Once => None,
        FaultLength::While => Some(fault.lasts.map_or(length, |lasts| (begins + lasts).min(length))),
    };
    Injection { fault: number, act: fault.act, target: fault.target.clone(), begins, ends }
}

/// Iterates over the beginnings of one fault; endless for a fault that repeats.
struct BeginTimes<'a> {
    fault: &'a Fault,
    number: usize,
    own: ChaCha8Rng,
    draws: &'a mut Vec<DrawnBeginning>,
    last: Option<Span>,
}

impl Iterator for BeginTimes<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let last = self.last.unwrap_or(Span::from_millis(0));
        let begins = match self.fault.when {
            FaultTimes::At(_) if self.last.is_some() => return None,
            FaultTimes::At(span) => span,
            FaultTimes::Every(span) => last + span,
            FaultTimes::Random { mean } => {
                let pause = draw_exponential(mean, &mut self.own);
                let begins = last + pause;
                self.draws.push(DrawnBeginning { fault: self.number, pause, begins });
                begins
            }
        };
        self.last = Some(begins);
        Some(begins)
    }
}

/// A pause of at least a millisecond with an exponential distribution, by von Neumann's comparisons of even draws: a
/// logarithm would differ between machines in its last digit.
fn draw_exponential(mean: Span, chance: &mut ChaCha8Rng) -> Span {
    /// Each round is the last one with a chance of 63 percent, so that the bound is never reached.
    const MAX_ROUNDS: u64 = 64;
    for round in 0..MAX_ROUNDS {
        let first: u32 = chance.random();
        let (mut least, mut falls) = (first, 0_u32);
        loop {
            let next: u32 = chance.random();
            if next >= least {
                break;
            }
            (least, falls) = (next, falls + 1);
        }
        if falls % 2 == 0 {
            // In units of 2^-32 of the mean.
            let units = (u128::from(round) << 32) + u128::from(first);
            let millis = (u128::from(mean.as_millis()) * units) >> 32;
            return Span::from_millis(u64::try_from(millis).unwrap_or(u64::MAX).max(1));
        }
    }
    Span::from_millis(mean.as_millis().saturating_mul(MAX_ROUNDS))
}

/// Merges injections with the same act and target: an injection that begins before or when the previous one ends
/// extends it.
fn merge_injections(mut same: Vec<Injection>) -> Vec<Injection> {
    same.sort_by_key(|one| (one.begins, one.fault));
    let mut merged: Vec<Injection> = Vec::with_capacity(same.len());
    for one in same {
        match merged.last_mut() {
            Some(last) if one.begins <= last.ends.unwrap_or(last.begins) => {
                last.ends = last.ends.max(one.ends)
            }
            _ => merged.push(one),
        }
    }
    merged
}

fn events_of(injections: &[Injection]) -> Vec<Event> {
    let mut events = Vec::with_capacity(2 * injections.len());
    for (injection, one) in injections.iter().enumerate() {
        let change = if one.ends.is_some() { InjectionChange::Begins } else { InjectionChange::Strikes };
        events.push(Event { at: one.begins, change, injection });
        events.extend(one.ends.map(|at| Event { at, change: InjectionChange::Ends, injection }));
    }
    events.sort();
    events
}

impl fmt::Display for DrawnBeginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "drawn: faults[{}] pauses for {} and begins at {}", self.fault, self.pause, self.begins)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for draw in &self.draws {
            writeln!(f, "{draw}")?;
        }
        for Event { at, change, injection } in &self.events {
            let Injection { fault, act, target, .. } = &self.injections[*injection];
            let change = match change {
                InjectionChange::Begins => "begins",
                InjectionChange::Ends => "ends",
                InjectionChange::Strikes => "strikes",
            };
            writeln!(f, "{at}: faults[{fault}], {act} {target}, {change}")?;
        }
        Ok(())
    }
}
