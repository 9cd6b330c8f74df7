//! What is seen of the service from outside.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::machine::MachineState;
use serde::{Deserialize, Serialize};

/// Time since the beginning of a run, by the judge's clock.
pub type At = Duration;

/// A part of the world that faults can happen to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An instance, by the host name that it leads under.
    Instance(String),
    /// The store.
    Store,
    /// The registry of machines.
    Registry,
    /// The providers of metrics.
    Providers,
    /// The hosts that commands run on.
    Hosts,
}

/// What an instance asks the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Which machines there are.
    Machines,
    /// Which machines should be repaired.
    Reports,
}

/// A key that a revision wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key without the prefix of the service, or the whole key where it lacks that.
    pub key: String,
    /// `None`: it was deleted.
    pub value: Option<Arc<[u8]>>,
}

/// A machine in an answer of the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSeen {
    /// Its first address.
    pub address: String,
    /// Its state.
    pub state: MachineState,
    /// Since when, by the registry.
    pub since: At,
}

/// What a command on a host is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    /// A step of a repair.
    Repair,
    /// The command after a repair that succeeded.
    Success,
    /// A look at the machine's health.
    HealthCheck,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A revision of the store, whole.
    Stored {
        /// Its number.
        revision: i64,
        /// The keys that it wrote.
        changes: Vec<Change>,
    },
    /// A user was told that a write of its own became this revision.
    ByUser {
        /// The revision.
        revision: i64,
    },
    /// A request of an instance reached the registry.
    Polled {
        /// The instance.
        instance: String,
        /// What it asked.
        question: Question,
    },
    /// A good answer of the registry reached an instance.
    Answered {
        /// The instance.
        instance: String,
        /// What it had asked.
        question: Question,
        /// The machines with an address.
        machines: Arc<Vec<MachineSeen>>,
    },
    /// A request of an instance reached a provider of metrics.
    Fetched {
        /// The instance.
        instance: String,
        /// What was asked for: two requests for the same metric have the same text.
        what: String,
    },
    /// A provider was asked for a metric.
    Provided {
        /// The metric.
        metric: String,
        /// Whether it answered with a value that can be used.
        good: bool,
    },
    /// A command begins on the host of an instance.
    Began {
        /// The instance.
        instance: String,
        /// What the command is for.
        command: Command,
        /// Address of the machine.
        address: String,
    },
    /// A command ended.
    Ended {
        /// The instance.
        instance: String,
        /// What the command was for.
        command: Command,
        /// Address of the machine.
        address: String,
        /// A repair: it exited with 0. A health check: it said that the machine is healthy.
        good: bool,
    },
    /// An instance used a permit.
    Permitted {
        /// The instance.
        instance: String,
        /// When the permit ends.
        until: At,
        /// When the store ends the lease of the epoch unless it is renewed.
        lease_ends: At,
    },
    /// Kubernetes was asked to end a pod.
    PodEnds {
        /// Whether its namespace is protected.
        protected: bool,
        /// Whether it was deleted, past its disruption budget.
        deleted: bool,
        /// Whether a disruption budget forbade it.
        refused: bool,
        /// What is told of it.
        pod: String,
    },
    /// A request to placement's API that names the version it is about was answered.
    Conditional {
        /// The key of the resource in the store.
        key: String,
        /// The version that the client named.
        version: i64,
        /// The HTTP status.
        status: u16,
        /// The version after the request, as the answer tells.
        after: Option<i64>,
    },
    /// A transaction of a client with several conditions was answered.
    Transacted {
        /// Whether every condition held.
        held: bool,
        /// Whether its writes were done.
        written: bool,
    },
    /// A user made a cluster by far the best one for an application.
    Improved {
        /// Key of the application in the store.
        application: String,
        /// Name of that cluster.
        cluster: String,
    },
    /// A fault begins or ends.
    Troubled {
        /// What it happens to.
        place: Place,
        /// Whether its clock alone is wrong.
        clock: bool,
        /// Whether it begins.
        begins: bool,
    },
}
