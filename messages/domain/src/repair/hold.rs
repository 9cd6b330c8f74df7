//! Racks in which repairs are held back: the operator's settings, and the state of each rack in etcd.
//!
//! For: several machines of a rack that fail at about the same time have a common cause, such as power, which repairs
//! of single machines do not remove. The crate `madako-repair-queue` has the rule; other processes, operators' commands
//! and new leaders read and write this state (`madako/repair/holds/<the label's value>`).
//!
//! Machines are identified by serial and address, because a registry may give one serial to several machines, or
//! none. Does not make decisions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

use crate::machine::Machine;

/// The property that identifies a rack.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Label {
    /// The number of the rack, with the name `rack`.
    #[default]
    Rack,
    /// The value of a label in the registry.
    Named(String),
}

/// The name of the rack's number among labels.
const RACK: &str = "rack";

impl Label {
    /// The machine's value, such as `3`; `None` if the label is missing or empty.
    #[must_use]
    pub fn value<'m>(&self, machine: &'m Machine) -> Option<Cow<'m, str>> {
        match self {
            Self::Rack => Some(machine.spec.rack.to_string().into()),
            Self::Named(name) => {
                let label = machine.spec.labels.iter().find(|label| label.name == *name)?;
                (!label.value.is_empty()).then_some(label.value.as_str().into())
            }
        }
    }
}

impl From<String> for Label {
    fn from(name: String) -> Self {
        if name == RACK { Self::Rack } else { Self::Named(name) }
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        match label {
            Label::Rack => RACK.to_owned(),
            Label::Named(name) => name,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rack => f.write_str(RACK),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// The condition under which failures count as one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldSettings {
    /// The common property of the machines.
    pub label: Label,
    /// Minimum number of machines.
    pub count: usize,
    /// Maximum time between the changes of their states.
    #[serde(rename = "within_seconds", with = "crate::settings::seconds")]
    pub within: Duration,
}

impl HoldSettings {
    /// Default number of machines of a rack whose failures count as one event (seed: three).
    pub const COUNT: usize = 3;
    /// Default maximum time between these failures (seed: 10 minutes).
    pub const WITHIN: Duration = Duration::from_secs(600);
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self { label: Label::default(), count: Self::COUNT, within: Self::WITHIN }
    }
}

/// A reported machine of a rack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldReport {
    /// Time of the machine's change of state.
    #[serde(with = "time::serde::rfc3339")]
    pub changed: OffsetDateTime,
    /// Serial of the machine.
    pub serial: String,
    /// Address of the machine; empty if it has none.
    #[serde(default)]
    pub address: String,
    /// For a report of a released rack: the time since which answers lack the machine; `None` if the last answer had
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    pub absent: Option<OffsetDateTime>,
}

impl HeldReport {
    /// The identity of the machine: serial and address.
    #[must_use]
    pub fn identity(&self) -> (&str, &str) {
        (&self.serial, &self.address)
    }
}

/// Failures that count as one event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldEvent {
    /// Time of the detection.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The machines reported since then, by the time of their change.
    pub machines: Vec<HeldReport>,
}

/// The stored state of a rack.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// The property that identifies the rack.
    pub label: Label,
    /// The events that hold the rack; none after a release.
    #[serde(default)]
    pub events: Vec<HeldEvent>,
    /// Reports from before a release. They do not hold the rack again, even if they return after an answer without
    /// them.
    #[serde(default)]
    pub released: Vec<HeldReport>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// The stored states of racks, by the value of their label.
pub type Holds = BTreeMap<String, Arc<Hold>>;

impl Hold {
    /// True while repairs are held back.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.events.is_empty()
    }

    /// Start of the hold.
    #[must_use]
    pub fn held_since(&self) -> Option<OffsetDateTime> {
        self.events.iter().map(|event| event.since).min()
    }

    /// The machines of all events, each once, by serial and address.
    #[must_use]
    pub fn machines(&self) -> BTreeMap<(&str, &str), &HeldReport> {
        let machines = self.events.iter().flat_map(|event| &event.machines);
        machines.map(|machine| (machine.identity(), machine)).collect()
    }

    /// The serials of these machines, sorted.
    #[must_use]
    pub fn serials(&self) -> Vec<String> {
        self.machines().into_keys().map(|(serial, _)| serial.to_owned()).collect()
    }

    /// The number of these machines.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.events[..] {
            // An event has each machine once.
            [event] => event.machines.len(),
            _ => self.machines().len(),
        }
    }

    /// Releases the rack: the reports of its events do not hold it again. Returns true if it was held.
    pub fn release(&mut self) -> bool {
        let was_held = self.is_held();
        let who = |report: &HeldReport| (report.serial.clone(), report.address.clone());
        let mut released: BTreeMap<(String, String), HeldReport> =
            self.released.drain(..).map(|report| (who(&report), report)).collect();
        for report in self.events.drain(..).flat_map(|event| event.machines) {
            released.insert(who(&report), report);
        }
        self.released = released.into_values().collect();
        self.released.sort_unstable();
        was_held
    }
}
