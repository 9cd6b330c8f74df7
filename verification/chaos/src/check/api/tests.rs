//! Tests of the check of lists and watches: valid sequences, and each kind of invalid one.

use serde_json::json;

use super::*;
use crate::observer::Change;

const PREFIX: &str = "/kubernetes/applications/chaos/";

fn version(name: &str, value: u64) -> Value {
    let modified = format!("2026-01-01T00:00:{value:02}Z");
    json!({"metadata": {"name": name, "namespace": "chaos", "modified": modified, "labels": {"value": value.to_string()}}})
}

fn change(name: &str, value: Option<u64>, created: i64, revision: i64) -> Change {
    let value = value.map(|value| version(name, value).to_string().into_bytes());
    Change { key: format!("{PREFIX}{name}"), value, created, modified: revision, lease: 0 }
}

/// Revisions 2 to 7; revision N is observed at 10 * N microseconds.
fn store() -> Vec<Revision> {
    let elsewhere = Change { key: "/cke/cluster".to_owned(), ..change("x", Some(9), 4, 4) };
    let all = [
        vec![change("a", Some(1), 2, 2)],
        vec![change("a", Some(2), 2, 3)],
        vec![elsewhere],
        vec![change("a", Some(3), 2, 5), change("b", Some(4), 5, 5)],
        vec![change("a", None, 0, 6)],
        vec![change("a", Some(5), 7, 7)],
    ];
    let revision = |(number, changes): (i64, Vec<Change>)| Revision {
        revision: number,
        at: 10 * number as u64,
        changes,
    };
    (2..).zip(all).map(revision).collect()
}

const OPENED: Event = Event::Opened { follower: 0, instance: 2, requested_at: 25 };

fn listed(requested_at: Micros, items: &[(&str, u64)]) -> Event {
    let items: Vec<Value> = items.iter().map(|(name, value)| version(name, *value)).collect();
    Event::Listed { follower: 0, requested_at, answer: json!({"items": items}) }
}

fn line(event: &str, name: &str, value: u64) -> Event {
    Event::WatchLine { follower: 0, line: json!({"type": event, "object": version(name, value)}) }
}

fn closed(why: Option<&str>) -> Event {
    Event::Closed { follower: 0, why: why.map(str::to_owned) }
}

/// A watch that opens after revision 2, lists at revision 3, and delivers everything.
fn good() -> Vec<Event> {
    vec![
        OPENED,
        listed(26, &[("a", 2)]),
        line("MODIFIED", "a", 2),
        line("ADDED", "b", 4),
        line("MODIFIED", "a", 3),
        line("DELETED", "a", 3),
        line("ADDED", "a", 5),
        listed(75, &[("a", 5), ("b", 4)]),
        closed(None),
    ]
}

/// Numbers of violations by lists and by watches.
fn broken(events: Vec<Event>) -> [u64; 2] {
    let events: Vec<(Micros, Event)> = events.into_iter().map(|event| (0, event)).collect();
    let mut verdicts = Verdicts::default();
    judge_api_answers(&events, &store(), true, &mut verdicts);
    [LISTS, API_WATCHES].map(|name| verdicts.verdict_of(name).broken)
}

#[test]
fn watch_that_delivers_everything_after_its_list_passes() {
    assert_eq!(broken(good()), [0, 0]);
    let mut verdicts = Verdicts::default();
    let events: Vec<(Micros, Event)> = good().into_iter().map(|event| (0, event)).collect();
    judge_api_answers(&events, &store(), true, &mut verdicts);
    assert_eq!([LISTS, API_WATCHES].map(|name| verdicts.verdict_of(name).judged), [2, 6]);
    // The list contains the first change: a watch that began after that change need not deliver it.
    let mut late = good();
    late.remove(2);
    assert_eq!(broken(late), [0, 0]);
}

#[test]
fn broken_watch_may_be_incomplete_but_needs_a_successor_at_the_end() {
    let mut short: Vec<Event> = good().drain(..4).collect();
    short.push(closed(Some("it ended")));
    assert_eq!(broken(short.clone()), [0, 1]);
    short.extend([
        OPENED,
        listed(75, &[("a", 5), ("b", 4)]),
        listed(76, &[("a", 5), ("b", 4)]),
        closed(None),
    ]);
    assert_eq!(broken(short.clone()), [0, 0]);
    let never = vec![closed(Some("no connection"))];
    assert_eq!(broken(never), [0, 1]);
}

#[test]
fn each_way_to_spoil_a_watch_is_found() {
    type Spoil = fn(&mut Vec<Event>);
    let spoils: [(&str, Spoil); 9] = [
        ("the changes right after the list are left out", |events| drop(events.drain(2..4))),
        ("one event is left out", |events| drop(events.remove(4))),
        ("two events are swapped", |events| events.swap(4, 5)),
        ("one event is delivered twice", |events| events.insert(3, line("MODIFIED", "a", 2))),
        ("an event from before the watch is delivered", |events| events.insert(2, line("ADDED", "a", 1))),
        ("a deletion is delivered as a change", |events| events[5] = line("MODIFIED", "a", 3)),
        ("a state that never was", |events| events[4] = line("MODIFIED", "a", 8)),
        ("the last event is withheld", |events| drop(events.remove(6))),
        ("no event at all", |events| {
            events[4] = Event::WatchLine { follower: 0, line: json!("{\"type") };
        }),
    ];
    for (what, spoil) in spoils {
        let mut events = good();
        spoil(&mut events);
        assert_eq!(broken(events), [0, 1], "{what}");
    }
    assert_eq!(broken(vec![line("ADDED", "a", 1)]), [0, 1], "no watch is open");
    let silent = vec![OPENED, listed(26, &[("a", 1)]), listed(75, &[("a", 5), ("b", 4)]), closed(None)];
    assert_eq!(broken(silent), [0, 1], "it tells nothing");
}

#[test]
fn each_way_to_spoil_a_list_is_found() {
    for (what, list) in [
        ("older than what was seen", listed(35, &[("a", 1)])),
        ("what was deleted", listed(65, &[("a", 3), ("b", 4)])),
        ("half of a revision", listed(35, &[("a", 3)])),
        ("a state that never was", listed(35, &[("a", 8)])),
        ("one of them twice", listed(75, &[("a", 5), ("a", 5), ("b", 4)])),
        ("nothing", listed(35, &[])),
    ] {
        assert_eq!(broken(vec![list]), [1, 0], "{what}");
    }
    let none = Event::Listed { follower: 0, requested_at: 0, answer: Value::Null };
    assert_eq!(broken(vec![none]), [1, 0], "no list");
    // The store went on during the request.
    assert_eq!(broken(vec![listed(15, &[("a", 5), ("b", 4)])]), [0, 0]);
    assert_eq!(broken(vec![listed(15, &[])]), [0, 0]);
}
