//! Tests of the expansion of faults into a schedule.

use super::*;

fn faults(lines: &[&str]) -> Vec<Fault> {
    lines.iter().map(|line| line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

fn printed(lines: &[&str], length: &str, seed: u64) -> Vec<String> {
    let schedule = schedule(&faults(lines), Span::parse(length).unwrap(), &mut generator(seed)).unwrap();
    schedule.to_string().lines().map(str::to_owned).collect()
}

#[test]
fn faults_begin_in_time_and_have_ended_when_the_run_is_over() {
    assert_eq!(
        printed(
            &[
                "cut registry every 20m for 5m",
                "kill rack=1 at 30m",
                "reset store=1 at 20m",
                "kill rack=2 at 1h"
            ],
            "1h",
            1
        ),
        [
            "20m: faults[0], cut registry, begins",
            "20m: faults[2], reset store=1, strikes",
            "25m: faults[0], cut registry, ends",
            "30m: faults[1], kill rack=1, begins",
            "40m: faults[0], cut registry, begins",
            "45m: faults[0], cut registry, ends",
            "1h: faults[1], kill rack=1, ends",
        ]
    );
}

#[test]
fn overlapping_equal_faults_are_one_fault() {
    let lines = [
        "cut registry at 10m for 10m",
        "cut registry at 15m for 2m",
        "cut registry at 20m for 5m",
        "delay registry at 12m for 1m",
        "panic actor=http at 1m",
        "panic actor=http at 1m",
        "panic actor=leader at 1m",
    ];
    assert_eq!(
        printed(&lines, "1h", 1),
        [
            "1m: faults[4], panic actor=http, strikes",
            "1m: faults[6], panic actor=leader, strikes",
            "10m: faults[0], cut registry, begins",
            "12m: faults[3], delay registry, begins",
            "13m: faults[3], delay registry, ends",
            "25m: faults[0], cut registry, ends",
        ]
    );
}

#[test]
fn seed_determines_the_schedule_and_its_draws_are_reported() {
    // The schedule of this seed in every build so far: a different one makes recorded seeds worthless.
    assert_eq!(
        printed(&["reset registry random mean 30m", "cut store=1 random mean 1h for 1m"], "2h", 7),
        SEED_SEVEN
    );
}

const SEED_SEVEN: [&str; 9] = [
    "drawn: faults[0] pauses for 57m54.912s and begins at 57m54.912s",
    "drawn: faults[0] pauses for 15m15.874s and begins at 1h13m10.786s",
    "drawn: faults[0] pauses for 27m23.153s and begins at 1h40m33.939s",
    "drawn: faults[1] pauses for 1h6m3.57s and begins at 1h6m3.57s",
    "57m54.912s: faults[0], reset registry, strikes",
    "1h6m3.57s: faults[1], cut store=1, begins",
    "1h7m3.57s: faults[1], cut store=1, ends",
    "1h13m10.786s: faults[0], reset registry, strikes",
    "1h40m33.939s: faults[0], reset registry, strikes",
];

#[test]
fn an_appended_fault_does_not_change_the_draws_of_the_others() {
    let two = faults(&["reset registry random mean 10m", "reset store=1 random mean 20m"]);
    let three = [two.clone(), faults(&["reset instance=1 random mean 5m"])].concat();
    let length = Span::from_days(1);
    let (of_two, of_three) = (
        schedule(&two, length, &mut generator(3)).unwrap(),
        schedule(&three, length, &mut generator(3)).unwrap(),
    );
    assert!(of_three.draws.starts_with(&of_two.draws) && of_three.draws.len() > of_two.draws.len());
}

#[test]
fn pauses_are_exponential_with_their_mean() {
    let length = Span::from_days(365);
    let schedule = schedule(&faults(&["reset registry random mean 1h"]), length, &mut generator(1)).unwrap();
    let pauses: Vec<f64> =
        schedule.draws.iter().map(|draw| draw.pause.duration().as_secs_f64() / 3600.0).collect();
    let count = pauses.len() as f64;
    // 8,760 pauses are expected; the standard deviation of their number is 94, and of their mean 1.1 percent.
    assert!((count - 8760.0).abs() < 400.0, "{count} pauses in a year");
    let share = |longer: f64| pauses.iter().filter(|pause| **pause > longer).count() as f64 / count;
    for (longer, expected) in [(0.1, 0.905), (1.0, 0.368), (2.0, 0.135), (3.0, 0.050)] {
        let got = share(longer);
        assert!(
            (got - expected).abs() < 0.02,
            "{got} of the pauses are longer than {longer} means, not {expected}"
        );
    }
}

#[test]
fn a_run_with_too_many_faults_is_refused() {
    let often = faults(&["kill rack=1 at 1m", "reset registry every 1s"]);
    let error = schedule(&often, Span::from_days(30), &mut generator(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the faults begin more than 100000 times in 30d: \"reset registry every 1s\" exceeds the limit; make it less frequent"
    );
    assert_eq!(schedule(&often, Span::from_days(1), &mut generator(1)).unwrap().injections.len(), 86_400);
}

proptest! {
    #[test]
    fn a_schedule_is_in_order_and_whole(seed in any::<u64>(), minutes in 1..600_u64) {
        let storm = find_shipped("everything-fails-at-times").unwrap().parse_scenario().unwrap();
        let length = Span::from_seconds(60 * minutes);
        let found = schedule(&storm.faults, length, &mut generator(seed)).unwrap();
        prop_assert_eq!(&schedule(&storm.faults, length, &mut generator(seed)).unwrap(), &found);
        prop_assert!(found.events.is_sorted());
        let mut holding = BTreeSet::new();
        for Event { at, change, injection } in &found.events {
            let Injection { fault, act, target, begins, ends } = &found.injections[*injection];
            prop_assert_eq!((act, target), (&storm.faults[*fault].act, &storm.faults[*fault].target));
            match change {
                InjectionChange::Begins => {
                    prop_assert!(*at == *begins && *begins < length && ends.is_some());
                    prop_assert!(holding.insert((*act, target)), "{act} {target} holds already at {at}");
                }
                InjectionChange::Ends => {
                    prop_assert!(Some(*at) == *ends && *at <= length && *begins < *at);
                    prop_assert!(holding.remove(&(*act, target)), "{act} {target} does not hold at {at}");
                }
                InjectionChange::Strikes => prop_assert!(*at == *begins && ends.is_none()),
            }
        }
        prop_assert!(holding.is_empty(), "something still holds when the run is over: {holding:?}");
    }
}
