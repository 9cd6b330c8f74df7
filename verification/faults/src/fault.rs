//! One fault of a scenario: act, target, time and duration.

use std::fmt;
use std::net::IpAddr;

use madako_json::named;
use madako_protocol::actors::{
    BackupMessage, FetcherMessage, LeaderMessage, NodeMessage, PlannerMessage, PollerMessage, RebootMessage,
    RepairMessage, RunnerMessage, SchedulerMessage,
};
use madako_protocol::mailbox::Addressed as _;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use strum::{Display, EnumString, IntoStaticStr, VariantArray, VariantNames};

use crate::span::Span;

/// docs/chaos.md describes the effect of each act on each target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[derive(Display, EnumString, IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Act {
    /// Ends the target at once: power, process, actor.
    Kill,
    /// SIGSTOP: the target stands still and keeps its connections.
    Pause,
    Panic,
    /// Drops traffic in both directions without notice.
    Cut,
    /// Delays traffic in both directions by [`crate::DELAY`].
    Delay,
    /// Drops [`crate::LOSS_PERCENT`] percent of the traffic in both directions.
    Loss,
    /// Resets the target's connections once.
    Reset,
    DiskFull,
    /// Sets the target's clock ahead by [`crate::CLOCK_JUMP`].
    ClockJump,
    /// Makes the target's answers wrong.
    Corrupt,
    /// Compacts the target's history once.
    Compact,
}

named!(Act all);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Display, IntoStaticStr, VariantArray, VariantNames)]
pub enum TargetKind {
    #[strum(serialize = "rack=N")]
    Rack,
    #[strum(serialize = "an IP address")]
    Address,
    #[strum(serialize = "instance=leader or instance=N")]
    Instance,
    #[strum(serialize = "store=N")]
    Store,
    #[strum(serialize = "registry")]
    Registry,
    #[strum(serialize = "provider=NAME")]
    Provider,
    #[strum(serialize = "actor=NAME")]
    Actor,
    #[strum(serialize = "kubelet=ADDRESS")]
    Kubelet,
    #[strum(serialize = "kube-apiserver=ADDRESS")]
    ApiServer,
}

named!(TargetKind all);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceTarget {
    /// The leader at the beginning of the fault; it stays the target until the fault ends.
    Leader,
    /// Counted from 1.
    Number(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All machines of a rack; counted from 0, as in sabakan.
    Rack(u32),
    Address(IpAddr),
    Instance(InstanceTarget),
    /// Counted from 1.
    Store(u32),
    Registry,
    Provider(String),
    /// An actor of the leader, by its name in the tree: one of [`ACTORS`].
    Actor(&'static str),
    /// The kubelet of the node with this address.
    Kubelet(IpAddr),
    /// The API server of Kubernetes on the node with this address.
    ApiServer(IpAddr),
}

/// The actors that can be a target: those of the tree that are not supervisors. `node` is the actor of one of the nodes.
pub const ACTORS: [&str; 13] = [
    "http",
    PLACEMENT_API,
    LeaderMessage::ACTOR,
    PollerMessage::ACTOR,
    PlannerMessage::ACTOR,
    NODE_ROSTER,
    NodeMessage::ACTOR,
    RunnerMessage::ACTOR,
    BackupMessage::ACTOR,
    RepairMessage::ACTOR,
    RebootMessage::ACTOR,
    FetcherMessage::ACTOR,
    SchedulerMessage::ACTOR,
];

const PLACEMENT_API: &str = "placement-api";
const NODE_ROSTER: &str = "node-roster";

/// The [`ACTORS`] that run only in a world with clusters or applications.
pub(crate) const ACTORS_OF_PLACEMENT: [&str; 3] =
    [PLACEMENT_API, FetcherMessage::ACTOR, SchedulerMessage::ACTOR];

/// The [`ACTORS`] that run only in a world with operations on nodes.
pub(crate) const ACTORS_OF_OPERATIONS: [&str; 4] =
    [NODE_ROSTER, NodeMessage::ACTOR, RunnerMessage::ACTOR, BackupMessage::ACTOR];

impl Target {
    #[must_use]
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Rack(_) => TargetKind::Rack,
            Self::Address(_) => TargetKind::Address,
            Self::Instance(_) => TargetKind::Instance,
            Self::Store(_) => TargetKind::Store,
            Self::Registry => TargetKind::Registry,
            Self::Provider(_) => TargetKind::Provider,
            Self::Actor(_) => TargetKind::Actor,
            Self::Kubelet(_) => TargetKind::Kubelet,
            Self::ApiServer(_) => TargetKind::ApiServer,
        }
    }
}

/// The form of a scenario file.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rack(number) => write!(f, "rack={number}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Instance(InstanceTarget::Leader) => f.write_str("instance=leader"),
            Self::Instance(InstanceTarget::Number(number)) => write!(f, "instance={number}"),
            Self::Store(number) => write!(f, "store={number}"),
            Self::Registry => f.write_str("registry"),
            Self::Provider(name) => write!(f, "provider={name}"),
            Self::Actor(name) => write!(f, "actor={name}"),
            Self::Kubelet(address) => write!(f, "kubelet={address}"),
            Self::ApiServer(address) => write!(f, "kube-apiserver={address}"),
        }
    }
}

/// Times of a fault's beginnings, since the beginning of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTimes {
    At(Span),
    Every(Span),
    /// After independent random pauses.
    Random {
        mean: Span,
    },
}

impl FaultTimes {
    /// The first beginning; `None` if it is random.
    #[must_use]
    pub fn first_time(self) -> Option<Span> {
        match self {
            Self::At(span) | Self::Every(span) => Some(span),
            Self::Random { .. } => None,
        }
    }

    #[must_use]
    pub fn is_repeated(self) -> bool {
        !matches!(self, Self::At(_))
    }
}

impl fmt::Display for FaultTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(span) => write!(f, "at {span}"),
            Self::Every(span) => write!(f, "every {span}"),
            Self::Random { mean } => write!(f, "random mean {mean}"),
        }
    }
}

/// A parsed fault is possible: see [`crate::suitable_targets`] and [`crate::fault_length`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub when: FaultTimes,
    pub act: Act,
    pub target: Target,
    /// `None`: until the faults of the run stop, or the fault strikes once.
    pub lasts: Option<Span>,
}

/// The one-line form that [`Fault::parse`] reads: `kill rack=12 at 2h for 30m`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.act, self.target, self.when)?;
        match self.lasts {
            Some(lasts) => write!(f, " for {lasts}"),
            None => Ok(()),
        }
    }
}

/// The form of a scenario file.
impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3 + usize::from(self.lasts.is_some())))?;
        match &self.when {
            FaultTimes::At(span) => map.serialize_entry("at", span)?,
            FaultTimes::Every(span) => map.serialize_entry("every", span)?,
            FaultTimes::Random { mean } => {
                map.serialize_entry("random", &std::collections::BTreeMap::from([("mean", mean)]))?;
            }
        }
        map.serialize_entry("do", &self.act)?;
        map.serialize_entry("target", &self.target.to_string())?;
        if let Some(lasts) = &self.lasts {
            map.serialize_entry("for", lasts)?;
        }
        map.end()
    }
}
