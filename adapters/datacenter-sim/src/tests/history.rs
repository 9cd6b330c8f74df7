//! Properties of a data center's history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::machine::{Machine, MachineState};
use proptest::prelude::*;

use super::START;
use crate::{
    BOOT_ROLE, ControlError, Datacenter, DatacenterConfig, DatacenterEvent, DatacenterEventKind, MAX_JOURNAL,
    Rates, SetStateError, permitted_states,
};

/// Rates at which every kind of event occurs within minutes.
fn hectic() -> Rates {
    let seconds = |n| Some(Duration::from_secs(n));
    Rates {
        break_after: seconds(100),
        unreachable_percent: 50,
        repair_takes: seconds(20),
        changes_percent: 20,
        given_up_percent: 20,
        update_after: seconds(150),
        update_takes: seconds(5),
        initialize_takes: seconds(5),
        age_every: seconds(60),
        age_by: Duration::from_secs(300 * 24 * 60 * 60),
        retire_overdue_after: seconds(60),
        retiring_takes: seconds(10),
        retired_kept: seconds(10),
        returns_percent: 30,
        replaced_after: seconds(10),
        rack_outage_after: seconds(200),
        rack_outage_takes: seconds(30),
    }
}

fn config(seed: u64, rates: Rates) -> DatacenterConfig {
    DatacenterConfig {
        rates,
        broken_percent: 20,
        ..DatacenterConfig::new(seed, START, 3, &[("compute", 9), ("storage", 6)])
    }
}

fn after(seconds: u64) -> time::OffsetDateTime {
    START + time::Duration::seconds(i64::try_from(seconds).unwrap())
}

/// Properties of any list of machines at any time.
fn assert_sound(machines: &[Machine]) {
    let mut serials = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    let mut boot_racks = BTreeSet::new();
    for machine in machines {
        assert!(serials.insert(&machine.spec.serial), "serial {} is there twice", machine.spec.serial);
        for address in &machine.spec.ipv4 {
            assert!(addresses.insert(address), "address {address} is there twice");
        }
        if machine.spec.role == BOOT_ROLE {
            assert!(boot_racks.insert(machine.spec.rack), "rack {} has two boot machines", machine.spec.rack);
        }
        assert!(machine.status.duration >= 0.0, "nothing is in a state since the future");
    }
}

/// Replays a journal over the first list of machines: each change starts in the state in which the previous one ended,
/// and is permitted.
fn assert_lawful(first: &[Machine], journal: &[DatacenterEvent], last: &[Machine]) {
    let mut states: BTreeMap<String, MachineState> =
        first.iter().map(|machine| (machine.spec.serial.clone(), machine.status.state)).collect();
    let mut at = START;
    for happening in journal {
        assert!(happening.at >= at, "time runs forward");
        at = happening.at;
        let Some(serial) = happening.serial.clone() else { continue };
        match &happening.kind {
            DatacenterEventKind::Registered => {
                let before = states.insert(serial.clone(), MachineState::Uninitialized);
                assert_eq!(before, None, "a serial is registered once: {serial}");
            }
            DatacenterEventKind::State { from, to } => {
                assert_eq!(states.insert(serial, *to), Some(*from));
                assert!(permitted_states(*from).contains(to), "{from:?} to {to:?}");
            }
            DatacenterEventKind::Removed => {
                assert_eq!(
                    states.remove(&serial),
                    Some(MachineState::Retired),
                    "only retired machines leave"
                );
            }
            DatacenterEventKind::RetireDate(_) => assert!(states.contains_key(&serial)),
            DatacenterEventKind::PowerOff | DatacenterEventKind::PowerOn => panic!("that is about a rack"),
        }
    }
    let end = last.iter().map(|machine| (machine.spec.serial.clone(), machine.status.state)).collect();
    assert_eq!(states, end, "the journal tells everything");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_history_follows_sabakans_rules(seed: u64, steps in prop::collection::vec(1_u64..120, 1..40)) {
        let mut datacenter = Datacenter::new(config(seed, hectic())).unwrap();
        let first = datacenter.machines();
        let mut journal = Vec::new();
        let mut now = 0;
        for step in steps {
            now += step;
            datacenter.advance(after(now));
            assert_sound(&datacenter.machines());
            journal.append(&mut datacenter.take_journal());
        }
        assert_lawful(&first, &journal, &datacenter.machines());
    }

    #[test]
    fn simulated_history_does_not_depend_on_the_step_of_time(
        seed: u64,
        cuts in prop::collection::btree_set(1_u64..1200, 0..30),
        hand in 0_usize..21,
    ) {
        const ACT: u64 = 300;
        let run = |cuts: &BTreeSet<u64>| {
            let mut datacenter = Datacenter::new(config(seed, hectic())).unwrap();
            let act = |datacenter: &mut Datacenter| {
                datacenter.advance(after(ACT));
                let machines = datacenter.machines();
                let serial = &machines[hand % machines.len()].spec.serial;
                // A refusal depends on the state and must be the same in both runs.
                let refused = datacenter.set_state(serial, MachineState::Retiring).is_err();
                let _ = datacenter.add(1, "gpu");
                refused
            };
            for cut in cuts.iter().filter(|cut| **cut < ACT) {
                datacenter.advance(after(*cut));
            }
            let refused = act(&mut datacenter);
            for cut in cuts.iter().filter(|cut| **cut > ACT) {
                datacenter.advance(after(*cut));
            }
            datacenter.advance(after(1200));
            (refused, datacenter.take_journal(), datacenter.machines())
        };
        prop_assert_eq!(run(&BTreeSet::new()), run(&cuts));
    }

    #[test]
    fn an_action_on_one_machine_changes_no_other_history(seed: u64, hand in 0_usize..18) {
        let run = |touch: bool| {
            let mut datacenter = Datacenter::new(config(seed, hectic())).unwrap();
            datacenter.advance(after(60));
            let place = *datacenter.by_serial.values().nth(hand % datacenter.by_serial.len()).unwrap();
            if touch {
                let serial = datacenter.place(place).occupant.clone().unwrap().spec.serial;
                datacenter.remove(&serial).unwrap();
            }
            datacenter.advance(after(900));
            // Later machines at the same place count as affected too.
            let line: BTreeSet<_> = (0..100).map(|nth| datacenter.serial_of_place(place, nth)).collect();
            let is_other = |happening: &DatacenterEvent| {
                !happening.serial.as_ref().is_some_and(|serial| line.contains(serial))
            };
            datacenter.take_journal().into_iter().filter(is_other).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(false), run(true));
    }
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_one_does_not() {
    let run = |seed| {
        let mut datacenter = Datacenter::new(DatacenterConfig::for_demo(seed, START)).unwrap();
        datacenter.advance(after(3600));
        (datacenter.take_journal(), datacenter.machines())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn the_demo_has_the_machines_that_it_promises() {
    let datacenter = Datacenter::new(DatacenterConfig::for_demo(1, START)).unwrap();
    let mut by_role = BTreeMap::new();
    let mut by_rack = BTreeMap::new();
    for machine in datacenter.machines() {
        *by_role.entry(machine.spec.role.clone()).or_insert(0) += 1;
        *by_rack.entry(machine.spec.rack).or_insert(0) += 1;
        assert_eq!(machine.spec.ipv4.len(), 3);
    }
    let roles: Vec<_> = by_role.iter().map(|(role, count)| (role.as_str(), *count)).collect();
    assert_eq!(roles, [("boot", 6), ("compute", 36), ("gpu", 6), ("storage", 18)]);
    assert_eq!(by_rack.into_values().collect::<Vec<_>>(), [11; 6]);
}

#[test]
fn demo_machines_reach_every_state_within_ten_minutes() {
    let mut datacenter = Datacenter::new(DatacenterConfig::for_demo(1, START)).unwrap();
    datacenter.advance(after(600));
    let journal = datacenter.take_journal();
    for &state in MachineState::ALL {
        let entered = |what: &DatacenterEventKind| matches!(what, DatacenterEventKind::State { to, .. } if *to == state);
        let count = journal.iter().filter(|happening| entered(&happening.kind)).count();
        assert!(count > 0, "no machine became {state:?}");
    }
    let is_registered = |what: &DatacenterEventKind| matches!(what, DatacenterEventKind::Registered);
    assert!(journal.iter().any(|happening| is_registered(&happening.kind)), "no machine was replaced");
    assert!(
        journal.iter().any(|happening| matches!(happening.kind, DatacenterEventKind::RetireDate(_))),
        "none aged"
    );
    let healthy = datacenter.machines().iter().filter(|m| m.status.state == MachineState::Healthy).count();
    assert!((40..=64).contains(&healthy), "{healthy} of 66 are healthy: a lively data center, not a ruin");
}

#[test]
fn a_data_center_without_events_stays_unchanged() {
    let mut datacenter = Datacenter::new(config(1, Rates::no_events())).unwrap();
    let before = datacenter.machines();
    assert_eq!(datacenter.next_happening(), None);
    datacenter.advance(after(1_000_000));
    assert_eq!(datacenter.take_journal(), []);
    let after = datacenter.machines();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.spec, after.spec);
        assert_eq!(before.status.state, after.status.state);
        assert!((after.status.duration - before.status.duration - 1_000_000.0).abs() < 0.01, "time passes");
    }
}

#[test]
fn time_does_not_run_backward() {
    let mut datacenter = Datacenter::new(config(1, hectic())).unwrap();
    datacenter.advance(after(500));
    let (machines, happened) = (datacenter.machines(), datacenter.take_journal());
    datacenter.advance(after(100));
    assert_eq!(datacenter.now(), after(500));
    assert_eq!(datacenter.machines(), machines);
    assert!(!happened.is_empty() && datacenter.take_journal().is_empty());
}

#[test]
fn a_rack_without_power_is_unreachable_until_it_returns() {
    let mut datacenter =
        Datacenter::new(DatacenterConfig { broken_percent: 0, ..config(3, Rates::no_events()) }).unwrap();
    let states_of = |datacenter: &Datacenter, rack: i64| -> Vec<MachineState> {
        let machines = datacenter.machines();
        machines.iter().filter(|m| m.spec.rack == rack).map(|m| m.status.state).collect()
    };
    let in_rack =
        datacenter.machines().into_iter().find(|machine| machine.spec.rack == 1).unwrap().spec.serial;
    datacenter.set_state(&in_rack, MachineState::Updating).unwrap();
    datacenter.kill_rack(1).unwrap();
    assert!(datacenter.is_without_power(1));
    let dark = states_of(&datacenter, 1);
    assert_eq!(dark.iter().filter(|state| **state == MachineState::Unreachable).count(), dark.len() - 1);
    assert_eq!(
        datacenter.machine(&in_rack).unwrap().status.state,
        MachineState::Updating,
        "the registry cannot see the loss of an updating machine"
    );
    assert!(states_of(&datacenter, 0).iter().all(|state| *state == MachineState::Healthy));
    datacenter.advance(after(100_000));
    assert_eq!(states_of(&datacenter, 1), dark, "without power nothing comes back");
    datacenter.power_on(1).unwrap();
    assert_eq!(states_of(&datacenter, 1), dark, "a start takes time");
    datacenter.advance(after(100_600));
    assert_eq!(
        states_of(&datacenter, 1).iter().filter(|state| **state == MachineState::Healthy).count(),
        dark.len() - 1
    );
    assert_eq!(
        datacenter.kill_rack(7),
        Err(ControlError::NoRack { rack: 7, last: 2 }),
        "racks that are not there are refused"
    );
}

#[test]
fn a_machine_repaired_without_power_recovers_when_power_returns() {
    let rates = Rates { repair_takes: Some(Duration::from_secs(10)), ..Rates::no_events() };
    let mut datacenter = Datacenter::new(DatacenterConfig { broken_percent: 0, ..config(3, rates) }).unwrap();
    datacenter.kill_rack(0).unwrap();
    datacenter.advance(after(1000));
    let unreachable = |datacenter: &Datacenter| {
        datacenter.machines().iter().filter(|m| m.status.state == MachineState::Unreachable).count()
    };
    assert_eq!(unreachable(&datacenter), 6);
    datacenter.power_on(0).unwrap();
    datacenter.advance(after(1600));
    assert_eq!(unreachable(&datacenter), 0);
}

#[test]
fn a_machine_with_a_key_is_not_retired() {
    let (mut datacenter, serial) = with_one_machine();
    datacenter.set_state(&serial, MachineState::Retiring).unwrap();
    datacenter.set_encryption_key(&serial, true).unwrap();
    assert_eq!(datacenter.set_state(&serial, MachineState::Retired), Err(SetStateError::EncryptionKeyExists));
    datacenter.set_encryption_key(&serial, false).unwrap();
    assert_eq!(datacenter.set_state(&serial, MachineState::Retired), Ok(()));
    assert_eq!(datacenter.set_state("nobody", MachineState::Retired), Err(SetStateError::NotFound));
}

#[test]
fn the_same_state_again_changes_nothing() {
    let (mut datacenter, serial) = with_one_machine();
    datacenter.set_state(&serial, MachineState::Unhealthy).unwrap();
    datacenter.advance(after(50));
    datacenter.set_state(&serial, MachineState::Unhealthy).unwrap();
    let duration = datacenter.machine(&serial).unwrap().status.duration;
    assert!((duration - 50.0).abs() < 1e-9, "it is in the state since it first was: {duration}");
}

fn with_one_machine() -> (Datacenter, String) {
    let datacenter = Datacenter::new(DatacenterConfig::new(1, START, 1, &[("compute", 1)])).unwrap();
    let machines = datacenter.machines();
    let serial = machines.iter().find(|machine| machine.spec.role == "compute").unwrap().spec.serial.clone();
    (datacenter, serial)
}

#[test]
fn a_new_machine_takes_the_lowest_free_index_and_its_addresses() {
    let (mut datacenter, serial) = with_one_machine();
    let gone = datacenter.machine(&serial).unwrap();
    datacenter.remove(&serial).unwrap();
    assert_eq!(datacenter.remove(&serial), Err(ControlError::NoMachine(serial.clone())));
    let new = datacenter.add(0, "storage").unwrap();
    let new = datacenter.machine(&new).unwrap();
    assert_ne!(new.spec.serial, serial);
    assert_eq!(new.spec.ipv4, gone.spec.ipv4);
    assert_eq!(new.status.state, MachineState::Uninitialized);
    let refused = ControlError::NoPlace { rack: 0, role: BOOT_ROLE.to_owned() };
    assert_eq!(datacenter.add(0, BOOT_ROLE), Err(refused), "a rack has one boot machine");
    assert_eq!(datacenter.add(0, "a b"), Err(ControlError::NotARole("a b".to_owned())));
    let full = (0..).map_while(|_| datacenter.add(0, "storage").ok()).count();
    assert_eq!(full, 4, "the rest of the spare places");
}

#[test]
fn the_journal_keeps_the_last_happenings_only() {
    let mut datacenter = Datacenter::new(config(1, hectic())).unwrap();
    datacenter.advance(after(60_000));
    assert_eq!(datacenter.journal().count(), MAX_JOURNAL);
    let last = datacenter.journal().next_back().unwrap().at;
    assert!(last > after(59_000));
}

#[test]
fn a_configuration_is_checked_whole() {
    let mut config = DatacenterConfig::new(1, START, 0, &[("boot", 1), ("no role", 1)]);
    config.addresses_per_machine = 0;
    config.broken_percent = 101;
    config.rates.changes_percent = 60;
    config.rates.given_up_percent = 60;
    let refused = Datacenter::new(config).expect_err("everything is wrong with it");
    let fields: Vec<_> = refused.problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "racks",
            "roles[0].role",
            "roles[1].role",
            "addresses_per_machine",
            "broken_percent",
            "rates.changes_percent + rates.given_up_percent",
        ]
    );
    let crowded = DatacenterConfig::new(1, START, 1_000_000, &[]);
    assert!(Datacenter::new(crowded).is_err(), "there are not so many addresses");
}

#[test]
fn a_hundred_thousand_machines_are_fine() {
    let config = DatacenterConfig::new(1, START, 2_000, &[("compute", 60_000), ("storage", 40_000)]);
    let machines = Datacenter::new(config).unwrap().machines();
    assert_eq!(machines.len(), 102_000);
    assert_sound(&machines);
}
