//! The slots, machines and API server that entries of the repair queue occupy.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::repair::RepairStatus;

use super::Candidate;
use crate::next_action::BlockedBy;

pub(super) struct OccupiedResources<'a> {
    pub(super) slots: u32,
    pub(super) machines: BTreeMap<&'a str, i64>,
    /// The entry of each machine whose repair began and has not ended, even if it waits.
    pub(super) processed: BTreeMap<&'a str, i64>,
    pub(super) api_server: Option<&'a str>,
    /// Nodes that the reboot queue drains.
    pub(super) drained: BTreeSet<&'a str>,
    /// Record of a command whose entry does not show it: the entry is deleted, unreadable, or overwritten with an
    /// older state. Nothing begins until that command ends, as the entry does not name the machine on which it runs.
    pub(super) stray: Option<i64>,
}

impl<'a> OccupiedResources<'a> {
    /// Occupies a slot, at most once an entry.
    pub(super) fn take(&mut self, candidate: &Candidate<'a>) {
        self.slots = self.slots.saturating_add(1);
        self.occupy(candidate);
    }

    /// Occupies the machine, and the place of the one control plane node.
    pub(super) fn occupy(&mut self, candidate: &Candidate<'a>) {
        self.machines.entry(&candidate.entry.address).or_insert(candidate.index);
        if candidate.node.is_some_and(|node| node.control_plane) && self.api_server.is_none() {
            self.api_server = Some(&candidate.entry.address);
        }
    }

    /// Conflict with another entry of this machine or another API server.
    pub(super) fn find_rival(
        &self,
        candidate: &Candidate<'_>,
        rebooting: &BTreeSet<&str>,
    ) -> Option<BlockedBy> {
        if let Some(record) = self.stray {
            return Some(BlockedBy::CommandRuns { record });
        }
        let address = candidate.entry.address.as_str();
        let begun =
            self.processed.get(address).filter(|_| candidate.entry.status != RepairStatus::Processing);
        if let Some(index) = self.machines.get(address).or(begun) {
            return Some(BlockedBy::SameMachine { index: *index });
        }
        if self.drained.contains(address) && !is_planted(Canary::NodeDrainedTwice) {
            return Some(BlockedBy::RebootDrains);
        }
        if !candidate.node.is_some_and(|node| node.control_plane) || is_planted(Canary::ApiServersTogether) {
            return None;
        }
        if let Some(other) = self.api_server.filter(|other| *other != address) {
            return Some(BlockedBy::ApiServerRepaired { address: other.to_owned() });
        }
        let other = rebooting
            .iter()
            .filter(|_| !is_planted(Canary::RebootIgnored))
            .find(|other| **other != address)?;
        Some(BlockedBy::ApiServerRebooted { address: (*other).to_owned() })
    }
}
