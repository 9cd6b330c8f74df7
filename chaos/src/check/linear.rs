//! Linearizability of what clients of the API of placement saw, object by object.
//!
//! Each object is a register that may be absent: it is created, read, changed (over whatever is there, or over the
//! version that was read), and deleted; deleted it is gone at some later time, which nobody is told. The search is
//! stateright's [`LinearizabilityTester`]; ours is what each call may answer. A call whose end is not known may have
//! happened at any time after it was sent, or never; a read of which nothing is known says nothing.
//!
//! Does not: judge lists, watches, or what the system itself writes into an object; only the clients' value counts.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use crate::history::{Call, End};

/// Steps of the search for one object. Without trouble it takes a few a call; with some unknown ends some thousands.
const MAX_STEPS: u64 = 200_000;

/// What is asked of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Op {
    /// Its value.
    Read,
    /// It is to be there, with this value.
    Create {
        /// The value.
        value: u64,
    },
    /// It is to have this value.
    Write {
        /// The value.
        value: u64,
        /// Only over the version that was read, which had this value.
        over: Option<u64>,
    },
    /// It is to go.
    Delete,
}

/// What was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Ret {
    /// Done: with the value that it has now, where that was asked for.
    Done {
        /// The value.
        value: Option<u64>,
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// It is not there.
    Absent,
    /// It is there already.
    Exists,
    /// Somebody else changed it; nothing was done.
    Changed,
    /// The service refused, for a reason that says nothing about the value; nothing was done.
    Refused,
}

/// What an object may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Present(u64),
    /// Deleted, and gone at some time.
    Leaving(u64),
}

/// All that an object may be at a time, as the calls so far say. The budget of the search goes along.
#[derive(Debug, Clone)]
struct Object {
    may_be: BTreeSet<State>,
    steps: Rc<Cell<u64>>,
}

impl Object {
    fn absent(steps: Rc<Cell<u64>>) -> Self {
        Self { may_be: BTreeSet::from([State::Absent]), steps }
    }

    /// What each state becomes by an operation that is answered so; `None`: any answer.
    fn step(&mut self, op: Op, ret: Option<Ret>) -> bool {
        let mut after = BTreeSet::new();
        for state in &self.may_be {
            let gone = matches!(state, State::Leaving(_)).then_some(State::Absent);
            for state in std::iter::once(*state).chain(gone) {
                after.extend(
                    possible(state, op).into_iter().filter_map(|(state, said)| {
                        ret.is_none_or(|ret| said.contains(&ret)).then_some(state)
                    }),
                );
            }
        }
        self.may_be = after;
        !self.may_be.is_empty()
    }
}

/// What an operation makes of a state, with the answers that go with it.
fn possible(state: State, op: Op) -> Vec<(State, Vec<Ret>)> {
    let done = |value: Option<u64>, deleting| vec![Ret::Done { value, deleting }];
    // These may be answered at any time, and change nothing.
    let nothing = (state, vec![Ret::Refused]);
    let mut all = vec![nothing];
    match (op, state) {
        (Op::Read, State::Absent) | (Op::Write { .. } | Op::Delete, State::Absent) => {
            all.push((state, vec![Ret::Absent]));
        }
        (Op::Read, State::Present(value)) => all.push((state, done(Some(value), false))),
        (Op::Read, State::Leaving(value)) => all.push((state, done(Some(value), true))),
        (Op::Create { value }, State::Absent) => all.push((State::Present(value), done(None, false))),
        (Op::Create { .. }, _) => all.push((state, vec![Ret::Exists])),
        (Op::Write { value, over }, State::Present(is) | State::Leaving(is)) => {
            let after = match state {
                State::Leaving(_) => State::Leaving(value),
                _ => State::Present(value),
            };
            if over.is_none_or(|over| over == is) {
                all.push((after, done(None, matches!(state, State::Leaving(_)))));
            }
            // The system writes into it, too: another version may have the same value.
            all.push((state, vec![Ret::Changed]));
        }
        (Op::Delete, State::Present(value) | State::Leaving(value)) => {
            all.push((State::Leaving(value), done(None, true)));
            // Somebody else writes all the time.
            all.push((state, vec![Ret::Changed]));
        }
    }
    all
}

impl SequentialSpec for Object {
    type Op = Op;
    type Ret = Ret;

    /// For calls of which nothing is known: whatever they may have done, or nothing.
    fn invoke(&mut self, op: &Op) -> Ret {
        let before = self.may_be.clone();
        self.step(*op, None);
        self.may_be.extend(before);
        Ret::Refused
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        let steps = self.steps.get();
        self.steps.set(steps + 1);
        steps < MAX_STEPS && self.step(*op, Some(*ret))
    }
}

/// What was found of the calls.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// Objects whose calls were judged.
    pub objects: u64,
    /// Calls that were judged.
    pub calls: u64,
    /// Calls of which nobody knows what became.
    pub unknown: u64,
    /// Objects whose calls fit into no order, by their names.
    pub broken: Vec<String>,
    /// Objects for which the search was given up.
    pub undecided: Vec<String>,
}

/// Judges all calls.
#[must_use]
pub fn judge<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Judged {
    let mut objects: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let says_nothing = match call.end {
            End::NotSent => true,
            End::Unknown { .. } => call.op == Op::Read,
            End::Answered { .. } => false,
        };
        if !says_nothing {
            objects.entry(&call.object).or_default().push(call);
        }
    }
    let mut judged = Judged::default();
    for (name, calls) in objects {
        judged.objects += 1;
        judged.calls += calls.len() as u64;
        judged.unknown += calls.iter().filter(|call| matches!(call.end, End::Unknown { .. })).count() as u64;
        match linearizable(&calls) {
            Some(true) => {}
            Some(false) => judged.broken.push(name.to_owned()),
            None => judged.undecided.push(name.to_owned()),
        }
    }
    judged
}

/// Whether the calls of an object fit into an order; `None`: the search was given up.
fn linearizable(calls: &[&Call]) -> Option<bool> {
    let calls = telling(calls);
    // At one time calls begin before others end: what is not known to be in order is not held to be.
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        edges.push((call.called, false, index));
        if matches!(call.end, End::Answered { .. }) {
            edges.push((call.returned, true, index));
        }
    }
    edges.sort_unstable();
    let steps = Rc::new(Cell::new(0));
    let mut tester = LinearizabilityTester::new(Object::absent(Rc::clone(&steps)));
    // The tester knows threads with one call at a time. A call takes the first that is free, for ever if it has no end.
    let mut threads: Vec<Option<usize>> = Vec::new();
    for (_, ends, index) in edges {
        let holder = if ends { Some(index) } else { None };
        let thread = threads.iter().position(|held| *held == holder).unwrap_or(threads.len());
        if thread == threads.len() {
            threads.push(None);
        }
        let taken = match (&calls[index].end, ends) {
            (End::Answered { said, .. }, true) => {
                threads[thread] = None;
                tester.on_return(thread, *said).map(drop)
            }
            _ => {
                threads[thread] = Some(index);
                tester.on_invoke(thread, calls[index].op).map(drop)
            }
        };
        if taken.is_err() {
            return Some(false);
        }
    }
    match tester.is_consistent() {
        true => Some(true),
        false if steps.get() >= MAX_STEPS => None,
        false => Some(false),
    }
}

/// The calls without those that may as well never have happened: changes without an end whose value nobody ever met.
/// Whatever order the others fit into with such a change, they fit into without it.
fn telling<'a>(calls: &[&'a Call]) -> Vec<&'a Call> {
    let met: BTreeSet<u64> = calls
        .iter()
        .flat_map(|call| {
            let read = match &call.end {
                End::Answered { said: Ret::Done { value, .. }, .. } => *value,
                _ => None,
            };
            let over = match call.op {
                Op::Write { over, .. } => over,
                _ => None,
            };
            read.into_iter().chain(over)
        })
        .collect();
    let tells = |call: &&&Call| match (&call.end, call.op) {
        (End::Unknown { .. }, Op::Write { value, .. }) => met.contains(&value),
        _ => true,
    };
    calls.iter().filter(tells).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call by its span of time, what was asked, and what was said: `None`: nobody knows.
    fn call(called: u64, returned: u64, op: Op, said: Option<Ret>) -> Call {
        let end = said.map_or(End::Unknown { why: "late".to_owned() }, |said| End::Answered {
            status: 200,
            said,
            revision: None,
        });
        Call { client: 1, instance: 1, object: "a".to_owned(), op, called, returned, end }
    }

    const DONE: Option<Ret> = Some(Ret::Done { value: None, deleting: false });

    fn create(value: u64) -> Op {
        Op::Create { value }
    }

    fn write(value: u64, over: Option<u64>) -> Op {
        Op::Write { value, over }
    }

    fn read(value: u64) -> Option<Ret> {
        Some(Ret::Done { value: Some(value), deleting: false })
    }

    fn fits(calls: &[Call]) -> bool {
        let judged = judge(calls);
        assert_eq!(judged.undecided, Vec::<String>::new());
        assert_eq!((judged.objects, judged.calls), (1, calls.len() as u64));
        judged.broken.is_empty()
    }

    #[test]
    fn calls_in_order_fit() {
        assert!(fits(&[
            call(0, 1, Op::Read, Some(Ret::Absent)),
            call(2, 3, create(1), DONE),
            call(4, 5, create(2), Some(Ret::Exists)),
            call(6, 7, Op::Read, read(1)),
            call(8, 9, write(3, Some(1)), DONE),
            call(10, 11, write(4, Some(1)), Some(Ret::Changed)),
            call(12, 13, Op::Read, read(3)),
            call(14, 15, Op::Delete, Some(Ret::Done { value: None, deleting: true })),
            call(16, 17, Op::Read, Some(Ret::Done { value: Some(3), deleting: true })),
            call(18, 19, Op::Read, Some(Ret::Absent)),
            call(20, 21, create(5), DONE),
            call(22, 23, Op::Read, read(5)),
        ]));
    }

    #[test]
    fn a_stale_read_fits_nowhere() {
        let mut calls = vec![
            call(0, 1, create(1), DONE),
            call(2, 3, write(2, None), DONE),
            call(4, 5, Op::Read, read(1)),
        ];
        assert!(!fits(&calls));
        // While the write was under way it may have been read before.
        calls[1].returned = 6;
        assert!(fits(&calls));
    }

    #[test]
    fn a_lost_update_fits_nowhere() {
        assert!(!fits(&[
            call(0, 1, create(1), DONE),
            call(2, 6, write(2, Some(1)), DONE),
            call(3, 7, write(3, Some(1)), DONE),
        ]));
        assert!(fits(&[
            call(0, 1, create(1), DONE),
            call(2, 6, write(2, Some(1)), DONE),
            call(3, 7, write(3, Some(1)), Some(Ret::Changed)),
        ]));
    }

    #[test]
    fn what_was_acknowledged_and_is_gone_fits_nowhere() {
        assert!(!fits(&[call(0, 1, create(1), DONE), call(2, 3, Op::Read, Some(Ret::Absent))]));
        assert!(!fits(&[
            call(0, 1, create(1), DONE),
            call(2, 3, Op::Delete, Some(Ret::Done { value: None, deleting: true })),
            call(4, 5, Op::Read, read(1)),
        ]));
        assert!(!fits(&[call(0, 1, create(1), DONE), call(2, 3, create(2), DONE)]));
    }

    #[test]
    fn a_call_without_an_end_may_have_happened_at_any_later_time_or_never() {
        let unknown = call(2, 3, write(2, None), None);
        let first = call(0, 1, create(1), DONE);
        for reads in [vec![1, 1], vec![2, 2], vec![1, 2]] {
            let mut calls = vec![first.clone(), unknown.clone()];
            calls.extend(
                reads.iter().zip([10, 20]).map(|(value, at)| call(at, at + 1, Op::Read, read(*value))),
            );
            assert!(fits(&calls), "{reads:?}");
        }
        let twice =
            [first.clone(), unknown.clone(), call(4, 5, Op::Read, read(2)), call(6, 7, Op::Read, read(1))];
        assert!(!fits(&twice), "it does not happen and then not have happened");
        let before = [first, call(2, 3, Op::Read, read(2)), call(4, 5, write(2, None), None)];
        assert!(!fits(&before), "nothing happens before it is asked for");
    }

    #[test]
    fn what_was_never_sent_and_reads_without_an_end_say_nothing() {
        let mut never = call(0, 1, create(1), None);
        never.end = End::NotSent;
        let judged = judge(&[never, call(2, 3, Op::Read, None)]);
        assert_eq!(judged, Judged::default());
    }

    #[test]
    fn a_long_history_with_unknown_ends_is_judged_within_the_budget() {
        let mut calls = vec![call(0, 1, create(0), DONE)];
        for at in 1..60 {
            let (from, to) = (at * 10, at * 10 + 5);
            calls.push(call(from, to, write(at, None), if at % 15 == 0 { None } else { DONE }));
            if at % 15 != 0 {
                calls.push(call(to + 1, to + 2, Op::Read, read(at)));
            }
        }
        assert!(fits(&calls));
        calls.push(call(1_000, 1_001, Op::Read, read(58)));
        let judged = judge(&calls);
        assert_eq!((judged.broken.len(), judged.undecided.len()), (1, 0), "{judged:?}");
    }
}
