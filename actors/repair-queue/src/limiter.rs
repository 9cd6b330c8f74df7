//! Decides which reported machines get an entry of the repair queue, and why others do not (CKE's
//! `docs/sabakan-triggered-repair.md`, "Enqueue limiters").
//!
//! Each limiter evaluates one report, except the last: if existing entries plus the reports that pass all other
//! limiters exceed `maximum-repair-queue-entries`, none of these reports is added. Held reports and reports that wait
//! for a time do not count there. Reports that wait only for the registry's next answer ([`Reason::JustRemoved`]) do
//! count: that answer may admit them, and the maximum guards against mass failures.
//!
//! # Guarantees
//! Every report is either added or refused, both in the order of the reports. A refusal carries the first reason that
//! applies, in the order of [`Reason::NAMES`], and the other reasons beside it.
//!
//! # Does not
//! Number the entries, check that a repair procedure exists for them, or remember earlier refusals.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::constraints::Constraints;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::RepairQueueEntry;
use madako_domain::repair::hold::{Hold, HoldSettings, Holds};
use madako_domain::repair::refusal::{AdditionStop, Reason, Refusal};
use time::OffsetDateTime;

use crate::hold::times::{Times, changed_at};
use crate::hold::{KnownHolds, holds_of};
use crate::indexed::IndexedReports;
use crate::racks::parse_ipv4;

#[derive(Debug, Clone, Copy)]
pub struct LimiterInput<'a> {
    /// Machines of one answer of the registry, including those without an address: each is a report, whatever its
    /// state.
    pub reports: &'a [Machine],
    /// Arrival of that answer.
    pub at: OffsetDateTime,
    /// Change times of the machines: of this very answer, or empty.
    pub times: &'a Times,
    /// All entries of the repair queue, including finished ones and those about to be removed.
    pub entries: &'a [&'a RepairQueueEntry],
    pub reboots: &'a [&'a RebootQueueEntry],
    /// Machines whose entries were removed after the registry was asked.
    pub removed: &'a RemovedEntries,
    /// Addresses of the cluster's nodes.
    pub nodes: &'a [&'a str],
    pub constraints: &'a Constraints,
    /// `None`: no rack is held.
    pub hold: Option<&'a HoldSettings>,
    /// Holds kept so far.
    pub holds: &'a dyn KnownHolds,
}

/// Machines whose entries were removed after the registry was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovedEntries {
    Of(BTreeSet<String>),
    /// Any machine: removals were not observed.
    All,
}

impl Default for RemovedEntries {
    fn default() -> Self {
        Self::Of(BTreeSet::new())
    }
}

impl RemovedEntries {
    fn contains_address(&self, address: &str) -> bool {
        match self {
            // Usually there are none.
            Self::Of(addresses) => !addresses.is_empty() && addresses.contains(address),
            Self::All => true,
        }
    }
}

/// A report that leads to no entry. The machine's identity is resolved on demand: a mass failure refuses a whole site
/// at each poll.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedReport {
    /// Position among the reports.
    pub report: usize,
    /// The first limiter that applies.
    pub reason: Reason,
    /// Other limiters of single reports that apply as well.
    pub beside: Vec<Reason>,
}

impl RefusedReport {
    /// Describes the refusal; `reports` are those that were evaluated.
    #[must_use]
    pub fn refusal(&self, reports: &[Machine]) -> Refusal {
        let (address, serial) = self.machine(reports);
        Refusal { address: address.to_owned(), serial: serial.to_owned(), reason: self.reason.clone() }
    }

    /// Address (empty if missing) and serial of the machine.
    pub(crate) fn machine<'a>(&self, reports: &'a [Machine]) -> (&'a str, &'a str) {
        machine(reports, self.report)
    }
}

/// Address (empty if missing) and serial of the machine at a position.
pub(crate) fn machine(reports: &[Machine], place: usize) -> (&str, &str) {
    let machine = reports.get(place);
    let address = machine.and_then(node_address).unwrap_or_default();
    (address, machine.map_or("", |machine| machine.spec.serial.as_str()))
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Entries to add, in the order of the reports, without numbers.
    pub add: Vec<RepairQueueEntry>,
    /// All other reports, in their order.
    pub refused: Vec<RefusedReport>,
    /// Reason that nothing is added, whatever the limiters admit.
    pub stop: Option<AdditionStop>,
    pub holds: Holds,
}

impl Decision {
    /// Holds to write: each rack that differs from `kept`, with its new hold.
    #[must_use]
    pub fn changed_holds<'a>(&'a self, kept: &'a dyn KnownHolds) -> BTreeMap<&'a str, Option<&'a Arc<Hold>>> {
        let racks = self.holds.keys().map(String::as_str).chain(kept.racks().map(|(rack, _)| rack));
        let is_same = |one: Option<&Arc<Hold>>, other: Option<&Arc<Hold>>| {
            one.zip(other).is_some_and(|(one, other)| Arc::ptr_eq(one, other)) || one == other
        };
        let changed = racks.filter(|rack| !is_same(self.holds.get(*rack), kept.hold(rack)));
        changed.map(|rack| (rack, self.holds.get(rack))).collect()
    }
}

/// Reasons of one report. Usually there is one, which needs no list.
#[derive(Default)]
struct ReasonList {
    first: Option<Reason>,
    beside: Vec<Reason>,
}

impl ReasonList {
    /// True if the report counts towards the maximum.
    fn counts_as_refused(&self) -> bool {
        self.beside.is_empty() && matches!(self.first, None | Some(Reason::JustRemoved))
    }

    fn add(&mut self, reason: Reason) {
        if self.first.is_none() {
            self.first = Some(reason);
        } else {
            self.beside.push(reason);
        }
    }
}

/// Applies every limiter to every report.
#[must_use]
pub fn limit(input: &LimiterInput<'_>) -> Decision {
    let reports = input.reports;
    let indexed = input.times.indexed(reports, input.hold.map(|settings| &settings.label), input.at);
    let holds = input
        .hold
        .map_or_else(Holds::new, |settings| holds_of(reports, &indexed, settings, input.holds, input.at));
    let tables = LookupTables::new(input, &indexed, &holds);
    let evaluated: Vec<ReasonList> = (0..reports.len())
        .map(|place| {
            let mut reasons = ReasonList::default();
            let Some(key) = indexed.keys[place] else {
                reasons.add(Reason::NoAddress);
                return reasons;
            };
            if let Some(first) = indexed.duplicates.get(&place) {
                reasons.add(Reason::DuplicateAddress { first: reports[*first].spec.serial.clone() });
            }
            tables.reasons_against(place, key).into_iter().flatten().for_each(|reason| reasons.add(reason));
            reasons
        })
        .collect();
    let passed = evaluated.iter().filter(|reasons| reasons.counts_as_refused()).count();
    let maximum = input.constraints.maximum_repair_queue_entries;
    let entries = input.entries.len();
    let too_many = i64::try_from(entries + passed)
        .is_ok_and(|sum| sum > maximum + i64::from(is_planted(Canary::OneEntryTooMany)));

    let mut decision = Decision { refused: Vec::with_capacity(reports.len()), ..Decision::default() };
    for (report, reasons) in evaluated.into_iter().enumerate() {
        let too_many = || too_many.then_some(Reason::TooMany { entries, reports: passed, maximum });
        match reasons.first.or_else(too_many) {
            None => decision.add.push(entry_for(&reports[report])),
            Some(reason) => decision.refused.push(RefusedReport { report, reason, beside: reasons.beside }),
        }
    }
    decision.holds = holds;
    decision
}

fn entry_for(machine: &Machine) -> RepairQueueEntry {
    RepairQueueEntry::new(
        machine.status.state.name().to_ascii_lowercase(),
        machine.spec.bmc.bmc_type.as_str(),
        node_address(machine).unwrap_or_default(),
    )
}

/// The address for repairs. sabakan writes `<nil>` for an address that it cannot read; that counts as missing.
pub(crate) fn node_address(machine: &Machine) -> Option<&str> {
    machine.address().filter(|address| parse_ipv4(address).is_some())
}

/// Number of machines that hold a rack, and the time since which they do.
type HeldRack = (usize, OffsetDateTime);

/// Lookup tables by the numeric address of a report.
struct LookupTables<'a> {
    input: &'a LimiterInput<'a>,
    entries: Vec<(u32, &'a RepairQueueEntry)>,
    rebooting: BTreeMap<u32, i64>,
    /// Built on demand: machines that failed long ago need no lookup.
    nodes: OnceCell<Vec<u32>>,
    indexed: &'a IndexedReports,
    held: Vec<Option<HeldRack>>,
}

impl<'a> LookupTables<'a> {
    fn new(input: &'a LimiterInput<'a>, indexed: &'a IndexedReports, holds: &Holds) -> Self {
        let entries = input.entries.iter().filter_map(|entry| Some((parse_ipv4(&entry.address)?, *entry)));
        let mut entries: Vec<(u32, &RepairQueueEntry)> = entries.collect();
        // The first entry is the active one; a stable sort keeps the order.
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        let rebooting = input.reboots.iter().filter(|entry| entry.status == RebootStatus::Rebooting);
        let held = |rack: &str| {
            let hold = holds.get(rack)?;
            Some((hold.count(), hold.held_since()?))
        };
        Self {
            input,
            entries,
            rebooting: rebooting.filter_map(|entry| Some((parse_ipv4(&entry.node)?, entry.index))).collect(),
            nodes: OnceCell::new(),
            indexed,
            held: indexed.racks.iter().map(|rack| held(&rack.name)).collect(),
        }
    }

    /// Reasons against a single report, in the order of limiters.
    fn reasons_against(&self, place: usize, key: u32) -> [Option<Reason>; 4] {
        let machine = &self.input.reports[place];
        let entry = self.entries.binary_search_by_key(&key, |(key, _)| *key).ok();
        let entry = entry.filter(|_| !is_planted(Canary::KnownMachineAdded)).map(|place| {
            let (_, entry) = self.entries[place];
            Reason::HasEntry { index: entry.index, status: entry.status.clone(), deleted: entry.deleted }
        });
        let removed = self.input.removed.contains_address(machine.address().unwrap_or_default());
        let waits = self.waits_until(machine).and_then(|until| match self.rebooting.get(&key) {
            Some(index) => Some(Reason::Rebooting { index: *index, until }),
            None if self.is_node(key) => None,
            None => Some(Reason::OutOfCluster { until }),
        });
        [entry, removed.then_some(Reason::JustRemoved), waits, self.refuse_if_held(place)]
    }

    fn is_node(&self, key: u32) -> bool {
        let nodes = self.nodes.get_or_init(|| {
            let mut nodes: Vec<u32> =
                self.input.nodes.iter().filter_map(|address| parse_ipv4(address)).collect();
            nodes.sort_unstable();
            nodes
        });
        nodes.binary_search(&key).is_ok()
    }

    /// End of the waiting time of an unreachable machine; `None`: it is over.
    fn waits_until(&self, machine: &Machine) -> Option<OffsetDateTime> {
        let wait = self.input.constraints.wait_seconds_to_repair_rebooting;
        #[allow(clippy::cast_precision_loss, reason = "as CKE compares them; seconds are far below 2^52")]
        let is_short = machine.status.duration < wait as f64;
        (machine.status.state == MachineState::Unreachable && is_short).then(|| {
            let wait = Duration::from_secs(wait.unsigned_abs());
            let wait = time::Duration::try_from(wait).unwrap_or(time::Duration::MAX);
            changed_at(machine, self.input.at).saturating_add(wait)
        })
    }

    fn refuse_if_held(&self, place: usize) -> Option<Reason> {
        let rack = self.indexed.rack_of(place)?;
        let (machines, since) = self.held[rack]?;
        let label = self.input.hold?.label.clone();
        Some(Reason::RackHeld { label, rack: Arc::clone(&self.indexed.racks[rack].name), machines, since })
    }
}

#[cfg(test)]
mod tests;
