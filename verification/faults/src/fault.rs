//! One fault: what is done, to whom, when, and for how long.

use std::fmt;
use std::net::IpAddr;

use madako_protocol::actors::{
    FetcherMessage, LeaderMessage, PlannerMessage, PollerMessage, RepairMessage, SchedulerMessage,
};
use madako_protocol::mailbox::Addressed as _;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use crate::name::named;
use crate::span::Span;

/// What is done. docs/chaos.md says what each does to which target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// It is gone at once: power, process, actor.
    Kill,
    /// It stands still and keeps its connections: SIGSTOP.
    Pause,
    /// It fails by itself.
    Panic,
    /// Nothing gets to it or from it, and nobody is told.
    Cut,
    /// What gets to it or from it takes [`crate::DELAY`] longer.
    Delay,
    /// Of what gets to it or from it, [`crate::LOSS_PERCENT`] percent are lost.
    Loss,
    /// Its connections are reset, once.
    Reset,
    /// Its disk takes nothing more.
    DiskFull,
    /// Its clock is ahead by [`crate::CLOCK_JUMP`].
    ClockJump,
    /// Its answers are wrong.
    Corrupt,
    /// Its history is compacted, once.
    Compact,
}

named!(Act: Kill = "kill", Pause = "pause", Panic = "panic", Cut = "cut", Delay = "delay", Loss = "loss",
    Reset = "reset", DiskFull = "disk-full", ClockJump = "clock-jump", Corrupt = "corrupt", Compact = "compact");

/// Kinds of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetKind {
    /// All machines of a rack.
    Rack,
    /// The machine that has an address.
    Address,
    /// A process of the service.
    Instance,
    /// A member of the store.
    Store,
    /// The registry of machines.
    Registry,
    /// A provider of metrics.
    Provider,
    /// An actor of the instance that leads.
    Actor,
}

named!(TargetKind: Rack = "rack=N", Address = "an IP address", Instance = "instance=leader or instance=N",
    Store = "store=N", Registry = "registry", Provider = "provider=NAME", Actor = "actor=NAME");

/// Which instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceTarget {
    /// The one that leads when the fault begins; it stays the target until the fault ends.
    Leader,
    /// The one with that number, counted from 1.
    Number(u32),
}

/// Whom a fault happens to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All machines of a rack; racks are counted from 0, as sabakan does.
    Rack(u32),
    /// The machine that has this address.
    Address(IpAddr),
    /// A process of the service.
    Instance(InstanceTarget),
    /// A member of the store, counted from 1.
    Store(u32),
    /// The registry of machines.
    Registry,
    /// The metrics provider of that name.
    Provider(String),
    /// An actor of the instance that leads, by its name in the tree: one of [`ACTORS`].
    Actor(&'static str),
}

/// The actors that can be a target: those of the tree that are no supervisors.
pub const ACTORS: [&str; 8] = [
    "http",
    PLACEMENT_API,
    LeaderMessage::ACTOR,
    PollerMessage::ACTOR,
    PlannerMessage::ACTOR,
    RepairMessage::ACTOR,
    FetcherMessage::ACTOR,
    SchedulerMessage::ACTOR,
];

const PLACEMENT_API: &str = "placement-api";

/// Those among them that run only where there is something to place.
pub(crate) const ACTORS_OF_PLACEMENT: [&str; 3] =
    [PLACEMENT_API, FetcherMessage::ACTOR, SchedulerMessage::ACTOR];

impl Target {
    /// Its kind.
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
        }
    }
}

/// As it is written in a scenario.
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
        }
    }
}

/// When a fault begins, counted from the beginning of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Once, after so long.
    At(Span),
    /// Again and again: after so long, after twice as long, and so on.
    Every(Span),
    /// By chance, after pauses that do not depend on each other and take so long on average.
    Random {
        /// The mean of the pauses.
        mean: Span,
    },
}

impl When {
    /// When it begins first; `None`: chance decides.
    #[must_use]
    pub fn first(self) -> Option<Span> {
        match self {
            Self::At(span) | Self::Every(span) => Some(span),
            Self::Random { .. } => None,
        }
    }

    /// Whether it may begin more than once.
    #[must_use]
    pub fn repeats(self) -> bool {
        !matches!(self, Self::At(_))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(span) => write!(f, "at {span}"),
            Self::Every(span) => write!(f, "every {span}"),
            Self::Random { mean } => write!(f, "random mean {mean}"),
        }
    }
}

/// One fault of a scenario. One that was read is possible: see [`crate::suiting`] and [`crate::lasts`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// When it begins.
    pub when: When,
    /// What is done.
    pub act: Act,
    /// To whom.
    pub target: Target,
    /// How long it lasts; `None`: until the faults of the run stop, or it strikes once.
    pub lasts: Option<Span>,
}

/// The form on one line, which [`Fault::parse`] reads: `kill rack=12 at 2h for 30m`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.act, self.target, self.when)?;
        match self.lasts {
            Some(lasts) => write!(f, " for {lasts}"),
            None => Ok(()),
        }
    }
}

/// The form that a file has.
impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3 + usize::from(self.lasts.is_some())))?;
        match &self.when {
            When::At(span) => map.serialize_entry("at", span)?,
            When::Every(span) => map.serialize_entry("every", span)?,
            When::Random { mean } => {
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
