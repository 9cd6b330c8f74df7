//! Checks that the service holds racks as it must, by the registry's answers to the leader and by the store.
//!
//! The rule: once the leader has handled an answer in which [`HoldSettings::count`] machines of a rack, none of them
//! released, changed their state within [`HoldSettings::within`] of each other, no entry of a reported machine of
//! that rack begins while the store does not show a hold of the rack.
//!
//! The leader has handled an answer before a revision if it wrote another revision of the queue between them, since
//! it never has two writes in flight, or if the answer is older than any write in flight ([`HANDLED`]).
//!
//! Answers that a repair queue may have forgotten, because an actor failed or the switch for automatic requests
//! changed, are an exemption: [`madako_judges::Exemption::ForgottenReports`].
//!
//! Does not judge, because only the service knows its memory: machines that later answers report with another time of
//! change, as after a correction of the registry's clock; changes within a minute of the limit; answers to an earlier
//! leader; and machines of the rack that are not in the leader's newest answer.

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

#[derive(Clone)]
struct ReportedMachine {
    rack: i64,
    address: String,
    serial: String,
    /// Time of its change of state, in seconds since the start; `None` if later answers differ.
    changed: Option<f64>,
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
    told: Vec<ReportedMachine>,
    /// Time at which the service may have forgotten all answers.
    forgot: Duration,
    /// Time until which the service may forget published answers.
    forgets_until: Duration,
}

impl ReceivedReports {
    fn forget(&mut self, now: Duration) {
        self.forgot = now;
        self.told.iter_mut().for_each(|told| told.is_forgotten = true);
    }
}

/// The answers of the registry, and the writes to the queue.
#[derive(Default)]
pub struct HoldJudge {
    ears: BTreeMap<String, ReceivedReports>,
    /// First reported time of each machine's change, while every answer reports the machine; `None` if later answers
    /// differ.
    first: BTreeMap<String, Option<f64>>,
    /// Revisions of the queue, with the time of their observation.
    written: Vec<(i64, Duration)>,
    /// Machines of racks that an answer requires to be held.
    pub asked: u64,
}

/// An entry that began although its rack is not held; a violation only if the service wrote one of `if_ours`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnheldEntry {
    /// The entry, and the reason of the hold.
    pub what: String,
    /// `None`: the leader has handled the answer, whichever client wrote the revisions.
    pub if_ours: Option<Vec<i64>>,
    /// Time since the service may have forgotten the answer; `None`: it knows the answer.
    pub forgotten_for: Option<Duration>,
}

impl HoldJudge {
    pub fn note_election(&mut self, name: &str, epoch: i64) {
        self.ears.insert(name.to_owned(), ReceivedReports { epoch, ..ReceivedReports::default() });
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
        let mut first = BTreeMap::new();
        let forgets = now < ear.forgets_until;
        // A machine that the service hears of again is new to it.
        let before: BTreeMap<String, Duration> = ear
            .told
            .drain(..)
            .filter(|told| forgets || !told.is_forgotten)
            .map(|told| (told.serial, told.since))
            .collect();
        for machine in machines {
            let serial = machine.spec.serial.clone();
            let told = now.as_secs_f64() - machine.status.duration;
            let changed = match self.first.get(&serial) {
                Some(known) => known.filter(|known| (known - told).abs() <= JITTER),
                None => Some(told),
            };
            first.insert(serial.clone(), changed);
            let address = machine.address().unwrap_or_default().to_owned();
            let since = before.get(&serial).copied().unwrap_or(now);
            let rack = machine.spec.rack;
            ear.told.push(ReportedMachine { rack, address, serial, changed, since, is_forgotten: forgets });
        }
        self.first = first;
        let known = || ear.told.iter().filter(|told| !told.is_forgotten);
        let racks: BTreeSet<i64> = known().map(|told| told.rack).collect();
        let asks = |rack: &i64| is_event(known().filter(|told| told.rack == *rack));
        self.asked += racks.iter().filter(|rack| asks(rack)).count() as u64;
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
        let rack = ear.told.iter().find(|told| told.address == address)?.rack;
        let hold = before
            .get(&keys::repair_hold_key(&rack.to_string()))
            .and_then(read_json::<Hold>)
            .unwrap_or_default();
        if hold.is_held() {
            return None;
        }
        let released: BTreeSet<&str> = hold.released.iter().map(|report| report.serial.as_str()).collect();
        let failed: Vec<&ReportedMachine> = ear
            .told
            .iter()
            .filter(|told| told.rack == rack && !released.contains(told.serial.as_str()))
            .collect();
        let known: Vec<&ReportedMachine> = failed.iter().copied().filter(|told| !told.is_forgotten).collect();
        // The entry's own machine is among the machines that the service knows.
        let knows = known.iter().any(|told| told.address == address);
        let found = if knows { self.find_unheld(&known, rack, now) } else { None };
        found.or_else(|| {
            let forgotten_for = Some(now.saturating_sub(ear.forgot));
            Some(UnheldEntry { forgotten_for, ..self.find_unheld(&failed, rack, now)? })
        })
    }

    /// A violation if the leader may have handled an answer with enough of these machines of an unheld rack.
    fn find_unheld(&self, failed: &[&ReportedMachine], rack: i64, now: Duration) -> Option<UnheldEntry> {
        let known_at =
            |at: Duration| is_event(failed.iter().copied().filter(|told| told.since + MOMENT < at));
        let what = format!("the registry told that rack {rack} failed, and it is not held");
        if known_at(now.saturating_sub(HANDLED)) {
            return Some(UnheldEntry { what, if_ours: None, forgotten_for: None });
        }
        let ours: Vec<i64> = self
            .written
            .iter()
            .rev()
            .take_while(|(_, at)| *at + HANDLED >= now)
            .filter(|(_, at)| known_at(*at))
            .map(|(revision, _)| *revision)
            .collect();
        (!ours.is_empty()).then_some(UnheldEntry { what, if_ours: Some(ours), forgotten_for: None })
    }
}

/// True if enough of these machines changed within the time limit.
fn is_event<'a>(machines: impl Iterator<Item = &'a ReportedMachine>) -> bool {
    let HoldSettings { count, within, .. } = HoldSettings::default();
    let mut changed: Vec<f64> = machines.filter_map(|told| told.changed).collect();
    changed.sort_by(f64::total_cmp);
    changed.windows(count).any(|window| window[count - 1] - window[0] <= within.as_secs_f64() - JITTER)
}
