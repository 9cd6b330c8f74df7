//! Tests of times of reports when a clock is set, and of reports that are new nevertheless.

use madako_domain::repair::hold::Holds;
use proptest::prelude::*;

use super::*;
use crate::hold::holds_after;
use crate::machines::{machine, machines_aged_by, now};

const HOUR: f64 = 3600.0;

/// A client that asks the registry every minute. The monotonic clock is right; `registry` and `ours` are the offsets
/// of the other clocks, in seconds.
struct Leader {
    start: Monotonic,
    elapsed: f64,
    registry: f64,
    ours: f64,
    times: Times,
    kept: Holds,
}

impl Leader {
    fn new() -> Self {
        Self {
            start: Monotonic::now(),
            elapsed: 0.0,
            registry: 0.0,
            ours: 0.0,
            times: Times::default(),
            kept: Holds::new(),
        }
    }

    /// A leader that saw these racks fail, and whose operator released them.
    fn after_a_release(machines: &[Machine]) -> Self {
        let mut leader = Self::new();
        leader.asks(60.0, machines);
        assert!(!leader.held().is_empty());
        for hold in leader.kept.values_mut() {
            Arc::make_mut(hold).release();
        }
        leader
    }

    /// An answer some seconds after the previous one; `machines` are as of the start.
    fn asks(&mut self, after: f64, machines: &[Machine]) {
        self.elapsed += after;
        let reports = machines_aged_by(machines, self.elapsed + self.registry);
        let at = now() + time::Duration::seconds_f64(self.elapsed + self.ours);
        let observed = self.start + Duration::from_secs_f64(self.elapsed);
        let hold = HoldSettings::default();
        self.times = Times::from_answer(&reports, (at, Some(observed)), Some(&hold), &self.kept, &self.times);
        self.kept = holds_after(&reports, &self.times, Some(&hold), &self.kept, at);
    }

    /// Another leader takes over with the stored state.
    fn restart(&mut self) {
        self.times = Times::default();
    }

    fn held(&self) -> Vec<&str> {
        self.kept.iter().filter(|(_, hold)| hold.is_held()).map(|(rack, _)| rack.as_str()).collect()
    }
}

/// Three machines of a rack that failed `ago` seconds ago, some seconds apart.
fn rack(rack: u8, ago: f64) -> Vec<Machine> {
    (0..3).map(|n| machine(rack * 10 + n, i64::from(rack), ago + 7.0 * f64::from(n))).collect()
}

/// The machines after a new failure, `at` seconds after the start.
fn again(machines: &[Machine], at: f64) -> Vec<Machine> {
    let mut machines = machines.to_vec();
    for (machine, n) in machines.iter_mut().zip(0_u8..) {
        machine.status.duration = 7.0 * f64::from(n) - at;
    }
    machines
}

#[test]
fn clock_off_by_an_hour_makes_no_report_new() {
    for (registry, ours) in [(HOUR, 0.0), (-HOUR, 0.0), (0.0, HOUR), (0.0, -HOUR), (-HOUR, HOUR)] {
        // An early failure, and one that makes durations negative.
        for ago in [5_000.0, 1_000.0] {
            let machines = rack(3, ago);
            let mut held = Leader::new();
            held.asks(60.0, &machines);
            let released = Leader::after_a_release(&machines);
            for mut leader in [held, released] {
                let before = leader.kept.clone();
                (leader.registry, leader.ours) = (registry, ours);
                for _ in 0..3 {
                    leader.asks(60.0, &machines);
                    assert_eq!(leader.kept, before, "{registry} {ours} {ago}");
                }
                (leader.registry, leader.ours) = (0.0, 0.0);
                leader.asks(60.0, &machines);
                assert_eq!(leader.kept, before, "{registry} {ours} {ago}, and back");
            }
        }
    }
}

#[test]
fn alternating_registries_with_clocks_an_hour_apart_change_nothing() {
    let machines = rack(3, 5_000.0);
    let mut leader = Leader::after_a_release(&machines);
    let before = leader.kept.clone();
    for turn in 0..10 {
        leader.registry = if turn % 2 == 0 { HOUR } else { 0.0 };
        leader.asks(60.0, &machines);
        assert_eq!(leader.kept, before, "turn {turn}");
    }
}

#[test]
fn a_clock_that_drifts_makes_no_report_new() {
    for (registry, ours) in [(5.0, 0.0), (-5.0, 0.0), (0.0, 5.0), (0.0, -5.0)] {
        let machines = rack(3, 2_000.0);
        let mut leader = Leader::after_a_release(&machines);
        let before = leader.kept.clone();
        for _ in 0..300 {
            leader.registry += registry;
            leader.ours += ours;
            leader.asks(60.0, &machines);
            assert_eq!(leader.kept, before, "{registry} {ours}");
        }
    }
}

#[test]
fn a_rack_that_failed_again_between_two_answers_is_held_again() {
    for ago in [100.0, 5_000.0] {
        let machines = rack(3, ago);
        let mut leader = Leader::after_a_release(&machines);
        leader.asks(60.0, &machines);
        leader.asks(60.0, &again(&machines, 150.0));
        assert_eq!(leader.held(), ["3"], "with the same seconds between its machines");

        // The registry was unavailable for hours.
        let mut leader = Leader::after_a_release(&machines);
        leader.asks(10.0 * HOUR, &again(&machines, 5.0 * HOUR));
        assert_eq!(leader.held(), ["3"]);
    }
}

#[test]
fn rack_that_failed_again_after_a_recovery_is_held_again_under_any_clock() {
    for registry in [0.0, HOUR, -HOUR] {
        let machines = rack(3, 5_000.0);
        let mut leader = Leader::after_a_release(&machines);
        leader.asks(60.0, &[]);
        leader.registry = registry;
        // The times are taken after the clock was set, so that the ages are right.
        leader.asks(60.0, &again(&machines, 170.0 + registry));
        assert_eq!(leader.held(), ["3"], "{registry}");
    }
}

#[test]
fn new_failures_are_recognised_when_the_clock_is_set() {
    let one = rack(3, 5_000.0);
    let others = [rack(4, 90_000.0), rack(5, 40_000.0), rack(6, 20_000.0)].concat();
    for registry in [HOUR, -HOUR] {
        let mut leader = Leader::after_a_release(&[&one[..], &others[..]].concat());
        leader.registry = registry;
        leader.asks(60.0, &[&again(&one, 100.0)[..], &others[..]].concat());
        assert_eq!(leader.held(), ["3"], "{registry}");
    }
}

#[test]
fn new_leader_treats_a_later_failure_time_as_new_unless_several_racks_share_the_shift() {
    let one = rack(3, 50_000.0);
    let both = [&one[..], &rack(4, 5_000.0)[..]].concat();
    for (machines, when_later) in [(&one, vec!["3"]), (&both, vec![])] {
        for (registry, ours, held) in [
            (HOUR, 0.0, vec![]),
            (0.0, -HOUR, vec![]),
            (-HOUR, 0.0, when_later.clone()),
            (0.0, HOUR, when_later.clone()),
        ] {
            let mut leader = Leader::after_a_release(machines);
            leader.restart();
            (leader.registry, leader.ours) = (registry, ours);
            leader.asks(60.0, machines);
            assert_eq!(leader.held(), held, "{} machines, {registry} {ours}", machines.len());
        }
    }
}

#[test]
fn rack_event_counts_machines_from_before_and_after_a_clock_change() {
    let two = rack(3, 100.0)[..2].to_vec();
    for registry in [HOUR, -HOUR] {
        let mut leader = Leader::new();
        leader.asks(60.0, &two);
        leader.registry = registry;
        leader.asks(60.0, &two);
        // It failed since, by the clock that was set.
        let third = machine(39, 3, -registry - 150.0);
        leader.asks(60.0, &[&two[..], &[third]].concat());
        assert_eq!(leader.held(), ["3"], "{registry}");
    }
}

#[test]
fn new_change_of_a_machines_state_is_another_report() {
    let lone = rack(3, 5_000.0)[..1].to_vec();
    let mut leader = Leader::new();
    leader.asks(60.0, &lone);
    let first = leader.times.changed(("s30", "10.0.0.30")).unwrap();
    leader.asks(60.0, &again(&lone, 90.0));
    assert_eq!(leader.times.changed(("s30", "10.0.0.30")).unwrap() - first, time::Duration::seconds(5_090));
}

#[test]
fn a_shared_move_to_a_later_time_needs_machines_that_failed_apart() {
    let seconds = time::Duration::seconds_f64;
    let by = |moves: &[(f64, f64)]| {
        let moves = moves.iter().map(|(by, before)| (seconds(*by), now() + seconds(*before))).collect();
        common_clock_move(moves, HoldSettings::WITHIN).as_seconds_f64()
    };
    for (moves, expected) in [
        (&[(5_000.0, 0.0), (5_001.0, 9_000.0), (5_002.0, 20_000.0)][..], 5_001.0),
        // One event: it may have happened twice, even beside one machine that agrees by chance.
        (&[(5_000.0, 0.0), (5_001.0, 300.0), (5_002.0, 600.0)], 0.0),
        (&[(5_000.0, 0.0), (5_000.0, 1.0), (5_000.0, 2.0), (5_000.0, 3.0), (5_000.0, 90_000.0)], 0.0),
        (&[(-5_000.0, 0.0), (-5_001.0, 300.0), (-5_002.0, 600.0)], -5_001.0),
        // Two reports, and a tie, are not evidence.
        (&[(5_000.0, 0.0), (5_000.0, 90_000.0)], 0.0),
        (&[(5_000.0, 0.0), (5_000.0, 90_000.0), (0.0, 0.0), (0.0, 90_000.0)], 0.0),
        (&[(-5_000.0, 0.0), (-5_000.0, 90_000.0), (0.0, 0.0), (0.0, 90_000.0)], 0.0),
        (&[(60.0, 0.0), (60.0, 90_000.0), (60.0, 180_000.0)], 0.0),
        (&[], 0.0),
    ] {
        assert!((by(moves) - expected).abs() < 0.1, "{moves:?}: {}", by(moves));
    }
}

#[test]
fn without_settings_no_times_are_kept() {
    let times = Times::from_answer(&rack(3, 1.0), (now(), None), None, &Holds::new(), &Times::default());
    assert_eq!(times.changed(("s30", "10.0.0.30")), None);
}

proptest! {
    #[test]
    fn holds_do_not_change_without_new_failures_under_any_clock(
        steps in prop::collection::vec(
            (1.0..600.0_f64, -86_400.0..86_400.0_f64, -86_400.0..86_400.0_f64),
            1..20,
        ),
        released in any::<bool>(),
        apart in any::<bool>(),
    ) {
        let machines = [rack(3, 400_000.0), rack(4, if apart { 500_000.0 } else { 400_000.0 })].concat();
        let mut leader = Leader::after_a_release(&machines);
        if !released {
            leader = Leader::new();
            leader.asks(60.0, &machines);
        }
        let before = leader.kept.clone();
        for (after, registry, ours) in steps {
            (leader.registry, leader.ours) = (registry, ours);
            leader.asks(after, &machines);
            prop_assert_eq!(&leader.kept, &before);
        }
    }
}
