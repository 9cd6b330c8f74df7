//! Which machines that the registry reports get an entry of the repair queue (CKE's
//! `docs/sabakan-triggered-repair.md`, "Enqueue limiters"), and why the others do not.
//!
//! Each limiter looks at one report, but for the last: if the entries that exist and the reports that every other
//! limiter lets through are more than `maximum-repair-queue-entries`, none of these is added. Reports that are held
//! or wait do not count there.
//!
//! # Guarantees
//! Every report is either added or refused, both in the order of the reports; a refusal carries the first reason that
//! applies, in the order of [`Reason::NAMES`], and the others beside it.
//!
//! # Does not
//! Give entries their numbers, look whether a procedure is there for them, or remember what it refused before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use madako_messages::constraints::Constraints;
use madako_messages::machine::{Machine, MachineState};
use madako_messages::reboot::{RebootQueueEntry, RebootStatus};
use madako_messages::repair::RepairQueueEntry;
use madako_messages::repair::hold::{Hold, HoldSettings, Holds};
use madako_messages::repair::refusal::{Reason, Refusal, Stop};
use time::OffsetDateTime;

use crate::hold::holds_after;
use crate::hold::times::{Times, changed_at};

/// What the limiters judge by.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The machines of one answer of the registry, those without an address too: each is a report, whatever its state.
    pub reports: &'a [Machine],
    /// When that answer came.
    pub at: OffsetDateTime,
    /// When the states of its machines changed.
    pub times: &'a Times,
    /// All entries of the repair queue, also those that are finished or about to be removed.
    pub entries: &'a [&'a RepairQueueEntry],
    /// All entries of the reboot queue.
    pub reboots: &'a [&'a RebootQueueEntry],
    /// Machines whose entries were removed after the registry was asked.
    pub removed: &'a Removed,
    /// Addresses of the cluster's nodes.
    pub nodes: &'a BTreeSet<&'a str>,
    /// The operator's constraints.
    pub constraints: &'a Constraints,
    /// When failures of a rack are one event; without it no rack is held.
    pub hold: Option<&'a HoldSettings>,
    /// What was kept of racks so far.
    pub holds: &'a Holds,
}

/// Machines whose entries were removed after the registry was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// Those with one of these addresses.
    Of(BTreeSet<String>),
    /// It may be any: nobody watched.
    All,
}

impl Default for Removed {
    fn default() -> Self {
        Self::Of(BTreeSet::new())
    }
}

impl Removed {
    fn has(&self, address: &str) -> bool {
        match self {
            Self::Of(addresses) => addresses.contains(address),
            Self::All => true,
        }
    }
}

/// What the limiters say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Entries to be added, in the order of the reports; they have no number yet.
    pub add: Vec<RepairQueueEntry>,
    /// The other reports, in their order.
    pub refused: Vec<Refusal>,
    /// Why nothing is added, whatever limiters let through.
    pub stop: Option<Stop>,
    /// What is kept of racks from now on.
    pub holds: Holds,
}

impl Decision {
    /// What has to be written so that the holds are kept: each rack that differs, with what is kept of it now.
    #[must_use]
    pub fn changed_holds<'a>(&'a self, kept: &'a Holds) -> BTreeMap<&'a str, Option<&'a Hold>> {
        let racks = self.holds.keys().chain(kept.keys()).map(String::as_str);
        let changed = racks.filter(|rack| self.holds.get(*rack) != kept.get(*rack));
        changed.map(|rack| (rack, self.holds.get(rack))).collect()
    }
}

/// Asks every limiter about every report.
#[must_use]
pub fn limit(input: &Input<'_>) -> Decision {
    let holds = holds_after(input.reports, input.times, input.hold, input.holds, input.at);
    let asked = Asked::new(input, &holds);
    let mut first: BTreeMap<&str, &Machine> = BTreeMap::new();
    let judged: Vec<Vec<Reason>> = input
        .reports
        .iter()
        .map(|machine| {
            let Some(address) = node_address(machine) else { return vec![Reason::NoAddress] };
            let mut reasons = Vec::new();
            match first.get(address) {
                Some(other) => {
                    reasons.push(Reason::DuplicateAddress { first: other.spec.serial.clone() });
                }
                None => {
                    first.insert(address, machine);
                }
            }
            reasons.extend(asked.about(machine, address).into_iter().flatten());
            reasons
        })
        .collect();
    let passed = judged.iter().filter(|reasons| reasons.is_empty()).count();
    let maximum = input.constraints.maximum_repair_queue_entries;
    let entries = input.entries.len();
    let too_many = i64::try_from(entries + passed).is_ok_and(|sum| sum > maximum);

    let mut decision = Decision::default();
    for (machine, reasons) in input.reports.iter().zip(judged) {
        let mut reasons = reasons.into_iter();
        let too_many = || too_many.then_some(Reason::TooMany { entries, reports: passed, maximum });
        let reason = reasons.next().or_else(too_many);
        let address = node_address(machine).unwrap_or_default();
        match reason {
            None => decision.add.push(RepairQueueEntry::new(
                machine.status.state.name().to_ascii_lowercase(),
                machine.spec.bmc.bmc_type.as_str(),
                address,
            )),
            Some(reason) => decision.refused.push(Refusal {
                address: address.to_owned(),
                serial: machine.spec.serial.clone(),
                reason,
                beside: reasons.collect(),
            }),
        }
    }
    decision.holds = holds;
    decision
}

/// The address that a machine is repaired by. sabakan writes one that it cannot read as `<nil>`; that is none.
fn node_address(machine: &Machine) -> Option<&str> {
    machine.address().filter(|address| address.parse::<Ipv4Addr>().is_ok())
}

/// What is looked up for each report.
struct Asked<'a> {
    input: &'a Input<'a>,
    entries: BTreeMap<&'a str, &'a RepairQueueEntry>,
    rebooting: BTreeMap<&'a str, i64>,
    /// Racks that are held: by how many machines, and since when.
    held: BTreeMap<&'a str, (usize, OffsetDateTime)>,
}

impl<'a> Asked<'a> {
    fn new(input: &'a Input<'a>, holds: &'a Holds) -> Self {
        let mut entries = BTreeMap::new();
        for entry in input.entries {
            // The first is the one that is worked on.
            entries.entry(entry.address.as_str()).or_insert(*entry);
        }
        let rebooting = input.reboots.iter().filter(|entry| entry.status == RebootStatus::Rebooting);
        Self {
            input,
            entries,
            rebooting: rebooting.map(|entry| (entry.node.as_str(), entry.index)).collect(),
            held: holds
                .iter()
                .filter_map(|(rack, hold)| Some((rack.as_str(), (hold.machines().len(), hold.since()?))))
                .collect(),
        }
    }

    /// What refuses a report by itself, in the order of limiters.
    fn about(&self, machine: &Machine, address: &str) -> [Option<Reason>; 4] {
        let entry = self.entries.get(address).map(|entry| Reason::HasEntry {
            index: entry.index,
            status: entry.status.clone(),
            deleted: entry.deleted,
        });
        let removed = self.input.removed.has(address).then_some(Reason::JustRemoved);
        let waits = self.waits(machine).and_then(|until| match self.rebooting.get(address) {
            Some(index) => Some(Reason::Rebooting { index: *index, until }),
            None if self.input.nodes.contains(address) => None,
            None => Some(Reason::OutOfCluster { until }),
        });
        [entry, removed, waits, self.held(machine)]
    }

    /// Until when an unreachable machine may be left alone, if that is not over.
    fn waits(&self, machine: &Machine) -> Option<OffsetDateTime> {
        let wait = self.input.constraints.wait_seconds_to_repair_rebooting;
        #[allow(clippy::cast_precision_loss, reason = "as CKE compares them; seconds are far below 2^52")]
        let is_short = machine.status.duration < wait as f64;
        (machine.status.state == MachineState::Unreachable && is_short).then(|| {
            let wait = Duration::from_secs(wait.unsigned_abs());
            let wait = time::Duration::try_from(wait).unwrap_or(time::Duration::MAX);
            changed_at(machine, self.input.at).saturating_add(wait)
        })
    }

    fn held(&self, machine: &Machine) -> Option<Reason> {
        if self.held.is_empty() {
            return None;
        }
        let label = &self.input.hold?.label;
        let rack = label.value(machine)?;
        let (machines, since) = *self.held.get(&*rack)?;
        Some(Reason::RackHeld { label: label.clone(), rack: rack.into_owned(), machines, since })
    }
}

#[cfg(test)]
mod tests;
