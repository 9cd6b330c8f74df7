use std::time::Duration;

use proptest::prelude::*;
use time::macros::datetime;

use madako_domain::placement::metrics::Trust;

use crate::trust::{MOST_VALUES, ValueHistory};

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn history(values: &[f64]) -> Trust {
    let mut history = ValueHistory::new(datetime!(2026-01-01 00:00 UTC));
    for (at, value) in (0..).zip(values) {
        history.push(minutes(at), *value);
    }
    history.trust()
}

#[test]
fn turns_are_changes_of_direction_above_a_twentieth_of_the_range() {
    for (values, range, turns) in [
        (&[][..], None, 0),
        (&[1.0], Some((1.0, 1.0)), 0),
        (&[1.0, 1.0, 1.0], Some((1.0, 1.0)), 0),
        (&[0.0, 50.0, 100.0], Some((0.0, 100.0)), 0),
        (&[100.0, 50.0, 0.0], Some((0.0, 100.0)), 0),
        (&[0.0, 100.0, 0.0], Some((0.0, 100.0)), 1),
        (&[0.0, 100.0, 0.0, 100.0, 0.0], Some((0.0, 100.0)), 3),
        // 5 % is not above 5 %.
        (&[0.0, 100.0, 95.0, 100.0], Some((0.0, 100.0)), 0),
        (&[0.0, 100.0, 94.0, 100.0], Some((0.0, 100.0)), 2),
        // Many small steps back are one change of direction.
        (&[0.0, 100.0, 98.0, 96.0, 94.0, 92.0, 90.0], Some((0.0, 100.0)), 1),
        // Small waves on the way up do not count.
        (&[0.0, 20.0, 18.0, 40.0, 37.0, 60.0, 56.0, 80.0, 77.0, 100.0], Some((0.0, 100.0)), 0),
        (&[-1.7e308, 1.7e308, -1.7e308], Some((-1.7e308, 1.7e308)), 1),
    ] {
        let trust = history(values);
        assert_eq!((trust.range, trust.turns), (range, turns), "{values:?}");
    }
}

#[test]
fn more_than_six_turns_are_an_oscillation() {
    let swings = |count: usize| [0.0, 1.0].repeat(count)[..count].to_vec();
    assert!(!history(&swings(8)).is_oscillating(), "six turns");
    assert!(history(&swings(9)).is_oscillating(), "seven turns");
}

#[test]
fn values_older_than_an_hour_are_forgotten_and_the_begin_of_trust_is_kept() {
    let since = datetime!(2026-01-01 00:00 UTC);
    let mut history = ValueHistory::new(since);
    history.push(minutes(0), 100.0);
    history.push(minutes(30), 1.0);
    history.push(minutes(60), 2.0);
    assert_eq!(history.trust().range, Some((1.0, 100.0)));
    history.push(minutes(61), 3.0);
    assert_eq!(history.trust().range, Some((1.0, 3.0)));
    history.forget(minutes(200));
    assert_eq!(history.trust(), Trust { since, range: None, turns: 0 });
}

#[test]
fn memory_is_bounded() {
    let mut history = ValueHistory::new(datetime!(2026-01-01 00:00 UTC));
    history.push(Duration::ZERO, -1.0);
    for _ in 0..MOST_VALUES {
        history.push(Duration::ZERO, 1.0);
    }
    assert_eq!(history.trust().range, Some((1.0, 1.0)), "the oldest is gone");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn turns_do_not_depend_on_scale_direction_or_repetition(
        values in prop::collection::vec(-1000_i16..1000, 1..60), shift in 0_u32..20,
    ) {
        let plain: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let turns = history(&plain).turns;
        let scale = f64::from(1_u32 << shift);
        let scaled: Vec<f64> = plain.iter().map(|value| value * scale).collect();
        let mirrored: Vec<f64> = plain.iter().map(|value| -value).collect();
        let repeated: Vec<f64> = plain.iter().flat_map(|value| [*value, *value]).take(60).collect();
        prop_assert_eq!(history(&scaled).turns, turns);
        prop_assert_eq!(history(&mirrored).turns, turns);
        if plain.len() <= 30 {
            prop_assert_eq!(history(&repeated).turns, turns);
        }
        prop_assert!(turns as usize <= values.len().saturating_sub(2));
    }
}
