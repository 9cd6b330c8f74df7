//! The actors' messages.
//!
//! Observations and state come through feeds ([`crate::feed`]): at most one of each is in a mailbox.
//! Every call has a deadline at the caller. What waits is counted ([`crate::mailbox`]).

mod commit;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ractor::RpcReplyPort;

pub use self::commit::{CommitError, Failure};

use crate::effect::EffectEvent;
use crate::feed::Handled;
use crate::mailbox::Addressed;
use crate::permit::Permit;
use crate::placement::follow::Followed;
use crate::placement::providers::Samples;
use crate::ports::{Fetched, RegistryError};
use crate::store::{CampaignEvent, WatchEvent};
use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::guard::GuardState;
use madako_domain::kubernetes::drain::DrainNews;
use madako_domain::observation::{Observation, TaintsLook};
use madako_domain::obstacle::Obstacles;
use madako_domain::placement::change::PlacementMutation;
use madako_domain::placement::decision::{ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::metrics::MetricsObserved;
use madako_domain::placement::ownership::Ownership;
use madako_domain::plan::Plan;
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::command::{CommandEnd, HealthAnswer};
use madako_domain::repair::report::Reports;
use madako_domain::state::ClusterState;
use madako_domain::store::{Condition, Outcome, Snapshot, StoreError};

/// What is judged before a planned cluster is committed.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The cluster that the plan starts from.
    pub before: Option<Arc<Cluster>>,
    /// The constraints it was made for.
    pub constraints: Arc<Constraints>,
    /// Addresses of the observation it was made from.
    pub observed: Arc<BTreeSet<String>>,
    /// Whether the template changed.
    pub template_changed: bool,
}

/// A planned cluster, as it is brought to the leader's gate.
#[derive(Debug, Clone)]
pub struct ClusterMutation {
    /// The plan; it has a cluster.
    pub plan: Arc<Plan>,
    /// Mod revision of the template it was made from.
    pub template_revision: i64,
    /// What must not have changed since it was made.
    pub basis: Vec<Condition>,
    /// What the invariants are judged by.
    pub evidence: Evidence,
}

/// A change that the system decided.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// A planned cluster.
    Cluster(ClusterMutation),
    /// The removal guard's state.
    Guard {
        /// The new state; `None` when it holds nothing.
        state: Option<GuardState>,
        /// Mod revision of the state that was read; 0 for none.
        revision: i64,
    },
    /// Obstacles to planning and repairing.
    Obstacles {
        /// All of them; nothing is kept when there are none.
        noted: Obstacles,
        /// Mod revision of those that were read; 0 for none.
        revision: i64,
    },
    /// Something of the repair queue.
    Repair(Box<RepairChange>),
    /// Resources of placement, and what is kept of it.
    Placement(Box<PlacementMutation>),
}

impl Mutation {
    /// What is changed, for the log and for metrics.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::Guard { .. } => "removal-guard",
            Self::Obstacles { .. } => "obstacles",
            Self::Repair(change) => change.what,
            Self::Placement(_) => "placement",
        }
    }
}

/// A commit that was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the writes.
    pub revision: i64,
}

/// Messages of the leader.
#[derive(Debug)]
pub enum LeaderMessage {
    /// From its campaign.
    Campaign(CampaignEvent, Handled),
    /// From its watch.
    Watch(WatchEvent, Handled),
    /// Commit a decision in an epoch.
    Commit {
        /// Number of the caller's epoch.
        epoch: i64,
        /// The decision.
        mutation: Mutation,
        /// Answered when it is durable, or why it is not.
        reply: RpcReplyPort<Result<Committed, CommitError>>,
    },
    /// The right to act outside etcd in an epoch.
    Permit {
        /// Number of the caller's epoch.
        epoch: i64,
        /// Answered with a permit, or with none when this instance does not hold that epoch.
        reply: RpcReplyPort<Option<Permit>>,
    },
    /// The store is ready for the reign of an epoch.
    Prepared {
        /// Number of the epoch.
        epoch: i64,
        /// Who owns placement, as far as that was settled before.
        placement: Ownership,
    },
    /// From its watch of the owner of placement.
    Owner(WatchEvent, Handled),
    /// A claim of placement ended, and the pause after one that failed.
    Claimed {
        /// Number of the epoch that claimed it.
        epoch: i64,
        /// Who owns it; unknown after a failure.
        placement: Ownership,
    },
    /// A transaction ended.
    Done {
        /// Which.
        id: u64,
        /// How.
        result: Result<Outcome, StoreError>,
    },
    /// Give up leadership and stay away for a while.
    Yield {
        /// How long.
        pause: Duration,
    },
}

impl Addressed for LeaderMessage {
    const ACTOR: &'static str = "leader";
}

/// Messages of the poller.
#[derive(Debug)]
pub enum PollerMessage {
    /// Time for the next poll.
    Tick,
    /// The store's state changed.
    State(Arc<ClusterState>, Handled),
    /// A poll ended.
    Polled {
        /// Which one; an older one is ignored.
        poll: u64,
        /// Its answer.
        result: Result<Fetched, RegistryError>,
    },
    /// Time for the next poll of what should be repaired.
    ReportsTick,
    /// A poll of what should be repaired ended.
    ReportsPolled {
        /// Which one; an older one is ignored.
        poll: u64,
        /// Its answer.
        result: Result<Fetched, RegistryError>,
    },
}

impl Addressed for PollerMessage {
    const ACTOR: &'static str = "sabakan-poller";
}

/// Messages of the planner.
#[derive(Debug)]
pub enum PlannerMessage {
    /// The store's state changed.
    State(Arc<ClusterState>, Handled),
    /// The registry was polled.
    Observed(Arc<Observation>, Handled),
    /// The API server was asked for the taints of its nodes.
    Taints(Arc<TaintsLook>, Handled),
    /// Something of before may be different by now: a commit that failed, an observation that grew old.
    LookAgain,
}

impl Addressed for PlannerMessage {
    const ACTOR: &'static str = "cluster-planner";
}

/// Messages of the repair queue.
#[derive(Debug)]
pub enum RepairMessage {
    /// The store's state changed.
    State(Arc<ClusterState>, Handled),
    /// The registry reported machines for repair.
    Reported(Arc<Reports>, Handled),
    /// Time for the next round of health checks.
    Tick,
    /// A time came, or something may be tried again.
    Look,
    /// Something became of a change, or of the command that it announced.
    Effect(EffectEvent<CommandEnd>),
    /// A health check ended.
    Checked {
        /// The entry.
        index: i64,
        /// Which check of it; one that was given up is ignored.
        check: u64,
        /// What it said; `None`: it was not run.
        health: Option<HealthAnswer>,
    },
    /// Something is to be said of a drain.
    Drained {
        /// The entry.
        index: i64,
        /// Which drain of it; one that was given up is ignored.
        drain: u64,
        /// What.
        news: DrainNews,
    },
    /// The nodes that are cordoned by us, or why that is not known.
    Cordoned(Result<Vec<String>, String>),
    /// An uncordoning ended, for better or worse.
    Uncordoned {
        /// The node.
        node: String,
        /// Why it failed.
        failed: Option<String>,
    },
}

impl Addressed for RepairMessage {
    const ACTOR: &'static str = "repair-queue";
}

/// Messages of the fetcher of metrics.
#[derive(Debug)]
pub enum FetcherMessage {
    /// Placement's resources were listed, or changed.
    Followed(Followed, Handled),
    /// Time for the next round.
    Tick,
    /// A fetch ended.
    Fetched {
        /// Which one; one that was given up is ignored.
        fetch: u64,
        /// What it gave.
        samples: Samples,
    },
    /// A value may be too old by now.
    LookAgain,
}

impl Addressed for FetcherMessage {
    const ACTOR: &'static str = "metrics-fetcher";
}

/// Messages of the scheduler.
#[derive(Debug)]
pub enum SchedulerMessage {
    /// What was kept of placement was read from the store.
    Remembered(Snapshot),
    /// Placement's resources were listed, or changed.
    Followed(Followed, Handled),
    /// What is known of metrics.
    Metrics(Arc<MetricsObserved>, Handled),
    /// Time to decide: changes were collected, a time came, a commit may be tried again.
    Look,
    /// One transaction of a pass ended.
    Written {
        /// Which, in the order in which they were sent.
        number: usize,
        /// How it ended.
        result: Result<Committed, CommitError>,
    },
    /// Explain the decision on an application.
    Explain {
        /// The application.
        application: ObjectKey,
        /// What should be taken for something else.
        what_if: WhatIf,
        /// Answered with every candidate, or why there is nothing to explain.
        reply: RpcReplyPort<Result<Box<Explanation>, ExplainError>>,
    },
}

impl Addressed for SchedulerMessage {
    const ACTOR: &'static str = "app-scheduler";
}
