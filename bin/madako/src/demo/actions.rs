//! Faults that keys of the demo cause: power cuts, broken machines, a stopped leader, failing repairs.
//!
//! Guarantees: each action uses the ways by which such a fault reaches the real service; the service does not know that a
//! user caused it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::host::SimulatedHost;
use madako_domain::machine::MachineState;
use madako_supervisor::instance::{Instance, LEADER};
use tokio::time::Instant;

use super::demo_faults::kill;

/// Time without power: long enough that all machines of the rack are reported, and repairs are held.
const DARK: Duration = Duration::from_secs(40);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    KillRack,
    BreakMachine,
    StopLeader,
    FailRepair,
}

/// The actions on one data center.
pub(crate) struct Actions {
    registry: SimulatedRegistry,
    host: SimulatedHost,
    /// The racks without power, the first to get it back in front.
    dark: VecDeque<(Instant, u32)>,
    next_rack: u32,
    broken: usize,
}

impl Actions {
    pub(crate) fn new(registry: SimulatedRegistry, host: SimulatedHost) -> Self {
        Self { registry, host, dark: VecDeque::new(), next_rack: 0, broken: 0 }
    }

    /// Carries out an action. Returns its line, and the actor that it is about.
    pub(crate) async fn act(
        &mut self,
        action: Action,
        parts: &BTreeMap<String, bool>,
        instance: &Instance,
    ) -> (String, Option<&'static str>) {
        match action {
            Action::KillRack => (self.kill_rack(), None),
            Action::BreakMachine => (self.break_machine(parts), None),
            Action::FailRepair => {
                self.host.fail_next_machine();
                ("you let every command of the next repair fail".to_owned(), None)
            }
            Action::StopLeader => match kill(instance.root(), LEADER).await {
                Ok(true) => ("you stop the leader".to_owned(), Some(LEADER)),
                Ok(false) | Err(_) => ("the leader is about to start already".to_owned(), None),
            },
        }
    }

    fn kill_rack(&mut self) -> String {
        let racks = self.registry.with_datacenter(|datacenter| datacenter.racks());
        let is_lit =
            |rack: &u32| !self.registry.with_datacenter(|datacenter| datacenter.is_without_power(*rack));
        let Some(rack) = (0..racks).map(|step| (self.next_rack + step) % racks).find(is_lit) else {
            return "every rack is without power already".to_owned();
        };
        self.next_rack = (rack + 1) % racks;
        match self.registry.kill_rack(rack) {
            Ok(()) => {
                self.dark.push_back((Instant::now() + DARK, rack));
                format!("you cut the power of rack {rack} for {} s", DARK.as_secs())
            }
            Err(error) => format!("the power of rack {rack} stays: {error}"),
        }
    }

    /// Breaks a healthy worker, each time another one.
    fn break_machine(&mut self, is_control_plane: &BTreeMap<String, bool>) -> String {
        let machines = self.registry.list_machines();
        let workers: Vec<_> = machines
            .iter()
            .filter(|machine| machine.status.state == MachineState::Healthy)
            .filter(|machine| machine.address().is_some_and(|it| is_control_plane.get(it) == Some(&false)))
            .collect();
        if workers.is_empty() {
            return "there is no healthy worker to break".to_owned();
        }
        // Steps through the racks.
        self.broken += 7;
        let machine = workers[self.broken % workers.len()];
        let address = machine.address().unwrap_or_default();
        match self.registry.set_state(&machine.spec.serial, MachineState::Unhealthy) {
            Ok(()) => format!("you break {address} in rack {}", machine.spec.rack),
            Err(error) => format!("{address} stays healthy: {error}"),
        }
    }

    /// Waits until a rack gets its power back, and says so; never returns while all racks have power.
    pub(crate) async fn next_power(&mut self) -> String {
        let Some((due, rack)) = self.dark.front().copied() else { return std::future::pending().await };
        tokio::time::sleep_until(due).await;
        self.dark.pop_front();
        match self.registry.power_on(rack) {
            Ok(()) => format!("rack {rack} has power again"),
            Err(error) => format!("rack {rack} stays dark: {error}"),
        }
    }
}
