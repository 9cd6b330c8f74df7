//! Checks the linearizability of the placement API, object by object.
//!
//! Each object is a register that may be absent. Clients create, read, change (unconditionally, or if the version is
//! the one that was read) and delete it; a deleted object disappears at a later time that no client observes. The
//! search is stateright's [`LinearizabilityTester`]; this module defines the possible answers of each call. A call
//! without a known end may take effect at any time after it was sent, or never; a read without a known answer says
//! nothing.
//!
//! Does not: judge lists, watches, or the system's own writes into an object; only the clients' value counts.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use crate::history::{Call, RequestEnd};

/// Search steps for one object. Without trouble a call takes a few; an object with some unknown ends takes some
/// thousands.
const MAX_STEPS: u64 = 200_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum ObjectOperation {
    Read,
    Create {
        value: u64,
    },
    Write {
        value: u64,
        /// Only over the version that was read, which had this value.
        over: Option<u64>,
    },
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum CallResult {
    Done {
        value: Option<u64>,
        deleting: bool,
    },
    Absent,
    Exists,
    /// Precondition failed: another writer changed the object; nothing was done.
    Changed,
    /// The service refused for a reason that says nothing about the value; nothing was done. A read has no such answer.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Present(u64),
    /// Deleted, and absent at some later time.
    Leaving(u64),
}

/// The possible states of an object after the calls so far, with the step counter of the search.
#[derive(Debug, Clone)]
struct Object {
    may_be: BTreeSet<State>,
    steps: Rc<Cell<u64>>,
}

impl Object {
    fn absent_object(steps: Rc<Cell<u64>>) -> Self {
        Self { may_be: BTreeSet::from([State::Absent]), steps }
    }

    /// Applies an operation with its answer to each possible state; `None`: any answer. Returns whether a state
    /// remains.
    fn step(&mut self, op: ObjectOperation, ret: Option<CallResult>) -> bool {
        let mut after = BTreeSet::new();
        for state in &self.may_be {
            let gone = matches!(state, State::Leaving(_)).then_some(State::Absent);
            for state in std::iter::once(*state).chain(gone) {
                after.extend(list_possible_steps(state, op).into_iter().filter_map(|(state, result)| {
                    ret.is_none_or(|ret| result.contains(&ret)).then_some(state)
                }));
            }
        }
        self.may_be = after;
        !self.may_be.is_empty()
    }
}

/// The states that an operation can lead to, each with the possible answers.
fn list_possible_steps(state: State, op: ObjectOperation) -> Vec<(State, Vec<CallResult>)> {
    let done = |value: Option<u64>, deleting| vec![CallResult::Done { value, deleting }];
    let mut all = Vec::new();
    if op != ObjectOperation::Read {
        // A change may be refused at any time, without effect. A read is never refused.
        all.push((state, vec![CallResult::Refused]));
    }
    match (op, state) {
        (ObjectOperation::Read, State::Absent)
        | (ObjectOperation::Write { .. } | ObjectOperation::Delete, State::Absent) => {
            all.push((state, vec![CallResult::Absent]));
        }
        (ObjectOperation::Read, State::Present(value)) => all.push((state, done(Some(value), false))),
        (ObjectOperation::Read, State::Leaving(value)) => all.push((state, done(Some(value), true))),
        (ObjectOperation::Create { value }, State::Absent) => {
            all.push((State::Present(value), done(None, false)))
        }
        (ObjectOperation::Create { .. }, _) => all.push((state, vec![CallResult::Exists])),
        (ObjectOperation::Write { value, over }, State::Present(is) | State::Leaving(is)) => {
            let after = match state {
                State::Leaving(_) => State::Leaving(value),
                _ => State::Present(value),
            };
            if over.is_none_or(|over| over == is) {
                all.push((after, done(None, matches!(state, State::Leaving(_)))));
            }
            // The system writes into the object too: another version may have the same value.
            all.push((state, vec![CallResult::Changed]));
        }
        (ObjectOperation::Delete, State::Present(value) | State::Leaving(value)) => {
            all.push((State::Leaving(value), done(None, true)));
            // Other writers change the object all the time.
            all.push((state, vec![CallResult::Changed]));
        }
    }
    all
}

impl SequentialSpec for Object {
    type Op = ObjectOperation;
    type Ret = CallResult;

    /// For calls with an unknown end: any effect, or none.
    fn invoke(&mut self, op: &ObjectOperation) -> CallResult {
        let before = self.may_be.clone();
        self.step(*op, None);
        self.may_be.extend(before);
        CallResult::Refused
    }

    fn is_valid_step(&mut self, op: &ObjectOperation, ret: &CallResult) -> bool {
        let steps = self.steps.get();
        self.steps.set(steps + 1);
        steps < MAX_STEPS && self.step(*op, Some(*ret))
    }
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinearizabilityResult {
    pub objects: u64,
    pub calls: u64,
    /// Calls without a known end.
    pub unknown: u64,
    /// Keys of objects whose calls are not linearizable.
    pub broken: Vec<String>,
    /// Keys of objects whose search exceeded its limit.
    pub undecided: Vec<String>,
}

#[must_use]
pub fn judge_linearizability<'a>(calls: impl IntoIterator<Item = &'a Call>) -> LinearizabilityResult {
    let mut objects: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let says_nothing = match call.end {
            RequestEnd::NotSent => true,
            RequestEnd::Unknown { .. } => call.op == ObjectOperation::Read,
            RequestEnd::Answered { .. } => false,
        };
        if !says_nothing {
            objects.entry(&call.object).or_default().push(call);
        }
    }
    let mut judged = LinearizabilityResult::default();
    for (name, calls) in objects {
        judged.objects += 1;
        judged.calls += calls.len() as u64;
        judged.unknown +=
            calls.iter().filter(|call| matches!(call.end, RequestEnd::Unknown { .. })).count() as u64;
        match is_linearizable(&calls) {
            Some(true) => {}
            Some(false) => judged.broken.push(name.to_owned()),
            None => judged.undecided.push(name.to_owned()),
        }
    }
    judged
}

/// True if the calls of an object are linearizable; `None`: the search exceeded its limit.
fn is_linearizable(calls: &[&Call]) -> Option<bool> {
    let calls = select_decisive_calls(calls);
    // At equal times calls begin before others end, so that such calls count as concurrent.
    let mut edges: Vec<(u64, bool, usize)> = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        edges.push((call.called, false, index));
        if matches!(call.end, RequestEnd::Answered { .. }) {
            edges.push((call.returned, true, index));
        }
    }
    edges.sort_unstable();
    let steps = Rc::new(Cell::new(0));
    let mut tester = LinearizabilityTester::new(Object::absent_object(Rc::clone(&steps)));
    // The tester knows threads with one call at a time. A call takes the first free thread, and keeps it if it has no
    // end.
    let mut threads: Vec<Option<usize>> = Vec::new();
    for (_, ends, index) in edges {
        let holder = if ends { Some(index) } else { None };
        let thread = threads.iter().position(|held| *held == holder).unwrap_or(threads.len());
        if thread == threads.len() {
            threads.push(None);
        }
        let taken = match (&calls[index].end, ends) {
            (RequestEnd::Answered { result, .. }, true) => {
                threads[thread] = None;
                tester.on_return(thread, *result).map(drop)
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

/// Omits the changes with an unknown end whose value no call ever met: if the other calls fit into an order with such a
/// change, they fit into one without it.
fn select_decisive_calls<'a>(calls: &[&'a Call]) -> Vec<&'a Call> {
    let met: BTreeSet<u64> = calls
        .iter()
        .flat_map(|call| {
            let read = match &call.end {
                RequestEnd::Answered { result: CallResult::Done { value, .. }, .. } => *value,
                _ => None,
            };
            let over = match call.op {
                ObjectOperation::Write { over, .. } => over,
                _ => None,
            };
            read.into_iter().chain(over)
        })
        .collect();
    let tells = |call: &&&Call| match (&call.end, call.op) {
        (RequestEnd::Unknown { .. }, ObjectOperation::Write { value, .. }) => met.contains(&value),
        _ => true,
    };
    calls.iter().filter(tells).copied().collect()
}

#[cfg(test)]
mod tests;
