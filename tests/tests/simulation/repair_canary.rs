//! Spoiled histories: what the judge of repairs must find, each beside one that it must let through.

use std::sync::Arc;

use etcd_client::{Client, GetOptions, Txn, TxnOp};
use madako_datacenter_sim::host::{RESET, SUCCESS};
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::record::{Record, RecordStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_protocol::permit::Permit;
use serde::Serialize;
use serde_json::{Value, json};
use time::macros::datetime;

use madako_simulation::clock::SimulatedClock;
use madako_simulation::drains::Drains;
use madako_simulation::history::History;
use madako_simulation::repair::{ATTEMPTS, Acting, RepairJudge, entry_of};
use madako_simulation::store_process::StoreProcess;
use madako_simulation::world::{PREFIX, SESSION_TTL};

/// The machine that is repaired.
pub const MACHINE: &str = "10.0.0.1";

/// A store with a leader, and a judge of what is written there.
pub struct World {
    pub judge: RepairJudge,
    pub drains: Drains,
    client: Client,
    /// Of the leader.
    pub epoch: i64,
    store: StoreProcess,
}

fn value(of: &impl Serialize) -> Option<Value> {
    Some(serde_json::to_value(of).unwrap())
}

pub fn entry(index: i64, address: &str) -> RepairQueueEntry {
    RepairQueueEntry { index, ..RepairQueueEntry::new("unreachable", "iDRAC-9", address) }
}

/// An entry whose command was announced.
fn watching(index: i64, address: &str) -> RepairQueueEntry {
    RepairQueueEntry {
        status: RepairStatus::Processing,
        step_status: RepairStepStatus::Watching,
        ..entry(index, address)
    }
}

fn record(id: i64, address: &str) -> Record {
    let now = datetime!(2026-01-01 00:00 UTC);
    Record::new(id, "repair-execute", vec![address.to_owned()], now)
}

impl World {
    pub async fn new() -> Self {
        let store = StoreProcess::in_memory(1);
        let client = store.client().await.unwrap();
        let clock = Arc::new(SimulatedClock::new(datetime!(2026-01-01 00:00 UTC)));
        let drains = Drains::new(1, clock);
        let mut world =
            Self { judge: RepairJudge::new(History::new(), drains.clone()), drains, client, epoch: 0, store };
        world.lead().await;
        world.write(&[(keys::REPAIRS_WRITE_INDEX.to_owned(), Some(json!(9)))]).await;
        world.constrain(9).await;
        world
    }

    /// Another leader.
    async fn lead(&mut self) {
        let key = format!("{}1", keys::LEADER);
        self.write(&[(key.clone(), None)]).await;
        self.epoch = self.write(&[(key, Some(json!("alpha")))]).await;
    }

    async fn constrain(&mut self, maximum: i64) {
        let constraints = json!({"maximum-repair-queue-entries": maximum});
        self.write(&[(keys::CONSTRAINTS.to_owned(), Some(constraints))]).await;
    }

    /// One revision, which the judge is shown.
    pub async fn write(&mut self, writes: &[(String, Option<Value>)]) -> i64 {
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
        self.judge.judge(revision, changes);
        revision
    }

    pub async fn put(&mut self, entry: &RepairQueueEntry) -> i64 {
        self.write(&[(keys::repair(entry.index), value(entry))]).await
    }

    /// An entry in the queue whose command is announced as it must be, by the first record.
    async fn announced() -> Self {
        let mut world = Self::new().await;
        let created = world.put(&entry(0, MACHINE)).await;
        world.announce(&entry(0, MACHINE), created, 1).await;
        world
    }

    async fn announce(&mut self, entry: &RepairQueueEntry, created: i64, id: i64) {
        self.announce_step(entry, created, id, 0).await;
    }

    pub async fn announce_step(&mut self, entry: &RepairQueueEntry, created: i64, id: i64, step: u32) {
        let (index, address) = (entry.index, entry.address.as_str());
        let started = json!({"step": step, "at": "2026-01-01T00:00:00Z", "record": id});
        self.write(&[
            (keys::repair(index), value(&watching(index, address))),
            (keys::repair_kept(index), Some(json!({"entry": created, "started": started}))),
            (keys::record(id), value(&record(id, address))),
        ])
        .await;
    }

    async fn complete(&mut self, id: i64) {
        let ended = Record { status: RecordStatus::Completed, ..record(id, MACHINE) };
        self.write(&[(keys::record(id), value(&ended))]).await;
    }

    async fn run(&mut self, epoch: i64, program: &str) -> Acting {
        self.run_for(epoch, program, MACHINE).await
    }

    pub async fn run_for(&mut self, epoch: i64, program: &str, address: &str) -> Acting {
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        let permit = Permit::give(epoch, until);
        self.judge.begins(&self.store, &permit, program, address).await
    }

    /// What was found, but for repairs that have not ended.
    pub fn found(&self) -> Vec<Id> {
        let found = self.judge.finish().into_iter().map(|violation| violation.invariant);
        found.filter(|id| *id != Id::I12).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_announced_command_and_its_retry_are_let_through_and_one_more_is_found() {
    let mut world = World::announced().await;
    for _ in 0..ATTEMPTS {
        drop(world.run(world.epoch, RESET).await);
    }
    assert_eq!(world.found(), []);
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7]);
    assert_eq!(world.judge.seen().commands, u64::from(ATTEMPTS) + 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_a_new_leader_repeats_is_found() {
    let mut world = World::announced().await;
    drop(world.run(world.epoch, RESET).await);
    world.lead().await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "the same record");
    // With a record of its own it is a second command for the step.
    let mut world = World::announced().await;
    drop(world.run(world.epoch, RESET).await);
    let created = world.epoch + 3;
    world.complete(1).await;
    world.lead().await;
    world.announce(&entry(0, MACHINE), created, 2).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I7], "another record");
}

#[tokio::test(start_paused = true)]
async fn two_that_lead_at_once_are_found_unless_a_key_was_just_deleted() {
    let world = World::new().await;
    world.judge.say_that_they_lead(&[]);
    world.judge.say_that_they_lead(&[("alpha", 3)]);
    assert_eq!(world.found(), []);
    // Whose key somebody deleted may not know yet, for as long as its lease; so may who led after it and was deposed as well.
    world.judge.deposed(3);
    world.judge.say_that_they_lead(&[("alpha", 3), ("beta", 8)]);
    world.judge.deposed(8);
    world.judge.say_that_they_lead(&[("alpha", 3), ("beta", 8), ("gamma", 11)]);
    assert_eq!(world.found(), []);
    world.judge.say_that_they_lead(&[("alpha", 3), ("beta", 9), ("gamma", 11)]);
    assert_eq!(world.found(), [Id::I1], "nobody deposed these");
    let world = World::new().await;
    world.judge.deposed(3);
    tokio::time::advance(SESSION_TTL).await;
    for _ in 0..2 {
        world.judge.say_that_they_lead(&[("alpha", 3), ("beta", 8)]);
    }
    assert_eq!(world.found(), [Id::I1], "once, however long it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_command_of_who_cannot_know_that_its_key_was_deleted_is_found_when_it_can() {
    let mut world = World::announced().await;
    let deposed = world.epoch;
    world.judge.deposed(deposed);
    world.lead().await;
    world.complete(1).await;
    drop(world.run(deposed, RESET).await);
    assert_eq!(world.found(), []);
    tokio::time::advance(SESSION_TTL).await;
    drop(world.run(deposed, RESET).await);
    assert_eq!(world.found(), [Id::I1, Id::I10]);
    // Meanwhile only who led is excused: this epoch never did.
    let mut world = World::announced().await;
    let deposed = world.epoch;
    world.judge.deposed(deposed);
    world.lead().await;
    world.complete(1).await;
    drop(world.run(deposed - 1, RESET).await);
    assert_eq!(world.found(), [Id::I1, Id::I10]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_begins_while_a_record_of_another_is_unfinished_is_found() {
    let status = || (keys::STATUS.to_owned(), Some(json!({})));
    let mut world = World::announced().await;
    // Its own record is nothing that was left to it.
    world.write(&[status()]).await;
    world.lead().await;
    assert_eq!(world.found(), []);
    world.write(&[status()]).await;
    assert_eq!(world.found(), [Id::I10]);
    let mut world = World::announced().await;
    world.lead().await;
    world.complete(1).await;
    world.write(&[status()]).await;
    assert_eq!(world.found(), []);
}

#[tokio::test(start_paused = true)]
async fn entries_of_one_revision_are_told_from_each_other() {
    let mut world = World::new().await;
    let other = "10.0.0.2";
    let entries = [entry(0, MACHINE), entry(1, other)];
    let created = world.write(&entries.each_ref().map(|new| (keys::repair(new.index), value(new)))).await;
    world.announce(&entries[0], created, 1).await;
    drop(world.run(world.epoch, RESET).await);
    world.complete(1).await;
    world.announce(&entries[1], created, 2).await;
    drop(world.run_for(world.epoch, RESET, other).await);
    assert_eq!(world.found(), []);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_and_who_runs_beside_another_is_found() {
    let mut world = World::announced().await;
    drop(world.run(world.epoch - 1, RESET).await);
    assert_eq!(world.found(), [Id::I1]);
    let mut world = World::announced().await;
    let first = world.run(world.epoch, RESET).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I10]);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_was_not_announced_as_a_whole_is_found() {
    // Written in two steps: the entry, and then nothing.
    let mut world = World::new().await;
    world.put(&watching(0, MACHINE)).await;
    drop(world.run(world.epoch, RESET).await);
    assert_eq!(world.found(), [Id::I10], "there is no record");
    let mut world = World::announced().await;
    world.write(&[(keys::repair_kept(0), None)]).await;
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
async fn what_no_queue_may_look_like_is_found_unless_a_user_wrote_it() {
    let nodes: Vec<Value> = ["10.0.0.1", "10.0.0.2"]
        .map(|address| json!({"address": address, "control_plane": true, "user": "cybozu"}))
        .to_vec();
    let mut world = World::new().await;
    world.write(&[(keys::CLUSTER.to_owned(), Some(json!({"name": "c", "nodes": nodes})))]).await;
    world.put(&watching(0, "10.0.0.1")).await;
    assert_eq!(world.found(), []);
    let revision = world.put(&watching(1, "10.0.0.2")).await;
    assert_eq!(world.found(), [Id::I8], "two nodes of the control plane");
    world.judge.user_wrote(revision, None);
    assert_eq!(world.found(), []);

    let mut world = World::new().await;
    world.put(&entry(0, MACHINE)).await;
    world.write(&[(keys::repair(0), None)]).await;
    assert_eq!(world.found(), [Id::I9], "nobody asked for its deletion");
    let mut world = World::new().await;
    world.put(&RepairQueueEntry { deleted: true, ..entry(0, MACHINE) }).await;
    world.write(&[(keys::repair(0), None)]).await;
    assert_eq!(world.found(), []);

    let mut world = World::announced().await;
    world.write(&[(keys::record(2), value(&record(2, MACHINE)))]).await;
    assert_eq!(world.found(), [Id::I10], "two records are unfinished");
}

#[tokio::test(start_paused = true)]
async fn requests_above_the_maximum_for_the_same_machine_or_in_a_held_rack_are_found() {
    let mut world = World::new().await;
    world.constrain(2).await;
    world.put(&entry(0, "10.0.0.1")).await;
    world.put(&entry(1, "10.0.0.2")).await;
    assert_eq!(world.found(), []);
    let third = world.put(&entry(2, "10.0.0.3")).await;
    assert_eq!(world.found(), [Id::I7], "one too many");
    assert_eq!(world.judge.seen().requested, 3);
    world.judge.user_wrote(third, Some(2));
    assert_eq!((world.found(), world.judge.seen().requested), (vec![], 2), "a user may");

    let mut world = World::new().await;
    world.put(&entry(0, MACHINE)).await;
    world.put(&entry(1, MACHINE)).await;
    assert_eq!(world.found(), [Id::I7], "two for one machine");

    let report = json!({"changed": "2026-01-01T00:00:00Z", "serial": "s", "address": MACHINE});
    let event = json!({"since": "2026-01-01T00:00:00Z", "machines": [report]});
    let held = json!({"label": "rack", "events": [event]});
    for (hold, expected) in [(held, vec![Id::I7]), (json!({"label": "rack", "released": [report]}), vec![])] {
        let mut world = World::new().await;
        world.write(&[(keys::repair_hold("3"), Some(hold.clone()))]).await;
        world.put(&entry(0, MACHINE)).await;
        assert_eq!(world.found(), expected, "added");
        let mut world = World::new().await;
        world.put(&entry(0, MACHINE)).await;
        world.write(&[(keys::repair_hold("3"), Some(hold))]).await;
        world.put(&watching(0, MACHINE)).await;
        assert_eq!(world.found(), expected, "begun");
        assert_eq!(world.judge.seen().held, expected.len() as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_or_never_ends_or_is_written_for_nothing_is_found() {
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
    let mut world = World::new().await;
    world.put(&ended).await;
    world.put(&RepairQueueEntry { status: RepairStatus::Succeeded, ..entry(0, "10.0.0.2") }).await;
    assert_eq!(ids(&world), [Id::I9], "another takes its place");
    let world = World::new().await;
    world.judge.user_wrote(99, Some(12));
    assert_eq!(ids(&world), [Id::I9], "it was never there");
}
