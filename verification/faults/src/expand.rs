//! From the faults of a scenario to what begins and ends when.
//!
//! Guarantees: the same faults, length and generator give the same schedule, on every machine and in every build;
//! another fault at the end of the list leaves the draws of the others as they are. Everything begins before the
//! length of the run is over, and has ended when it is. The number of events is bounded.
//!
//! Does not: know who leads or what runs, so a schedule may hold what cannot be injected when its time comes.

use std::collections::BTreeMap;
use std::fmt;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::fault::{Act, Fault, Target, When};
use crate::span::Span;
use crate::suits::{Lasts, lasts};

/// Beginnings of all faults of a run together: one every 26 seconds for thirty days. A longer list is a state, not a
/// series of events, and no person reads its report.
pub const MAX_STRIKES: usize = 100_000;

/// Something that happens to a target, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// Which fault of the list it comes from, counted from 0; of several that became one, the first that began.
    pub fault: usize,
    /// What is done.
    pub act: Act,
    /// To whom.
    pub target: Target,
    /// When it begins.
    pub begins: Span,
    /// When it ends; `None`: it strikes once and is over.
    pub ends: Option<Span>,
}

/// What is to do at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Undo what was done.
    Ends,
    /// Do it; it holds until it ends.
    Begins,
    /// Do it; there is nothing to undo.
    Strikes,
}

/// One entry of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// When, counted from the beginning of the run.
    pub at: Span,
    /// What is to do.
    pub change: Change,
    /// Which of the injections.
    pub injection: usize,
}

/// A number that was drawn: when a fault of the kind `random` begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Draw {
    /// Which fault of the list, counted from 0.
    pub fault: usize,
    /// The pause that was drawn.
    pub pause: Span,
    /// When the fault begins by it.
    pub begins: Span,
}

/// What happens when. Printed, it has a line for each draw and each event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// All that happens, in the order in which it begins.
    pub injections: Vec<Injection>,
    /// What is to do, in the order in which it is to be done: at one time ends come before beginnings.
    pub events: Vec<Event>,
    /// All that was drawn, fault by fault.
    pub draws: Vec<Draw>,
}

/// Faults that begin too often in the time of the run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("faults begin more than {MAX_STRIKES} times in {length}, the limit being reached by \"{fault}\"")]
pub struct TooMany {
    /// How long the run is.
    pub length: Span,
    /// The fault that reached the limit, on one line.
    pub fault: String,
}

/// Lays out the faults of a run that lasts so long. Two faults that do the same to the same target, as it is written,
/// and that overlap or touch, become one that ends with the later of them; all others hold side by side.
///
/// # Errors
/// They begin more than [`MAX_STRIKES`] times.
pub fn schedule(faults: &[Fault], length: Span, chance: &mut ChaCha8Rng) -> Result<Schedule, TooMany> {
    let mut draws = Vec::new();
    let mut strikes: BTreeMap<(Act, Target), Vec<Injection>> = BTreeMap::new();
    let mut count = 0;
    for (number, fault) in faults.iter().enumerate() {
        // Each fault has a generator of its own, drawn whether it needs one or not: a change of one fault does not
        // reshuffle the others.
        let own = ChaCha8Rng::from_rng(chance);
        let begins = Beginnings { fault, number, own, draws: &mut draws, last: None };
        for begins in begins.take_while(|begins| *begins < length) {
            count += 1;
            if count > MAX_STRIKES {
                return Err(TooMany { length, fault: fault.to_string() });
            }
            let injection = injection(number, fault, begins, length);
            strikes.entry((fault.act, fault.target.clone())).or_default().push(injection);
        }
    }
    // What was drawn beyond the end of the run began nothing.
    draws.retain(|draw: &Draw| draw.begins < length);
    let mut injections: Vec<Injection> = strikes.into_values().flat_map(merged).collect();
    injections.sort_by_key(|one| (one.begins, one.fault));
    let events = events(&injections);
    Ok(Schedule { injections, events, draws })
}

fn injection(number: usize, fault: &Fault, begins: Span, length: Span) -> Injection {
    let ends = match lasts(fault.act, fault.target.kind()) {
        Lasts::Once => None,
        Lasts::While => Some(fault.lasts.map_or(length, |lasts| (begins + lasts).min(length))),
    };
    Injection { fault: number, act: fault.act, target: fault.target.clone(), begins, ends }
}

/// When one fault begins, without end for those that repeat.
struct Beginnings<'a> {
    fault: &'a Fault,
    number: usize,
    own: ChaCha8Rng,
    draws: &'a mut Vec<Draw>,
    last: Option<Span>,
}

impl Iterator for Beginnings<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let last = self.last.unwrap_or(Span::millis(0));
        let begins = match self.fault.when {
            When::At(_) if self.last.is_some() => return None,
            When::At(span) => span,
            When::Every(span) => last + span,
            When::Random { mean } => {
                let pause = exponential(mean, &mut self.own);
                let begins = last + pause;
                self.draws.push(Draw { fault: self.number, pause, begins });
                begins
            }
        };
        self.last = Some(begins);
        Some(begins)
    }
}

/// A pause with an exponential distribution, by von Neumann's comparisons of even draws: no logarithm, whose last
/// digit depends on the machine. At least a millisecond.
fn exponential(mean: Span, chance: &mut ChaCha8Rng) -> Span {
    /// Rounds, each of which is the last one with a chance of 63 percent: never reached, but a bound.
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
            return Span::millis(u64::try_from(millis).unwrap_or(u64::MAX).max(1));
        }
    }
    Span::millis(mean.as_millis().saturating_mul(MAX_ROUNDS))
}

/// What does the same to the same target: where one begins before the last ended, or just then, both are one.
fn merged(mut same: Vec<Injection>) -> Vec<Injection> {
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

fn events(injections: &[Injection]) -> Vec<Event> {
    let mut events = Vec::with_capacity(2 * injections.len());
    for (injection, one) in injections.iter().enumerate() {
        let change = if one.ends.is_some() { Change::Begins } else { Change::Strikes };
        events.push(Event { at: one.begins, change, injection });
        events.extend(one.ends.map(|at| Event { at, change: Change::Ends, injection }));
    }
    events.sort();
    events
}

impl fmt::Display for Draw {
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
                Change::Begins => "begins",
                Change::Ends => "ends",
                Change::Strikes => "strikes",
            };
            writeln!(f, "{at}: faults[{fault}], {act} {target}, {change}")?;
        }
        Ok(())
    }
}
