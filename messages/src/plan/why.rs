//! The reasons of a plan as data, and the sentences that people read.
//!
//! A plan of 90,000 workers holds as many reasons, so the variants that come once a machine are small
//! and share their strings.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{Action, Part};
use crate::machine::MachineState;

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
    /// The best of the others.
    pub runner_up: Option<Rival>,
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
    /// Unused, healthy ones of the role with a taint that a control plane node must not have.
    pub tainted: u64,
}

fn plural(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCluster => f.write_str("there is no cluster yet"),
            Self::ClusterExists => f.write_str("there is a cluster already"),
            Self::TemplateChanged => f.write_str("the template has changed"),
            Self::TemplateUnchanged => f.write_str("the template has not changed"),
            Self::LeaderStarts => f.write_str("a leader is starting, which only applies a changed template"),
            Self::After(rule) => write!(f, "{} fired, and a plan does one thing", rule.name()),
            Self::TemplateUsedBy(rule) => {
                write!(f, "{} fired, and it uses the changed template", rule.name())
            }
            Self::AfterFailureOf(rule) => {
                write!(f, "{} failed, and no later rule is tried then", rule.name())
            }
            Self::AllExist { nodes } => write!(f, "all {nodes} nodes have a machine in the list"),
            Self::NonExistent { part } => {
                write!(f, "no machine in the list has the address of this {}", part_noun(*part))
            }
            Self::TooManyNonExistent { lost, total } => write!(
                f,
                "{lost} of {total} control plane nodes no longer exist; with half or more gone the \
                 configuration must be repaired by hand"
            ),
            Self::MissingMachine => {
                f.write_str("the changed template cannot be applied: no machine in the list has this address")
            }
            Self::ControlPlaneSize { nodes, count } => write!(
                f,
                "the control plane has {}, control-plane-count is {count}",
                plural(*nodes, "node", "nodes")
            ),
            Self::ControlPlaneGood { nodes } => write!(
                f,
                "none of {} is in a bad state or has a taint that is not tolerated",
                plural(*nodes, "control plane node", "control plane nodes")
            ),
            Self::BadState(state) => {
                write!(f, "the machine of this control plane node is {}", state.name())
            }
            Self::BadTaint { key } => {
                write!(f, "this control plane node has the taint {key}, which is not tolerated")
            }
            Self::TooFewToReplace { nodes: 1 } => {
                f.write_str("it is bad, but a single control plane node is never replaced")
            }
            Self::TooFewToReplace { nodes } => write!(
                f,
                "it is bad, but replacing one of {nodes} control plane nodes would replace half of them"
            ),
            Self::Workers { healthy, total, minimum, maximum } => {
                write!(f, "{healthy} of {} healthy", plural(*total, "worker is", "workers are"))?;
                write!(f, ", minimum-workers is {minimum}")?;
                if *maximum == 0 {
                    f.write_str(" and there is no maximum-workers")
                } else {
                    write!(f, " and maximum-workers is {maximum}")
                }
            }
            Self::NoneRetired { retired: 0, .. } => f.write_str("no worker is retired"),
            Self::NoneRetired { retired, wait_seconds } => write!(
                f,
                "{} retired, but none for more than {wait_seconds} s that could be removed",
                plural(*retired, "worker is", "workers are")
            ),
            Self::Retired { seconds, wait_seconds } => {
                write!(f, "this worker has been retired for {seconds} s, which is more than {wait_seconds} s")
            }
            Self::NoSpare(shortage) => {
                write!(f, "this retired worker stays, as it cannot be replaced: {shortage}")
            }
            Self::TaintsRight { nodes } => {
                write!(f, "all {nodes} nodes have the taint that belongs to their machine's state")
            }
            Self::TaintWrong { state, expected: Some(value) } => write!(
                f,
                "the machine is {}, but the node's state taint is not {value}:NoExecute",
                state.name()
            ),
            Self::TaintWrong { state, expected: None } => {
                write!(f, "the machine is {}, but the node has a state taint", state.name())
            }
            Self::Chosen(choice) => choice.fmt(f),
            Self::Deselected(deselection) => deselection.fmt(f),
            Self::BecomesWorker => f.write_str("this control plane node becomes a worker"),
            Self::Leaves(Leaving::NoRoom { maximum }) => write!(
                f,
                "this control plane node leaves the cluster: the workers are at maximum-workers, {maximum}"
            ),
            Self::Leaves(Leaving::RoleWithoutTemplate { role }) => write!(
                f,
                "this control plane node leaves the cluster: no worker template has its role, {role:?}"
            ),
            Self::Shortage(shortage) => shortage.fmt(f),
            Self::EmptyControlPlane => {
                f.write_str("control-plane-count is 0, but a cluster needs a control plane node")
            }
            Self::Contradiction { minimum, maximum } => {
                write!(f, "minimum-workers, {minimum}, is above maximum-workers, {maximum}")
            }
            Self::RoleWithoutTemplate { role } => {
                write!(f, "no worker template has this worker's role, {role:?}")
            }
            Self::DuplicateAddress { serials, in_use } => {
                write!(f, "{} machines claim this address ({}), ", serials.len(), Listed(serials))?;
                f.write_str(if *in_use { "the node stays" } else { "none of them is chosen" })
            }
        }
    }
}

fn part_noun(part: Part) -> &'static str {
    match part {
        Part::ControlPlane => "control plane node",
        Part::Worker => "worker",
    }
}

/// Serials shown before the rest is only counted: more would not fit on a line.
const SERIALS_SHOWN: usize = 4;

struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, serial) in self.0.iter().take(SERIALS_SHOWN).enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            f.write_str(serial)?;
        }
        match self.0.len().checked_sub(SERIALS_SHOWN) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chosen as {}", part_noun(self.part))?;
        let (one, many) = match self.from {
            Source::Unused => ("unused machine", "unused machines"),
            Source::Workers => ("worker", "workers"),
        };
        write!(f, ", the best of {}", plural(u64::from(self.considered), one, many))?;
        if let Some(role) = &self.role {
            write!(f, " of role {role:?}")?;
            if self.part == Part::Worker {
                let workers = plural(u64::from(self.workers), "worker", "workers");
                write!(f, " (its share is the smallest: {workers} for weight {})", self.weight)?;
            }
        }
        match &self.runner_up {
            Some(rival) => write!(f, "; next was {} with {}", rival.address, rival.score),
            None => f.write_str("; there was no other"),
        }
    }
}

impl fmt::Display for Deselection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lowest score of {} control plane nodes", self.considered)?;
        match &self.runner_up {
            Some((address, score)) => write!(f, "; next was {address} with {score}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no healthy machine")?;
        if let Some(role) = &self.role {
            write!(f, " of role {role:?}")?;
        }
        write!(f, " is available as {}", part_noun(self.part))?;
        write!(f, " ({} of {}): of {}", self.have, self.want, plural(self.machines, "machine", "machines"))?;
        let counts = [
            (self.other_role, "of another role"),
            (self.in_cluster, "in the cluster"),
            (self.not_healthy, "not healthy"),
            (self.bad_address, "with an address that is not theirs alone"),
            (self.tainted, "with a taint that is not tolerated"),
        ];
        let mut separator = ", ";
        if counts.iter().all(|(count, _)| *count == 0) {
            f.write_str(", none is left")?;
            separator = "; ";
        }
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} {what}")?;
        }
        if let Some(minimum) = self.workers_at_minimum {
            write!(f, "; no worker is promoted while there are only minimum-workers, {minimum}")?;
        }
        Ok(())
    }
}
