//! Makes simulated racks and machines fail and return, in the registry and as nodes. Overlapping faults of one machine
//! or rack are counted.
//!
//! A machine without power, network or progress is unreachable in the registry. A slow one, one whose connections break,
//! and one whose disk is full is still healthy there: only its node has the fault.

use std::collections::BTreeMap;

use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::nodes::NodePlace;
use madako_domain::machine::MachineState;
use madako_faults::Act;

use crate::nodes::Nodes;

/// A rack, or a machine by serial and address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hardware {
    Rack(u32),
    Machine { serial: String, address: String },
}

impl Hardware {
    fn place(&self) -> NodePlace {
        match self {
            Self::Rack(rack) => NodePlace::Rack(*rack),
            Self::Machine { address, .. } => NodePlace::Address(address.clone()),
        }
    }
}

/// True if the registry shows the machine as unreachable.
fn registry_shows(act: Act) -> bool {
    matches!(act, Act::Kill | Act::Cut | Act::Pause)
}

/// Failed racks and machines, with the number of faults of each.
pub(super) struct Machines {
    registry: SimulatedRegistry,
    racks: BTreeMap<u32, RackFaults>,
    machines: BTreeMap<String, u32>,
    /// `None` without operations on nodes.
    nodes: Option<Nodes>,
}

#[derive(Default)]
struct RackFaults {
    faults: u32,
    /// States of the rack's machines before the first fault, by serial.
    before: BTreeMap<String, MachineState>,
}

impl Machines {
    pub(super) fn new(registry: SimulatedRegistry, nodes: Option<Nodes>) -> Self {
        Self { registry, racks: BTreeMap::new(), machines: BTreeMap::new(), nodes }
    }

    pub(super) fn hardware_at(&self, address: &str) -> Option<Hardware> {
        let machines = self.registry.list_machines();
        let is_there = |other: &String| other == address;
        let machine = machines.into_iter().find(|machine| machine.spec.ipv4.iter().any(is_there))?;
        let address = machine.address().unwrap_or(address).to_owned();
        Some(Hardware::Machine { serial: machine.spec.serial, address })
    }

    /// Begins a fault. Returns false for a machine that is being set up or retired, and that the registry would have to
    /// show as unreachable: sabakan allows no such transition.
    #[must_use]
    pub(super) fn begin(&mut self, hardware: &Hardware, act: Act) -> bool {
        if registry_shows(act) {
            match hardware {
                Hardware::Rack(rack) => self.take_rack_away(*rack),
                Hardware::Machine { serial, .. } if !self.take_machine_away(serial) => return false,
                Hardware::Machine { .. } => {}
            }
        }
        if let Some(nodes) = &self.nodes {
            nodes.begin(&hardware.place(), act);
        }
        true
    }

    /// Ends a fault that lasted for a time.
    pub(super) fn end_fault(&mut self, hardware: &Hardware, act: Act) {
        if let Some(nodes) = &self.nodes {
            nodes.end(&hardware.place(), act);
        }
        if registry_shows(act) {
            match hardware {
                Hardware::Rack(rack) => self.bring_rack_back(*rack, act != Act::Kill),
                Hardware::Machine { serial, .. } => self.bring_machine_back(serial),
            }
        }
    }

    fn take_rack_away(&mut self, rack: u32) {
        let gone = self.racks.entry(rack).or_default();
        gone.faults += 1;
        if gone.faults > 1 {
            return;
        }
        let of_rack = |machine: &madako_domain::machine::Machine| machine.spec.rack == i64::from(rack);
        gone.before = self
            .registry
            .list_machines()
            .into_iter()
            .filter(of_rack)
            .map(|machine| (machine.spec.serial, machine.status.state))
            .collect();
        self.registry.kill_rack(rack).expect("the scenario was checked: the rack is in its world");
    }

    /// Ends a fault of a rack. After the last one its machines answer again: at once if they `ran_on`, otherwise after
    /// they start.
    fn bring_rack_back(&mut self, rack: u32, ran_on: bool) {
        let Some(gone) = self.racks.get_mut(&rack) else { return };
        gone.faults = gone.faults.saturating_sub(1);
        if gone.faults > 0 {
            return;
        }
        let before = std::mem::take(&mut gone.before);
        self.registry.power_on(rack).expect("the scenario was checked: the rack is in its world");
        for (serial, _) in before.into_iter().filter(|(_, state)| ran_on && *state == MachineState::Healthy) {
            if !self.machines.contains_key(&serial) {
                self.return_to_registry(&serial);
            }
        }
    }

    /// Makes a machine unreachable. Returns false for a machine that keeps its state.
    fn take_machine_away(&mut self, serial: &str) -> bool {
        if let Some(faults) = self.machines.get_mut(serial) {
            *faults += 1;
            return true;
        }
        let goes = self.registry.set_state(serial, MachineState::Unreachable).is_ok();
        if goes {
            self.machines.insert(serial.to_owned(), 1);
        }
        goes
    }

    /// Ends a fault of a machine. After the last one it answers again at once: the end of a power cut has already
    /// started the machine.
    fn bring_machine_back(&mut self, serial: &str) {
        let Some(faults) = self.machines.get_mut(serial) else { return };
        *faults -= 1;
        if *faults == 0 {
            self.machines.remove(serial);
            self.return_to_registry(serial);
        }
    }

    fn return_to_registry(&self, serial: &str) {
        let machines = self.registry.list_machines();
        let Some(machine) = machines.iter().find(|machine| machine.spec.serial == serial) else { return };
        let rack = u32::try_from(machine.spec.rack).unwrap_or(u32::MAX);
        let dark = self.racks.get(&rack).is_some_and(|gone| gone.faults > 0);
        if !dark && machine.status.state == MachineState::Unreachable {
            let _refused = self.registry.set_state(serial, MachineState::Healthy);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use madako_datacenter_sim::{Datacenter, DatacenterConfig, Rates};
    use time::macros::datetime;

    use super::*;
    use crate::clock::SimulatedClock;

    #[tokio::test(start_paused = true)]
    async fn machine_that_sabakan_refuses_to_remove_stays_until_it_is_removable() {
        let start = datetime!(2026-01-01 00:00 UTC);
        let config = DatacenterConfig::new(1, start, 1, &[("compute", 2)]);
        let datacenter = Datacenter::new(DatacenterConfig { rates: Rates::no_events(), ..config }).unwrap();
        let registry = SimulatedRegistry::new(datacenter, Arc::new(SimulatedClock::new(start)));
        let serial = registry.list_machines()[0].spec.serial.clone();
        let state = || registry.list_machines()[0].status.state;
        let mut machines = Machines::new(registry.clone(), None);
        registry.set_state(&serial, MachineState::Updating).unwrap();
        assert!(!machines.take_machine_away(&serial), "it is being updated");
        assert_eq!(state(), MachineState::Updating);
        registry.set_state(&serial, MachineState::Uninitialized).unwrap();
        registry.set_state(&serial, MachineState::Healthy).unwrap();
        // Two faults; the machine returns after both.
        assert!(machines.take_machine_away(&serial) && machines.take_machine_away(&serial));
        machines.bring_machine_back(&serial);
        assert_eq!(state(), MachineState::Unreachable);
        machines.bring_machine_back(&serial);
        assert_eq!(state(), MachineState::Healthy);
        assert!(!machines.take_machine_away("nobody"));
    }
}
