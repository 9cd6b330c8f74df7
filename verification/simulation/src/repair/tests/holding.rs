//! Tests of the judge of held racks on histories in which an entry begins although its rack should be held, or begins
//! without a violation.

use std::time::Duration;

use madako_datacenter_sim::Fault;
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::machine::{Bmc, Machine, MachineSpec, MachineState, MachineStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_judges::{Exemption, ExemptionUse};
use madako_protocol::event::Event;
use madako_protocol::ports::RegistryMachines;
use serde_json::{Value, json};
use time::macros::datetime;

use super::{MACHINE, World, entry};

/// The leader's name.
const ALPHA: &str = "alpha";

/// A machine that has been unreachable for `seconds`. The entry is about the machine with id 1.
fn machine(id: u8, rack: i64, seconds: f64) -> Machine {
    let date = datetime!(2026-01-01 00:00 UTC);
    Machine {
        spec: MachineSpec {
            serial: format!("s{id}"),
            labels: Vec::new(),
            rack,
            index_in_rack: i64::from(id),
            role: "compute".to_owned(),
            ipv4: vec![format!("10.0.0.{id}")],
            register_date: date,
            retire_date: date,
            bmc: Bmc { bmc_type: "iDRAC-9".to_owned() },
        },
        status: MachineStatus { state: MachineState::Unreachable, duration: seconds },
    }
}

/// Three machines of rack 3 that failed within two minutes.
fn failed() -> Vec<Machine> {
    vec![machine(1, 3, 200.0), machine(2, 3, 140.0), machine(3, 3, 80.0)]
}

/// A history: the leader gets an answer of the registry, writes to the queue, and begins the entry.
struct HoldingTest(World);

impl HoldingTest {
    async fn new() -> Self {
        let mut world = World::new().await;
        world.put(&entry(0, MACHINE)).await;
        world.put(&entry(1, "10.0.0.99")).await;
        let case = Self(world);
        case.0.judge.take_event(ALPHA, &Event::Elected { epoch: case.0.epoch });
        case
    }

    async fn answer(&self, machines: Vec<Machine>, faults: &[Fault]) {
        let count = machines.len();
        let fetched = RegistryMachines { machines, left_out: Vec::new() };
        self.0.judge.record_answer(ALPHA, &fetched, faults);
        self.0.judge.take_event(ALPHA, &Event::Reported { machines: count });
        tokio::time::advance(Duration::from_secs(1)).await;
    }

    async fn hold(&mut self, hold: Value) {
        self.0.write(&[(keys::repair_hold_key("3"), Some(hold))]).await;
    }

    /// Writes another entry of the queue.
    async fn write(&mut self) -> i64 {
        let refreshed = RepairQueueEntry { nodename: "node".to_owned(), ..entry(1, "10.0.0.99") };
        self.0.put(&refreshed).await
    }

    async fn begin(&mut self) -> i64 {
        tokio::time::advance(Duration::from_secs(1)).await;
        let begun = RepairQueueEntry {
            status: RepairStatus::Processing,
            step_status: RepairStepStatus::Watching,
            ..entry(0, MACHINE)
        };
        self.0.put(&begun).await
    }

    /// Number of violations because the rack is not held.
    fn found(&self) -> usize {
        let found = self.0.judge.finish();
        found.iter().filter(|one| one.invariant == Id::I7 && one.what.contains("not held")).count()
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_begins_in_a_rack_that_should_be_held_is_found() {
    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    case.write().await;
    case.begin().await;
    assert_eq!((case.found(), case.0.judge.counts().to_be_held), (1, 1));

    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    tokio::time::advance(Duration::from_secs(130)).await;
    case.begin().await;
    assert_eq!(case.found(), 1, "writes that were under way have ended");

    // The rack was held; its hold is deleted while the registry reports the same machines.
    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    case.hold(held()).await;
    case.0.write(&[(keys::repair_hold_key("3"), None)]).await;
    case.answer(failed_later(61.0), &[]).await;
    case.begin().await;
    assert_eq!(case.found(), 1);
}

/// A machine as a stored hold has it.
fn report(id: u8) -> Value {
    let (serial, address) = (format!("s{id}"), format!("10.0.0.{id}"));
    json!({"changed": "2026-01-01T00:00:00Z", "serial": serial, "address": address})
}

/// A hold of the rack for machines 2, 3 and 4, without the entry's.
fn held() -> Value {
    let event = json!({"since": "2026-01-01T00:00:00Z", "machines": [report(2), report(3), report(4)]});
    json!({"label": "rack", "events": [event]})
}

/// The same machines `seconds` later.
fn failed_later(seconds: f64) -> Vec<Machine> {
    let mut machines = failed();
    for machine in &mut machines {
        machine.status.duration += seconds;
    }
    machines
}

#[tokio::test(start_paused = true)]
async fn an_entry_without_a_reason_to_be_held_passes() {
    let machines = [
        ("only two", vec![machine(1, 3, 200.0), machine(2, 3, 140.0)]),
        ("of two racks", vec![machine(1, 3, 200.0), machine(2, 3, 140.0), machine(3, 4, 80.0)]),
        ("one after the other", vec![machine(1, 3, 800.0), machine(2, 3, 400.0), machine(3, 3, 80.0)]),
        ("in another rack", vec![machine(4, 3, 200.0), machine(2, 3, 140.0), machine(3, 3, 80.0)]),
    ];
    for (why, machines) in machines {
        let mut case = HoldingTest::new().await;
        case.answer(machines, &[]).await;
        case.write().await;
        case.begin().await;
        assert_eq!(case.found(), 0, "{why}");
    }

    let released = json!({"label": "rack", "released": [report(1), report(2)]});
    for hold in [held(), released] {
        let mut case = HoldingTest::new().await;
        case.answer(failed(), &[]).await;
        case.hold(hold.clone()).await;
        case.begin().await;
        assert_eq!(case.found(), 0, "{hold}");
    }
}

fn uses_of(case: &HoldingTest, used: Exemption) -> ExemptionUse {
    let table = case.0.judge.exemptions().list_uses();
    table.into_iter().find(|(exemption, _)| *exemption == used).unwrap().1
}

/// Uses of the exemption of answers that the service may have forgotten.
fn forgotten(case: &HoldingTest) -> ExemptionUse {
    uses_of(case, Exemption::ForgottenReports)
}

#[tokio::test(start_paused = true)]
async fn an_entry_passes_while_the_leader_may_not_know_the_reason() {
    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    case.begin().await;
    assert_eq!(case.found(), 0, "it was under way");

    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    let between = case.write().await;
    let begun = case.begin().await;
    assert_eq!(case.found(), 1);
    case.0.judge.note_user_write(between, None);
    assert_eq!(case.found(), 0, "a user wrote the revision between them");
    case.0.judge.note_user_write(begun, None);
    assert_eq!(case.found(), 0, "a user wrote the entry");

    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    case.0.judge.take_event(ALPHA, &Event::Elected { epoch: case.0.epoch + 1000 });
    case.write().await;
    case.begin().await;
    assert_eq!(case.found(), 0, "another leader got the answer");

    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    let why = "killed".to_owned();
    let failure = Event::ActorFailed { actor: "repair".to_owned(), why, restart_in: None };
    case.0.judge.take_event(ALPHA, &failure);
    case.write().await;
    case.begin().await;
    assert_eq!(case.found(), 0, "an actor failed with it");
    assert_eq!(forgotten(&case), ExemptionUse { uses: 1, longest_seconds: Some(1) });

    // Answers soon after the failure may be forgotten as well, later ones are not.
    for (pause, violations, excused) in [(60, 0, 1), (180, 1, 0)] {
        let mut case = HoldingTest::new().await;
        case.0.judge.take_event(ALPHA, &failure);
        tokio::time::advance(Duration::from_secs(pause)).await;
        case.answer(failed(), &[]).await;
        case.write().await;
        case.begin().await;
        assert_eq!((case.found(), forgotten(&case).uses), (violations, excused), "{pause} s");
    }

    let mut case = HoldingTest::new().await;
    case.answer(failed(), &[]).await;
    case.answer(failed_later(3600.0), &[Fault::ClockSet(3600)]).await;
    case.write().await;
    case.begin().await;
    assert_eq!((case.found(), case.0.judge.counts().shifted_answers), (0, 1), "clocks were set");
    assert_eq!(uses_of(&case, Exemption::UncertainFailures).uses, 1);

    for (first, uses) in [(600.0, 1), (680.0, 1), (700.0, 0)] {
        let mut case = HoldingTest::new().await;
        case.answer(vec![machine(1, 3, first), machine(2, 3, 300.0), machine(3, 3, 30.0)], &[]).await;
        case.write().await;
        case.begin().await;
        assert_eq!((case.found(), uses_of(&case, Exemption::UncertainFailures).uses), (0, uses), "{first} s");
    }

    let mut case = HoldingTest::new().await;
    case.0.write(&[(keys::AUTO_REPAIR_DISABLED.to_owned(), Some(json!(true)))]).await;
    case.answer(failed(), &[]).await;
    case.write().await;
    case.begin().await;
    assert_eq!(case.found(), 0, "no rack begins to be held while requests are switched off");
}
