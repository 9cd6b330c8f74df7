//! Tests of held racks: the start and end of an event, and the effect of a release.

mod properties;

use madako_domain::machine::MachineState;
use madako_domain::repair::hold::Label;

use super::*;
use crate::machines::{holds_at, later, machine, machines_aged_by, now};

fn settings() -> HoldSettings {
    HoldSettings::default()
}

/// Holds after one answer without a history.
fn at_once(reports: &[Machine]) -> Holds {
    holds_at(reports, Some(&settings()), &Holds::new(), now())
}

fn held(holds: &Holds) -> Vec<&str> {
    holds.iter().filter(|(_, hold)| hold.is_held()).map(|(rack, _)| rack.as_str()).collect()
}

/// Reports of one rack, one for each duration.
fn rack(rack: i64, first: u8, durations: &[f64]) -> Vec<Machine> {
    (first..).zip(durations).map(|(id, duration)| machine(id, rack, *duration)).collect()
}

#[test]
fn three_of_a_rack_within_ten_minutes_of_each_other_are_one_event() {
    for (durations, is_held) in [
        (&[0.0, 300.0, 600.0][..], true),
        (&[0.0, 300.0, 600.1], false),
        (&[100.1, 400.2, 700.1], true),
        (&[5.0, 5.0], false),
        // The age of failures does not matter.
        (&[1e7, 1e7 + 600.0, 1e7 + 1.0], true),
        // A chain is not an event: its first and last failures are too far apart.
        (&[0.0, 500.0, 1000.0, 1500.0], false),
        (&[0.0, 500.0, 1000.0, 1500.0, 590.0], true),
        // Other failures of the rack do not complete an event of two.
        (&[0.0, 10.0, 5000.0, 5001.0], false),
        // A registry whose clock runs ahead.
        (&[-10.0, 0.0, 590.0], true),
        (&[f64::MAX, f64::MAX, 1e300], true),
    ] {
        assert_eq!(
            held(&at_once(&rack(3, 1, durations))),
            if is_held { vec!["3"] } else { vec![] },
            "{durations:?}"
        );
    }
}

#[test]
fn racks_are_evaluated_separately_and_a_machine_counts_once() {
    let two_and_two = [rack(1, 1, &[0.0, 1.0]), rack(2, 11, &[0.0, 1.0])].concat();
    assert_eq!(at_once(&two_and_two), Holds::new());
    let one_twice = [rack(1, 1, &[0.0, 1.0]), rack(1, 1, &[2.0])].concat();
    assert_eq!(at_once(&one_twice), Holds::new(), "a machine that is listed twice is one");
    let both = [rack(1, 1, &[0.0, 1.0, 2.0]), rack(-2, 11, &[0.0, 1.0, 2.0])].concat();
    assert_eq!(held(&at_once(&both)), ["-2", "1"]);
}

#[test]
fn the_label_can_be_another_and_a_machine_without_it_counts_nowhere() {
    let by_feed = HoldSettings { label: Label::from("feed".to_owned()), ..settings() };
    let reports = [rack(1, 1, &[0.0]), rack(3, 2, &[0.0]), rack(5, 3, &[0.0]), rack(2, 4, &[0.0])].concat();
    assert_eq!(held(&holds_at(&reports, Some(&by_feed), &Holds::new(), now())), ["f1"]);
    let mut without = reports;
    without[0].spec.labels.clear();
    without[1].spec.labels[0].value.clear();
    assert_eq!(holds_at(&without, Some(&by_feed), &Holds::new(), now()), Holds::new());
    assert_eq!(holds_at(&without, None, &Holds::new(), now()), Holds::new(), "switched off");
}

#[test]
fn an_event_lasts_until_fewer_of_its_machines_than_count_are_reported() {
    let mut reports = rack(3, 1, &[0.0, 1.0, 2.0, 3.0]);
    let first = at_once(&reports);
    // A poll later the result is the same, and nothing is to be written.
    reports = machines_aged_by(&reports, 60.4);
    let second = holds_at(&reports, Some(&settings()), &first, later(60.0));
    assert_eq!(second, first, "times that jitter change nothing");
    // The states of three machines change, each at another time: they did not recover.
    for (at, duration) in [(0, 10.0), (1, 2000.0), (2, 5000.0)] {
        reports[at].status.state = MachineState::Unhealthy;
        reports[at].status.duration = duration;
    }
    let third = holds_at(&reports, Some(&settings()), &second, later(6000.0));
    assert_eq!(held(&third), ["3"]);
    assert_eq!(third["3"].held_since(), Some(now()));
    // One recovers and fails again much later: it was not reported throughout.
    let recovered = reports.remove(3);
    let fourth = holds_at(&reports, Some(&settings()), &third, later(6060.0));
    assert_eq!(fourth["3"].machines().len(), 3);
    reports.push(recovered);
    reports[3].status.duration = 0.0;
    reports.remove(0);
    assert_eq!(holds_at(&reports, Some(&settings()), &fourth, later(9000.0)), Holds::new());
}

#[test]
fn two_events_of_a_rack_end_apart() {
    let mut reports = rack(3, 1, &[0.0, 1.0, 2.0, 50_000.0, 50_001.0, 50_002.0]);
    let both = at_once(&reports);
    assert_eq!(both["3"].events.len(), 2);
    reports.remove(0);
    let one = holds_at(&reports, Some(&settings()), &both, now());
    assert_eq!(one["3"].events.len(), 1);
    reports.remove(4);
    assert_eq!(holds_at(&reports, Some(&settings()), &one, now()), Holds::new(), "two of each are left");
}

#[test]
fn an_event_grows_and_keeps_its_beginning() {
    let mut reports = rack(3, 1, &[60.0, 61.0, 62.0]);
    let first = at_once(&reports);
    reports = machines_aged_by(&reports, 60.0);
    reports.extend(rack(3, 9, &[0.0]));
    let second = holds_at(&reports, Some(&settings()), &first, later(60.0));
    assert_eq!(second["3"].events.len(), 1);
    assert_eq!((second["3"].machines().len(), second["3"].held_since()), (4, Some(now())));
}

#[test]
fn after_a_release_the_same_reports_do_not_hold_again_but_others_do() {
    let reports = rack(3, 1, &[60.0, 61.0, 62.0, 63.0]);
    let mut holds = at_once(&reports);
    assert!(Arc::make_mut(holds.get_mut("3").unwrap()).release());
    assert!(!Arc::make_mut(holds.get_mut("3").unwrap()).release(), "nothing is left to be released");
    let go_on =
        |reports: &[Machine], holds: &Holds, at: f64| holds_at(reports, Some(&settings()), holds, later(at));
    let after = go_on(&machines_aged_by(&reports, 3600.0 + 29.0), &holds, 3600.0);
    assert_eq!(after, holds, "the same reports, a registry that took its time");

    // Two new failures beside them are two; a third makes an event of these three alone.
    let mut more = [reports.clone(), rack(3, 11, &[0.0, 1.0])].concat();
    assert_eq!(held(&go_on(&more, &holds, 0.0)), Vec::<&str>::new());
    more.extend(rack(3, 21, &[2.0]));
    let again = go_on(&more, &holds, 0.0);
    assert_eq!(again["3"].serials(), ["s11", "s12", "s21"]);

    // A machine whose state changed since is a new report; a missing one is remembered for a while.
    let mut changed = machines_aged_by(&reports, 3600.0);
    changed.remove(3);
    for machine in &mut changed[..2] {
        machine.status.duration = 5.0;
    }
    let after = go_on(&changed, &holds, 3600.0);
    let mut left: Vec<_> =
        after["3"].released.iter().map(|report| (report.serial.as_str(), report.absent)).collect();
    left.sort_unstable();
    assert_eq!(left, [("s3", None), ("s4", Some(later(3600.0)))]);
}

#[test]
fn released_reports_do_not_hold_the_rack_again_after_an_answer_without_them() {
    let reports = rack(3, 1, &[60.0, 61.0, 62.0]);
    let mut holds = at_once(&reports);
    Arc::make_mut(holds.get_mut("3").unwrap()).release();
    let go_on =
        |reports: &[Machine], holds: &Holds, at: f64| holds_at(reports, Some(&settings()), holds, later(at));
    // The variables change and change back: one answer is empty, one has other machines.
    let none = go_on(&[], &holds, 60.0);
    assert!(none["3"].released.iter().all(|report| report.absent == Some(later(60.0))));
    let others = go_on(&rack(5, 31, &[0.0]), &none, 120.0);
    assert_eq!(others, none, "nothing is written while they are absent");
    assert_eq!(go_on(&machines_aged_by(&reports, 3600.0), &others, 3600.0), holds, "they are as before");

    // A later failure is a new one.
    let failed = rack(3, 1, &[5.0, 6.0, 7.0]);
    let again = go_on(&failed, &others, 3600.0);
    assert_eq!((held(&again), again["3"].released.len()), (vec!["3"], 0));

    // They are not remembered for ever.
    let day = MAX_ABSENCE.as_secs_f64();
    assert_eq!(go_on(&[], &others, 60.0 + day), others);
    assert_eq!(go_on(&[], &others, 61.0 + day), Holds::new());
}

#[test]
fn released_reports_that_are_absent_are_bounded_and_the_longest_absent_go_first() {
    let report = |number: usize, absent: Option<OffsetDateTime>| HeldReport {
        changed: now(),
        serial: format!("m{number}"),
        address: String::new(),
        absent,
    };
    let released =
        (0..MAX_ABSENT + 10).map(|number| report(number, Some(if number < 5 { now() } else { later(1.0) })));
    let mut hold = Hold { released: released.collect(), ..Hold::default() };
    hold.released.push(report(9_999, None));
    limit_events(&mut hold);
    let absent = hold.released.iter().filter(|report| report.absent.is_some());
    assert_eq!(absent.clone().count(), MAX_ABSENT);
    assert!(absent.clone().all(|report| report.absent == Some(later(1.0))));
    assert_eq!(hold.released.len(), MAX_ABSENT + 1, "absent reports do not displace a present report");
}

#[test]
fn holds_for_another_label_are_dropped() {
    let reports = rack(3, 1, &[0.0, 1.0, 2.0]);
    let kept = at_once(&reports);
    let by_feed = HoldSettings { label: Label::from("feed".to_owned()), count: 4, ..settings() };
    assert_eq!(holds_at(&reports, Some(&by_feed), &kept, now()), Holds::new());
    assert_eq!(holds_at(&reports, None, &kept, now()), Holds::new());
}

#[test]
fn hold_of_a_rack_is_bounded_and_stable() {
    // Each minute another machine of one "rack" that spans a site: as many overlapping windows as machines.
    let reports: Vec<Machine> = (0..3000_u32)
        .map(|n| {
            let mut machine = machine(1, 3, f64::from(n) * 60.0);
            machine.spec.serial = format!("m{n}");
            machine
        })
        .collect();
    let first = at_once(&reports);
    assert!(first["3"].events.len() <= MAX_EVENTS);
    assert_eq!(first["3"].machines().len(), 3000);
    assert_eq!(holds_at(&reports, Some(&settings()), &first, now()), first);

    let crowd: Vec<Machine> = (0..20_000_u32)
        .map(|n| {
            let mut machine = machine(1, 3, 0.0);
            machine.spec.serial = format!("m{n}");
            machine
        })
        .collect();
    let first = at_once(&crowd);
    assert_eq!(first["3"].machines().len(), MAX_MACHINES);
    assert_eq!(holds_at(&crowd, Some(&settings()), &first, later(60.0)), first);
}

#[test]
fn hold_survives_json_with_fields_of_a_newer_version() {
    let mut holds = at_once(&rack(3, 1, &[0.5, 1.25, 2.0]));
    let mut hold = holds.remove("3").unwrap();
    Arc::make_mut(&mut hold).rest.insert("later".to_owned(), serde_json::json!([7]));
    let text = serde_json::to_string(&*hold).unwrap();
    assert!(
        text.starts_with(r#"{"label":"rack","events":[{"since":"2026-11-21T12:00:00Z","machines":[{"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Hold>(&text).unwrap(), *hold);
}

#[test]
fn machines_with_a_shared_or_missing_serial_are_distinguished_by_address() {
    for serial in ["same", ""] {
        let named = |reports: Vec<Machine>| -> Vec<Machine> {
            let name = |mut machine: Machine| {
                machine.spec.serial = serial.to_owned();
                machine
            };
            reports.into_iter().map(name).collect()
        };
        let three = named(rack(3, 1, &[0.0, 1.0, 2.0]));
        let mut holds = at_once(&three);
        assert_eq!((held(&holds), holds["3"].count()), (vec!["3"], 3), "{serial:?}");
        let twice = [&three[..2], &three[..2]].concat();
        assert_eq!(at_once(&twice), Holds::new(), "each counts once: {serial:?}");

        // The holds survive a round trip through the store.
        let go_on = |reports: &[Machine], holds: &Holds, at: f64| {
            let kept = holds.iter().map(|(rack, hold)| {
                let text = serde_json::to_string(&**hold).unwrap();
                (rack.clone(), Arc::new(serde_json::from_str(&text).unwrap()))
            });
            holds_at(reports, Some(&settings()), &kept.collect(), later(at))
        };
        assert_eq!(go_on(&machines_aged_by(&three, 60.0), &holds, 60.0), holds);
        Arc::make_mut(holds.get_mut("3").unwrap()).release();
        let released = go_on(&machines_aged_by(&three, 120.0), &holds, 120.0);
        assert_eq!(held(&released), [""; 0], "they were released");
        assert_eq!(released["3"].released.len(), 3);
        // A machine outside the event makes no new event with two of its machines; three new ones do.
        let more = [machines_aged_by(&three, 180.0), named(rack(3, 11, &[1.0]))].concat();
        assert_eq!(held(&go_on(&more, &released, 180.0)), [""; 0]);
        let more = [machines_aged_by(&three, 240.0), named(rack(3, 11, &[1.0, 2.0, 3.0]))].concat();
        assert_eq!(held(&go_on(&more, &released, 240.0)), ["3"]);
        let recovered = go_on(&machines_aged_by(&three[..2], 60.0), &at_once(&three), 60.0);
        assert_eq!(recovered, Holds::new(), "two of three are left");
    }
}
