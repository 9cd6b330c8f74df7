//! The machines of an observation, by address.
//!
//! Only a machine's first IPv4 address identifies its node. Ids are in the order of the addresses, so
//! whatever is decided by the lowest id does not depend on the order of the list.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use madako_domain::cluster::Cluster;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::DuplicateAddress;
use time::OffsetDateTime;

use crate::node::ANNOTATION_SERIAL;

/// Index of an address in an [`Inventory`].
pub(crate) type Id = usize;

/// Index of a role in an [`Inventory`].
pub(crate) type RoleId = usize;

/// An address and the machine that stands for it, with what is asked of every machine: large lists are
/// gone through once in the order in which they lie in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) address: &'a str,
    /// `None` when the address is not an IPv4 address: nothing new is built on it.
    pub(crate) ipv4: Option<Ipv4Addr>,
    pub(crate) machine: &'a Machine,
    pub(crate) state: MachineState,
    pub(crate) rack: i64,
    pub(crate) role: RoleId,
    pub(crate) retire_date: OffsetDateTime,
    /// Whether other machines claim the address too.
    pub(crate) shared: bool,
    /// Whether labels can be made of all that the machine brings, where that is known from the start.
    good_labels: Option<bool>,
}

impl Entry<'_> {
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == MachineState::Healthy
    }

    /// Whether a part may be given to it that it does not have yet.
    pub(crate) fn has_own_address(&self) -> bool {
        self.ipv4.is_some() && !self.shared
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Inventory<'a> {
    /// First those with an IPv4 address, by its number, then the others by their text.
    entries: Vec<Entry<'a>>,
    /// The numbers of the IPv4 addresses, which are the first ids.
    ipv4: Vec<u32>,
    roles: Roles<'a>,
    duplicates: Vec<DuplicateAddress>,
    repeats: Vec<Repeat<'a>>,
    /// For each id, whether its machine's labels are good, once somebody asked: most plans ask about few,
    /// and to look at the labels of all would take longer than the rest of a plan that has nothing to do.
    good_labels: Vec<Cell<Option<bool>>>,
}

/// A machine, by its serial and address, that the list holds more than once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repeat<'a> {
    pub(crate) id: Id,
    pub(crate) times: u64,
    /// The one that counts.
    pub(crate) machine: &'a Machine,
}

impl<'a> Inventory<'a> {
    /// Sorts the machines by address. A machine without one is left out. An address that several
    /// machines claim stands for the one that the current node was made from, else for a healthy one.
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
                // The first plan asks this of every healthy machine, and here they lie in memory as they come.
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
        // The same machine listed twice is still one machine: the first counts, in an order of our own, as
        // the list has none that would matter.
        for same in claimants.chunk_by(|a, b| a.machine.spec.serial == b.machine.spec.serial) {
            if same.len() > 1 {
                let (id, times) = (self.entries.len(), same.len() as u64);
                self.repeats.push(Repeat { id, times, machine: same[0].machine });
            }
        }
        claimants.dedup_by(|a, b| a.machine.spec.serial == b.machine.spec.serial);
        let Some(first) = claimants.first() else { return };
        let in_use = serials_in_use.of(first.address);
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

    /// The id of an address.
    pub(crate) fn find(&self, address: &str) -> Option<Id> {
        match address.parse::<Ipv4Addr>() {
            Ok(ipv4) => self.ipv4.binary_search(&ipv4.to_bits()).ok(),
            Err(_) => self.entries[self.ipv4.len()..]
                .binary_search_by_key(&address, |entry| entry.address)
                .ok()
                .map(|index| index + self.ipv4.len()),
        }
    }

    /// The entry of an id.
    pub(crate) fn entry(&self, id: Id) -> &Entry<'a> {
        &self.entries[id]
    }

    /// The machine that stands for an id.
    pub(crate) fn machine(&self, id: Id) -> &'a Machine {
        self.entries[id].machine
    }

    /// The name of a role.
    pub(crate) fn role(&self, id: RoleId) -> &'a str {
        self.roles.names[id]
    }

    /// The names of all roles, by their ids.
    pub(crate) fn roles(&self) -> &[&'a str] {
        &self.roles.names
    }

    /// All entries, in the order of their ids.
    pub(crate) fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Whether labels of Kubernetes can be made of all that its machine would bring.
    pub(crate) fn has_good_labels(&self, id: Id) -> bool {
        let known = &self.good_labels[id];
        known.get().unwrap_or_else(|| {
            let good = self.machine(id).has_good_labels();
            known.set(Some(good));
            good
        })
    }

    /// Those of which somebody has asked whether their labels are good, and they are not.
    pub(crate) fn known_bad_labels(&self) -> impl Iterator<Item = Id> {
        self.good_labels.iter().enumerate().filter(|(_, good)| good.get() == Some(false)).map(|(id, _)| id)
    }

    /// The machines that the list holds more than once, in the order of their ids.
    pub(crate) fn repeats(&self) -> &[Repeat<'a>] {
        &self.repeats
    }

    /// The addresses that several machines claim, in the order of their ids.
    pub(crate) fn duplicates(&self) -> &[DuplicateAddress] {
        &self.duplicates
    }
}

/// The roles that machines have: few, and asked for often.
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

/// The serial that each current node was made from; read only when an address is claimed twice.
enum SerialsInUse<'c> {
    Unread(Option<&'c Cluster>),
    Read(BTreeMap<&'c str, Option<&'c str>>),
}

impl<'c> SerialsInUse<'c> {
    /// `None` when no node has the address, `Some(None)` when its serial is not known.
    fn of(&mut self, address: &str) -> Option<Option<&'c str>> {
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

/// An order of machines that depends on all that they are, and so not on the order of a list.
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
