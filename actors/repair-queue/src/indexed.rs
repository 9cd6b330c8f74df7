//! Index of one answer of the registry: it is built once an answer and used for many states of the store.
//!
//! # Guarantees
//! It does not depend on the store. Of two reports of one machine (one serial and one address) the first counts.
//!
//! # Assumes
//! The caller passes the reports that it was built from.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::machine::Machine;
use madako_domain::repair::hold::Label;
use time::OffsetDateTime;

use crate::racks::{Groups, parse_ipv4};

/// Identity of a reported machine: serial and address. A registry may give several machines one serial, or none.
pub(crate) type MachineIdentity<'a> = (&'a str, &'a str);

pub(crate) fn identity(machine: &Machine) -> MachineIdentity<'_> {
    (machine.spec.serial.as_str(), machine.address().unwrap_or_default())
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct IndexedReports {
    /// Each report's address as a number. An IPv4 address has one spelling, so an address with no equal number is no
    /// address of a report.
    pub(crate) keys: Vec<Option<u32>>,
    /// Reports with the address of an earlier report, and the position of the first one.
    pub(crate) duplicates: BTreeMap<usize, usize>,
    /// Racks of the reports; `of` has each report's index into them.
    pub(crate) racks: Vec<Rack>,
    pub(crate) of: Vec<Option<usize>>,
    /// Label that separates racks.
    label: Option<Label>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rack {
    pub(crate) name: Arc<str>,
    /// Each machine once, by change time.
    pub(crate) reports: Vec<ReportStamp>,
}

/// Change time of a machine, and position of its report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ReportStamp {
    pub(crate) changed: OffsetDateTime,
    pub(crate) place: usize,
}

impl IndexedReports {
    /// Builds the index; `changed` gives the change time of the report at a position.
    pub(crate) fn new(
        reports: &[Machine],
        label: Option<&Label>,
        changed: impl Fn(usize) -> OffsetDateTime,
    ) -> Self {
        let keys: Vec<Option<u32>> =
            reports.iter().map(|machine| machine.address().and_then(parse_ipv4)).collect();
        let groups = label.map(|label| Groups::from_machines(reports, label)).unwrap_or_default();
        let racks = groups.racks.into_iter().map(|(name, mut places)| {
            // A stable sort keeps the order of two reports of one machine.
            places.sort_by_key(|place| identity(&reports[*place]));
            places.dedup_by_key(|place| identity(&reports[*place]));
            let stamp = |place| ReportStamp { changed: changed(place), place };
            let mut stamps: Vec<ReportStamp> = places.into_iter().map(stamp).collect();
            // They are already sorted by machine.
            stamps.sort_by_key(|stamp| stamp.changed);
            Rack { name: name.into(), reports: stamps }
        });
        Self {
            duplicates: find_duplicates(&keys),
            keys,
            racks: racks.collect(),
            of: groups.of,
            label: label.cloned(),
        }
    }

    /// True if the index fits this number of reports and this label.
    pub(crate) fn is_of(&self, reports: &[Machine], label: Option<&Label>) -> bool {
        self.keys.len() == reports.len() && self.label.as_ref() == label
    }

    pub(crate) fn rack_of(&self, place: usize) -> Option<usize> {
        self.of.get(place).copied().flatten()
    }
}

fn find_duplicates(keys: &[Option<u32>]) -> BTreeMap<usize, usize> {
    let known = keys.iter().enumerate().filter_map(|(place, key)| Some(((*key)?, place)));
    let mut sorted: Vec<(u32, usize)> = known.collect();
    sorted.sort_unstable();
    let same = sorted.chunk_by(|(one, _), (other, _)| one == other);
    let later = same.flat_map(|same| same[1..].iter().map(|(_, place)| (*place, same[0].1)));
    later.collect()
}
