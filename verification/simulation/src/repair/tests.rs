//! Tests of the repair judge on invalid histories that no planted bug produces, each beside a valid one.

mod holding;

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, Txn, TxnOp};
use madako_datacenter_sim::host::{BOOT_CHECK, CommandBehaviour, RESET, SUCCESS, SimulatedHost};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::{Record, RecordStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_judges::{Exemption, ExemptionUse};
use madako_protocol::host::{Host as _, HostCommand};
use madako_protocol::permit::Permit;
use serde::Serialize;
use serde_json::{Value, json};
use time::macros::datetime;

use super::{ATTEMPTS, JudgedHost, RepairJudge, RunningCommand, entry_of};
use crate::clock::SimulatedClock;
use crate::drains::Drains;
use crate::facts::Facts;
use crate::history::History;
use crate::store_process::StoreProcess;
use crate::world::{PREFIX, SESSION_TTL};

/// Address of the machine under repair.
const MACHINE: &str = "10.0.0.1";

/// A store with a leader, and the judge of its revisions.
struct World {
    judge: RepairJudge,
    client: Client,
    /// Epoch of the leader.
    epoch: i64,
    store: StoreProcess,
}

fn value(of: &impl Serialize) -> Option<Value> {
    Some(serde_json::to_value(of).unwrap())
}

fn entry(index: i64, address: &str) -> RepairQueueEntry {
    RepairQueueEntry { index, ..RepairQueueEntry::new("unreachable", "iDRAC-9", address) }
}

/// The entry after the announcement of its command.
fn watching() -> RepairQueueEntry {
    RepairQueueEntry {
        status: RepairStatus::Processing,
        step_status: RepairStepStatus::Watching,
        ..entry(0, MACHINE)
    }
}

fn record(id: i64, address: &str) -> Record {
    let now = datetime!(2026-01-01 00:00 UTC);
    Record::new(id, "repair-execute", vec![address.to_owned()], now)
}

impl World {
    async fn new() -> Self {
        let store = StoreProcess::start_in_memory(1);
        let client = store.connect_client().await.unwrap();
        let clock = Arc::new(SimulatedClock::new(datetime!(2026-01-01 00:00 UTC)));
        let judge = RepairJudge::new(History::new(), Drains::new(1, clock));
        let mut world = Self { judge, client, epoch: 0, store };
        world.lead().await;
        world.write(&[(keys::REPAIRS_WRITE_INDEX.to_owned(), Some(json!(9)))]).await;
        let constraints = json!({"maximum-repair-queue-entries": 9});
        world.write(&[(keys::CONSTRAINTS.to_owned(), Some(constraints))]).await;
        world
    }

    /// Replaces the leader.
    async fn lead(&mut self) {
        let key = format!("{}1", keys::LEADER);
        self.write(&[(key.clone(), None)]).await;
        self.epoch = self.write(&[(key, Some(json!("alpha")))]).await;
    }

    /// Writes one revision, and passes it to the judge.
    async fn write(&mut self, writes: &[(String, Option<Value>)]) -> i64 {
        let operation = |(key, value): &(String, Option<Value>)| match value {
            Some(value) => TxnOp::put(format!("{PREFIX}{key}"), value.to_string(), None),
            None => TxnOp::delete(format!("{PREFIX}{key}"), None),
        };
        let operations: Vec<TxnOp> = writes.iter().map(operation).collect();
        let done = self.client.txn(Txn::new().and_then(operations)).await.unwrap();
        let revision = done.header().unwrap().revision();
        let options = GetOptions::new().with_prefix();
        let all = self.client.get(PREFIX, Some(options)).await.unwrap();
        let stored = |key: &str| {
            let is_it = |kv: &&etcd_client::KeyValue| kv.key_str().unwrap() == format!("{PREFIX}{key}");
            all.kvs().iter().find(is_it).map(entry_of)
        };
        let changes = writes.iter().map(|(key, _)| (key.clone(), stored(key))).collect();
        self.judge.judge_revision(revision, changes);
        revision
    }

    async fn put(&mut self, entry: &RepairQueueEntry) -> i64 {
        self.write(&[(keys::repair(entry.index), value(entry))]).await
    }

    /// A world with an entry whose command record 1 announces correctly.
    async fn announced() -> Self {
        let mut world = Self::new().await;
        let created = world.put(&entry(0, MACHINE)).await;
        world.announce(created, 1).await;
        world
    }

    /// Announces the command of the entry with create revision `created` by record `id`.
    async fn announce(&mut self, created: i64, id: i64) {
        let started = json!({"step": 0, "at": "2026-01-01T00:00:00Z", "record": id});
        self.write(&[
            (keys::repair(0), value(&watching())),
            (keys::repair_state_key(0), Some(json!({"entry": created, "started": started}))),
            (keys::record(id), value(&record(id, MACHINE))),
        ])
        .await;
    }

    async fn complete(&mut self, id: i64) {
        let ended = Record { status: RecordStatus::Completed, ..record(id, MACHINE) };
        self.write(&[(keys::record(id), value(&ended))]).await;
    }

    async fn run(&mut self, epoch: i64, program: &str) -> RunningCommand {
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        self.judge.begin_command(&self.store, &Permit::give(epoch, until), program, MACHINE).await
    }

    /// Violations, except repairs that have not ended.
    fn found(&self) -> Vec<Id> {
        let found = self.judge.finish().into_iter().map(|violation| violation.invariant);
        found.filter(|id| *id != Id::I12).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_announced_command_and_its_retry_pass_and_another_retry_is_found() {
    let mut world = World::announced().await;
    for _ in 0..ATTEMPTS {
        drop(world.run(world.epoch, RESET).await);
    }
    assert_eq!(world.found(), []);
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7]);
    assert_eq!(world.judge.counts().commands, u64::from(ATTEMPTS) + 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_a_new_leader_repeats_is_found() {
    let mut world = World::announced().await;
    drop(world.run(world.epoch, RESET).await);
    world.lead().await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "the same record");
    // With a record of its own, this is a second command for the step.
    let mut world = World::announced().await;
    drop(world.run(world.epoch, RESET).await);
    let created = world.epoch + 3;
    world.complete(1).await;
    world.lead().await;
    world.announce(created, 2).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "another record");
}

#[tokio::test(start_paused = true)]
async fn two_leaders_at_once_are_found_unless_a_key_was_just_deleted() {
    let world = World::new().await;
    world.judge.judge_reported_leaders(&[]);
    world.judge.judge_reported_leaders(&[("alpha", 3)]);
    assert_eq!(world.found(), []);
    // A leader whose key a user deleted may not know that until its lease ends; the same holds for its deposed
    // successor.
    world.judge.note_deposed(3);
    world.judge.judge_reported_leaders(&[("alpha", 3), ("beta", 8)]);
    world.judge.note_deposed(8);
    world.judge.judge_reported_leaders(&[("alpha", 3), ("beta", 8), ("gamma", 11)]);
    assert_eq!(world.found(), []);
    world.judge.judge_reported_leaders(&[("alpha", 3), ("beta", 9), ("gamma", 11)]);
    assert_eq!(world.found(), [Id::I1], "no user deposed these");
    let world = World::new().await;
    world.judge.note_deposed(3);
    tokio::time::advance(SESSION_TTL).await;
    for _ in 0..2 {
        world.judge.judge_reported_leaders(&[("alpha", 3), ("beta", 8)]);
    }
    assert_eq!(world.found(), [Id::I1], "once, however long it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_command_of_a_deposed_leader_is_found_when_its_lease_would_have_ended() {
    let mut world = World::announced().await;
    let deposed = world.epoch;
    world.judge.note_deposed(deposed);
    world.lead().await;
    world.complete(1).await;
    drop(world.run(deposed, RESET).await);
    assert_eq!(world.found(), []);
    tokio::time::advance(SESSION_TTL).await;
    drop(world.run(deposed, RESET).await);
    assert_eq!(world.found(), [Id::I1, Id::I10]);
    // Only a deposed leader is excused: this epoch never led.
    let mut world = World::announced().await;
    let deposed = world.epoch;
    world.judge.note_deposed(deposed);
    world.lead().await;
    world.complete(1).await;
    drop(world.run(deposed - 1, RESET).await);
    assert_eq!(world.found(), [Id::I1, Id::I10]);
}

#[tokio::test(start_paused = true)]
async fn a_command_beside_another_is_found() {
    let mut world = World::announced().await;
    let first = world.run(world.epoch, RESET).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I10]);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_was_not_announced_as_a_whole_is_found() {
    let mut world = World::announced().await;
    world.write(&[(keys::repair_state_key(0), None)]).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "nothing is kept of it");
    let mut world = World::announced().await;
    drop(world.run(world.epoch, SUCCESS).await);
    assert_eq!(world.found(), [Id::I7], "another command was announced");
    let mut world = World::announced().await;
    world.write(&[(keys::record(1), value(&record(1, "10.0.0.2")))]).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "for another machine");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_queue_is_found_unless_a_user_wrote_it() {
    let mut world = World::new().await;
    world.put(&entry(0, MACHINE)).await;
    let revision = world.write(&[(keys::repair(0), None)]).await;
    assert_eq!(world.found(), [Id::I9], "no user asked for its deletion");
    world.judge.note_user_write(revision, None);
    assert_eq!(world.found(), []);
    let mut world = World::new().await;
    world.put(&RepairQueueEntry { deleted: true, ..entry(0, MACHINE) }).await;
    world.write(&[(keys::repair(0), None)]).await;
    assert_eq!(world.found(), []);

    let mut world = World::announced().await;
    world.write(&[(keys::record(2), value(&record(2, MACHINE)))]).await;
    assert_eq!(world.found(), [Id::I10], "two records are unfinished");
}

/// An entry in processing between two steps.
fn between_steps(index: i64) -> RepairQueueEntry {
    RepairQueueEntry { status: RepairStatus::Processing, ..entry(index, MACHINE) }
}

/// A queue in which a user's write began two repairs of one machine, ten seconds ago.
async fn repaired_twice() -> World {
    let mut world = World::new().await;
    for index in 0..3 {
        let revision = world.put(&entry(index, MACHINE)).await;
        world.judge.note_user_write(revision, None);
    }
    world.put(&between_steps(0)).await;
    let revision = world.put(&between_steps(1)).await;
    world.judge.note_user_write(revision, None);
    tokio::time::advance(Duration::from_secs(10)).await;
    world
}

fn standing(world: &World) -> ExemptionUse {
    let table = world.judge.exemptions().list_uses();
    table.into_iter().find(|(exemption, _)| *exemption == Exemption::Standing).unwrap().1
}

#[tokio::test(start_paused = true)]
async fn a_violation_that_stays_is_excused_once_with_its_duration() {
    let mut world = repaired_twice().await;
    for step in 1..4 {
        world.put(&RepairQueueEntry { step, ..between_steps(0) }).await;
    }
    assert_eq!(world.found(), []);
    assert_eq!(standing(&world), ExemptionUse { uses: 1, longest_seconds: Some(10) });
    world.put(&RepairQueueEntry { status: RepairStatus::Failed, ..between_steps(0) }).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(standing(&world), ExemptionUse { uses: 1, longest_seconds: Some(10) }, "it ended");
}

#[tokio::test(start_paused = true)]
async fn a_violation_that_another_repair_carries_on_or_that_comes_again_is_found() {
    let succeeded = RepairQueueEntry { status: RepairStatus::Succeeded, ..between_steps(1) };
    let mut world = repaired_twice().await;
    // The number of repairs stays two.
    world.write(&[(keys::repair(1), value(&succeeded)), (keys::repair(2), value(&between_steps(2)))]).await;
    assert_eq!(world.found(), [Id::I7]);

    let mut world = repaired_twice().await;
    world.put(&succeeded).await;
    assert_eq!(world.found(), []);
    world.put(&between_steps(2)).await;
    assert_eq!(world.found(), [Id::I7]);
}

#[tokio::test(start_paused = true)]
async fn requests_in_a_held_rack_are_found() {
    let report = json!({"changed": "2026-01-01T00:00:00Z", "serial": "s", "address": MACHINE});
    let event = json!({"since": "2026-01-01T00:00:00Z", "machines": [report]});
    let held = json!({"label": "rack", "events": [event]});
    for (hold, expected) in [(held, vec![Id::I7]), (json!({"label": "rack", "released": [report]}), vec![])] {
        let mut world = World::new().await;
        world.write(&[(keys::repair_hold_key("3"), Some(hold.clone()))]).await;
        world.put(&entry(0, MACHINE)).await;
        assert_eq!(world.found(), expected, "added");
        let mut world = World::new().await;
        world.put(&entry(0, MACHINE)).await;
        world.write(&[(keys::repair_hold_key("3"), Some(hold))]).await;
        world.put(&watching()).await;
        assert_eq!(world.found(), expected, "begun");
        assert_eq!(world.judge.counts().held, expected.len() as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_boot_check_of_a_node_that_does_not_reboot_is_an_effect() {
    let mut world = World::new().await;
    let now = datetime!(2026-01-01 00:00 UTC);
    let datacenter = Datacenter::new(DatacenterConfig::for_demo(1, now)).unwrap();
    let registry = SimulatedRegistry::new(datacenter, Arc::new(SimulatedClock::new(now)));
    let host = JudgedHost {
        host: SimulatedHost::new(registry, CommandBehaviour::demo()),
        judge: world.judge.clone(),
        store: world.store.clone(),
        fact_sink: ("alpha".to_owned(), Facts::default()),
    };
    let permit = Permit::give(world.epoch, tokio::time::Instant::now() + SESSION_TTL);
    let words = [BOOT_CHECK, MACHINE, "0"].map(str::to_owned).to_vec();
    let check = HostCommand { words, deadline: Duration::from_secs(1) };
    let status = RebootStatus::Rebooting;
    let rebooting = RebootQueueEntry { status, ..RebootQueueEntry::new(MACHINE) };
    world.write(&[(keys::reboot(0), value(&rebooting))]).await;
    host.run(&permit, check.clone()).await.unwrap();
    assert_eq!(world.judge.last_effect(), None);
    world.write(&[(keys::reboot(0), None)]).await;
    host.run(&permit, check).await.unwrap();
    assert!(world.judge.last_effect().is_some_and(|(_, what)| what.contains(MACHINE)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_an_endless_and_an_unchanged_entry_are_found() {
    let ids = |world: &World| -> Vec<Id> {
        world.judge.finish().into_iter().map(|violation| violation.invariant).collect()
    };
    let ended = RepairQueueEntry { status: RepairStatus::Succeeded, ..entry(0, MACHINE) };
    let mut world = World::new().await;
    world.put(&ended).await;
    assert_eq!(ids(&world), []);
    world.put(&ended).await;
    assert_eq!(ids(&world), [Id::I12], "as it was there");
    let mut world = World::new().await;
    world.put(&entry(0, MACHINE)).await;
    assert_eq!(ids(&world), [Id::I12], "it has not ended");
    let world = World::new().await;
    world.judge.note_user_write(99, Some(12));
    assert_eq!(ids(&world), [Id::I9], "it was never there");
}
