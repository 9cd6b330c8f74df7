//! Histories that the checker must accept as linearizable, and histories that it must reject.

use super::*;

/// A call with its span of time, operation and answer; `None`: unknown.
fn call(called: u64, returned: u64, op: ObjectOperation, result: Option<CallResult>) -> Call {
    let end = result.map_or(RequestEnd::Unknown { why: "late".to_owned() }, |result| RequestEnd::Answered {
        status: 200,
        result,
        revision: None,
    });
    Call { client: 1, instance: 1, object: "a".to_owned(), op, expected: None, called, returned, end }
}

const DONE: Option<CallResult> = Some(CallResult::Done { value: None, deleting: false });

fn create(value: u64) -> ObjectOperation {
    ObjectOperation::Create { value }
}

fn write(value: u64, over: Option<u64>) -> ObjectOperation {
    ObjectOperation::Write { value, over }
}

fn read(value: u64) -> Option<CallResult> {
    Some(CallResult::Done { value: Some(value), deleting: false })
}

fn fits(calls: &[Call]) -> bool {
    let judged = judge_linearizability(calls);
    assert_eq!(judged.undecided, Vec::<String>::new());
    assert_eq!((judged.objects, judged.calls), (1, calls.len() as u64));
    judged.broken.is_empty()
}

#[test]
fn sequential_calls_are_linearizable() {
    assert!(fits(&[
        call(0, 1, ObjectOperation::Read, Some(CallResult::Absent)),
        call(2, 3, create(1), DONE),
        call(4, 5, create(2), Some(CallResult::Exists)),
        call(6, 7, ObjectOperation::Read, read(1)),
        call(8, 9, write(3, Some(1)), DONE),
        call(10, 11, write(4, Some(1)), Some(CallResult::Changed)),
        call(12, 13, ObjectOperation::Read, read(3)),
        call(14, 15, ObjectOperation::Delete, Some(CallResult::Done { value: None, deleting: true })),
        call(16, 17, ObjectOperation::Read, Some(CallResult::Done { value: Some(3), deleting: true })),
        call(18, 19, ObjectOperation::Read, Some(CallResult::Absent)),
        call(20, 21, create(5), DONE),
        call(22, 23, ObjectOperation::Read, read(5)),
    ]));
}

#[test]
fn a_stale_read_is_not_linearizable() {
    let mut calls = vec![
        call(0, 1, create(1), DONE),
        call(2, 3, write(2, None), DONE),
        call(4, 5, ObjectOperation::Read, read(1)),
    ];
    assert!(!fits(&calls));
    // A read during the write may return the former value.
    calls[1].returned = 6;
    assert!(fits(&calls));
}

#[test]
fn a_lost_update_is_not_linearizable() {
    assert!(!fits(&[
        call(0, 1, create(1), DONE),
        call(2, 6, write(2, Some(1)), DONE),
        call(3, 7, write(3, Some(1)), DONE),
    ]));
    assert!(fits(&[
        call(0, 1, create(1), DONE),
        call(2, 6, write(2, Some(1)), DONE),
        call(3, 7, write(3, Some(1)), Some(CallResult::Changed)),
    ]));
}

#[test]
fn history_that_lost_an_acknowledged_write_is_not_linearizable() {
    assert!(!fits(&[
        call(0, 1, create(1), DONE),
        call(2, 3, ObjectOperation::Read, Some(CallResult::Absent))
    ]));
    assert!(!fits(&[
        call(0, 1, create(1), DONE),
        call(2, 3, ObjectOperation::Delete, Some(CallResult::Done { value: None, deleting: true })),
        call(4, 5, ObjectOperation::Read, read(1)),
    ]));
    assert!(!fits(&[call(0, 1, create(1), DONE), call(2, 3, create(2), DONE)]));
}

#[test]
fn read_answered_without_a_value_is_not_linearizable() {
    let unreadable = Some(CallResult::Done { value: None, deleting: false });
    for wrong in [Some(CallResult::Refused), unreadable] {
        for (before, at) in [(vec![], 1), (vec![call(0, 1, create(1), DONE)], 2)] {
            let mut calls = before;
            calls.push(call(at, at + 1, ObjectOperation::Read, wrong));
            assert!(!fits(&calls), "{wrong:?}");
        }
    }
    assert!(fits(&[
        call(0, 1, create(1), Some(CallResult::Refused)),
        call(2, 3, ObjectOperation::Read, Some(CallResult::Absent))
    ]));
}

#[test]
fn a_call_without_an_end_may_have_happened_at_any_later_time_or_never() {
    let unknown = call(2, 3, write(2, None), None);
    let first = call(0, 1, create(1), DONE);
    for reads in [vec![1, 1], vec![2, 2], vec![1, 2]] {
        let mut calls = vec![first.clone(), unknown.clone()];
        calls.extend(
            reads
                .iter()
                .zip([10, 20])
                .map(|(value, at)| call(at, at + 1, ObjectOperation::Read, read(*value))),
        );
        assert!(fits(&calls), "{reads:?}");
    }
    let twice = [
        first.clone(),
        unknown.clone(),
        call(4, 5, ObjectOperation::Read, read(2)),
        call(6, 7, ObjectOperation::Read, read(1)),
    ];
    assert!(!fits(&twice), "it does not happen and then not have happened");
    let before = [first, call(2, 3, ObjectOperation::Read, read(2)), call(4, 5, write(2, None), None)];
    assert!(!fits(&before), "nothing happens before it is asked for");
}

#[test]
fn unsent_calls_and_unanswered_reads_are_not_judged() {
    let mut never = call(0, 1, create(1), None);
    never.end = RequestEnd::NotSent;
    let judged = judge_linearizability(&[never, call(2, 3, ObjectOperation::Read, None)]);
    assert_eq!(judged, LinearizabilityResult::default());
}

#[test]
fn a_long_history_with_unknown_ends_is_judged_within_the_budget() {
    let mut calls = vec![call(0, 1, create(0), DONE)];
    for at in 1..60 {
        let (from, to) = (at * 10, at * 10 + 5);
        calls.push(call(from, to, write(at, None), if at % 15 == 0 { None } else { DONE }));
        if at % 15 != 0 {
            calls.push(call(to + 1, to + 2, ObjectOperation::Read, read(at)));
        }
    }
    assert!(fits(&calls));
    calls.push(call(1_000, 1_001, ObjectOperation::Read, read(58)));
    let judged = judge_linearizability(&calls);
    assert_eq!((judged.broken.len(), judged.undecided.len()), (1, 0), "{judged:?}");
}
