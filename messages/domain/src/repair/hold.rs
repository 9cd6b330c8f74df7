//! Racks in which repairs are held back: what an operator sets, and what is kept in etcd of each rack.
//!
//! For: several machines of a rack that fail at about the same time have one cause, such as its power, that
//! repairs of single machines do not mend. The rule is a brain of the repair queue; this is what another process,
//! an operator's command or a new leader reads and writes (`madako/repair/holds/<the label's value>`).
//!
//! Machines are told apart by serial and address: a registry may give one serial to several, or none. Does not: decide.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

use crate::machine::Machine;

/// How racks are told from each other.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Label {
    /// By the number of the rack; it is called `rack`.
    #[default]
    Rack,
    /// By the value of a label that machines have in the registry.
    Named(String),
}

/// What the number of the rack is called among labels.
const RACK: &str = "rack";

impl Label {
    /// The value that a machine has, such as `3`. A label that is missing or empty is none.
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

/// When failures are one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldSettings {
    /// What the machines have in common.
    pub label: Label,
    /// How many machines at least.
    pub count: usize,
    /// How far apart the changes of their states are at most.
    #[serde(rename = "within_seconds", with = "crate::settings::seconds")]
    pub within: Duration,
}

impl HoldSettings {
    /// Machines of one rack whose failures are one event (seed: three).
    pub const COUNT: usize = 3;
    /// How far apart these failures are at most (seed: 10 minutes).
    pub const WITHIN: Duration = Duration::from_secs(600);
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self { label: Label::default(), count: Self::COUNT, within: Self::WITHIN }
    }
}

/// A machine that is reported, and since when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldReport {
    /// When its state changed.
    #[serde(with = "time::serde::rfc3339")]
    pub changed: OffsetDateTime,
    /// Its serial.
    pub serial: String,
    /// Its address; empty when it has none.
    #[serde(default)]
    pub address: String,
    /// Of a report that a rack was released for: since when answers lack its machine; `None`: the last one had it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    pub absent: Option<OffsetDateTime>,
}

impl HeldReport {
    /// Who it is of: serial and address.
    #[must_use]
    pub fn who(&self) -> (&str, &str) {
        (&self.serial, &self.address)
    }
}

/// Failures that are one event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldEvent {
    /// When it was noticed.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The machines that are reported ever since, by the time of their change.
    pub machines: Vec<HeldReport>,
}

/// What is kept of a rack.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    /// What the rack is a value of.
    pub label: Label,
    /// The events that hold it; none after a release.
    #[serde(default)]
    pub events: Vec<HeldEvent>,
    /// Reports that it was released for, and that do not hold it again, also where they come back after an answer without them.
    #[serde(default)]
    pub released: Vec<HeldReport>,
    /// What a newer version keeps beside.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// What is kept of racks, by the value of their label.
pub type Holds = BTreeMap<String, Arc<Hold>>;

impl Hold {
    /// Whether repairs are held back.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.events.is_empty()
    }

    /// Since when they are.
    #[must_use]
    pub fn since(&self) -> Option<OffsetDateTime> {
        self.events.iter().map(|event| event.since).min()
    }

    /// The machines of all events, each once, by serial and address.
    #[must_use]
    pub fn machines(&self) -> BTreeMap<(&str, &str), &HeldReport> {
        let machines = self.events.iter().flat_map(|event| &event.machines);
        machines.map(|machine| (machine.who(), machine)).collect()
    }

    /// Their serials, in order.
    #[must_use]
    pub fn serials(&self) -> Vec<String> {
        self.machines().into_keys().map(|(serial, _)| serial.to_owned()).collect()
    }

    /// How many machines that are.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.events[..] {
            // An event has each machine once.
            [event] => event.machines.len(),
            _ => self.machines().len(),
        }
    }

    /// Lets the rack go: the reports of its events do not hold it again. Whether it was held.
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
