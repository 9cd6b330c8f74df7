//! Decides which racks are held: failures of one rack at about the same time are one event.
//!
//! An event is a set of at least [`HoldSettings::count`] reports of one rack whose times all lie within
//! [`HoldSettings::within`], from the first to the last: a chain of failures with longer total span is not an event. The
//! time of a report is the time at which the machine's state changed, independent of clock changes ([`times`]). Every
//! report counts, whatever a limiter decides about it.
//!
//! An event ends when fewer than `count` of its machines are still reported, or when an operator releases the rack;
//! the released reports no longer count. It does not end because the state of a machine changed again.
//!
//! A released report is remembered while answers lack its machine, for up to [`MAX_ABSENCE`]: an answer to another
//! query has fewer machines, and the next answer to the old query reports the same failures. A later failure has
//! another time, and counts.
//!
//! # Guarantees
//! Nothing changes while the same reports arrive, whatever the jitter of polls; the order of reports does not matter.
//! The data kept of a rack is bounded.
//!
//! # Assumes
//! The reports are one complete answer of the registry: a machine that is missing has recovered.

pub mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use madako_domain::machine::Machine;
use madako_domain::repair::hold::{HeldEvent, HeldReport, Hold, HoldSettings, Holds};
use madako_domain::state::RevisedValue;
use time::OffsetDateTime;

use self::times::{Times, is_same};
use crate::indexed::{IndexedReports, MachineIdentity, ReportStamp, identity};
pub use crate::limits::MAX_ABSENCE;
use crate::limits::{MAX_ABSENT, MAX_EVENTS, MAX_MACHINES};

/// Access to holds, independent of their storage.
pub trait KnownHolds: fmt::Debug {
    fn hold(&self, rack: &str) -> Option<&Arc<Hold>>;
    fn racks(&self) -> Box<dyn Iterator<Item = (&str, &Arc<Hold>)> + '_>;
}

impl KnownHolds for Holds {
    fn hold(&self, rack: &str) -> Option<&Arc<Hold>> {
        self.get(rack)
    }

    fn racks(&self) -> Box<dyn Iterator<Item = (&str, &Arc<Hold>)> + '_> {
        Box::new(self.iter().map(|(rack, hold)| (rack.as_str(), hold)))
    }
}

impl KnownHolds for BTreeMap<String, RevisedValue<Arc<Hold>>> {
    fn hold(&self, rack: &str) -> Option<&Arc<Hold>> {
        self.get(rack).map(|hold| &hold.value)
    }

    fn racks(&self) -> Box<dyn Iterator<Item = (&str, &Arc<Hold>)> + '_> {
        Box::new(self.iter().map(|(rack, hold)| (rack.as_str(), &hold.value)))
    }
}

/// Holds after an answer of the registry that arrived at `at`, with the change times of its machines; `kept` has the
/// holds so far. Racks without data to keep are missing from the result; without settings it is empty.
#[must_use]
pub fn holds_after(
    reports: &[Machine],
    times: &Times,
    settings: Option<&HoldSettings>,
    kept: &dyn KnownHolds,
    at: OffsetDateTime,
) -> Holds {
    let Some(settings) = settings else { return Holds::new() };
    let indexed = times.indexed(reports, Some(&settings.label), at);
    holds_of(reports, &indexed, settings, kept, at)
}

/// The same for indexed reports.
pub(crate) fn holds_of(
    reports: &[Machine],
    indexed: &IndexedReports,
    settings: &HoldSettings,
    kept: &dyn KnownHolds,
    at: OffsetDateTime,
) -> Holds {
    let kept_of = |rack: &str| kept.hold(rack).filter(|kept| kept.label == settings.label);
    let mut after = Holds::new();
    for rack in &indexed.racks {
        let kept = kept_of(&rack.name);
        if kept.is_none() && rack.reports.len() < settings.count {
            continue;
        }
        let reported: Vec<Report<'_>> =
            rack.reports.iter().map(|stamp| Report::from_stamp(reports, stamp)).collect();
        let hold = match kept.filter(|kept| is_unchanged(kept, &reported, settings)) {
            Some(kept) => Some(Arc::clone(kept)),
            None => rack_after(reported, settings, kept.map(|kept| &**kept), at).map(Arc::new),
        };
        after.extend(hold.map(|hold| (String::from(&*rack.name), hold)));
    }
    let is_reported: BTreeSet<&str> = indexed.racks.iter().map(|rack| &*rack.name).collect();
    for (rack, _) in kept.racks().filter(|(rack, _)| !is_reported.contains(rack)) {
        let hold = rack_after(Vec::new(), settings, kept_of(rack).map(|kept| &**kept), at);
        after.extend(hold.map(|hold| (rack.to_owned(), Arc::new(hold))));
    }
    after
}

/// Holds while reports are not acted on. Held racks are followed until they recover, including new failures in them.
/// No other rack becomes held, and other data stays.
#[must_use]
pub fn holds_followed(
    reports: &[Machine],
    times: &Times,
    settings: Option<&HoldSettings>,
    kept: &dyn KnownHolds,
    at: OffsetDateTime,
) -> Holds {
    let Some(settings) = settings else { return Holds::new() };
    let mut after = holds_after(reports, times, Some(settings), kept, at);
    after.retain(|rack, _| kept.hold(rack).is_some_and(|hold| hold.is_held()));
    let stay = kept.racks().filter(|(_, hold)| !hold.is_held());
    after.extend(stay.map(|(rack, hold)| (rack.to_owned(), Arc::clone(hold))));
    after
}

/// A borrowed report, ordered by time; it is copied only to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Report<'a> {
    changed: OffsetDateTime,
    serial: &'a str,
    address: &'a str,
}

impl<'a> Report<'a> {
    fn from_stamp(reports: &'a [Machine], stamp: &ReportStamp) -> Self {
        let (serial, address) = identity(&reports[stamp.place]);
        Self { changed: stamp.changed, serial, address }
    }

    fn identity(&self) -> MachineIdentity<'a> {
        (self.serial, self.address)
    }

    fn is_kept_as(&self, kept: &HeldReport) -> bool {
        self.changed == kept.changed && self.identity() == kept.identity()
    }
}

impl From<Report<'_>> for HeldReport {
    fn from(report: Report<'_>) -> Self {
        Self {
            changed: report.changed,
            serial: report.serial.to_owned(),
            address: report.address.to_owned(),
            absent: None,
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event<'a> {
    since: OffsetDateTime,
    machines: Vec<Report<'a>>,
}

/// True if the data of a rack stays the same: its events are the maximal runs of the reports, and nothing was
/// released. This is the usual case, and it copies nothing. `reported` is sorted by time.
fn is_unchanged(kept: &Hold, reported: &[Report<'_>], settings: &HoldSettings) -> bool {
    if !kept.released.is_empty() || kept.events.is_empty() {
        return false;
    }
    let windows = event_windows(reported, settings);
    let is = |event: &HeldEvent, window: &RangeInclusive<usize>| {
        let window = &reported[window.clone()];
        event.machines.len() == window.len()
            && event.machines.iter().zip(window).all(|(kept, report)| report.is_kept_as(kept))
    };
    kept.events.iter().all(|event| windows.iter().any(|window| is(event, window)))
        && windows.iter().all(|window| kept.events.iter().any(|event| is(event, window)))
}

/// Hold of a rack after reports of it; each machine appears once, sorted by time.
fn rack_after(
    by_time: Vec<Report<'_>>,
    settings: &HoldSettings,
    kept: Option<&Hold>,
    at: OffsetDateTime,
) -> Option<Hold> {
    let mut reported = by_time.clone();
    reported.sort_unstable_by_key(Report::identity);
    let of = |kept: &HeldReport| {
        let place = reported.binary_search_by(|report| report.identity().cmp(&kept.identity())).ok()?;
        Some(reported[place])
    };
    let mut released = kept.map(|kept| kept.released.clone()).unwrap_or_default();
    released.retain_mut(|released| match of(released) {
        Some(now) if is_same(now.changed, released.changed) => {
            *released = now.into();
            true
        }
        Some(_) => false,
        None => at - *released.absent.get_or_insert(at) <= MAX_ABSENCE,
    });
    let mut events: Vec<Event<'_>> = Vec::new();
    for event in kept.into_iter().flat_map(|kept| &kept.events) {
        let mut machines: Vec<_> = event.machines.iter().filter_map(&of).collect();
        machines.sort_unstable();
        if machines.len() >= settings.count {
            events.push(Event { since: event.since, machines });
        }
    }
    let of_release: BTreeSet<MachineIdentity<'_>> = released.iter().map(HeldReport::identity).collect();
    let mut fresh = by_time;
    fresh.retain(|report| !of_release.contains(&report.identity()));
    for window in event_windows(&fresh, settings) {
        join_event(&mut events, Event { since: at, machines: fresh[window].to_vec() });
    }
    if events.is_empty() && released.is_empty() {
        return None;
    }
    let events = events.into_iter().map(|event| HeldEvent {
        since: event.since,
        machines: event.machines.into_iter().map(HeldReport::from).collect(),
    });
    let rest = kept.map(|kept| kept.rest.clone()).unwrap_or_default();
    let mut hold = Hold { label: settings.label.clone(), events: events.collect(), released, rest };
    limit_events(&mut hold);
    Some(hold)
}

/// The maximal runs of reports, sorted by time, that each form an event. If there are more than are kept, overlapping
/// runs are merged, and then all.
fn event_windows(fresh: &[Report<'_>], settings: &HoldSettings) -> Vec<RangeInclusive<usize>> {
    let mut found: Vec<RangeInclusive<usize>> = Vec::new();
    let mut end = 0;
    for start in 0..fresh.len() {
        end = end.max(start);
        while end + 1 < fresh.len()
            && (fresh[end + 1].changed - fresh[start].changed).unsigned_abs() <= settings.within
        {
            end += 1;
        }
        let is_largest = found.last().is_none_or(|last| *last.end() < end);
        if is_largest && end + 1 - start >= settings.count {
            found.push(start..=end);
        }
    }
    if found.len() > MAX_EVENTS {
        found = merge_overlapping(found);
    }
    found
}

/// Merges overlapping runs, in order; if too many remain, merges all of them.
fn merge_overlapping(windows: Vec<RangeInclusive<usize>>) -> Vec<RangeInclusive<usize>> {
    let mut together: Vec<RangeInclusive<usize>> = Vec::new();
    for window in windows {
        match together.last_mut() {
            Some(last) if window.start() <= last.end() => *last = *last.start()..=*window.end(),
            _ => together.push(window),
        }
    }
    match (together.first(), together.last()) {
        (Some(first), Some(last)) if together.len() > MAX_EVENTS => vec![*first.start()..=*last.end()],
        _ => together,
    }
}

/// Adds an event, unless an existing event contains it; events that it contains merge into it.
fn join_event<'a>(events: &mut Vec<Event<'a>>, mut new: Event<'a>) {
    fn machines<'a>(event: &Event<'a>) -> BTreeSet<MachineIdentity<'a>> {
        event.machines.iter().map(Report::identity).collect()
    }
    // Fast path for the usual case.
    if events.iter().any(|event| event.machines == new.machines) {
        return;
    }
    let of_new = machines(&new);
    if events.iter().any(|event| of_new.is_subset(&machines(event))) {
        return;
    }
    events.retain(|event| {
        let is_part = machines(event).is_subset(&of_new);
        if is_part {
            new.since = new.since.min(event.since);
        }
        !is_part
    });
    events.push(new);
    events.sort_unstable();
}

/// Enforces the limits of a rack's data: too many events become one.
fn limit_events(hold: &mut Hold) {
    let mut absent: Vec<OffsetDateTime> = hold.released.iter().filter_map(|report| report.absent).collect();
    if absent.len() > MAX_ABSENT {
        absent.sort_unstable();
        let first = absent[absent.len() - MAX_ABSENT];
        let mut room = MAX_ABSENT;
        hold.released.retain(|report| {
            let Some(since) = report.absent else { return true };
            let stays = since >= first && room > 0;
            room -= usize::from(stays);
            stays
        });
    }
    hold.released.truncate(MAX_MACHINES);
    let machines: usize = hold.events.iter().map(|event| event.machines.len()).sum();
    let Some(since) = hold.held_since().filter(|_| hold.events.len() > MAX_EVENTS || machines > MAX_MACHINES)
    else {
        return;
    };
    let mut machines: Vec<HeldReport> = hold.machines().into_values().cloned().collect();
    machines.sort_unstable();
    machines.truncate(MAX_MACHINES);
    hold.events = vec![HeldEvent { since, machines }];
}

#[cfg(test)]
mod tests;
