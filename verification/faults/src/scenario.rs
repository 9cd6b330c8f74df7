//! A scenario and its parts as plain data, in the form of a scenario file.

use madako_json::input::{InputError, Problems};
use madako_json::named;
use serde::{Serialize, Serializer};
use strum::{Display, EnumString, IntoStaticStr, VariantArray, VariantNames};

use crate::fault::Fault;
use crate::read::{self, MAX_FAULTS};
use crate::span::Span;
use crate::verdict::Counts;
use crate::words::check_target_exists;

/// Serialized as JSON, it is a file that reads as the same scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Scenario {
    /// Valid as a file name.
    pub name: String,
    pub world: World,
    /// At most one of each kind.
    pub clients: Vec<Client>,
    pub faults: Vec<Fault>,
    pub expect: Expectations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct World {
    pub instances: u32,
    /// Distributed over the racks.
    pub machines: u32,
    /// Racks are numbered from 0.
    pub racks: u32,
    /// Clusters for the placement of applications.
    pub clusters: u32,
    pub applications: u32,
    pub store: Store,
    pub operations: Operations,
}

/// The world that the project's own runs are measured with: small enough for thousands of runs. Each rack has ten
/// machines, so that the loss of one rack exceeds what the removal guard lets pass.
impl Default for World {
    fn default() -> Self {
        Self {
            instances: 3,
            machines: 60,
            racks: 6,
            clusters: 4,
            applications: 30,
            store: Store::Embedded,
            operations: Operations::Off,
        }
    }
}

impl World {
    /// True if the world has clusters or applications, so that the actors and providers of placement run.
    #[must_use]
    pub fn places_applications(&self) -> bool {
        self.clusters > 0 || self.applications > 0
    }

    /// True if machines are nodes on which the service acts.
    #[must_use]
    pub fn runs_operations(&self) -> bool {
        self.operations != Operations::Off
    }

    /// True if the service also keeps the components of Kubernetes on the nodes.
    #[must_use]
    pub fn runs_kubernetes(&self) -> bool {
        self.operations == Operations::Kubernetes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Operations {
    /// Machines are entries of the registry. YAML 1.1 would read the word off as false.
    #[serde(rename = "none")]
    #[strum(serialize = "none")]
    Off,
    /// Each machine is a node with containers, volumes and members of etcd; only a simulation has nodes.
    Act,
    /// As [`Self::Act`], and the service also keeps the components of Kubernetes on the nodes.
    Kubernetes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, EnumString, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Store {
    Embedded,
    /// A real etcd of three members.
    Etcd,
}

impl Store {
    /// Three is the size of a small production etcd.
    #[must_use]
    pub fn members(self) -> u32 {
        match self {
            Self::Embedded => 1,
            Self::Etcd => 3,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, EnumString, IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum ClientKind {
    /// Reads and writes resources through the API of placement.
    Placement,
    /// Watches the store and writes to it as ckecli does.
    EtcdWatch,
    /// Searches and changes machines in the registry.
    Registry,
    /// Writes keys that an instance has just read and is about to write.
    Rivals,
    /// Requests reboots as operators do, and carries them out as CKE does, beside the records that CKE has left.
    Reboots,
    /// Accidents that no fault of a schedule makes: of Kubernetes, of single machines, of the registry's reports, of operators.
    Saboteurs,
}

named!(ClientKind all);

impl ClientKind {
    #[must_use]
    pub fn is_simulated_only(self) -> bool {
        matches!(self, Self::Rivals | Self::Reboots | Self::Saboteurs)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Client {
    pub kind: ClientKind,
    /// Rate of all clients of the kind together.
    pub rate: Rate,
}

/// Requests a second, to a thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    #[must_use]
    pub const fn per_thousand_seconds(requests: u32) -> Self {
        Self(requests)
    }

    /// `None` unless the rate is a whole number of thousandths that fits.
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

/// Conditions that a run must meet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Expectations {
    /// Time from the last fault until the world is calm; `None`: the time that the settings of the run allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calm_within: Option<Span>,
    /// Least counts, below which the run shows nothing; 0 imposes no bound.
    #[serde(skip_serializing_if = "Counts::is_empty")]
    pub at_least: Counts,
}

impl Scenario {
    /// Reads a scenario from YAML or JSON.
    ///
    /// # Errors
    /// All problems, each with its line and the expected form.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        read::read_scenario(text, None)
    }

    /// Reads a scenario that is played in an existing world: of the scenario's own world only the number of instances
    /// counts.
    ///
    /// # Errors
    /// As for [`Scenario::parse`]; the existing world must have the targets.
    pub fn parse_in(text: &str, world: &World) -> Result<Self, InputError> {
        read::read_scenario(text, Some(world))
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
        if let Err(expected) = check_target_exists(&fault, &self.world) {
            problems.add("target", fault.target.to_string(), expected);
        }
        problems.finish(&format!("fault {:?}", fault.to_string()))?;
        self.faults.push(fault);
        Ok(())
    }
}
