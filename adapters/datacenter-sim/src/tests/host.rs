//! Tests of the simulated host: repair commands that act on machines, and the log of their runs.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::machine::MachineState;
use madako_protocol::host::{Host as _, HostCommand, HostEnd, HostError};
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use tokio::time::Instant;

use super::START;
use crate::host::{CommandBehaviour, HEALTH_CHECK, RESET, SUCCESS, SimulatedHost};
use crate::{Datacenter, DatacenterConfig, SimulatedRegistry};

struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> time::OffsetDateTime {
        START + self.0.elapsed()
    }
}

const DEADLINE: Duration = Duration::from_secs(60);

/// Every command has the outcome that `percent` selects and takes about 10 s.
fn habits() -> CommandBehaviour {
    CommandBehaviour {
        heals_percent: 100,
        fails_percent: 0,
        hangs_percent: 0,
        lost_percent: 0,
        confused_percent: 0,
        takes: Duration::from_secs(10),
    }
}

struct Trial {
    registry: SimulatedRegistry,
    host: SimulatedHost,
    serial: String,
    address: String,
}

impl Trial {
    fn new(habits: CommandBehaviour) -> Self {
        let config = DatacenterConfig::new(1, START, 3, &[("compute", 9)]);
        let registry =
            SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::new(Paused(Instant::now())));
        let machine =
            registry.list_machines().into_iter().find(|machine| machine.spec.role == "compute").unwrap();
        let (serial, address) = (machine.spec.serial.clone(), machine.address().unwrap().to_owned());
        registry.set_state(&serial, MachineState::Unreachable).unwrap();
        Self { host: SimulatedHost::new(registry.clone(), habits), registry, serial, address }
    }

    fn permit() -> Permit {
        Permit::give(5, Instant::now() + DEADLINE)
    }

    async fn run(&self, program: &str) -> Result<HostEnd, HostError> {
        let words = vec![program.to_owned(), self.address.clone()];
        let ran = self.host.run(&Self::permit(), HostCommand { words, deadline: DEADLINE }).await;
        ran.map(|outcome| outcome.end)
    }

    async fn health(&self) -> String {
        let words = vec![HEALTH_CHECK.to_owned(), "-q".to_owned(), self.address.clone()];
        let command = HostCommand { words, deadline: DEADLINE };
        self.host.run(&Self::permit(), command).await.unwrap().stdout
    }

    fn state(&self) -> MachineState {
        self.registry.list_machines().into_iter().find(|m| m.spec.serial == self.serial).unwrap().status.state
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_takes_time_heals_its_machine_and_is_recorded() {
    let trial = Trial::new(habits());
    assert_eq!(trial.health().await, "false");
    let host = trial.host.named("alpha");
    let words = vec![RESET.to_owned(), trial.address.clone()];
    let outcome = host.run(&Trial::permit(), HostCommand { words, deadline: DEADLINE }).await.unwrap();
    assert!(outcome.succeeded() && outcome.took >= Duration::from_secs(5), "{outcome:?}");
    assert_eq!((trial.state(), trial.health().await.as_str()), (MachineState::Healthy, "true"));
    assert_eq!(trial.run(SUCCESS).await, Ok(HostEnd::Exited { code: 0 }));
    let runs = trial.host.runs();
    let reported: Vec<_> =
        runs.iter().map(|run| (run.host.as_str(), run.epoch, run.program.as_str())).collect();
    assert_eq!(reported, [("alpha", 5, RESET), ("host", 5, SUCCESS)]);
    assert!(runs.iter().all(|run| run.address == trial.address && run.ended > Some(run.began)));
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_failure_is_reported() {
    for (habits, end, state) in [
        (
            CommandBehaviour { fails_percent: 100, ..habits() },
            Ok(HostEnd::Exited { code: 1 }),
            MachineState::Unreachable,
        ),
        (
            CommandBehaviour { hangs_percent: 100, ..habits() },
            Ok(HostEnd::Deadline),
            MachineState::Unreachable,
        ),
        (
            CommandBehaviour { heals_percent: 0, ..habits() },
            Ok(HostEnd::Exited { code: 0 }),
            MachineState::Unreachable,
        ),
    ] {
        let trial = Trial::new(habits);
        assert_eq!((trial.run(RESET).await, trial.state()), (end, state));
    }
    let trial = Trial::new(CommandBehaviour { lost_percent: 100, ..habits() });
    assert!(matches!(trial.run(RESET).await, Err(HostError::Lost { .. })));
    assert_eq!(trial.state(), MachineState::Healthy, "the command took effect without an answer");
    let trial = Trial::new(CommandBehaviour { confused_percent: 100, ..habits() });
    assert_eq!(trial.health().await, "maybe");
    assert!(matches!(trial.run("ipmitool").await, Err(HostError::NotStarted { .. })));
}

#[tokio::test(start_paused = true)]
async fn every_command_for_one_machine_fails_until_another_one_follows() {
    let trial = Trial::new(habits());
    let other =
        trial.registry.list_machines().iter().find_map(|machine| {
            machine.address().filter(|address| *address != trial.address).map(str::to_owned)
        });
    let on_other = Trial {
        address: other.unwrap(),
        registry: trial.registry.clone(),
        host: trial.host.clone(),
        serial: trial.serial.clone(),
    };
    let [good, bad] = [0, 1].map(|code| Ok(HostEnd::Exited { code }));
    trial.host.fail_next_machine();
    assert_eq!((trial.run(RESET).await, on_other.run(RESET).await), (bad.clone(), good.clone()));
    assert_eq!((trial.run(RESET).await, trial.run(SUCCESS).await), (bad.clone(), bad.clone()));
    trial.host.fail_next_machine();
    assert_eq!((on_other.run(RESET).await, trial.run(RESET).await), (bad, good));
    assert_eq!(trial.state(), MachineState::Healthy);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_has_no_effect_and_no_end() {
    let trial = Trial::new(habits());
    let dropped = tokio::time::timeout(Duration::from_secs(1), trial.run(RESET)).await;
    assert!(dropped.is_err());
    tokio::time::sleep(DEADLINE).await;
    assert_eq!(trial.state(), MachineState::Unreachable);
    assert_eq!(trial.host.runs()[0].ended, None);
}

#[tokio::test(start_paused = true)]
async fn without_a_permit_or_power_nothing_happens() {
    let trial = Trial::new(habits());
    let ended = Permit::give(5, Instant::now());
    let words = vec![RESET.to_owned(), trial.address.clone()];
    let refused = trial.host.run(&ended, HostCommand { words, deadline: DEADLINE }).await;
    assert!(matches!(refused, Err(HostError::Permit(_))));
    assert_eq!(trial.host.runs(), []);
    let rack = u32::try_from(trial.registry.list_machines()[0].spec.rack).unwrap();
    for rack in [rack, 0, 1, 2] {
        trial.registry.kill_rack(rack).unwrap();
    }
    assert_eq!(trial.run(RESET).await, Ok(HostEnd::Exited { code: 0 }));
    assert_eq!(trial.state(), MachineState::Unreachable);
}
