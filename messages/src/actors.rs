//! The actors' messages.
//!
//! Observations and state come through feeds ([`crate::feed`]): at most one of each is in a mailbox.
//! Every call has a deadline at the caller. What waits is counted ([`crate::mailbox`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ractor::RpcReplyPort;

use crate::cluster::Cluster;
use crate::constraints::Constraints;
use crate::feed::Handled;
use crate::guard::GuardState;
use crate::invariants::Violation;
use crate::kubernetes::drain::DrainNews;
use crate::mailbox::Addressed;
use crate::observation::Observation;
use crate::permit::Permit;
use crate::placement::decision::{ExplainError, Explanation, WhatIf};
use crate::placement::fit::Compared;
use crate::placement::follow::Followed;
use crate::placement::kind::ObjectKey;
use crate::placement::metrics::MetricsObserved;
use crate::placement::objects::Stored;
use crate::placement::ownership::Ownership;
use crate::placement::providers::Samples;
use crate::plan::Plan;
use crate::ports::{Fetched, RegistryError};
use crate::repair::change::RepairChange;
use crate::repair::command::{CommandEnd, HealthAnswer};
use crate::state::ClusterState;
use crate::store::{CampaignEvent, Condition, Outcome, Snapshot, StoreError, WatchEvent, Write};

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

/// What is judged before an application is bound (invariant I11). The gate compares the revisions of all three.
#[derive(Debug, Clone)]
pub struct BindingEvidence {
    /// The application, as it was when that was decided.
    pub application: Arc<Stored>,
    /// The cluster that it is bound to.
    pub cluster: Arc<Stored>,
    /// The cloud that the cluster is bound to, if it is there.
    pub cloud: Option<Arc<Stored>>,
    /// What was known of metrics; `None`: nothing.
    pub metrics: Option<Arc<MetricsObserved>>,
    /// What metric constraints compare.
    pub compared: Compared,
}

/// A change that the system decided.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// A planned cluster.
    Cluster {
        /// The plan; it has a cluster.
        plan: Arc<Plan>,
        /// Mod revision of the template it was made from.
        template_revision: i64,
        /// What must not have changed since it was made.
        basis: Vec<Condition>,
        /// What the invariants are judged by.
        evidence: Evidence,
    },
    /// The removal guard's state.
    Guard {
        /// The new state; `None` when it holds nothing.
        state: Option<GuardState>,
        /// Mod revision of the state that was read; 0 for none.
        revision: i64,
    },
    /// Something of the repair queue.
    Repair(Box<RepairChange>),
    /// Resources of placement, and what is kept of it. See [`crate::placement::limits`] for its size.
    Placement {
        /// What is changed, for the log and for metrics.
        what: &'static str,
        /// What must not have changed; keys are absolute.
        conditions: Vec<Condition>,
        /// What is written; keys are absolute.
        writes: Vec<Write>,
        /// What its bindings were decided on.
        evidence: Vec<BindingEvidence>,
    },
}

impl Mutation {
    /// What is changed, for the log and for metrics.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Self::Cluster { .. } => "cluster",
            Self::Guard { .. } => "removal-guard",
            Self::Repair(change) => change.what,
            Self::Placement { what, .. } => what,
        }
    }
}

/// Why a mutation was not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// This instance does not lead, or not in that epoch: the caller should end.
    #[error("epoch {epoch} is over")]
    NotLeader {
        /// The epoch that the caller acts in.
        epoch: i64,
    },
    /// The inputs changed: plan again.
    #[error("changed meanwhile: {}", keys.join(", "))]
    Conflict {
        /// Keys that changed.
        keys: Vec<String>,
    },
    /// The mutation would break an invariant; nothing was written.
    #[error("it would break {}", list(violations))]
    Invariant {
        /// Which, and how.
        violations: Vec<Violation>,
    },
    /// The mutation cannot be encoded.
    #[error("it cannot be encoded: {why}")]
    Encoding {
        /// Why.
        why: String,
    },
    /// The leader did not answer in time; the write may have happened.
    #[error("the leader did not answer within {deadline:?}")]
    Unanswered {
        /// The deadline.
        deadline: Duration,
    },
    /// The store failed; the write may have happened. The state that the watch brings tells.
    #[error("{0}")]
    Store(StoreError),
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
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
    /// Time for the next round of health checks.
    Tick,
    /// A time came, or something may be tried again.
    Look,
    /// A transaction ended.
    Written(Result<Committed, CommitError>),
    /// A health check ended.
    Checked {
        /// The entry.
        index: i64,
        /// Which check of it; one that was given up is ignored.
        check: u64,
        /// What it said; `None`: it was not run.
        health: Option<HealthAnswer>,
    },
    /// A command ended, with all its retries.
    Ran {
        /// Number of its operation record.
        record: i64,
        /// How.
        end: CommandEnd,
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
