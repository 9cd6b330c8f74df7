//! Judges whether racks are held that should be, by what the registry answered to the leader and what is stored.
//!
//! The rule: an answer in which [`HoldSettings::count`] machines of a rack changed their state within [`HoldSettings::within`] of each
//! other, none of them released, was handled; from then on no entry of a reported machine of that rack begins while the store
//! does not say that the rack is held.
//!
//! An answer counts as handled by a revision if the leader wrote another one of the queue between them, since it never has two under
//! way, or if longer ago than any write is under way ([`HANDLED`]).
//!
//! What it lets pass, since only the service knows what it remembers: machines whose time of change was told differently since they
//! are reported, as when the registry's clock is set; changes that are closer than a minute to the limit; the time right after an
//! actor failed, a leader was elected or the requests were switched; and machines of the rack that are not in the leader's newest
//! answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::keys;
use madako_domain::machine::Machine;
use madako_domain::repair::hold::{Hold, HoldSettings};
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_domain::store::Entry;

use crate::requests::{Change, read};
use crate::world::SESSION_TTL;

/// No write that was decided on before an answer is carried out so long after it: its lease has ended.
const HANDLED: Duration = Duration::from_secs(2 * SESSION_TTL.as_secs());

/// Times that one change is told with differ by no more: what the service takes for the same.
const JITTER: f64 = 60.0;

/// What happens at one moment happens in some order.
const MOMENT: Duration = Duration::from_millis(10);

/// A machine of an answer.
#[derive(Clone)]
struct ReportedMachine {
    rack: i64,
    address: String,
    serial: String,
    /// When its state changed, in seconds since the start; `None`: that was told differently.
    changed: Option<f64>,
    /// When the leader was told of it first.
    since: Duration,
}

/// What an instance was told.
#[derive(Default)]
struct Ear {
    epoch: i64,
    /// The answer that came last and may not be published yet.
    answer: Vec<Machine>,
    /// The newest that was.
    told: Vec<ReportedMachine>,
    /// Nothing that is published before this is relied on.
    deaf_until: Duration,
}

/// What answers said, and when the queue was written.
#[derive(Default)]
pub struct Holding {
    ears: BTreeMap<String, Ear>,
    /// What each machine's change was told to be at first, since it is reported without a gap; `None`: differently since.
    first: BTreeMap<String, Option<f64>>,
    /// Revisions of the queue, and when they were seen.
    written: Vec<(i64, Duration)>,
    /// Machines of racks that an answer asked to be held.
    pub asked: u64,
}

/// An entry that began though its rack is not held, if the service wrote one of these revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    /// What began, and why it should not have.
    pub what: String,
    /// `None`: whoever wrote, the answer was handled.
    pub if_ours: Option<Vec<i64>>,
}

impl Holding {
    /// An instance was elected.
    pub fn elected(&mut self, name: &str, epoch: i64) {
        self.ears.insert(name.to_owned(), Ear { epoch, ..Ear::default() });
    }

    /// An actor of an instance failed: what it was about to do is not done, or still under way.
    pub fn failed(&mut self, name: &str, now: Duration) {
        if let Some(ear) = self.ears.get_mut(name) {
            ear.told.clear();
            ear.deaf_until = now + HANDLED;
        }
    }

    /// The registry answered an instance which machines should be repaired.
    pub fn answered(&mut self, name: &str, machines: Vec<Machine>) {
        if let Some(ear) = self.ears.get_mut(name) {
            ear.answer = machines;
        }
    }

    /// The instance made its last answer known to its actors.
    pub fn published(&mut self, name: &str, now: Duration) {
        let Some(ear) = self.ears.get_mut(name) else { return };
        let machines = std::mem::take(&mut ear.answer);
        let mut first = BTreeMap::new();
        let before: BTreeMap<String, Duration> =
            ear.told.drain(..).map(|told| (told.serial, told.since)).collect();
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
            if now >= ear.deaf_until {
                ear.told.push(ReportedMachine { rack: machine.spec.rack, address, serial, changed, since });
            }
        }
        self.first = first;
        let racks: BTreeSet<i64> = ear.told.iter().map(|told| told.rack).collect();
        let told = &ear.told;
        let asks = |rack: &i64| is_event(told.iter().filter(|told| told.rack == *rack));
        self.asked += racks.iter().filter(|rack| asks(rack)).count() as u64;
    }

    /// Entries that a revision begins though their racks should be held, by what was stored before it.
    pub fn judge(
        &mut self,
        revision: i64,
        before: &BTreeMap<String, Entry>,
        changes: &[Change],
        now: Duration,
    ) -> Vec<Unheld> {
        let mut found = Vec::new();
        let entries = changes.iter().filter(|(key, _)| key.starts_with(keys::REPAIRS));
        for (key, after) in entries {
            let entry = |entry: &Entry| read::<RepairQueueEntry>(entry);
            let (was, is) = (before.get(key).and_then(entry), after.as_ref().and_then(entry));
            let began = |entry: &RepairQueueEntry| entry.status == RepairStatus::Processing;
            if let Some(entry) = is.filter(began)
                && !was.is_some_and(|was| began(&was))
                && let Some(unheld) = self.unheld(before, &entry.address, now)
            {
                found.push(Unheld {
                    what: format!("{key} begins for {}: {}", entry.address, unheld.what),
                    ..unheld
                });
            }
        }
        if changes.iter().any(|(key, _)| key == keys::AUTO_REPAIR_DISABLED) {
            self.ears.values_mut().for_each(|ear| ear.told.clear());
        }
        let queue = [keys::REPAIRS, keys::REPAIR_KEPT, keys::RECORDS, keys::REPAIR_HOLDS];
        if changes.iter().any(|(key, _)| queue.iter().any(|prefix| key.starts_with(prefix))) {
            self.written.push((revision, now));
        }
        found
    }

    fn unheld(&self, before: &BTreeMap<String, Entry>, address: &str, now: Duration) -> Option<Unheld> {
        let disabled =
            before.get(keys::AUTO_REPAIR_DISABLED).is_some_and(|entry| &entry.value[..] == b"true");
        let leader = before
            .iter()
            .filter(|(key, _)| key.starts_with(keys::LEADER))
            .map(|(_, entry)| entry.create_revision)
            .min()?;
        let ear = self.ears.values().find(|ear| ear.epoch == leader).filter(|_| !disabled)?;
        let rack = ear.told.iter().find(|told| told.address == address)?.rack;
        let hold =
            before.get(&keys::repair_hold(&rack.to_string())).and_then(read::<Hold>).unwrap_or_default();
        if hold.is_held() {
            return None;
        }
        let released: BTreeSet<&str> = hold.released.iter().map(|report| report.serial.as_str()).collect();
        let failed: Vec<&ReportedMachine> = ear
            .told
            .iter()
            .filter(|told| told.rack == rack && !released.contains(told.serial.as_str()))
            .collect();
        let known_at =
            |at: Duration| is_event(failed.iter().copied().filter(|told| told.since + MOMENT < at));
        let what = format!("the registry told that rack {rack} failed, and it is not held");
        if known_at(now.saturating_sub(HANDLED)) {
            return Some(Unheld { what, if_ours: None });
        }
        let ours: Vec<i64> = self
            .written
            .iter()
            .rev()
            .take_while(|(_, at)| *at + HANDLED >= now)
            .filter(|(_, at)| known_at(*at))
            .map(|(revision, _)| *revision)
            .collect();
        (!ours.is_empty()).then_some(Unheld { what, if_ours: Some(ours) })
    }
}

/// Whether enough of these machines changed close enough to each other.
fn is_event<'a>(machines: impl Iterator<Item = &'a ReportedMachine>) -> bool {
    let HoldSettings { count, within, .. } = HoldSettings::default();
    let mut changed: Vec<f64> = machines.filter_map(|told| told.changed).collect();
    changed.sort_by(f64::total_cmp);
    changed.windows(count).any(|window| window[count - 1] - window[0] <= within.as_secs_f64() - JITTER)
}
