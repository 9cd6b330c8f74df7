//! What is looked up in an answer of the registry, made once of it: a decision is made for each state of the store, and
//! between two answers there are many.
//!
//! # Guarantees
//! It says nothing of the store. Of two reports of one machine (one serial and one address) the first counts.
//!
//! # Assumes
//! It is used with the reports that it was made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::machine::Machine;
use madako_domain::repair::hold::Label;
use time::OffsetDateTime;

use crate::racks::{Groups, ipv4};

/// Who a report is of: serial and address. A registry may give one serial to several machines, or none.
pub(crate) type Who<'a> = (&'a str, &'a str);

/// Who a machine is.
pub(crate) fn who(machine: &Machine) -> Who<'_> {
    (machine.spec.serial.as_str(), machine.address().unwrap_or_default())
}

/// What is looked up in an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Indexed {
    /// The address of each report as a number, which has one spelling only: what differs from all of them is no address of a
    /// report.
    pub(crate) keys: Vec<Option<u32>>,
    /// The reports whose address an earlier one has, with the place of the first that has it.
    pub(crate) duplicates: BTreeMap<usize, usize>,
    /// The racks of the reports, and which of them each report is of.
    pub(crate) racks: Vec<Rack>,
    pub(crate) of: Vec<Option<usize>>,
    /// What racks are told apart by.
    label: Option<Label>,
}

/// The reports of a rack.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rack {
    pub(crate) name: Arc<str>,
    /// Each machine once, by the time of its change.
    pub(crate) reports: Vec<Stamp>,
}

/// When the state of a machine changed, and its report's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stamp {
    pub(crate) changed: OffsetDateTime,
    pub(crate) place: usize,
}

impl Indexed {
    /// Looks through reports; `changed` says when the state of the one at a place changed.
    pub(crate) fn of(
        reports: &[Machine],
        label: Option<&Label>,
        changed: impl Fn(usize) -> OffsetDateTime,
    ) -> Self {
        let keys: Vec<Option<u32>> = reports.iter().map(|machine| machine.address().and_then(ipv4)).collect();
        let groups = label.map(|label| Groups::of(reports, label)).unwrap_or_default();
        let racks = groups.racks.into_iter().map(|(name, mut places)| {
            // This keeps the order of two reports of one machine.
            places.sort_by_key(|place| who(&reports[*place]));
            places.dedup_by_key(|place| who(&reports[*place]));
            let stamp = |place| Stamp { changed: changed(place), place };
            let mut stamps: Vec<Stamp> = places.into_iter().map(stamp).collect();
            // They are sorted by machine already.
            stamps.sort_by_key(|stamp| stamp.changed);
            Rack { name: name.into(), reports: stamps }
        });
        Self {
            duplicates: duplicates(&keys),
            keys,
            racks: racks.collect(),
            of: groups.of,
            label: label.cloned(),
        }
    }

    /// Whether it can be of so many reports whose racks are told apart by a label.
    pub(crate) fn is_of(&self, reports: &[Machine], label: Option<&Label>) -> bool {
        self.keys.len() == reports.len() && self.label.as_ref() == label
    }

    pub(crate) fn rack_of(&self, place: usize) -> Option<usize> {
        self.of.get(place).copied().flatten()
    }
}

fn duplicates(keys: &[Option<u32>]) -> BTreeMap<usize, usize> {
    let known = keys.iter().enumerate().filter_map(|(place, key)| Some(((*key)?, place)));
    let mut sorted: Vec<(u32, usize)> = known.collect();
    sorted.sort_unstable();
    let same = sorted.chunk_by(|(one, _), (other, _)| one == other);
    let later = same.flat_map(|same| same[1..].iter().map(|(_, place)| (*place, same[0].1)));
    later.collect()
}
