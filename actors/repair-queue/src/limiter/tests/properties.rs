//! Property tests: the limiters agree with a second, slow implementation of their rules.

use proptest::prelude::*;

use super::*;

fn machine_of((id, address, rack, state, duration): (u8, u8, i64, usize, f64)) -> Machine {
    let mut machine = machine(id, rack, duration);
    machine.status.state = MachineState::ALL[state];
    machine.spec.ipv4 = match address {
        0 => vec![],
        address => vec![format!("10.0.0.{address}")],
    };
    machine
}

fn duration() -> impl Strategy<Value = f64> {
    prop_oneof![(0_u32..20).prop_map(|steps| f64::from(steps) * 100.0), 0.0..2000.0_f64]
}

fn cases() -> impl Strategy<Value = Case> {
    let report = (any::<u8>(), 0_u8..12, 0_i64..3, 2_usize..4, duration()).prop_map(machine_of);
    let entry =
        (0_u8..20, any::<bool>()).prop_map(|(address, deleted)| entry(&format!("10.0.0.{address}"), deleted));
    let status = prop::sample::select(RebootStatus::ALL);
    let reboot =
        (0_u8..12, status).prop_map(|(address, status)| reboot(&format!("10.0.0.{address}"), status));
    (
        prop::collection::vec(report, 0..12),
        prop::collection::vec(entry, 0..4),
        prop::collection::vec(reboot, 0..6),
        prop::collection::vec((0_u8..12).prop_map(|address| format!("10.0.0.{address}")), 0..8),
        (-1_i64..12, -1_i64..1500),
        any::<bool>(),
    )
        .prop_map(|(mut reports, entries, reboots, nodes, (maximum, wait), hold)| {
            for (number, report) in reports.iter_mut().enumerate() {
                report.spec.serial = format!("m{number}");
            }
            Case {
                reports,
                entries,
                reboots,
                nodes,
                constraints: allowing(maximum, wait),
                hold: hold.then(HoldSettings::default),
                removed: vec![],
            }
        })
}

/// Reason of the limiters of single reports, each rule implemented independently.
fn reported(case: &Case, at: usize) -> Option<&'static str> {
    let report = &case.reports[at];
    let Some(address) = report.spec.ipv4.first() else { return Some("no-address") };
    if case.reports[..at].iter().any(|other| other.spec.ipv4.first() == Some(address)) {
        return Some("duplicate-address");
    }
    if case.entries.iter().any(|entry| entry.address == *address) {
        return Some("has-entry");
    }
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let waits = report.status.state == MachineState::Unreachable
        && report.status.duration < case.constraints.wait_seconds_to_repair_rebooting as f64;
    if waits
        && case.reboots.iter().any(|entry| entry.node == *address && entry.status == RebootStatus::Rebooting)
    {
        return Some("rebooting");
    }
    if waits && !case.nodes.contains(address) {
        return Some("out-of-cluster");
    }
    let of_rack: Vec<f64> = case
        .reports
        .iter()
        .filter(|other| other.spec.rack == report.spec.rack)
        .map(|other| other.status.duration)
        .collect();
    let is_event =
        |from: f64| of_rack.iter().filter(|time| (from..=from + 600.0).contains(*time)).count() >= 3;
    (case.hold.is_some() && of_rack.iter().copied().any(is_event)).then_some("rack-held")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_first_limiter_that_applies_refuses_and_the_last_takes_none_or_all(case in cases()) {
        let decision = case.decide();
        let reported: Vec<_> = (0..case.reports.len()).map(|at| reported(&case, at)).collect();
        let passed = reported.iter().filter(|reason| reason.is_none()).count();
        let fits = i64::try_from(passed + case.entries.len()).unwrap()
            <= case.constraints.maximum_repair_queue_entries;
        let mut add = Vec::new();
        let mut refused = Vec::new();
        for (report, reason) in case.reports.iter().zip(reported) {
            let address = report.address().unwrap_or_default();
            match reason.or((!fits).then_some("too-many")) {
                None => add.push(RepairQueueEntry::new(
                    report.status.state.name().to_lowercase(), report.spec.bmc.bmc_type.clone(), address,
                )),
                Some(reason) => refused.push((address.to_owned(), report.spec.serial.clone(), reason)),
            }
        }
        prop_assert_eq!(&decision.add, &add);
        let message: Vec<_> = decision.refused.iter()
            .map(|refused| refused.refusal(&case.reports))
            .map(|refusal| (refusal.address, refusal.serial, refusal.reason.name()))
            .collect();
        prop_assert_eq!(message, refused);
    }

    #[test]
    fn added_entries_never_exceed_the_maximum_nor_repeat_a_machine(case in cases()) {
        let decision = case.decide();
        let all = i64::try_from(decision.add.len() + case.entries.len()).unwrap();
        prop_assert!(decision.add.is_empty() || all <= case.constraints.maximum_repair_queue_entries);
        let mut observed: BTreeSet<&str> = case.entries.iter().map(|entry| entry.address.as_str()).collect();
        for entry in &decision.add {
            prop_assert!(observed.insert(&entry.address), "{} has two", entry.address);
        }
        // With its own additions as entries, it adds nothing.
        let mut next = case.clone();
        next.entries.extend(decision.add);
        prop_assert_eq!(next.decide().add, vec![]);
    }
}
