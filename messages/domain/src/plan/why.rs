//! The reasons of a cluster plan as data; [`sentence`] renders them as sentences.
//!
//! A plan of 90,000 workers has as many reasons, so the variants for single machines are small and share their
//! strings.

use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{Action, Part};
use crate::machine::{BadLabel, MachineState};

mod sentence;

/// The reason for a rule's result, or for the choice of a machine.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanReason {
    /// No cluster exists yet.
    NoCluster,
    /// A cluster exists already.
    ClusterExists,
    /// The template differs from the one that the cluster was made from.
    TemplateChanged,
    /// The template equals the one that the cluster was made from.
    TemplateUnchanged,
    /// At a leader's start, only a changed template matters.
    LeaderStarts,
    /// An earlier rule fired, and a plan has one action.
    After(Action),
    /// An earlier rule fired and also applies the changed template.
    TemplateUsedBy(Action),
    /// An earlier rule failed, which ends the planning.
    AfterFailureOf(Action),

    /// All nodes of the cluster have machines.
    AllExist {
        /// Number of nodes in the cluster.
        nodes: u64,
    },
    /// No machine of the list has the node's address.
    NonExistent {
        /// The part of the missing node.
        part: Part,
    },
    /// At least half of the control plane no longer exists.
    TooManyNonExistent {
        /// Control plane nodes without a machine.
        lost: u64,
        /// All control plane nodes.
        total: u64,
    },
    /// A changed template must be applied to a node without a machine.
    MissingMachine,

    /// The size of the control plane compared with `control-plane-count`.
    ControlPlaneSize {
        /// Present number of nodes.
        nodes: u64,
        /// Required number of nodes.
        count: u64,
    },
    /// No control plane node has a bad state or a bad taint.
    ControlPlaneGood {
        /// Number of control plane nodes.
        nodes: u64,
    },
    /// A control plane node's machine is in a state that control plane nodes must not have.
    BadState(MachineState),
    /// A control plane node has a taint that control plane nodes must not have.
    BadTaint {
        /// Key of the taint.
        key: Box<str>,
    },
    /// A control plane node is bad, but the control plane is too small to replace it.
    TooFewToReplace {
        /// Number of control plane nodes.
        nodes: u64,
    },

    /// The number of workers compared with `minimum-workers` and `maximum-workers`.
    Workers {
        /// Workers whose machines are healthy.
        healthy: u64,
        /// Workers in any state.
        total: u64,
        /// The constraint `minimum-workers`.
        minimum: u64,
        /// `maximum-workers`; 0 means no maximum.
        maximum: u64,
    },
    /// No worker has been retired for long enough.
    NoneRetired {
        /// Retired workers that stay: not retired for long enough, or needed.
        retired: u64,
        /// Required time in the state retired, in seconds.
        wait_seconds: f64,
    },
    /// A worker has been retired for long enough.
    Retired {
        /// Time in the state retired, in seconds.
        seconds: f64,
        /// Required time, in seconds.
        wait_seconds: f64,
    },
    /// A retired worker stays because its removal would violate `minimum-workers`.
    NoSpare(Box<Shortage>),

    /// Every node has the state taint of its machine's state.
    TaintsRight {
        /// Number of nodes in the cluster.
        nodes: u64,
    },
    /// A node's state taint does not match its machine's state.
    TaintWrong {
        /// State in the registry, which the taint must show.
        state: MachineState,
        /// The required value of the taint; `None` requires no taint.
        expected: Option<&'static str>,
    },

    /// A machine was chosen.
    Chosen(Choice),
    /// A control plane node was chosen to leave the control plane.
    Deselected(Box<Deselection>),
    /// A former control plane node becomes a worker.
    BecomesWorker,
    /// A former control plane node leaves the cluster.
    Leaves(LeavingReason),
    /// No eligible machine is left.
    Shortage(Box<Shortage>),
    /// `control-plane-count` is 0; a cluster needs a control plane.
    EmptyControlPlane,
    /// `minimum-workers` exceeds `maximum-workers`.
    Contradiction {
        /// The constraint `minimum-workers`.
        minimum: u64,
        /// The constraint `maximum-workers`.
        maximum: u64,
    },
    /// A worker's role is in no worker template.
    RoleWithoutTemplate {
        /// The role that no worker template has.
        role: Box<str>,
    },
    /// Several machines have the same address.
    DuplicateAddress {
        /// Serials of the machines.
        serials: Box<[String]>,
        /// True if a node of the cluster has the address.
        in_use: bool,
    },
    /// A node with a shared address keeps its part, because it could only leave the cluster.
    SharedAddressStays(LeavingReason),
    /// The list contains one machine, by serial and address, more than once; it counts once.
    ListedAgain {
        /// Number of occurrences, at least 2.
        times: u64,
        /// Serial of the machine.
        serial: Box<str>,
        /// The state that the planner uses.
        state: MachineState,
    },
    /// A machine is not chosen because its labels are invalid in Kubernetes.
    NoSuchLabels(Box<[BadLabel]>),
    /// A machine does not join the control plane during its repair or reboot.
    UnderRepair,
    /// A node is written without the labels that are invalid in Kubernetes.
    LabelsLeftOut(Box<[BadLabel]>),
    /// Workers are promoted because no unused machine is eligible.
    NoneUnused(Box<Shortage>),
    /// A worker is promoted in exchange for a control plane node that is demoted.
    Exchange {
        /// `maximum-workers`, which the number of workers has reached.
        maximum: u64,
    },
}

/// The origin of a chosen machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Unused machines.
    Unused,
    /// Workers of the cluster.
    Workers,
}

/// A chosen machine with its alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The part that it was chosen for.
    pub part: Part,
    /// The origin of the machine.
    pub from: Source,
    /// The required role; `None` allows any.
    pub role: Option<Arc<str>>,
    /// Present number of the template's workers, for its share.
    pub workers: u32,
    /// The template's weight; 0 for the control plane.
    pub weight: f64,
    /// Number of eligible machines, the chosen one included.
    pub considered: u32,
    /// The parts of its score.
    pub score: Score,
    /// The second-best machine. With an equal score its address sorts after the chosen one's.
    pub runner_up: Option<RunnerUp>,
}

/// The parts of a score (CKE's `sabakan-integration.md`, "Node selection").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Score {
    /// Points for health; only nodes that may have to leave get them.
    pub health_points: i32,
    /// Nodes of the same part in the machine's rack.
    pub in_rack: u32,
    /// Points for `in_rack`.
    pub rack_points: i32,
    /// Whole days until the machine's retire date; negative after it.
    pub days: i32,
    /// Points for `days`.
    pub lifetime_points: i32,
}

impl Score {
    /// The sum of all points.
    #[must_use]
    pub fn total(&self) -> i64 {
        i64::from(self.health_points) + i64::from(self.rack_points) + i64::from(self.lifetime_points)
    }
}

/// The machine with the second-best score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerUp {
    /// Address of the machine.
    pub address: Ipv4Addr,
    /// Total score of the machine.
    pub score: i64,
}

/// The control plane node with the lowest score.
#[derive(Debug, Clone, PartialEq)]
pub struct Deselection {
    /// Number of control plane nodes in the comparison, this one included.
    pub considered: u64,
    /// The parts of its score.
    pub score: Score,
    /// Address and score of the node with the second-lowest score.
    pub runner_up: Option<(String, i64)>,
}

/// The reason why a former control plane node cannot become a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeavingReason {
    /// The number of workers has reached `maximum-workers`.
    NoRoom {
        /// The constraint `maximum-workers`.
        maximum: u64,
    },
    /// Its role is in no worker template.
    RoleWithoutTemplate {
        /// The role that no worker template has.
        role: Box<str>,
    },
}

/// The shortage of nodes, and the reasons why no machine is eligible. The counts of machines add up to `machines`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The part that lacks nodes.
    pub part: Part,
    /// The required role; `None` allows any.
    pub role: Option<Arc<str>>,
    /// Present number of nodes of the part.
    pub have: u64,
    /// Required number of nodes of the part.
    pub want: u64,
    /// `minimum-workers`, if it prevents every promotion of a worker.
    pub workers_at_minimum: Option<u64>,
    /// All machines in the list.
    pub machines: u64,
    /// Machines of another role.
    pub other_role: u64,
    /// Machines of the role that are in the cluster.
    pub in_cluster: u64,
    /// Unused, unhealthy machines of the role.
    pub not_healthy: u64,
    /// Unused, healthy machines of the role whose address is shared or not IPv4.
    pub bad_address: u64,
    /// Unused, healthy machines of the role with labels that are invalid in Kubernetes.
    pub bad_labels: u64,
    /// Unused, healthy machines of the role with a taint that a control plane node must not have.
    pub tainted: u64,
    /// Machines that are ineligible for the control plane only because of their current repair or reboot.
    pub under_repair: u64,
    /// The reasons why no worker is promoted, if the number of workers allows a promotion.
    pub unpromotable: Option<Unpromotable>,
}

/// The reasons why no worker can become a control plane node. The counts add up to `workers`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpromotable {
    /// All workers of the cluster.
    pub workers: u64,
    /// Workers of another role.
    pub other_role: u64,
    /// Unhealthy workers of the role.
    pub not_healthy: u64,
    /// Healthy workers of the role whose address is shared or not IPv4.
    pub bad_address: u64,
    /// Healthy workers of the role with labels that are invalid in Kubernetes.
    pub bad_labels: u64,
    /// Healthy workers of the role with a taint that control plane nodes must not have.
    pub tainted: u64,
    /// Workers that are ineligible only because of their current repair or reboot.
    pub under_repair: u64,
}
