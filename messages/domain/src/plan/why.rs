//! The reasons of a plan as data; the sentences that people read are made of them in [`sentence`].
//!
//! A plan of 90,000 workers holds as many reasons, so the variants that come once a machine are small
//! and share their strings.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{Action, Part};
use crate::machine::{BadLabel, MachineState};

mod sentence;

/// Why a rule fired or did not, or why a machine was chosen for it.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    /// There is no cluster yet.
    NoCluster,
    /// There is a cluster already.
    ClusterExists,
    /// The template is not the one that the cluster was made from.
    TemplateChanged,
    /// The template is the one that the cluster was made from.
    TemplateUnchanged,
    /// When a leader starts, only a changed template is looked at.
    LeaderStarts,
    /// Another rule fired before, and a plan does one thing.
    After(Action),
    /// Another rule fired before and applies the changed template as well.
    TemplateUsedBy(Action),
    /// Another rule began before and failed, and then no later one is tried.
    AfterFailureOf(Action),

    /// All nodes of the cluster have machines.
    AllExist {
        /// How many nodes.
        nodes: u64,
    },
    /// No machine of the list has the node's address.
    NonExistent {
        /// The part that the node had.
        part: Part,
    },
    /// Half or more of the control plane no longer exists.
    TooManyNonExistent {
        /// Control plane nodes without a machine.
        lost: u64,
        /// All control plane nodes.
        total: u64,
    },
    /// A changed template must be applied to a node that has no machine.
    MissingMachine,

    /// The control plane's size beside `control-plane-count`.
    ControlPlaneSize {
        /// Nodes that it has.
        nodes: u64,
        /// Nodes that it should have.
        count: u64,
    },
    /// Every control plane node is in order.
    ControlPlaneGood {
        /// How many nodes.
        nodes: u64,
    },
    /// A control plane node's machine is in a state that a control plane node must not be in.
    BadState(MachineState),
    /// A control plane node has a taint that is not tolerated.
    BadTaint {
        /// The taint's key.
        key: Box<str>,
    },
    /// A control plane node is bad but the control plane is too small to replace it.
    TooFewToReplace {
        /// Nodes of the control plane.
        nodes: u64,
    },

    /// The workers beside what `minimum-workers` and `maximum-workers` demand.
    Workers {
        /// Healthy workers.
        healthy: u64,
        /// All workers.
        total: u64,
        /// `minimum-workers`.
        minimum: u64,
        /// `maximum-workers`; 0 is no maximum.
        maximum: u64,
    },
    /// No worker has been retired for long enough.
    NoneRetired {
        /// Workers that are retired, but not for long enough or not to be removed.
        retired: u64,
        /// How long a worker must have been retired, in seconds.
        wait_seconds: f64,
    },
    /// A worker has been retired for a while.
    Retired {
        /// For how long, in seconds.
        seconds: f64,
        /// How long it must have been, in seconds.
        wait_seconds: f64,
    },
    /// A retired worker stays because the number of workers would fall below `minimum-workers`.
    NoSpare(Box<Shortage>),

    /// Every node has the state taint that belongs to its machine's state.
    TaintsRight {
        /// How many nodes.
        nodes: u64,
    },
    /// A node's state taint is not the one that belongs to its machine's state.
    TaintWrong {
        /// The machine's state.
        state: MachineState,
        /// The value that the taint should have; `None` when there should be none.
        expected: Option<&'static str>,
    },

    /// A machine was chosen.
    Chosen(Choice),
    /// A control plane node was chosen to be one no more.
    Deselected(Box<Deselection>),
    /// A former control plane node becomes a worker.
    BecomesWorker,
    /// A former control plane node leaves the cluster.
    Leaves(Leaving),
    /// Nothing that could be chosen is left.
    Shortage(Box<Shortage>),
    /// `control-plane-count` is 0, and a cluster without a control plane is none.
    EmptyControlPlane,
    /// `minimum-workers` is above `maximum-workers`, so that both cannot hold.
    Contradiction {
        /// `minimum-workers`.
        minimum: u64,
        /// `maximum-workers`.
        maximum: u64,
    },
    /// No worker template has the role of a worker.
    RoleWithoutTemplate {
        /// The role.
        role: Box<str>,
    },
    /// Several machines claim one address.
    DuplicateAddress {
        /// Their serials.
        serials: Box<[String]>,
        /// Whether a node of the cluster has it.
        in_use: bool,
    },
    /// A node whose address several machines claim keeps its part, as it could only leave the cluster.
    SharedAddressStays(Leaving),
    /// The list holds one machine, by its serial and address, more than once; it counts once.
    ListedAgain {
        /// How many times.
        times: u64,
        /// Its serial.
        serial: Box<str>,
        /// The state that counts.
        state: MachineState,
    },
    /// A machine is not chosen because Kubernetes has no labels such as it would bring.
    NoSuchLabels(Box<[BadLabel]>),
    /// A machine does not join the control plane while its repair or reboot is under way.
    UnderRepair,
    /// A node is written without labels that Kubernetes does not have.
    LabelsLeftOut(Box<[BadLabel]>),
    /// Workers are promoted because no unused machine will do.
    NoneUnused(Box<Shortage>),
    /// A worker is promoted in exchange for a control plane node that is demoted.
    Exchange {
        /// `maximum-workers`, which leaves no room for one more.
        maximum: u64,
    },
}

/// From where a machine was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It was not part of the cluster.
    Unused,
    /// It was a worker.
    Workers,
}

/// A machine that was chosen, and what it was chosen from.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The part that it was chosen for.
    pub part: Part,
    /// Where it comes from.
    pub from: Source,
    /// The role that was asked for; `None` is any.
    pub role: Option<Arc<str>>,
    /// Workers that the template has already, for its share.
    pub workers: u32,
    /// The template's weight; 0 for the control plane.
    pub weight: f64,
    /// Machines that could have been chosen, this one included.
    pub considered: u32,
    /// What its score is made of.
    pub score: Score,
    /// The best of the others. With the same score it comes after the chosen one by its address.
    pub runner_up: Option<Rival>,
}

/// What a score is made of (seed 000, "Node selection").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Score {
    /// Points for being healthy; only a node that may have to leave gets them.
    pub health_points: i32,
    /// Nodes of the kind in the machine's rack.
    pub in_rack: u32,
    /// Points for that.
    pub rack_points: i32,
    /// Whole days until the machine's retire date; negative when it is past.
    pub days: i32,
    /// Points for that.
    pub lifetime_points: i32,
}

impl Score {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> i64 {
        i64::from(self.health_points) + i64::from(self.rack_points) + i64::from(self.lifetime_points)
    }
}

/// The machine that would have been next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rival {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its score.
    pub score: i64,
}

/// A control plane node with the lowest score.
#[derive(Debug, Clone, PartialEq)]
pub struct Deselection {
    /// Control plane nodes that were compared, this one included.
    pub considered: u64,
    /// What its score is made of.
    pub score: Score,
    /// Address and score of the one that would have been next.
    pub runner_up: Option<(String, i64)>,
}

/// Why a former control plane node cannot be a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaving {
    /// The number of workers is at `maximum-workers`.
    NoRoom {
        /// `maximum-workers`.
        maximum: u64,
    },
    /// No worker template has its role.
    RoleWithoutTemplate {
        /// The role.
        role: Box<str>,
    },
}

/// What is missing, and why none of the machines will do: the counts below add up to `machines`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The part that a machine is needed for.
    pub part: Part,
    /// The role that is asked for; `None` is any.
    pub role: Option<Arc<str>>,
    /// Nodes of the part that there are.
    pub have: u64,
    /// Nodes of the part that there must be.
    pub want: u64,
    /// `minimum-workers`, when no worker may be promoted because of it.
    pub workers_at_minimum: Option<u64>,
    /// All machines of the list.
    pub machines: u64,
    /// Those of another role.
    pub other_role: u64,
    /// Those of the role that are in the cluster.
    pub in_cluster: u64,
    /// Unused ones of the role that are not healthy.
    pub not_healthy: u64,
    /// Unused, healthy ones of the role whose address is claimed twice or is not an IPv4 address.
    pub bad_address: u64,
    /// Unused, healthy ones of the role that would bring labels that Kubernetes does not have.
    pub bad_labels: u64,
    /// Unused, healthy ones of the role with a taint that a control plane node must not have.
    pub tainted: u64,
    /// Those that only their repair or reboot, which is under way, keeps from the control plane.
    pub under_repair: u64,
    /// Why no worker is promoted, where one could be by its number.
    pub unpromotable: Option<Unpromotable>,
}

/// Why none of the workers can become a control plane node: the counts add up to `workers`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpromotable {
    /// All workers.
    pub workers: u64,
    /// Those of another role.
    pub other_role: u64,
    /// Those of the role that are not healthy.
    pub not_healthy: u64,
    /// Healthy ones of the role whose address is claimed twice or is not an IPv4 address.
    pub bad_address: u64,
    /// Healthy ones of the role with labels that Kubernetes does not have.
    pub bad_labels: u64,
    /// Healthy ones of the role with a taint that is not tolerated.
    pub tainted: u64,
    /// Those that only their repair or reboot, which is under way, keeps from the control plane.
    pub under_repair: u64,
}
