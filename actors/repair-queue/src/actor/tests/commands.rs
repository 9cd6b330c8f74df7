//! Tests of repairs of machines that need no drain.

use std::time::Duration;

use madako_domain::keys;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_protocol::actors::CommitError;
use tokio::time::Instant;

use super::world::{Does, World};
use crate::testing::{NOW, Store, processing, queued};

async fn world(entries: &[RepairQueueEntry]) -> World {
    let mut store = Store::new(&["a", "b", "c"], &["w", "x", "y"]);
    for entry in entries {
        store.entry(entry);
    }
    World::new(store).await
}

#[tokio::test(start_paused = true)]
async fn machine_is_repaired_and_the_history_shows_it() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.host.0.lock().unwrap().cured.insert("w".to_owned());
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran(), ["reset w", "celebrate w"]);
    assert_eq!(world.history(), ["repair-execute completed", "repair-finish completed"]);
    let records = world.records();
    assert_eq!((records[0].id, records[1].id), (1, 2));
    assert_eq!(records[0].targets, ["w"]);
    assert_eq!(records[0].info, "exit code 0 after 1.0 s");
    assert_eq!(world.entry(0).unwrap().nodename, "node-w");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_machine_succeeds_without_a_repair() {
    let mut world = world(&[queued(0, "w", "unreachable")]).await;
    world.host.0.lock().unwrap().healthy.insert("w".to_owned());
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran(), [""; 0]);
    assert_eq!(world.history(), ["repair-finish completed"]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_fails_fails_the_entry() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Exits(3));
    world.begin().await;
    world.until_status(0, RepairStatus::Failed).await;
    assert_eq!(world.history(), ["repair-execute cancelled"]);
    assert_eq!(world.records()[0].error, "exit code 3 after 1.0 s");
}

#[tokio::test(start_paused = true)]
async fn a_success_command_that_fails_fails_the_entry() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    {
        let mut host = world.host.0.lock().unwrap();
        host.healthy.insert("w".to_owned());
        host.does.insert("celebrate".to_owned(), Does::NotBegin);
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Failed).await;
    assert_eq!(world.records()[0].error, "cannot start the command celebrate: no such file");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stays_ill_fails_after_its_last_watch() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.begin().await;
    world.until_status(0, RepairStatus::Failed).await;
    assert_eq!(world.ran(), ["reset w"]);
    assert_eq!(world.history(), ["repair-execute completed", "repair-finish completed"]);
    assert_eq!(world.entry(0).unwrap().step, 1);
}

#[tokio::test(start_paused = true)]
async fn commands_of_different_entries_run_one_after_another() {
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain")]).await;
    {
        let mut host = world.host.0.lock().unwrap();
        host.does.insert("reset".to_owned(), Does::Takes(Duration::from_secs(50)));
        host.cured.extend(["w".to_owned(), "x".to_owned()]);
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    world.until_status(1, RepairStatus::Succeeded).await;
    assert_eq!(world.host.0.lock().unwrap().at_once, 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_never_ends_is_ended_and_another_machine_is_next() {
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain")]).await;
    world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Hangs);
    world.begin().await;
    world.until_status(0, RepairStatus::Failed).await;
    assert!(world.records()[0].error.starts_with("killed at its deadline"), "{:?}", world.records());
    world.until_status(1, RepairStatus::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_command_is_not_repeated_and_health_decides() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::GetsLost);
    world.begin().await;
    world
        .until("the record to end", |state| {
            state.repair.records.known.len() == 1 && state.repair.records.unfinished.is_empty()
        })
        .await;
    assert!(world.records()[0].error.starts_with("outcome unknown"), "{:?}", world.records());
    world.host.0.lock().unwrap().healthy.insert("w".to_owned());
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran(), ["reset w", "celebrate w"]);
}

#[tokio::test(start_paused = true)]
async fn restored_older_entry_runs_no_command_twice() {
    let entry = queued(0, "w", "plain");
    let mut world = world(std::slice::from_ref(&entry)).await;
    world.begin().await;
    world
        .until("the watch", |state| {
            state.repair.entries[&0].value.step_status == RepairStepStatus::Watching
                && state.repair.records.unfinished.is_empty()
        })
        .await;
    let watching = world.entry(0).unwrap();
    world.change(|store| store.entry(&entry));
    world
        .until("the watch again", |state| {
            state.repair.entries[&0].value.step_status == RepairStepStatus::Watching
        })
        .await;
    assert_eq!(world.entry(0).unwrap().last_transition_time, watching.last_transition_time);
    world.until_status(0, RepairStatus::Failed).await;
    world.change(|store| store.entry(&entry));
    world.until_status(0, RepairStatus::Failed).await;
    assert_eq!(world.ran(), ["reset w"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_after_any_transition_runs_nothing_twice_and_every_entry_ends() {
    for fuse in 1..=8 {
        let entries = [queued(0, "w", "plain"), queued(1, "x", "plain"), queued(2, "outside", "unreachable")];
        let mut world = world(&entries).await;
        world.host.0.lock().unwrap().cured.insert("w".to_owned());
        world.leader_state.lock().unwrap().fuse = Some(fuse);
        world.begin().await;
        let states = world.leader_state.clone();
        let blown = || states.lock().unwrap().fuse == Some(0);
        for _ in 0..1_000 {
            if blown() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.kill().await;
        world.leader_state.lock().unwrap().fuse = None;
        world.begin().await;
        for index in 0..3 {
            world
                .until(&format!("entry {index} after {fuse} transitions"), |state| {
                    state.repair.entries[&index].value.is_finished()
                })
                .await;
        }
        let mut ran = world.ran();
        let count = ran.len();
        ran.sort();
        ran.dedup();
        assert_eq!(ran.len(), count, "after {fuse} transitions: {:?}", world.ran());
        assert!(world.records().iter().all(|record| !record.is_unfinished()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_unknown_outcome_runs_its_command_once() {
    for written in [true, false] {
        let mut world = world(&[queued(0, "w", "plain")]).await;
        world.host.0.lock().unwrap().cured.insert("w".to_owned());
        let error = CommitError::Unanswered { deadline: Duration::from_secs(10) };
        world.leader_state.lock().unwrap().fails.push_back((written, error));
        world.begin().await;
        world.until_status(0, RepairStatus::Succeeded).await;
        assert_eq!(world.ran(), ["reset w", "celebrate w"], "written: {written}");
    }
}

#[tokio::test(start_paused = true)]
async fn durable_commit_of_two_with_unknown_outcome_decides_which_command_may_run() {
    // The second entry's back-off ends between the attempts: it was begun, and therefore precedes the first.
    let backing_off = RepairQueueEntry {
        operation: "plain".to_owned(),
        drain_backoff_expire: Some(NOW + time::Duration::SECOND),
        ..processing(1, "x", 0, RepairStepStatus::Waiting, 400)
    };
    let mut world = world(&[queued(0, "w", "plain"), backing_off]).await;
    world.host.0.lock().unwrap().cured.insert("x".to_owned());
    let unanswered = || (false, CommitError::Unanswered { deadline: Duration::from_secs(10) });
    world.leader_state.lock().unwrap().fails.extend([unanswered(), unanswered(), unanswered()]);
    world.begin().await;
    let lost = world.until_lost(3).await;
    let of = |change: &RepairChange| {
        change.writes.iter().find_map(|write| match write {
            RepairWrite::Entry(entry) => Some(entry.index),
            _ => None,
        })
    };
    assert_eq!(lost.iter().map(of).collect::<Vec<_>>(), [Some(0), Some(0), Some(1)]);
    world.change(|store| assert!(store.commit(&lost[0])));
    world.until_status(1, RepairStatus::Succeeded).await;
    world.until_status(0, RepairStatus::Failed).await;
    assert_eq!(world.ran(), ["reset x", "celebrate x"], "each once, and none for another's record");
    let records = world.records();
    assert_eq!((&*records[0].targets[0], &*records[1].targets[0]), ("w", "x"));
    assert_eq!(records[0].status.to_string(), "cancelled");
    assert!(records[0].error.starts_with("outcome unknown"), "{}", records[0].error);
}

#[tokio::test(start_paused = true)]
async fn late_announced_command_does_not_start_after_an_obstacle_appeared() {
    for (what, why) in
        [("disabled", "the repair queue was disabled"), ("deleted", "the entry was deleted"), ("nothing", "")]
    {
        let mut world = world(&[queued(0, "w", "plain")]).await;
        let unanswered = CommitError::Unanswered { deadline: Duration::from_secs(10) };
        world.leader_state.lock().unwrap().fails.push_back((false, unanswered));
        world.begin().await;
        let announced = world.until_lost(1).await.remove(0);
        // The store shows it together with a later change.
        world.change(|store| {
            assert!(store.commit(&announced));
            match what {
                "disabled" => store.text(keys::REPAIRS_DISABLED, "true"),
                "deleted" => {
                    let entry = store.state().repair.entries[&0].value.clone();
                    store.entry(&RepairQueueEntry { deleted: true, ..entry });
                }
                _ => {}
            }
        });
        if why.is_empty() {
            world.until_status(0, RepairStatus::Failed).await;
            assert_eq!(world.ran(), ["reset w"]);
            continue;
        }
        world.until("the end of its record", |state| state.repair.records.unfinished.is_empty()).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.ran(), [""; 0], "{what}");
        let record = &world.records()[0];
        assert_eq!(record.status.to_string(), "cancelled");
        assert_eq!(record.error, format!("not started, {why}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_waits_for_its_permit_is_not_started_when_the_queue_is_disabled_meanwhile() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.leader_state.lock().unwrap().permits_end = true;
    world.begin().await;
    world.until("its announcement", |state| state.repair.records.unfinished.len() == 1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    tokio::time::sleep(Duration::from_secs(20)).await;
    {
        let mut leader_state = world.leader_state.lock().unwrap();
        (leader_state.permits_end, leader_state.permits) = (false, true);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.ran(), [""; 0]);
    assert_eq!(world.records()[0].error, "not started, the repair queue was disabled");
}

#[tokio::test(start_paused = true)]
async fn refused_change_of_an_entry_delays_no_other_entry() {
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain")]).await;
    world.host.0.lock().unwrap().cured.extend(["w".to_owned(), "x".to_owned()]);
    let error = CommitError::Invariant { violations: Vec::new() };
    world.leader_state.lock().unwrap().fails.push_back((false, error));
    world.begin().await;
    world.until_status(1, RepairStatus::Succeeded).await;
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran()[0], "reset x");
}

#[tokio::test(start_paused = true)]
async fn deleted_entry_is_removed_even_while_the_queue_is_disabled() {
    let mut world = world(&[RepairQueueEntry { deleted: true, ..queued(0, "w", "plain") }]).await;
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    world.begin().await;
    world.until("its removal", |state| state.repair.entries.is_empty()).await;
    assert_eq!(world.history(), ["repair-dequeue completed"]);
    assert_eq!(world.ran(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_operation_waits_until_it_is_configured() {
    let mut world = world(&[queued(0, "w", "later"), queued(1, "x", "plain")]).await;
    world.host.0.lock().unwrap().cured.extend(["w".to_owned(), "x".to_owned()]);
    world.begin().await;
    world.until_status(1, RepairStatus::Succeeded).await;
    assert_eq!(world.entry(0).unwrap().status, RepairStatus::Queued);
    let repair = crate::testing::REPAIR.replace("\"empty\"", "\"later\"");
    let repair = repair.replace(
        r#""health_check_command": ["check"]}]}]}"#,
        r#""health_check_command": ["check"], "repair_steps": [{"repair_command": ["reset"], "watch_seconds": 9}]}]}]}"#,
    );
    world.change(|store| store.configure(&["a"], &["w", "x"], &repair));
    world.until_status(0, RepairStatus::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn with_unchanged_inputs_nothing_is_written() {
    let entries = [queued(0, "w", "later"), queued(1, "x", "unreachable"), queued(2, "y", "plain")];
    let mut world = world(&entries).await;
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(world.leader_state.lock().unwrap().committed, []);
    assert_eq!(world.ran(), [""; 0]);
    assert!(world.host.0.lock().unwrap().checks >= 2 * 350, "health is asked each round");
    let reported = world.events.0.lock().unwrap().len();
    assert_eq!(reported, 3, "each event is reported once: {:?}", world.events.0.lock().unwrap());
}

/// A configuration with one command of four attempts, a minute apart.
const RETRIED: &str = r#"{"repair_procedures": [{"machine_types": ["t"], "repair_operations": [
    {"operation": "plain", "health_check_command": ["check"], "repair_steps": [
        {"repair_command": ["reset"], "command_retries": 3, "command_interval": 60, "watch_seconds": 100000}]}]}]}"#;

#[tokio::test(start_paused = true)]
async fn obstacle_prevents_the_retry_of_a_failed_command() {
    type Change = fn(&mut Store);
    const HELD: &str = r#"{"label":"rack","events":[{"since":"2026-01-02T03:00:00Z","machines":[
        {"changed":"2026-01-02T02:58:00Z","serial":"s1","address":"w"}]}]}"#;
    let changes: [(&str, Option<Change>, usize); 4] = [
        ("", None, 4),
        (
            "not tried again, the repair queue was disabled; attempt 2 of 4: exit code 3",
            Some(|store| store.text(keys::REPAIRS_DISABLED, "true")),
            2,
        ),
        (
            "not tried again, the entry was deleted; attempt 2 of 4: exit code 3",
            Some(|store| {
                let entry = store.state().repair.entries[&0].value.clone();
                store.entry(&RepairQueueEntry { deleted: true, ..entry });
            }),
            2,
        ),
        (
            "not tried again, the rack 3 is held; attempt 2 of 4: exit code 3",
            Some(|store| store.text(&keys::repair_hold_key("3"), HELD)),
            2,
        ),
    ];
    for (expected_error, change, attempts) in changes {
        let mut world = world(&[queued(0, "w", "plain")]).await;
        world.change(|store| store.configure(&["a"], &["w"], RETRIED));
        world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Exits(3));
        world.begin().await;
        for _ in 0..1_000 {
            if world.ran().len() == 2 {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if let Some(change) = change {
            world.change(change);
        }
        world
            .until("the record to end", |state| {
                !state.repair.records.known.is_empty() && state.repair.records.unfinished.is_empty()
            })
            .await;
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        assert_eq!(world.ran().len(), attempts, "{expected_error:?}");
        let record = &world.records()[0];
        assert_eq!(record.status.to_string(), "cancelled");
        assert!(
            record.error.starts_with(expected_error),
            "{:?} does not begin with {expected_error:?}",
            record.error
        );
        // An operator's write is not a verdict on the machine; four failed attempts are.
        let status = world.entry(0).map(|entry| entry.status);
        let expected = match expected_error {
            "" => Some(RepairStatus::Failed),
            expected_error if expected_error.contains("deleted") => None,
            _ => Some(RepairStatus::Processing),
        };
        assert_eq!(status, expected, "{expected_error:?}");
    }
}

/// A machine whose command failed once, and is retried after `interval` seconds.
async fn failed_once(interval: u32) -> World {
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain")]).await;
    let retried = RETRIED.replace("60", &interval.to_string());
    world.change(|store| store.configure(&["a"], &["w", "x"], &retried));
    world.host.0.lock().unwrap().does.insert("reset".to_owned(), Does::Exits(3));
    world.begin().await;
    for _ in 0..1_000 {
        if world.ran().len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world
}

#[tokio::test(start_paused = true)]
async fn health_is_checked_between_attempts_and_a_healthy_machine_gets_no_command() {
    let world = failed_once(600).await;
    let before = world.host.0.lock().unwrap().checked["w"];
    tokio::time::sleep(Duration::from_secs(100)).await;
    let requested = world.host.0.lock().unwrap().checked["w"] - before;
    assert!((9..=11).contains(&requested), "each round of ten seconds, and was {requested} times");
    assert_eq!(world.entry(0).unwrap().status, RepairStatus::Processing);
    world.host.0.lock().unwrap().healthy.insert("w".to_owned());
    let begun = Instant::now();
    world.until_status(0, RepairStatus::Succeeded).await;
    assert!(begun.elapsed() <= Duration::from_secs(20), "{:?}", begun.elapsed());
    let on_w = world.ran().into_iter().filter(|words| words == "reset w").count();
    assert_eq!(on_w, 1);
    let error = &world.records()[0].error;
    assert_eq!(error, "not tried again, the machine is healthy; attempt 1 of 4: exit code 3 after 1.0 s");
}

#[tokio::test(start_paused = true)]
async fn health_is_asked_before_another_attempt_also_without_a_pause() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.change(|store| store.configure(&["a"], &["w"], &RETRIED.replace("60", "0")));
    {
        let mut host = world.host.0.lock().unwrap();
        // The curing command reports a failure.
        host.does.insert("reset".to_owned(), Does::CuresAndExits(3));
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran(), ["reset w"]);
}

#[tokio::test(start_paused = true)]
async fn obstacle_to_another_attempt_ends_the_pause() {
    let world = failed_once(3_600).await;
    world.change(|store| {
        let entry = store.state().repair.entries[&0].value.clone();
        store.entry(&RepairQueueEntry { deleted: true, ..entry });
    });
    let begun = Instant::now();
    world.until("its removal", |state| !state.repair.entries.contains_key(&0)).await;
    for _ in 0..1_000 {
        if world.ran().len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.ran(), ["reset w", "reset x"]);
    assert!(begun.elapsed() < Duration::from_secs(30), "others wait no longer: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn while_disabled_a_machine_that_becomes_healthy_succeeds_with_its_success_command() {
    let mut world = world(&[queued(0, "w", "plain")]).await;
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(world.ran(), [""; 0]);
    assert_eq!(world.entry(0).unwrap().status, RepairStatus::Queued);
    world.host.0.lock().unwrap().healthy.insert("w".to_owned());
    world.until_status(0, RepairStatus::Succeeded).await;
    assert_eq!(world.ran(), ["celebrate w"]);
    assert_eq!(world.history(), ["repair-finish completed"]);
}

#[tokio::test(start_paused = true)]
async fn slow_checks_reach_every_machine_in_turn() {
    let addresses: Vec<String> = (0..60).map(|number| format!("m{number}")).collect();
    let entries: Vec<_> = (0_i64..).zip(&addresses).map(|(index, it)| queued(index, it, "plain")).collect();
    let mut world = world(&entries).await;
    world.change(|store| store.text(keys::REPAIRS_DISABLED, "true"));
    // Twice an interval: the first sixteen are due again when they have answered.
    world.host.0.lock().unwrap().does.insert("check".to_owned(), Does::Takes(Duration::from_secs(20)));
    world.begin().await;
    tokio::time::sleep(Duration::from_secs(4 * 20 * 3 + 10)).await;
    let checked = world.host.0.lock().unwrap().checked.clone();
    assert_eq!(checked.len(), 60, "{checked:?}");
    assert!(checked.values().all(|count| (2..=4).contains(count)), "{checked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_check_longer_than_two_intervals_is_valid() {
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain")]).await;
    {
        let mut host = world.host.0.lock().unwrap();
        host.does.insert("check".to_owned(), Does::Takes(Duration::from_secs(45)));
        host.cured.insert("w".to_owned());
    }
    world.begin().await;
    world.until_status(0, RepairStatus::Succeeded).await;
    world.until_status(1, RepairStatus::Failed).await;
    assert_eq!(world.ran(), ["reset w", "reset x", "celebrate w"]);
}

#[tokio::test(start_paused = true)]
async fn blocked_repair_yields_its_slot_and_resumes_later() {
    // Two slots: the watch of the first two ends while their operation is not configured.
    let mut world = world(&[queued(0, "w", "plain"), queued(1, "x", "plain"), queued(2, "y", "later")]).await;
    let gone = crate::testing::REPAIR.replace("\"plain\"", "\"later\"");
    world.begin().await;
    world
        .until("two watches", |state| {
            (0..2).all(|index| state.repair.entries[&index].value.step_status == RepairStepStatus::Watching)
                && state.repair.records.unfinished.is_empty()
        })
        .await;
    world.host.0.lock().unwrap().cured.insert("y".to_owned());
    world.change(|store| store.configure(&["a"], &["w", "x", "y"], &gone));
    world.until_status(2, RepairStatus::Succeeded).await;
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(world.ran(), ["reset w", "reset x", "reset y", "celebrate y"]);
    assert_eq!(world.entry(0).unwrap().status, RepairStatus::Processing);
    world.change(|store| store.configure(&["a"], &["w", "x", "y"], crate::testing::REPAIR));
    world.until_status(0, RepairStatus::Failed).await;
    world.until_status(1, RepairStatus::Failed).await;
}
