//! Which racks are held: failures of one rack at about the same time are one event (design, section 5).
//!
//! An event is a set of reports of one rack, at least [`HoldSettings::count`], whose times lie within
//! [`HoldSettings::within`] of each other: the first and the last as well, so that failures that follow each other like
//! the links of a chain are none. The time of a report is when the machine's state changed, whatever the clocks do meanwhile
//! ([`times`]). Every report counts, whatever a limiter says of it.
//!
//! An event ends when fewer than `count` of its machines are reported still, or when an operator lets the rack go; the
//! reports of then do not count any more. It does not end because the state of a machine changed anew.
//!
//! A report that a rack was released for is remembered while answers lack its machine, for up to [`MAX_ABSENCE`]: an answer to
//! another question has fewer machines, and the next one to the old question reports the same failures. A failure since
//! then has another time, and counts.
//!
//! # Guarantees
//! Nothing changes while the same reports come, however the times of a poll jitter; the order of reports does not
//! matter. What is kept of a rack is bounded.
//!
//! # Assumes
//! The reports are one complete answer of the registry: a machine that is not in it has recovered.

pub mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use madako_messages::machine::Machine;
use madako_messages::repair::hold::{HeldEvent, HeldReport, Hold, HoldSettings, Holds};
use time::OffsetDateTime;

use self::times::{Times, changed_at, is_same};

/// Events that are kept of one rack. One is usual, and a rack has some forty machines; beyond, they are told apart no more.
const MAX_EVENTS: usize = 16;

/// Machines that are kept of one rack, in all of its events together: some 100 bytes each, of which etcd takes 1.5 MiB
/// a request. Beyond, the earliest are kept: they hold the rack as well.
const MAX_MACHINES: usize = 8_192;

/// How long a report that a rack was released for is remembered while no answer has its machine: a day, in which whoever
/// changed the variables of the query finds out.
pub const MAX_ABSENCE: Duration = Duration::from_secs(24 * 3600);

/// Released reports of one rack whose machines no answer has that are remembered: some 130 bytes each. Beyond, those that are
/// absent longest are forgotten.
const MAX_ABSENT: usize = 1_024;

/// What is kept of racks after an answer of the registry that came at `at`, with the times of its machines; `kept` is what was
/// kept so far. Racks of which nothing is to be kept are not in it; without settings that is all of them.
#[must_use]
pub fn holds_after(
    reports: &[Machine],
    times: &Times,
    settings: Option<&HoldSettings>,
    kept: &Holds,
    at: OffsetDateTime,
) -> Holds {
    let Some(settings) = settings else { return Holds::new() };
    let mut racks: BTreeMap<_, Vec<&Machine>> = BTreeMap::new();
    for machine in reports {
        if let Some(rack) = settings.label.value(machine) {
            racks.entry(rack).or_default().push(machine);
        }
    }
    for rack in kept.keys() {
        racks.entry(rack.as_str().into()).or_default();
    }
    let after = racks.into_iter().filter_map(|(rack, machines)| {
        let kept = kept.get(&*rack).filter(|kept| kept.label == settings.label);
        let hold = rack_after(&machines, times, settings, kept, at)?;
        Some((rack.into_owned(), hold))
    });
    after.collect()
}

/// What is kept of racks while reports are not acted on: the racks that are held are followed to their recovery, with what
/// fails in them meanwhile; no other begins to be, and what is kept of others stays.
#[must_use]
pub fn holds_followed(
    reports: &[Machine],
    times: &Times,
    settings: Option<&HoldSettings>,
    kept: &Holds,
    at: OffsetDateTime,
) -> Holds {
    let Some(settings) = settings else { return Holds::new() };
    let mut after = holds_after(reports, times, Some(settings), kept, at);
    let follows = |rack: &String| kept.get(rack).is_some_and(Hold::is_held);
    after.retain(|rack, _| follows(rack));
    after.extend(
        kept.iter().filter(|(rack, _)| !follows(rack)).map(|(rack, hold)| (rack.clone(), hold.clone())),
    );
    after
}

/// Which machines of a rack are reported, by serial, and since when.
fn reported(machines: &[&Machine], times: &Times, at: OffsetDateTime) -> BTreeMap<String, HeldReport> {
    let mut reported = BTreeMap::new();
    for machine in machines {
        let serial = &machine.spec.serial;
        reported.entry(serial.clone()).or_insert_with(|| HeldReport {
            changed: times.changed(serial).unwrap_or_else(|| changed_at(machine, at)),
            serial: serial.clone(),
            address: machine.address().unwrap_or_default().to_owned(),
            absent: None,
        });
    }
    reported
}

fn rack_after(
    machines: &[&Machine],
    times: &Times,
    settings: &HoldSettings,
    kept: Option<&Hold>,
    at: OffsetDateTime,
) -> Option<Hold> {
    if kept.is_none() && machines.len() < settings.count {
        return None;
    }
    let reported = reported(machines, times, at);
    let mut hold = Hold { label: settings.label.clone(), ..kept.cloned().unwrap_or_default() };
    hold.released.retain_mut(|released| match reported.get(&released.serial) {
        Some(now) if is_same(now.changed, released.changed) => {
            released.clone_from(now);
            true
        }
        Some(_) => false,
        None => at - *released.absent.get_or_insert(at) <= MAX_ABSENCE,
    });
    for event in &mut hold.events {
        event.machines =
            event.machines.iter().filter_map(|machine| reported.get(&machine.serial).cloned()).collect();
        event.machines.sort_unstable();
    }
    hold.events.retain(|event| event.machines.len() >= settings.count);
    let released: BTreeSet<&str> = hold.released.iter().map(|report| report.serial.as_str()).collect();
    let mut fresh: Vec<&HeldReport> =
        reported.values().filter(|report| !released.contains(report.serial.as_str())).collect();
    fresh.sort_unstable();
    for window in windows(&fresh, settings) {
        let machines: Vec<HeldReport> = fresh[window].iter().map(|report| (*report).clone()).collect();
        join(&mut hold.events, HeldEvent { since: at, machines });
    }
    bound(&mut hold);
    (hold.is_held() || !hold.released.is_empty()).then_some(hold)
}

/// The largest runs of reports, sorted by time, that are one event each. Where there are more than are kept, those that
/// overlap are taken together, and then all.
fn windows(fresh: &[&HeldReport], settings: &HoldSettings) -> Vec<RangeInclusive<usize>> {
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
        found = together(found);
    }
    found
}

/// Runs in their order, those that overlap as one; if those are still too many, all of them as one.
fn together(windows: Vec<RangeInclusive<usize>>) -> Vec<RangeInclusive<usize>> {
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

/// Adds an event, unless it is part of one that is there already; those that are part of it go on as it.
fn join(events: &mut Vec<HeldEvent>, mut new: HeldEvent) {
    let serials = |event: &HeldEvent| -> BTreeSet<String> {
        event.machines.iter().map(|machine| machine.serial.clone()).collect()
    };
    let of_new = serials(&new);
    if events.iter().any(|event| of_new.is_subset(&serials(event))) {
        return;
    }
    events.retain(|event| {
        let is_part = serials(event).is_subset(&of_new);
        if is_part {
            new.since = new.since.min(event.since);
        }
        !is_part
    });
    events.push(new);
    events.sort_unstable();
}

/// Keeps what is kept of a rack within its limits: too many events become one.
fn bound(hold: &mut Hold) {
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
    let Some(since) = hold.since().filter(|_| hold.events.len() > MAX_EVENTS || machines > MAX_MACHINES)
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
