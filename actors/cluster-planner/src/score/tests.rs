use time::Duration;

use super::*;
use crate::inventory::Inventory;
use crate::testing::{MachineWith as _, machine, now};

#[test]
fn lifetime_counts_whole_days_cut_towards_zero() {
    let day = Duration::days(1);
    let moment = Duration::nanoseconds(1);
    let cases = [
        (Duration::ZERO, 0),
        (day * 250, 0),
        (day * 251 - moment, 0),
        (day * 251, 1),
        (day * 501 - moment, 1),
        (day * 501, 2),
        (day * 1_001 - moment, 2),
        (day * 1_001, 3),
        (day * -250, 0),
        (day * -251 + moment, 0),
        (day * -251, -1),
        (day * -501 + moment, -1),
        (day * -501, -2),
        (day * -1_001 + moment, -2),
        (day * -1_001, -3),
        (day * 2_000_000, 3),
        (day * -700_000, -3),
    ];
    for (lifetime, points) in cases {
        let machines = [machine("10.0.0.1", 0, "a").due_in(lifetime)];
        let inventory = Inventory::new(&machines, None);
        assert_eq!(lifetime_points(inventory.entry(0), now()), points, "{lifetime}");
    }
}

#[test]
fn a_rack_beyond_its_capacity_has_negative_points_however_many_nodes_it_has() {
    assert_eq!(rack_points(0), 1_000);
    assert_eq!(rack_points(100), 0);
    assert_eq!(rack_points(103), -30);
    assert!(rack_points(u64::MAX) < rack_points(u64::from(u32::MAX)));
}
