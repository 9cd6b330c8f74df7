//! A data center that starts with the machines of another registry.
//!
//! Guarantees: the machines are the given ones, oddities included (shared or missing addresses): serials, addresses,
//! racks, roles, labels, dates, states and the time in each state.
//!
//! Does not: get new machines, because the address scheme of the copied registry is unknown.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use madako_domain::machine::Machine;
use time::OffsetDateTime;

use crate::chance::SeededChance;
use crate::config::{DatacenterConfig, MAX_MACHINES, Rates};
use crate::datacenter::{Datacenter, Occupant, Rack};

/// Greatest rack number; sabakan's address scheme ends far below.
pub const MAX_RACK: u32 = 999_999;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    #[error("the copied registry has {0} machines; at most {MAX_MACHINES} can be simulated")]
    TooMany(usize),
    /// The rack number is out of range.
    #[error("the machine {serial} is in rack {rack}; racks from 0 to {MAX_RACK} can be simulated")]
    Rack { serial: String, rack: i64 },
    #[error(
        "two machines of the copied registry have the serial {0}, and a simulated registry has each serial once"
    )]
    Twice(String),
}

impl Datacenter {
    /// A data center at `start` with machines as a registry showed them then.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn from_machines(
        seed: u64,
        start: OffsetDateTime,
        rates: Rates,
        machines: Vec<Machine>,
    ) -> Result<Self, CopyError> {
        if machines.len() > MAX_MACHINES as usize {
            return Err(CopyError::TooMany(machines.len()));
        }
        let mut racks = 0;
        for machine in &machines {
            let rack = u32::try_from(machine.spec.rack).ok().filter(|rack| *rack <= MAX_RACK);
            let serial = || machine.spec.serial.clone();
            let rack = rack.ok_or_else(|| CopyError::Rack { serial: serial(), rack: machine.spec.rack })?;
            racks = racks.max(rack + 1);
        }
        let mut datacenter = Self {
            chance: SeededChance::new(seed),
            now: start,
            places: Vec::new(),
            racks: vec![Rack::default(); racks as usize],
            queue: BinaryHeap::new(),
            by_serial: BTreeMap::new(),
            plan: None,
            journal: VecDeque::new(),
            config: DatacenterConfig { boot: false, rates, ..DatacenterConfig::new(seed, start, racks, &[]) },
        };
        for machine in machines {
            datacenter.add_copied_machine(machine)?;
        }
        for rack in 0..racks {
            datacenter.plan_power(rack);
        }
        Ok(datacenter)
    }

    fn add_copied_machine(&mut self, machine: Machine) -> Result<(), CopyError> {
        let Machine { spec, status } = machine;
        let rack = u32::try_from(spec.rack).unwrap_or(MAX_RACK);
        let place = self.add_place(rack, spec.role.clone());
        if self.by_serial.insert(spec.serial.clone(), place).is_some() {
            return Err(CopyError::Twice(spec.serial));
        }
        // A duration that is negative, infinite or not a number counts as zero.
        let lasted = Duration::try_from_secs_f64(status.duration).unwrap_or_default();
        let lasted = time::Duration::try_from(lasted).unwrap_or_default();
        let since = self.now.saturating_sub(lasted);
        let here = self.place(place);
        here.occupant = Some(Occupant { spec, state: status.state, since, has_encryption_key: false });
        here.stays += 1;
        self.plan_age(place);
        self.plan_retirement(place);
        self.plan_life(place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::machine::MachineState;
    use time::macros::datetime;

    use super::*;

    const START: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

    fn original() -> Datacenter {
        let config = DatacenterConfig { broken_percent: 30, ..DatacenterConfig::for_demo(3, START) };
        Datacenter::new(config).unwrap()
    }

    #[test]
    fn a_copy_shows_the_machines_that_it_was_made_from() {
        let original = original();
        let copied = Datacenter::from_machines(9, START, Rates::no_events(), original.machines()).unwrap();
        let shown = |datacenter: &Datacenter| {
            let machines = datacenter.machines();
            let shown = machines.into_iter().map(|machine| {
                let seconds = machine.status.duration.round();
                (machine.spec, machine.status.state, seconds)
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(shown(&copied), shown(&original));
        assert!(copied.machines().iter().any(|machine| machine.status.state != MachineState::Healthy));
    }

    #[test]
    fn fault_of_a_copied_rack_reaches_its_machines() {
        let machines = original().machines();
        let mut copied = Datacenter::from_machines(9, START, Rates::no_events(), machines).unwrap();
        copied.kill_rack(2).unwrap();
        let dark = copied.machines().into_iter().filter(|machine| machine.spec.rack == 2);
        assert!(dark.clone().count() > 0);
        for machine in dark {
            let state = machine.status.state;
            assert!(!matches!(state, MachineState::Healthy | MachineState::Unhealthy), "{state:?}");
        }
        assert!(copied.add(2, "compute").is_err(), "its address would be unknown");
        copied.advance(START + time::Duration::days(400));
    }

    #[test]
    fn impossible_machines_are_refused() {
        let machines = original().machines();
        let copied = |machines| Datacenter::from_machines(9, START, Rates::no_events(), machines).map(drop);
        let mut far = machines.clone();
        far[0].spec.rack = i64::from(MAX_RACK) + 1;
        assert!(matches!(copied(far), Err(CopyError::Rack { .. })));
        let mut below = machines.clone();
        below[0].spec.rack = -1;
        assert!(matches!(copied(below), Err(CopyError::Rack { .. })));
        let twice = [machines.clone(), vec![machines[0].clone()]].concat();
        assert_eq!(copied(twice), Err(CopyError::Twice(machines[0].spec.serial.clone())));
    }
}
