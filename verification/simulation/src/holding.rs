//! Checks that the service holds racks as it must, by the registry's answers to the leader and by the store.
//!
//! The rule: once the leader has handled an answer in which [`HoldSettings::count`] machines of a rack, none of them
//! released, changed their state within [`HoldSettings::within`] of each other, no entry of a reported machine of
//! that rack begins while the store does not show a hold of the rack.
//!
//! The leader has handled an answer before a revision if it wrote another revision of the queue between them, since
//! it never has two writes in flight, or if the answer is older than any write in flight ([`HANDLED`]).
//!
//! An answer without a machine shows that the machine has recovered: only machines of the leader's newest answer count.
//!
//! Exemptions: a repair queue may not know earlier answers, because its leader is new, an actor failed, or the switch
//! for automatic requests changed ([`madako_judges::Exemption::ForgottenReports`]). The time of a change is uncertain
//! within a minute of the limit, and if answers differ on it, as after a correction of the registry's clock
//! ([`madako_judges::Exemption::UncertainFailures`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::repair::hold::{Hold, HoldSettings};
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::store::Entry;

use crate::requests::{Change, read_json};
use crate::world::SESSION_TTL;

/// Maximum time from an answer to a write that was decided before it: the lease has ended by then.
const HANDLED: Duration = Duration::from_secs(2 * SESSION_TTL.as_secs());

/// Maximum difference in seconds between two reported times of one change, as in the service.
const JITTER: f64 = 60.0;

/// Events within this time of each other have no known order.
const MOMENT: Duration = Duration::from_millis(10);

/// Times at which a machine changed its state, in seconds since the start, while every answer reports the machine.
#[derive(Clone, Copy)]
struct ReportedChange {
    first: f64,
    newest: f64,
    /// All answers agree on the time.
    is_certain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Failures {
    /// Failures of a rack certainly are one event.
    Certain,
    /// They may be one event, by one of the reported times of each machine.
    Possible,
}

#[derive(Clone)]
struct ReportedMachine {
    rack: i64,
    serial: String,
    changed: ReportedChange,
    /// Time of the leader's first answer with this machine.
    since: Duration,
    /// The service may have forgotten the answers with this machine.
    is_forgotten: bool,
}

/// The answers to one instance.
#[derive(Default)]
struct ReceivedReports {
    epoch: i64,
    /// The last answer, which may be unpublished.
    answer: Vec<Machine>,
    /// The newest published answer.
    reported: Vec<ReportedMachine>,
    /// Time at which the service may have forgotten all answers.
    forgot: Duration,
    /// Time until which the service may forget published answers.
    forgets_until: Duration,
}

impl ReceivedReports {
    fn forget(&mut self, now: Duration) {
        self.forgot = now;
        self.reported.iter_mut().for_each(|reported| reported.is_forgotten = true);
    }
}

/// The answers of the registry, and the writes to the queue.
#[derive(Default)]
pub struct HoldJudge {
    ears: BTreeMap<String, ReceivedReports>,
    changes: BTreeMap<String, ReportedChange>,
    /// The rack of each address that was ever reported.
    racks: BTreeMap<String, i64>,
    /// Revisions of the queue, with the time of their observation.
    written: Vec<(i64, Duration)>,
    /// Machines of racks that an answer requires to be held.
    pub machines_to_hold: u64,
}

/// An entry that began although its rack is not held; a violation only if the service wrote one of `if_ours`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnheldEntry {
    /// The entry, and the reason of the hold.
    pub what: String,
    /// `None`: the leader has handled the answer, whichever client wrote the revisions.
    pub if_ours: Option<Vec<i64>>,
    /// `None`: the service knows that the rack must be held.
    pub excuse: Option<HoldExemption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldExemption {
    /// Time since the service may have forgotten the answers.
    Forgotten(Duration),
    UncertainFailures,
}

impl HoldJudge {
    /// A new leader does not know the answers to earlier leaders.
    pub fn note_election(&mut self, name: &str, epoch: i64, now: Duration) {
        let earlier = self.ears.values().max_by_key(|ear| ear.epoch);
        let reported = earlier.map(|ear| ear.reported.clone()).unwrap_or_default();
        let mut ear = ReceivedReports { epoch, reported, ..ReceivedReports::default() };
        ear.forget(now);
        self.ears.insert(name.to_owned(), ear);
    }

    /// An actor of an instance failed: its current work is lost or still in progress.
    pub fn record_failure(&mut self, name: &str, now: Duration) {
        if let Some(ear) = self.ears.get_mut(name) {
            ear.forget(now);
            ear.forgets_until = now + HANDLED;
        }
    }

    /// The registry answered an instance with the machines to repair.
    pub fn record_answer(&mut self, name: &str, machines: Vec<Machine>) {
        if let Some(ear) = self.ears.get_mut(name) {
            ear.answer = machines;
        }
    }

    /// The instance published its last answer to its actors.
    pub fn note_publication(&mut self, name: &str, now: Duration) {
        let Some(ear) = self.ears.get_mut(name) else { return };
        let machines = std::mem::take(&mut ear.answer);
        let mut changes = BTreeMap::new();
        let forgets = now < ear.forgets_until;
        // A machine that the service hears of again is new to it.
        let before: BTreeMap<String, Duration> = ear
            .reported
            .drain(..)
            .filter(|reported| forgets || !reported.is_forgotten)
            .map(|reported| (reported.serial, reported.since))
            .collect();
        for machine in machines {
            let serial = machine.spec.serial.clone();
            let newest = now.as_secs_f64() - machine.status.duration;
            let known = self.changes.get(&serial).copied();
            let mut changed = known.unwrap_or(ReportedChange { first: newest, newest, is_certain: true });
            changed.newest = newest;
            changed.is_certain &= (changed.first - newest).abs() <= JITTER;
            changes.insert(serial.clone(), changed);
            self.racks.insert(machine.address().unwrap_or_default().to_owned(), machine.spec.rack);
            let since = before.get(&serial).copied().unwrap_or(now);
            let rack = machine.spec.rack;
            ear.reported.push(ReportedMachine { rack, serial, changed, since, is_forgotten: forgets });
        }
        self.changes = changes;
        let known = || ear.reported.iter().filter(|reported| !reported.is_forgotten);
        let racks: BTreeSet<i64> = known().map(|reported| reported.rack).collect();
        let asks =
            |rack: &i64| is_event(known().filter(|reported| reported.rack == *rack), Failures::Certain);
        self.machines_to_hold += racks.iter().filter(|rack| asks(rack)).count() as u64;
    }

    /// Entries that a revision begins although their racks must be held. `before` is the state before the revision.
    pub fn judge_revision(
        &mut self,
        revision: i64,
        before: &BTreeMap<String, Entry>,
        changes: &[Change],
        now: Duration,
    ) -> Vec<UnheldEntry> {
        let mut found = Vec::new();
        let entries = changes.iter().filter(|(key, _)| key.starts_with(keys::REPAIRS));
        for (key, after) in entries {
            let entry = |entry: &Entry| read_json::<RepairQueueEntry>(entry);
            let (was, is) = (before.get(key).and_then(entry), after.as_ref().and_then(entry));
            let began = |entry: &RepairQueueEntry| entry.status == RepairStatus::Processing;
            if let Some(entry) = is.filter(began)
                && !was.is_some_and(|was| began(&was))
                && let Some(unheld) = self.find_unheld_entry(before, &entry.address, now)
            {
                found.push(UnheldEntry {
                    what: format!("{key} begins for {}: {}", entry.address, unheld.what),
                    ..unheld
                });
            }
        }
        if changes.iter().any(|(key, _)| key == keys::AUTO_REPAIR_DISABLED) {
            self.ears.values_mut().for_each(|ear| ear.forget(now));
        }
        let queue = [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REPAIR_HOLDS];
        if changes.iter().any(|(key, _)| queue.iter().any(|prefix| key.starts_with(prefix))) {
            self.written.push((revision, now));
        }
        found
    }

    fn find_unheld_entry(
        &self,
        before: &BTreeMap<String, Entry>,
        address: &str,
        now: Duration,
    ) -> Option<UnheldEntry> {
        let disabled =
            before.get(keys::AUTO_REPAIR_DISABLED).is_some_and(|entry| &entry.value[..] == b"true");
        let leader = before
            .iter()
            .filter(|(key, _)| key.starts_with(keys::LEADER))
            .map(|(_, entry)| entry.create_revision)
            .min()?;
        let ear = self.ears.values().find(|ear| ear.epoch == leader).filter(|_| !disabled)?;
        let rack = *self.racks.get(address)?;
        let hold = before
            .get(&keys::repair_hold_key(&rack.to_string()))
            .and_then(read_json::<Hold>)
            .unwrap_or_default();
        if hold.is_held() {
            return None;
        }
        let released: BTreeSet<&str> = hold.released.iter().map(|report| report.serial.as_str()).collect();
        let failed: Vec<&ReportedMachine> = ear
            .reported
            .iter()
            .filter(|reported| reported.rack == rack && !released.contains(reported.serial.as_str()))
            .collect();
        let known: Vec<&ReportedMachine> =
            failed.iter().copied().filter(|reported| !reported.is_forgotten).collect();
        let forgotten = HoldExemption::Forgotten(now.saturating_sub(ear.forgot));
        [
            (&known, Failures::Certain, None),
            (&failed, Failures::Certain, Some(forgotten)),
            (&failed, Failures::Possible, Some(HoldExemption::UncertainFailures)),
        ]
        .into_iter()
        .find_map(|(machines, failures, excuse)| {
            let (what, if_ours) = self.find_unheld((machines, failures), rack, now)?;
            Some(UnheldEntry { what, if_ours, excuse })
        })
    }

    /// A violation if the leader may have handled an answer with enough of these machines of an unheld rack, and
    /// [`UnheldEntry::if_ours`].
    fn find_unheld(
        &self,
        (failed, failures): (&[&ReportedMachine], Failures),
        rack: i64,
        now: Duration,
    ) -> Option<(String, Option<Vec<i64>>)> {
        let known_at = |at: Duration| {
            is_event(failed.iter().copied().filter(|reported| reported.since + MOMENT < at), failures)
        };
        let what = format!("the registry reported that rack {rack} failed, and it is not held");
        if known_at(now.saturating_sub(HANDLED)) {
            return Some((what, None));
        }
        let ours: Vec<i64> = self
            .written
            .iter()
            .rev()
            .take_while(|(_, at)| *at + HANDLED >= now)
            .filter(|(_, at)| known_at(*at))
            .map(|(revision, _)| *revision)
            .collect();
        (!ours.is_empty()).then_some((what, Some(ours)))
    }
}

/// True if enough of these machines changed within the time limit.
fn is_event<'a>(machines: impl Iterator<Item = &'a ReportedMachine>, failures: Failures) -> bool {
    let HoldSettings { count, within, .. } = HoldSettings::default();
    let is_certain = failures == Failures::Certain;
    let limit = within.as_secs_f64() + if is_certain { -JITTER } else { JITTER };
    let counted = machines.filter(|reported| !is_certain || reported.changed.is_certain);
    let changes = counted.flat_map(|ReportedMachine { serial, changed, .. }| {
        let times = if is_certain { [changed.first; 2] } else { [changed.first, changed.newest] };
        times.map(|at| (at, &**serial))
    });
    let mut changes: Vec<(f64, &str)> = changes.collect();
    changes.sort_by(|(at, _), (other, _)| at.total_cmp(other));
    (0..changes.len()).any(|first| {
        let window = changes[first..].iter().take_while(|(at, _)| at - changes[first].0 <= limit);
        window.map(|(_, serial)| serial).collect::<BTreeSet<_>>().len() >= count
    })
}
