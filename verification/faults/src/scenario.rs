//! A scenario and its parts, as plain data in the form that a file has.

use madako_json::input::{InputError, Problems};
use serde::{Serialize, Serializer};

use crate::fault::Fault;
use crate::name::named;
use crate::read::{self, MAX_FAULTS};
use crate::span::Span;
use crate::verdict::Counts;
use crate::words::in_world;

/// A world, its clients, its faults, and what is expected. Written as JSON it is a file that reads as the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Scenario {
    /// Its name, which can be a file's name.
    pub name: String,
    /// What there is.
    pub world: World,
    /// Who works with it meanwhile; at most one of each kind.
    pub clients: Vec<Client>,
    /// What happens to it.
    pub faults: Vec<Fault>,
    /// What is expected of it.
    pub expect: Expect,
}

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct World {
    /// Processes of the service.
    pub instances: u32,
    /// Machines of the data center, dealt out over its racks.
    pub machines: u32,
    /// Racks, counted from 0.
    pub racks: u32,
    /// Clusters that applications are placed on.
    pub clusters: u32,
    /// Applications to place.
    pub applications: u32,
    /// What keeps the state.
    pub store: Store,
}

/// The world that the project's own runs are measured with: small enough for thousands of runs, and each rack has ten
/// machines, so that one that is lost is more than the removal guard lets pass.
impl Default for World {
    fn default() -> Self {
        Self { instances: 3, machines: 60, racks: 6, clusters: 4, applications: 30, store: Store::Embedded }
    }
}

impl World {
    /// Whether there is anything to place, so that the actors and providers of placement run.
    #[must_use]
    pub fn places(&self) -> bool {
        self.clusters > 0 || self.applications > 0
    }
}

/// What keeps the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// The embedded store: one member.
    Embedded,
    /// A real etcd of three members.
    Etcd,
}

named!(Store: Embedded = "embedded", Etcd = "etcd");

impl Store {
    /// How many members it has, counted from 1. Three is what a small production etcd has.
    #[must_use]
    pub fn members(self) -> u32 {
        match self {
            Self::Embedded => 1,
            Self::Etcd => 3,
        }
    }
}

/// Who works with the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// Reads and writes of resources, through the API of placement.
    Placement,
    /// Watches of the store and writes to it, as ckecli does them.
    EtcdWatch,
    /// Searches and changes of machines in the registry.
    Registry,
    /// Writes to what an instance has just read and is about to write over.
    Rivals,
    /// Reboots, which operators ask for and CKE carries out, beside the records that CKE has left.
    Reboots,
}

named!(ClientKind: Placement = "placement", EtcdWatch = "etcd-watch", Registry = "registry", Rivals = "rivals",
    Reboots = "reboots");

impl ClientKind {
    /// Whether only a simulation has such clients.
    #[must_use]
    pub fn is_simulated_only(self) -> bool {
        matches!(self, Self::Rivals | Self::Reboots)
    }
}

/// Clients of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Client {
    /// What they do.
    pub kind: ClientKind,
    /// How often, all of them together.
    pub rate: Rate,
}

/// Requests a second, to a thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    /// So many requests in a thousand seconds.
    #[must_use]
    pub const fn per_thousand_seconds(requests: u32) -> Self {
        Self(requests)
    }

    /// A number of requests a second; `None` unless it is one of whole thousandths that fits.
    pub(crate) fn from_number(number: f64) -> Option<Self> {
        let thousandths = (number * 1000.0).round();
        if !(0.0..=f64::from(u32::MAX)).contains(&thousandths) || thousandths / 1000.0 != number {
            return None;
        }
        // In range and whole by the line above.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number that was compared with the bounds"
        )]
        Some(Self(thousandths as u32))
    }

    /// Requests a second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u32(self.0 / 1000)
        } else {
            serializer.serialize_f64(self.per_second())
        }
    }
}

/// What is expected of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Expect {
    /// How long after the last fault everything is calm; without it, what the settings of the run allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calm_within: Option<Span>,
    /// How much must have happened, or the run shows nothing; 0 asks for nothing.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub at_least: Counts,
}

impl Scenario {
    /// Reads a scenario from YAML or JSON.
    ///
    /// # Errors
    /// All that is wrong, each with its line and what was expected there.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        read::scenario(text, None)
    }

    /// Reads a scenario that is played in a world that is there already: of its own, only the number of instances counts.
    ///
    /// # Errors
    /// As [`Scenario::parse`] has them; that world must have its targets.
    pub fn parse_in(text: &str, world: &World) -> Result<Self, InputError> {
        read::scenario(text, Some(world))
    }

    /// Adds a fault, as `--fault` does.
    ///
    /// # Errors
    /// The world has no such target, or there are too many faults.
    pub fn add(&mut self, fault: Fault) -> Result<(), InputError> {
        let mut problems = Problems::default();
        if self.faults.len() >= MAX_FAULTS {
            problems.add("", "one more", format!("at most {MAX_FAULTS} faults"));
        }
        if let Err(expected) = in_world(&fault, &self.world) {
            problems.add("target", fault.target.to_string(), expected);
        }
        problems.finish(&format!("fault {:?}", fault.to_string()))?;
        self.faults.push(fault);
        Ok(())
    }
}
