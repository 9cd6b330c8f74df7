//! Tests of the promises about the repair queue.

use madako_domain::keys;
use serde_json::json;

use super::*;
use crate::FaultPlace;

/// Health checks each minute, `count` times.
fn minutes(tape: &mut Tape, count: u32, indices: &[i64]) {
    for _ in 0..count {
        tape.later(60);
        indices.iter().for_each(|index| tape.health(*index, false));
    }
}

#[test]
fn nothing_begins_while_the_queue_is_disabled() {
    judges(Promise::QueueDisabled, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.put(&[(keys::REPAIRS_DISABLED, json!(true))]);
        tape.later(3).health(0, false);
        if spoiled {
            tape.execute(0, 0, true);
        }
    });
}

#[test]
fn enabled_queue_continues() {
    judges(Promise::QueueResumes, |tape, spoiled| {
        tape.put(&[(keys::REPAIRS_DISABLED, json!(true))]);
        tape.write_entry(0, "queued", 0, "waiting");
        minutes(tape, 4, &[0]);
        tape.put(&[(keys::REPAIRS_DISABLED, json!(false))]);
        if !spoiled {
            tape.execute(0, 0, true);
        }
        minutes(tape, 4, &[0]);
    });
}

/// The next action of the entry may be a drain.
#[test]
fn an_enabled_queue_may_wait_for_kubernetes() {
    let overdue = |place: FaultPlace| {
        let mut tape = Tape::new();
        tape.put(&[(keys::REPAIRS_DISABLED, json!(true))]);
        tape.write_entry(0, "queued", 0, "waiting");
        minutes(&mut tape, 4, &[0]);
        tape.put(&[(keys::REPAIRS_DISABLED, json!(false))]);
        tape.tell(Fact::Troubled { place, clock: false, begins: true });
        minutes(&mut tape, 4, &[0]);
        tape.of(Promise::QueueResumes).1
    };
    assert_eq!([FaultPlace::Kubernetes, FaultPlace::Providers].map(overdue), [0, 1]);
}

#[test]
fn no_report_becomes_an_entry_while_auto_repair_is_disabled() {
    judges(Promise::AutoRepairDisabled, |tape, spoiled| {
        tape.put(&[(keys::AUTO_REPAIR_DISABLED, json!(true))]);
        tape.state(5, MachineState::Unhealthy);
        tape.later(70).poll(RegistryQuestion::Machines);
        if spoiled {
            tape.write_entry(1, "queued", 0, "waiting");
        }
    });
}

#[test]
fn concurrent_repairs_stay_within_their_maximum() {
    judges(Promise::ConcurrentRepairs, |tape, spoiled| {
        for index in 0..3 {
            tape.write_entry(index, "queued", 0, "waiting");
            tape.health(index, false);
        }
        tape.execute(0, 0, true);
        tape.execute(1, 0, true);
        if !spoiled {
            tape.later(120);
        }
        tape.execute(2, 0, true);
    });
}

#[test]
fn a_wrong_clock_excuses_a_repair_beside_watches_but_not_beside_commands() {
    let begun = |wrong_for: Option<u64>, third_at: u64| {
        let mut tape = Tape::new();
        for index in 0..3 {
            tape.write_entry(index, "queued", 0, "waiting");
            tape.health(index, false);
        }
        tape.execute(0, 0, true);
        tape.execute(1, 0, true);
        if let Some(seconds) = wrong_for {
            for begins in [true, false] {
                tape.tell(Fact::Troubled {
                    place: FaultPlace::Instance(LEADER.to_owned()),
                    clock: true,
                    begins,
                });
                tape.later(seconds);
            }
        }
        tape.later(third_at - 2 * wrong_for.unwrap_or(0));
        tape.execute(2, 0, true);
        let excused = tape.used(Exemption::WrongClock);
        (tape.of(Promise::ConcurrentRepairs).1, excused.uses, excused.longest_seconds)
    };
    assert_eq!(begun(None, 50), (1, 0, None));
    // The later watch of 120 s began after 5 s.
    assert_eq!(begun(Some(10), 50), (0, 1, Some(65)));
    let mut tape = Tape::new();
    for index in 0..3 {
        tape.write_entry(index, "queued", 0, "waiting");
        tape.health(index, false);
    }
    tape.tell(Fact::Troubled { place: FaultPlace::Registry, clock: true, begins: true });
    for index in 0..2 {
        let address = tape.announce(index, 0);
        tape.command(Command::Repair, &address, true, false);
    }
    tape.later(50).execute(2, 0, true);
    assert_eq!(tape.of(Promise::ConcurrentRepairs).1, 1, "their commands run, whatever the clocks show");
}

#[test]
fn the_health_watch_lasts_its_time() {
    judges(Promise::WatchLasts, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.health(0, false);
        tape.execute(0, 0, true);
        tape.later(if spoiled { 60 } else { 120 }).health(0, false);
        tape.execute(0, 1, true);
    });
    // The watch of the last step counts, too.
    judges(Promise::WatchLasts, |tape, spoiled| {
        tape.write_entry(0, "processing", 1, "waiting");
        tape.execute(0, 1, true);
        tape.later(if spoiled { 10 } else { 310 });
        tape.write_entry(0, "failed", 1, "watching");
    });
}

#[test]
fn a_failed_step_is_followed_by_the_next_step() {
    judges(Promise::NextStep, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.execute(0, 0, true);
        minutes(tape, 3, &[0]);
        if spoiled {
            tape.write_entry(0, "failed", 0, "watching");
        } else {
            tape.execute(0, 1, true);
        }
    });
    judges(Promise::NextStep, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.execute(0, 0, true);
        minutes(tape, 3, &[0]);
        if !spoiled {
            tape.execute(0, 1, true);
        }
        minutes(tape, 4, &[0]);
    });
    // A failed command ends the repair.
    let mut tape = Tape::new();
    tape.write_entry(0, "queued", 0, "waiting");
    tape.execute(0, 0, false);
    tape.write_entry(0, "failed", 0, "watching");
    assert_eq!(tape.of(Promise::NextStep).1, 0);
}

#[test]
fn nothing_begins_for_a_machine_whose_health_is_not_known() {
    judges(Promise::FreshHealth, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.health(0, false);
        tape.later(if spoiled { 130 } else { 60 });
        tape.execute(0, 0, true);
    });
    judges(Promise::FreshHealth, |tape, spoiled| {
        tape.write_entry(0, "queued", 0, "waiting");
        tape.health(0, false);
        tape.later(30).health(0, spoiled);
        tape.later(10);
        tape.execute(0, 0, true);
    });
}

#[test]
fn a_repair_succeeds_when_its_machine_is_healthy() {
    judges(Promise::HealthySucceeds, |tape, spoiled| {
        tape.write_entry(0, "processing", 0, "watching");
        tape.health(0, !spoiled);
        tape.write_entry(0, "succeeded", 0, "watching");
    });
}

#[test]
fn restored_deleted_entry_breaks_its_promise() {
    judges(Promise::DeletionKept, |tape, spoiled| {
        let (key, mut entry) = tape.entry(0, "queued", 0, "waiting");
        entry["deleted"] = json!(true);
        tape.put(&[(&key, entry.clone())]);
        entry["deleted"] = json!(false);
        tape.put(&[(&key, if spoiled { entry } else { json!(null) })]);
    });
}

#[test]
fn restored_cancelled_reboot_breaks_the_same_promise() {
    judges(Promise::DeletionKept, |tape, spoiled| {
        let entry = |status| json!({"index": "3", "node": "10.0.0.4", "status": status});
        tape.put(&[("reboots/data/0000000000000003", entry("cancelled"))]);
        let after = if spoiled { entry("draining") } else { json!(null) };
        tape.put(&[("reboots/data/0000000000000003", after)]);
    });
}

#[test]
fn an_unobserved_command_does_not_count_as_the_previous_one() {
    let mut tape = Tape::new();
    tape.write_entry(0, "queued", 0, "waiting");
    tape.execute(0, 0, true);
    minutes(&mut tape, 3, &[0]);
    tape.write_entry(0, "queued", 0, "waiting");
    tape.announce(0, 0);
    tape.write_entry(0, "failed", 0, "watching");
    assert_eq!([Promise::WatchLasts, Promise::NextStep].map(|promise| tape.of(promise).1), [0, 0]);
}

#[test]
fn checks_on_hosts_that_are_not_seen_are_not_missed() {
    let begun = |troubled: bool| {
        let mut tape = Tape::new();
        tape.write_entry(0, "queued", 0, "waiting");
        if troubled {
            tape.later(10).tell(Fact::Troubled { place: FaultPlace::Hosts, clock: false, begins: true });
        }
        tape.later(10).execute(0, 0, true);
        let unseen = tape.used(Exemption::UnseenCheck);
        (tape.of(Promise::FreshHealth).1, unseen.uses, unseen.longest_seconds)
    };
    assert_eq!([begun(false), begun(true)], [(1, 0, None), (0, 1, Some(10))]);
}
