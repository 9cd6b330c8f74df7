//! The machines of an observation, by address.
//!
//! Only a machine's first IPv4 address identifies its node. Ids follow the order of addresses, so a choice by the
//! lowest id does not depend on the order of the list.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use madako_domain::cluster::Cluster;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::DuplicateAddress;
use time::OffsetDateTime;

use crate::node::ANNOTATION_SERIAL;

pub(crate) type MachineId = usize;

pub(crate) type RoleId = usize;

/// An address and its machine, with the fields that every rule reads: they are copied in one scan, in memory order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) address: &'a str,
    /// `None`: not an IPv4 address; the machine gets no new part.
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) machine: &'a Machine,
    pub(crate) state: MachineState,
    pub(crate) rack: i64,
    pub(crate) role: RoleId,
    pub(crate) retire_date: OffsetDateTime,
    /// Several machines claim the address.
    pub(crate) shared: bool,
    /// True if all labels from the machine are valid, if known from the start.
    good_labels: Option<bool>,
}

impl Entry<'_> {
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == MachineState::Healthy
    }

    /// True if it may get a part that it does not have yet.
    pub(crate) fn has_own_address(&self) -> bool {
        self.ipv4.is_some() && !self.shared
    }
}

#[derive(Debug)]
pub(crate) struct Inventory<'a> {
    /// Entries with an IPv4 address in numeric order, then the others by text.
    entries: Vec<Entry<'a>>,
    /// Numeric IPv4 addresses of the first ids.
    ipv4: Vec<u32>,
    roles: Roles<'a>,
    duplicates: Vec<DuplicateAddress>,
    repeats: Vec<RepeatedMachine<'a>>,
    /// True if each machine's labels are valid, computed on demand: most plans read few, and a check of all would
    /// take longer than the rest of an empty plan.
    good_labels: Vec<Cell<Option<bool>>>,
}

/// A machine that the list holds several times, by serial and address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RepeatedMachine<'a> {
    pub(crate) id: MachineId,
    pub(crate) times: u64,
    /// The listed item that counts.
    pub(crate) machine: &'a Machine,
}

impl<'a> Inventory<'a> {
    /// Sorts the machines by address; machines without one are left out. A shared address stands for the machine of
    /// the current node, else for a healthy one.
    pub(crate) fn new(machines: &'a [Machine], current: Option<&Cluster>) -> Self {
        let mut roles = Roles::default();
        let mut listed: Vec<Entry<'a>> = Vec::with_capacity(machines.len());
        let mut numbered: Vec<(u32, usize)> = Vec::with_capacity(machines.len());
        let mut odd: Vec<(&str, usize)> = Vec::new();
        for machine in machines {
            let Some(address) = machine.address() else { continue };
            let ipv4 = address.parse::<Ipv4Addr>().ok();
            match ipv4 {
                Some(ipv4) => numbered.push((ipv4.to_bits(), listed.len())),
                None => odd.push((address, listed.len())),
            }
            listed.push(Entry {
                address,
                ipv4,
                machine,
                state: machine.status.state,
                rack: machine.spec.rack,
                role: roles.id(&machine.spec.role),
                retire_date: machine.spec.retire_date,
                shared: false,
                // The first plan reads this of every healthy machine, and this scan is in memory order.
                good_labels: (current.is_none() && machine.status.state == MachineState::Healthy)
                    .then(|| machine.has_good_labels()),
            });
        }
        numbered.sort_unstable();
        odd.sort_unstable();

        let mut inventory = Self {
            entries: Vec::with_capacity(listed.len()),
            ipv4: Vec::with_capacity(numbered.len()),
            roles,
            duplicates: Vec::new(),
            repeats: Vec::new(),
            good_labels: Vec::new(),
        };
        let mut serials_in_use = SerialsInUse::Unread(current);
        for group in numbered.chunk_by(|a, b| a.0 == b.0) {
            inventory.ipv4.push(group[0].0);
            let claimants = group.iter().map(|(_, index)| listed[*index]);
            inventory.push(claimants, &mut serials_in_use);
        }
        for group in odd.chunk_by(|a, b| a.0 == b.0) {
            inventory.push(group.iter().map(|(_, index)| listed[*index]), &mut serials_in_use);
        }
        inventory.good_labels = inventory.entries.iter().map(|entry| Cell::new(entry.good_labels)).collect();
        inventory
    }

    fn push<'c>(
        &mut self,
        mut claimants: impl ExactSizeIterator<Item = Entry<'a>>,
        serials_in_use: &mut SerialsInUse<'c>,
    ) {
        if claimants.len() == 1 {
            self.entries.extend(claimants.next());
        } else {
            self.push_shared(claimants.collect(), serials_in_use);
        }
    }

    fn push_shared<'c>(&mut self, mut claimants: Vec<Entry<'a>>, serials_in_use: &mut SerialsInUse<'c>) {
        claimants.sort_unstable_by(|a, b| compare(a.machine, b.machine));
        // One machine listed twice is still one machine: the first counts, in an order of content, as the order of
        // the list is arbitrary.
        for same in claimants.chunk_by(|a, b| a.machine.spec.serial == b.machine.spec.serial) {
            if same.len() > 1 {
                let (id, times) = (self.entries.len(), same.len() as u64);
                self.repeats.push(RepeatedMachine { id, times, machine: same[0].machine });
            }
        }
        claimants.dedup_by(|a, b| a.machine.spec.serial == b.machine.spec.serial);
        let Some(first) = claimants.first() else { return };
        let in_use = serials_in_use.serial_of(first.address);
        let chosen = claimants
            .iter()
            .find(|entry| in_use == Some(Some(entry.machine.spec.serial.as_str())))
            .or_else(|| claimants.iter().find(|entry| entry.is_healthy()))
            .unwrap_or(first);
        let shared = claimants.len() > 1;
        self.entries.push(Entry { shared, ..*chosen });
        if shared {
            self.duplicates.push(DuplicateAddress {
                address: first.address.to_owned(),
                serials: claimants.iter().map(|entry| entry.machine.spec.serial.clone()).collect(),
                in_use: in_use.is_some(),
            });
        }
    }

    pub(crate) fn find(&self, address: &str) -> Option<MachineId> {
        match address.parse::<Ipv4Addr>() {
            Ok(ipv4) => self.ipv4.binary_search(&ipv4.to_bits()).ok(),
            Err(_) => self.entries[self.ipv4.len()..]
                .binary_search_by_key(&address, |entry| entry.address)
                .ok()
                .map(|index| index + self.ipv4.len()),
        }
    }

    pub(crate) fn entry(&self, id: MachineId) -> &Entry<'a> {
        &self.entries[id]
    }

    pub(crate) fn machine(&self, id: MachineId) -> &'a Machine {
        self.entries[id].machine
    }

    pub(crate) fn role(&self, id: RoleId) -> &'a str {
        self.roles.names[id]
    }

    pub(crate) fn roles(&self) -> &[&'a str] {
        &self.roles.names
    }

    pub(crate) fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// True if all labels from its machine are valid in Kubernetes.
    pub(crate) fn has_good_labels(&self, id: MachineId) -> bool {
        let known = &self.good_labels[id];
        known.get().unwrap_or_else(|| {
            let good = self.machine(id).has_good_labels();
            known.set(Some(good));
            good
        })
    }

    /// Machines whose labels were checked and found invalid.
    pub(crate) fn known_bad_labels(&self) -> impl Iterator<Item = MachineId> {
        self.good_labels.iter().enumerate().filter(|(_, good)| good.get() == Some(false)).map(|(id, _)| id)
    }

    /// Machines that the list holds several times, by id.
    pub(crate) fn repeats(&self) -> &[RepeatedMachine<'a>] {
        &self.repeats
    }

    /// Addresses that several machines claim, by id.
    pub(crate) fn duplicates(&self) -> &[DuplicateAddress] {
        &self.duplicates
    }
}

/// Interned role names: few, and looked up often.
#[derive(Debug, Default)]
struct Roles<'a> {
    ids: BTreeMap<&'a str, RoleId>,
    names: Vec<&'a str>,
}

impl<'a> Roles<'a> {
    fn id(&mut self, name: &'a str) -> RoleId {
        *self.ids.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }
}

/// Serial of each current node's machine; read only when machines share an address.
enum SerialsInUse<'c> {
    Unread(Option<&'c Cluster>),
    Read(BTreeMap<&'c str, Option<&'c str>>),
}

impl<'c> SerialsInUse<'c> {
    /// `None`: no node has the address; `Some(None)`: its serial is unknown.
    fn serial_of(&mut self, address: &str) -> Option<Option<&'c str>> {
        if let Self::Unread(current) = self {
            let nodes = current.iter().flat_map(|cluster| &cluster.nodes);
            let serial = |annotations: &'c BTreeMap<String, String>| {
                annotations.get(ANNOTATION_SERIAL).map(String::as_str)
            };
            *self =
                Self::Read(nodes.map(|node| (node.address.as_str(), serial(&node.annotations))).collect());
        }
        match self {
            Self::Read(serials) => serials.get(address).copied(),
            Self::Unread(_) => None,
        }
    }
}

/// Orders machines by content, independently of their order in the list.
fn compare(a: &Machine, b: &Machine) -> Ordering {
    let key = |machine: &'_ Machine| {
        let spec = &machine.spec;
        (machine.status.state, spec.rack, spec.index_in_rack, spec.register_date, spec.retire_date)
    };
    a.spec
        .serial
        .cmp(&b.spec.serial)
        .then_with(|| key(a).cmp(&key(b)))
        .then_with(|| a.status.duration.total_cmp(&b.status.duration))
        .then_with(|| a.spec.role.cmp(&b.spec.role))
        .then_with(|| a.spec.labels.cmp(&b.spec.labels))
        .then_with(|| a.spec.ipv4.cmp(&b.spec.ipv4))
        .then_with(|| a.spec.bmc.bmc_type.cmp(&b.spec.bmc.bmc_type))
        .then_with(|| a.spec.retire_date.offset().cmp(&b.spec.retire_date.offset()))
        .then_with(|| a.spec.register_date.offset().cmp(&b.spec.register_date.offset()))
}

#[cfg(test)]
mod tests;
