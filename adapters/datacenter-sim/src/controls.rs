//! Changes that operators, tests and faults make to a simulated data center.

use std::net::Ipv4Addr;

use madako_domain::machine::{MachineLabel, MachineState};
use time::OffsetDateTime;

use crate::config::{MAX_MACHINES, is_role};
use crate::datacenter::Datacenter;
use crate::transitions::{SetStateError, check_transition};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("there is no machine with the serial {0}")]
    NoMachine(String),
    #[error("there is no rack {rack}; racks are 0 to {last}")]
    NoRack { rack: u32, last: u32 },
    /// The rack is full or already has its boot machine.
    #[error("rack {rack} has no place for a machine with the role {role}")]
    NoPlace { rack: u32, role: String },
    /// sabakan rejects such a role.
    #[error(
        "{0:?} is not a role: expected 1 to 63 letters, digits, -, _ or ., with a letter or digit at both ends"
    )]
    NotARole(String),
}

impl Datacenter {
    /// Sets a machine's state by sabakan's rules. Setting the current state changes nothing.
    ///
    /// The usual events follow the new state, for example the repair of a broken machine.
    pub fn set_state(&mut self, serial: &str, state: MachineState) -> Result<(), SetStateError> {
        let place = self.find(serial).ok_or(SetStateError::NotFound)?;
        let occupant = self.place(place).occupant.as_ref().ok_or(SetStateError::NotFound)?;
        let from = occupant.state;
        check_transition(from, state)?;
        if state == MachineState::Retired && occupant.has_encryption_key {
            return Err(SetStateError::EncryptionKeyExists);
        }
        if from != state {
            self.enter_state(place, state);
        }
        Ok(())
    }

    /// Adds or removes a machine's disk encryption key. A machine with a key cannot be retired.
    ///
    /// # Errors
    /// [`ControlError::NoMachine`].
    pub fn set_encryption_key(&mut self, serial: &str, has: bool) -> Result<(), ControlError> {
        let place = self.find_place(serial)?;
        if let Some(occupant) = self.place(place).occupant.as_mut() {
            occupant.has_encryption_key = has;
        }
        Ok(())
    }

    /// Removes a machine in any state (sabakan itself requires it to be retired). It is not replaced.
    ///
    /// # Errors
    /// [`ControlError::NoMachine`].
    pub fn remove(&mut self, serial: &str) -> Result<(), ControlError> {
        let place = self.find_place(serial)?;
        self.remove_machine(place);
        Ok(())
    }

    /// Registers a new machine, uninitialized, and returns its serial.
    ///
    /// # Errors
    /// [`ControlError::NoRack`], [`ControlError::NoPlace`] or [`ControlError::NotARole`].
    pub fn add(&mut self, rack: u32, role: &str) -> Result<String, ControlError> {
        self.known_rack(rack)?;
        if !is_role(role) {
            return Err(ControlError::NotARole(role.to_owned()));
        }
        let too_many = self.places.len() >= MAX_MACHINES as usize;
        if too_many || self.free_index(rack, role).is_none() {
            return Err(ControlError::NoPlace { rack, role: role.to_owned() });
        }
        let place = self.add_place(rack, role.to_owned());
        self.add_machine(place);
        let occupant = self.place(place).occupant.as_ref();
        Ok(occupant.expect("a free index was found above").spec.serial.clone())
    }

    /// Cuts a rack's power: its reachable machines are unreachable until [`Self::power_on`].
    ///
    /// # Errors
    /// [`ControlError::NoRack`].
    pub fn kill_rack(&mut self, rack: u32) -> Result<(), ControlError> {
        self.known_rack(rack)?;
        self.cut_power(rack);
        Ok(())
    }

    /// Restores a rack's power. Its machines return to their earlier states one after another, as they start.
    ///
    /// # Errors
    /// [`ControlError::NoRack`].
    pub fn power_on(&mut self, rack: u32) -> Result<(), ControlError> {
        self.known_rack(rack)?;
        self.restore_power(rack);
        self.plan_power(rack);
        Ok(())
    }

    /// Sets the retire date of a machine.
    ///
    /// # Errors
    /// [`ControlError::NoMachine`].
    pub fn set_retire_date(&mut self, serial: &str, date: OffsetDateTime) -> Result<(), ControlError> {
        let place = self.find_place(serial)?;
        self.change_retire_date(place, date);
        Ok(())
    }

    /// Replaces a machine's labels; they are ordered by name, as in sabakan.
    ///
    /// # Errors
    /// [`ControlError::NoMachine`].
    pub fn set_labels(&mut self, serial: &str, mut labels: Vec<MachineLabel>) -> Result<(), ControlError> {
        let place = self.find_place(serial)?;
        labels.sort();
        labels.dedup_by(|a, b| a.name == b.name);
        if let Some(occupant) = self.place(place).occupant.as_mut() {
            occupant.spec.labels = labels;
        }
        Ok(())
    }

    /// Replaces a machine's addresses; the list may be empty. Imitates a mistaken or renumbered registry.
    ///
    /// # Errors
    /// [`ControlError::NoMachine`].
    pub fn set_addresses(&mut self, serial: &str, addresses: &[Ipv4Addr]) -> Result<(), ControlError> {
        let place = self.find_place(serial)?;
        if let Some(occupant) = self.place(place).occupant.as_mut() {
            occupant.spec.ipv4 = addresses.iter().map(ToString::to_string).collect();
        }
        Ok(())
    }

    fn find_place(&self, serial: &str) -> Result<u32, ControlError> {
        self.find(serial).ok_or_else(|| ControlError::NoMachine(serial.to_owned()))
    }

    fn known_rack(&self, rack: u32) -> Result<(), ControlError> {
        if rack < self.racks() { Ok(()) } else { Err(ControlError::NoRack { rack, last: self.racks() - 1 }) }
    }
}
