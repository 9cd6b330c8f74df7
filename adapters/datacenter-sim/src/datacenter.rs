//! The state of a simulated data center, and its changes over time.
//!
//! Guarantees: the same configuration and the same operator actions at the same times give the same history,
//! independent of the step size of [`Datacenter::advance`]. States follow each other by sabakan's rules. A rack has at
//! most one boot machine. Serials are unique; addresses are unique unless an operator sets one. Time only moves
//! forward: an earlier time is ignored.
//!
//! All future events wait in one queue, ordered by time. An entry carries the generation of its timeline
//! ([`crate::life`]); once the timeline has a later generation, the entry is void. `life.rs` chooses the next events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use madako_domain::machine::{Bmc, Machine, MachineLabel, MachineSpec, MachineState, MachineStatus};
use madako_json::input::InputError;
use time::OffsetDateTime;

use crate::addressing::{AddressPlan, BOOT_INDEX, Nic};
use crate::chance::{Kind, SeededChance};
use crate::config::DatacenterConfig;

/// Role of the one machine per rack that network-boots the others.
pub const BOOT_ROLE: &str = "boot";

/// Upper bound of remembered events: enough to scroll through, a few megabytes at most.
pub const MAX_JOURNAL: usize = 10_000;

/// Kinds of BMC, in the spelling of sabakan's documents.
const BMC_TYPES: [&str; 2] = ["iDRAC-9", "IPMI-2.0"];
const PRODUCTS: [&str; 3] = ["R640", "R650", "R660"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatacenterEvent {
    pub at: OffsetDateTime,
    pub rack: u32,
    /// Serial of the machine; `None` for an event of the whole rack.
    pub serial: Option<String>,
    pub kind: DatacenterEventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatacenterEventKind {
    Registered,
    State { from: MachineState, to: MachineState },
    RetireDate(OffsetDateTime),
    Removed,
    PowerOff,
    PowerOn,
}

#[derive(Debug, Clone)]
pub(crate) struct MachineSlot {
    pub(crate) rack: u32,
    pub(crate) role: String,
    /// Number of earlier machines at this place.
    pub(crate) predecessors: u32,
    /// Number of states that machines at this place have entered: the generation of the line `Life`.
    pub(crate) stays: u32,
    /// Number of times that the retire date was brought forward: the generation of the line `Age`.
    pub(crate) ages: u32,
    /// Number of retirements that were planned: the generation of the line `Retirement`.
    pub(crate) retirements: u32,
    /// Step that waits until the rack has power again.
    pub(crate) parked: Option<MachineStep>,
    pub(crate) occupant: Option<Occupant>,
}

#[derive(Debug, Clone)]
pub(crate) struct Occupant {
    pub(crate) spec: MachineSpec,
    pub(crate) state: MachineState,
    pub(crate) since: OffsetDateTime,
    pub(crate) has_encryption_key: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Rack {
    pub(crate) dark: bool,
    /// Number of times that the power was cut or restored: the generation of the line `Power`.
    pub(crate) switches: u32,
    used: BTreeSet<u32>,
}

/// Subject of a queue entry. Entries of the same instant run in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timeline {
    Power(u32),
    /// States of the machine at a place.
    Life(u32),
    /// Retire date of the machine at a place.
    Age(u32),
    /// Retirement of the machine at a place, after its retire date.
    Retirement(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MachineStep {
    Enter(MachineState),
    Remove,
    Arrive,
    Age,
    Retire,
    PowerOff,
    PowerOn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) at: OffsetDateTime,
    pub(crate) line: Timeline,
    pub(crate) generation: u32,
    pub(crate) step: MachineStep,
}

/// A machine with the details that only sabakan's own API shows.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) machine: Machine,
    pub(crate) since: OffsetDateTime,
    pub(crate) nics: Vec<Nic>,
    pub(crate) bmc: Nic,
}

#[derive(Debug, Clone)]
pub struct Datacenter {
    pub(crate) config: DatacenterConfig,
    pub(crate) chance: SeededChance,
    pub(crate) now: OffsetDateTime,
    pub(crate) places: Vec<MachineSlot>,
    pub(crate) racks: Vec<Rack>,
    pub(crate) queue: BinaryHeap<Reverse<Entry>>,
    pub(crate) by_serial: BTreeMap<String, u32>,
    /// Addresses of new machines; `None` for a copied data center, which gets no new machines.
    pub(crate) plan: Option<AddressPlan>,
    pub(crate) journal: VecDeque<DatacenterEvent>,
}

impl Datacenter {
    /// Builds the data center in its state at the configured start.
    ///
    /// # Errors
    /// Every mistake of the configuration.
    pub fn new(config: DatacenterConfig) -> Result<Self, InputError> {
        let plan = config.check()?;
        let racks = config.racks;
        let mut datacenter = Self {
            chance: SeededChance::new(config.seed),
            now: config.start,
            places: Vec::new(),
            racks: vec![Rack::default(); racks as usize],
            queue: BinaryHeap::new(),
            by_serial: BTreeMap::new(),
            plan: Some(plan),
            journal: VecDeque::new(),
            config,
        };
        if datacenter.config.boot {
            for rack in 0..racks {
                datacenter.add_settled_machine(rack, BOOT_ROLE.to_owned());
            }
        }
        let mut next_rack = 0;
        for role in datacenter.config.roles.clone() {
            for _ in 0..role.machines {
                datacenter.add_settled_machine(next_rack, role.role.clone());
                next_rack = (next_rack + 1) % racks;
            }
        }
        for rack in 0..racks {
            datacenter.plan_power(rack);
        }
        Ok(datacenter)
    }

    /// Runs all events that are due by `now`.
    pub fn advance(&mut self, now: OffsetDateTime) {
        while let Some(Reverse(entry)) = self.queue.peek().copied()
            && entry.at <= now
        {
            self.queue.pop();
            self.now = self.now.max(entry.at);
            self.run_entry(entry);
        }
        self.now = self.now.max(now);
    }

    /// The latest time passed to [`Self::advance`].
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.now
    }

    #[must_use]
    pub fn next_happening(&self) -> Option<OffsetDateTime> {
        self.queue.peek().map(|Reverse(entry)| entry.at)
    }

    /// All machines, ordered by serial as in sabakan.
    #[must_use]
    pub fn machines(&self) -> Vec<Machine> {
        self.occupied_places().map(|(_, occupant)| self.describe_machine(occupant)).collect()
    }

    #[must_use]
    pub fn machine(&self, serial: &str) -> Option<Machine> {
        self.find_occupant(serial).map(|(_, occupant)| self.describe_machine(occupant))
    }

    #[must_use]
    pub fn racks(&self) -> u32 {
        self.config.racks
    }

    #[must_use]
    pub fn is_without_power(&self, rack: u32) -> bool {
        self.racks.get(rack as usize).is_some_and(|rack| rack.dark)
    }

    /// The latest events, oldest first; at most [`MAX_JOURNAL`].
    pub fn journal(&self) -> impl DoubleEndedIterator<Item = &DatacenterEvent> {
        self.journal.iter()
    }

    /// Takes the events since the previous call.
    pub fn take_journal(&mut self) -> Vec<DatacenterEvent> {
        self.journal.drain(..).collect()
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.occupied_places().map(|(place, occupant)| self.describe_record(place, occupant)).collect()
    }

    pub(crate) fn record(&self, serial: &str) -> Option<Record> {
        self.find_occupant(serial).map(|(place, occupant)| self.describe_record(place, occupant))
    }

    pub(crate) fn find(&self, serial: &str) -> Option<u32> {
        self.by_serial.get(serial).copied()
    }

    pub(crate) fn place(&mut self, place: u32) -> &mut MachineSlot {
        &mut self.places[place as usize]
    }

    pub(crate) fn push(&mut self, at: OffsetDateTime, line: Timeline, generation: u32, step: MachineStep) {
        self.queue.push(Reverse(Entry { at, line, generation, step }));
    }

    pub(crate) fn note(&mut self, rack: u32, serial: Option<String>, kind: DatacenterEventKind) {
        if self.journal.len() == MAX_JOURNAL {
            self.journal.pop_front();
        }
        self.journal.push_back(DatacenterEvent { at: self.now, rack, serial, kind });
    }

    /// Adds a place with a machine that has been there for some time. The place stays empty if the rack is full.
    fn add_settled_machine(&mut self, rack: u32, role: String) {
        let place = self.add_place(rack, role);
        let lifetime = to_milliseconds(self.config.lifetime);
        // The range exceeds the lifetime, so some machines are overdue for retirement.
        let age = self.chance.number_below(Kind::RegisterDate, place, 0, lifetime + lifetime / 10 + 1);
        let registered = subtract_millis(self.now, age);
        let broken = self.chance.is_within_percent(Kind::BrokenAtStart, place, 0, self.config.broken_percent);
        let state = if broken { self.draw_broken_state(place) } else { MachineState::Healthy };
        let since = self.chance.number_below(Kind::InHealthSince, place, 0, age + 1);
        let since = subtract_millis(self.now, since);
        if self.occupy_place(place, registered, state, since) {
            self.plan_life(place);
        }
    }

    pub(crate) fn add_place(&mut self, rack: u32, role: String) -> u32 {
        let place = u32::try_from(self.places.len()).expect("the number of machines is limited to a million");
        self.places.push(MachineSlot {
            rack,
            role,
            predecessors: 0,
            stays: 0,
            ages: 0,
            retirements: 0,
            parked: None,
            occupant: None,
        });
        place
    }

    /// Puts a new machine at an empty place; `false` if its rack has no free index.
    pub(crate) fn occupy_place(
        &mut self,
        place: u32,
        registered: OffsetDateTime,
        state: MachineState,
        since: OffsetDateTime,
    ) -> bool {
        let MachineSlot { rack, role, predecessors, .. } = self.places[place as usize].clone();
        let (Some(index), Some(plan)) = (self.free_index(rack, &role), self.plan) else { return false };
        let choose = |kind, count: usize| {
            let chosen = self.chance.number_below(kind, place, predecessors, count as u64);
            usize::try_from(chosen).expect("it is below a usize")
        };
        let label = |name: &str, value: &str| MachineLabel { name: name.to_owned(), value: value.to_owned() };
        let spec = MachineSpec {
            serial: self.serial_of_place(place, predecessors),
            // sabakan orders labels by name.
            labels: vec![
                label("datacenter", "sim"),
                label("product", PRODUCTS[choose(Kind::Product, PRODUCTS.len())]),
            ],
            rack: i64::from(rack),
            index_in_rack: i64::from(index),
            role,
            ipv4: plan.node_nics(rack, index).map(|nic| nic.address.to_string()).collect(),
            register_date: registered,
            retire_date: add_duration(registered, self.config.lifetime),
            bmc: Bmc { bmc_type: BMC_TYPES[choose(Kind::BmcType, BMC_TYPES.len())].to_owned() },
        };
        self.racks[rack as usize].used.insert(index);
        self.by_serial.insert(spec.serial.clone(), place);
        let occupant = Occupant { spec, state, since, has_encryption_key: false };
        let here = self.place(place);
        here.occupant = Some(occupant);
        here.stays += 1;
        self.plan_age(place);
        self.plan_retirement(place);
        true
    }

    pub(crate) fn remove_machine(&mut self, place: u32) {
        let here = &mut self.places[place as usize];
        let Some(gone) = here.occupant.take() else { return };
        here.predecessors += 1;
        here.stays += 1;
        here.ages += 1;
        here.retirements += 1;
        here.parked = None;
        let rack = here.rack;
        if let Ok(index) = u32::try_from(gone.spec.index_in_rack) {
            self.racks[rack as usize].used.remove(&index);
        }
        self.by_serial.remove(&gone.spec.serial);
        self.note(rack, Some(gone.spec.serial), DatacenterEventKind::Removed);
    }

    /// The index that sabakan assigns: the boot machine's own, or the lowest free one.
    pub(crate) fn free_index(&self, rack: u32, role: &str) -> Option<u32> {
        let plan = self.plan?;
        let used = &self.racks[rack as usize].used;
        let mut indices = if role == BOOT_ROLE {
            BOOT_INDEX..=BOOT_INDEX
        } else {
            BOOT_INDEX + 1..=BOOT_INDEX + plan.places_per_rack
        };
        indices.find(|index| !used.contains(index))
    }

    /// Ten hexadecimal digits, different for every machine of the history, in no visible order.
    pub(crate) fn serial_of_place(&self, place: u32, predecessors: u32) -> String {
        const MASK: u64 = (1 << 40) - 1;
        // The factor is odd, so multiplication modulo 2^40 maps different numbers to different ones.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        // Room for a million places and a million successive machines at each. Add 1, because 0 would stay 0.
        let number = ((u64::from(predecessors) << 20) | u64::from(place)) + 1;
        let of_seed = self.config.seed.wrapping_mul(SPREAD) >> 24;
        let serial = (number.wrapping_mul(SPREAD) ^ of_seed) & MASK;
        format!("{serial:010x}")
    }

    fn occupied_places(&self) -> impl Iterator<Item = (u32, &Occupant)> {
        self.by_serial.values().filter_map(|&place| {
            self.places[place as usize].occupant.as_ref().map(|occupant| (place, occupant))
        })
    }

    fn find_occupant(&self, serial: &str) -> Option<(u32, &Occupant)> {
        let place = self.find(serial)?;
        self.places[place as usize].occupant.as_ref().map(|occupant| (place, occupant))
    }

    fn describe_machine(&self, occupant: &Occupant) -> Machine {
        Machine {
            spec: occupant.spec.clone(),
            status: MachineStatus {
                state: occupant.state,
                duration: (self.now - occupant.since).as_seconds_f64(),
            },
        }
    }

    fn describe_record(&self, place: u32, occupant: &Occupant) -> Record {
        let rack = self.places[place as usize].rack;
        let index = u32::try_from(occupant.spec.index_in_rack).unwrap_or(0);
        let (nics, bmc) = match self.plan {
            Some(plan) => (plan.node_nics(rack, index).collect(), plan.bmc_nic(rack, index)),
            // A search of a copy gets the machines' own addresses; netmask, gateway and BMC were not copied.
            None => (Vec::new(), Nic::placeholder()),
        };
        Record { machine: self.describe_machine(occupant), since: occupant.since, nics, bmc }
    }
}

fn to_milliseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn subtract_millis(from: OffsetDateTime, millis: u64) -> OffsetDateTime {
    from.saturating_sub(time::Duration::milliseconds(i64::try_from(millis).unwrap_or(i64::MAX)))
}

pub(crate) fn add_duration(from: OffsetDateTime, by: std::time::Duration) -> OffsetDateTime {
    from.saturating_add(time::Duration::try_from(by).unwrap_or(time::Duration::MAX))
}
