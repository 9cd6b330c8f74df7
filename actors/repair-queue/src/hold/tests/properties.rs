use proptest::prelude::*;

use super::*;

/// Reports of three racks over about twenty-five minutes, in steps that hit the bounds of windows.
fn reports() -> impl Strategy<Value = Vec<Machine>> {
    prop::collection::vec((0_i64..3, 0_u32..16), 0..16).prop_map(|reports| {
        (1..).zip(reports).map(|(id, (rack, steps))| machine(id, rack, f64::from(steps) * 100.0)).collect()
    })
}

/// True if three of these lie within ten minutes, by checking every triple.
fn any_three(machines: &[&Machine]) -> bool {
    let times: Vec<f64> = machines.iter().map(|machine| machine.status.duration).collect();
    let close = |one: usize, other: usize| (times[one] - times[other]).abs() <= 600.0;
    (0..times.len()).any(|a| (0..a).any(|b| (0..b).any(|c| close(a, b) && close(b, c) && close(a, c))))
}

fn of_rack(reports: &[Machine], rack: i64) -> Vec<&Machine> {
    reports.iter().filter(|machine| machine.spec.rack == rack).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_rack_is_held_exactly_when_three_of_it_are_close_to_each_other(reports in reports()) {
        let holds = at_once(&reports);
        for rack in 0..3 {
            prop_assert_eq!(holds.contains_key(&rack.to_string()), any_three(&of_rack(&reports, rack)));
        }
    }

    #[test]
    fn the_order_of_reports_does_not_matter_and_the_same_ones_change_nothing(
        (reports, shuffled) in reports().prop_flat_map(|reports| (Just(reports.clone()), Just(reports).prop_shuffle())),
        clock_off in -3600.0..3600.0_f64,
    ) {
        let holds = at_once(&reports);
        prop_assert_eq!(&at_once(&shuffled), &holds);
        let next = holds_at(&machines_aged_by(&shuffled, 60.0), Some(&settings()), &holds, later(60.0));
        prop_assert_eq!(&next, &holds);
        // The local clock is off by an hour: the same racks, as only differences count.
        let off = holds_at(&reports, Some(&settings()), &Holds::new(), later(clock_off));
        prop_assert_eq!(held(&off), held(&holds));
    }

    #[test]
    fn released_racks_are_not_held_again_for_any_subset_of_their_reports(
        reports in reports(), keep in prop::collection::vec(any::<bool>(), 16), minutes in 0_u32..100,
    ) {
        let mut holds = at_once(&reports);
        for hold in holds.values_mut() {
            Arc::make_mut(hold).release();
        }
        let mut left = keep.into_iter();
        let still: Vec<Machine> =
            reports.iter().filter(|_| left.next().unwrap_or(true)).cloned().collect();
        let seconds = f64::from(minutes) * 60.0;
        let after = holds_at(&machines_aged_by(&still, seconds), Some(&settings()), &holds, later(seconds));
        prop_assert_eq!(held(&after), Vec::<&str>::new());
    }

    #[test]
    fn rack_is_released_exactly_when_no_event_has_three_machines_left(
        reports in reports(), keep in prop::collection::vec(any::<bool>(), 16),
    ) {
        let holds = at_once(&reports);
        let mut left = keep.into_iter();
        let mut still: Vec<Machine> =
            reports.iter().filter(|_| left.next().unwrap_or(true)).cloned().collect();
        // Each changes its state at another time: no new event results.
        for (machine, hours) in still.iter_mut().zip(1..) {
            machine.status.duration = f64::from(hours) * 3600.0;
        }
        let after = holds_at(&still, Some(&settings()), &holds, later(200_000.0));
        for (rack, hold) in &holds {
            let reported = |serial: &str| still.iter().any(|machine| machine.spec.serial == serial);
            let lasts = hold.events.iter().any(|event| {
                event.machines.iter().filter(|machine| reported(&machine.serial)).count() >= 3
            });
            prop_assert_eq!(after.get(rack).is_some_and(|hold| hold.is_held()), lasts);
        }
    }
}
