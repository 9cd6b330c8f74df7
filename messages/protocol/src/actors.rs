//! The actors' messages.
//!
//! Observations and state arrive through feeds ([`crate::feed`]): a mailbox has at most one message of each feed.
//! Every call has a deadline at the caller. Waiting messages are counted ([`crate::mailbox`]).

mod commit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ractor::RpcReplyPort;
use tokio::sync::oneshot;

pub use self::commit::{CommitError, Failure};

use crate::backup::BackupError;
use crate::effect::EffectEvent;
use crate::feed::HandledSignal;
use crate::kubernetes::KubernetesError;
use crate::mailbox::Addressed;
use crate::node::{Connection, NodeAction, NodeError};
use crate::operations::OperationsState;
use crate::permit::Permit;
use crate::placement::follow::FollowEvent;
use crate::placement::providers::Samples;
use crate::ports::{RegistryError, RegistryMachines};
use crate::store::{CampaignEvent, WatchEvent};
use madako_domain::backup::BackupRecord;
use madako_domain::cluster::Cluster;
use madako_domain::constraints::Constraints;
use madako_domain::guard::GuardState;
use madako_domain::host_key::PinnedKey;
use madako_domain::kubernetes::drain::DrainNews;
use madako_domain::node_status::{EtcdStatus, KubernetesAnswers, NodeStatus};
use madako_domain::observation::{Observation, TaintsPoll};
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
use madako_domain::status::OperationPhase;
use madako_domain::store::{Condition, Outcome, Snapshot, StoreError};

/// The data against which the leader checks a planned cluster.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The cluster on which the plan is based.
    pub before: Option<Arc<Cluster>>,
    /// The constraints of the plan.
    pub constraints: Arc<Constraints>,
    /// Addresses of the machines in the plan's observation.
    pub observed: Arc<BTreeSet<String>>,
    /// True if the template changed.
    pub template_changed: bool,
}

/// A planned cluster for the check of the leader.
#[derive(Debug, Clone)]
pub struct ClusterMutation {
    /// The plan; its `cluster` is present.
    pub plan: Arc<Plan>,
    /// Mod revision of the plan's template.
    pub template_revision: i64,
    /// The inputs of the plan that must be unchanged.
    pub basis: Vec<Condition>,
    /// The data for the invariants.
    pub evidence: Evidence,
}

/// A change that an actor decided.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// A new cluster configuration.
    Cluster(ClusterMutation),
    /// The removal guard's state.
    Guard {
        /// The new state; `None` if it holds no observation back.
        state: Option<GuardState>,
        /// Mod revision of the state that was read; 0 if it did not exist.
        revision: i64,
    },
    /// The obstacles to planning and repairing.
    Obstacles {
        /// All obstacles; an empty map deletes the key.
        noted: Obstacles,
        /// Mod revision of the value that was read; 0 if it did not exist.
        revision: i64,
    },
    /// A change of the repair queue, of the reboot queue, or of the record of an operation on nodes.
    Repair(Box<RepairChange>),
    /// The phase of operations on nodes.
    Phase(OperationPhase),
    /// The host key of a node at its first connection.
    HostKey {
        /// Address of the node.
        address: String,
        /// The key to pin.
        pinned: PinnedKey,
        /// Mod revision of the pinned key to replace; 0 if there is none.
        revision: i64,
    },
    /// The last backup of etcd that counts.
    EtcdBackup {
        /// Description of the backup that counts from now on.
        record: BackupRecord,
        /// Mod revision of the record to replace; 0 if there is none.
        revision: i64,
    },
    /// Resources of placement, and the scheduler's own state.
    Placement(Box<PlacementMutation>),
}

impl Mutation {
    /// The name of the change for logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::Guard { .. } => "removal-guard",
            Self::Obstacles { .. } => "obstacles",
            Self::Repair(change) => change.what,
            Self::Phase(_) => "phase",
            Self::HostKey { .. } => "host-key",
            Self::EtcdBackup { .. } => "etcd-backup",
            Self::Placement(_) => "placement",
        }
    }
}

/// A commit that is durable in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Revision of the commit's writes.
    pub revision: i64,
}

/// Messages of the leader.
#[derive(Debug)]
pub enum LeaderMessage {
    /// An event of the leader's campaign.
    Campaign(CampaignEvent, HandledSignal),
    /// An event of the leader's watch.
    Watch(WatchEvent, HandledSignal),
    /// Commits a decision in an epoch.
    Commit {
        /// The epoch in which the caller acts.
        epoch: i64,
        /// The change to commit.
        mutation: Mutation,
        /// Replies after the commit is durable, or with the error.
        reply: RpcReplyPort<Result<Committed, CommitError>>,
    },
    /// Requests the right to act outside etcd in an epoch.
    Permit {
        /// The epoch in which the caller acts.
        epoch: i64,
        /// Replies with a permit, or with `None` if this instance does not hold that epoch.
        reply: RpcReplyPort<Option<Permit>>,
    },
    /// The store is ready for the reign of an epoch.
    Prepared {
        /// Number of the epoch.
        epoch: i64,
        /// The owner of placement, if it is settled already.
        placement: Ownership,
    },
    /// An event of the watch of placement's owner.
    Owner(WatchEvent, HandledSignal),
    /// A claim of placement ended. After a failed claim, its pause is over as well.
    Claimed {
        /// Number of the claiming epoch.
        epoch: i64,
        /// The owner; unknown after a failure.
        placement: Ownership,
    },
    /// A transaction ended.
    Done {
        /// Number of the transaction.
        id: u64,
        /// Result of the transaction, or the store's error.
        result: Result<Outcome, StoreError>,
    },
    /// Gives up leadership and pauses the candidacy.
    Yield {
        /// Time without candidacy.
        pause: Duration,
    },
}

impl Addressed for LeaderMessage {
    const ACTOR: &'static str = "leader";
}

/// Messages of the poller.
#[derive(Debug)]
pub enum PollerMessage {
    /// The next poll is due.
    Tick,
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// A poll ended.
    Polled {
        /// Number of the poll; the poller ignores older polls.
        poll: u64,
        /// The answer of the registry.
        result: Result<RegistryMachines, RegistryError>,
    },
    /// The next poll for machines to repair is due.
    ReportsTick,
    /// A poll for machines to repair ended.
    ReportsPolled {
        /// Number of the poll; the poller ignores older polls.
        poll: u64,
        /// The answer of the registry.
        result: Result<RegistryMachines, RegistryError>,
    },
}

impl Addressed for PollerMessage {
    const ACTOR: &'static str = "sabakan-poller";
}

/// Messages of the planner.
#[derive(Debug)]
pub enum PlannerMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// A poll gave a new observation.
    Observed(Arc<Observation>, HandledSignal),
    /// The API server was read for the taints of its nodes.
    Taints(Arc<TaintsPoll>, HandledSignal),
    /// The operation runner has new findings.
    Operations(Arc<OperationsState>, HandledSignal),
    /// An earlier result may be obsolete: a commit failed, or an observation became too old.
    Reconcile,
}

impl Addressed for PlannerMessage {
    const ACTOR: &'static str = "cluster-planner";
}

/// Messages of the repair queue.
#[derive(Debug)]
pub enum RepairMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// The registry reported machines for repair.
    Reported(Arc<Reports>, HandledSignal),
    /// The next health checks are due.
    Tick,
    /// A deadline passed, or a retry is due.
    Reconcile,
    /// An event of a change or of the command that it announced.
    Effect(EffectEvent<CommandEnd>),
    /// A health check ended.
    Checked {
        /// Index of the entry.
        index: i64,
        /// Number of the check; the actor ignores cancelled checks.
        check: u64,
        /// The answer of the check; `None` if it did not run.
        health: Option<HealthAnswer>,
    },
    /// A drain reports its progress.
    Drained {
        /// Index of the entry.
        index: i64,
        /// Number of the drain; the actor ignores cancelled drains.
        drain: u64,
        /// The drain's progress or end.
        news: DrainNews,
    },
    /// The nodes that carry Madako's cordon, or the error of the read.
    Cordoned(Result<Vec<String>, String>),
    /// An uncordon ended.
    Uncordoned {
        /// Name of the node.
        node: String,
        /// The error, if it failed.
        failed: Option<String>,
    },
}

/// Messages of the reboot queue.
#[derive(Debug)]
pub enum RebootMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// The next boot checks are due.
    Tick,
    /// A deadline passed, or a retry is due.
    Reconcile,
    /// An event of a change or of the command that it announced.
    Effect(EffectEvent<CommandEnd>),
    /// A boot check ended.
    Checked {
        /// Index of the entry.
        index: i64,
        /// Number of the check; the actor ignores cancelled checks.
        check: u64,
        /// The answer: healthy if the node has booted; `None` if the check did not run.
        answer: Option<HealthAnswer>,
    },
    /// A drain reports its progress.
    Drained {
        /// Index of the entry.
        index: i64,
        /// Number of the drain; the actor ignores cancelled drains.
        drain: u64,
        /// The drain's progress or end.
        news: DrainNews,
    },
}

impl Addressed for RebootMessage {
    const ACTOR: &'static str = "reboot-queue";
}

/// Messages of the actor of a node.
#[derive(Debug)]
pub enum NodeMessage {
    /// The next attempt to connect is due.
    Connect,
    /// An attempt to connect ended.
    Connected {
        /// Number of the attempt; the actor ignores older attempts.
        number: u64,
        /// The connection, or the error.
        result: Result<Connection, NodeError>,
    },
    /// The commit of the node's host key ended.
    Pinned {
        /// Number of the attempt to connect.
        number: u64,
        /// The error, if it failed.
        failed: Option<String>,
    },
    /// The connection broke.
    Closed {
        /// Number of the attempt that made it.
        number: u64,
    },
    /// Reads the state of the node.
    Observe {
        /// The configured volume of etcd.
        volume: String,
        /// Takes the state, or the error.
        reply: oneshot::Sender<Result<NodeStatus, NodeError>>,
    },
    /// Acts on the node, after all earlier actions. Dropping the receiver of the reply cancels the action.
    Act {
        /// The right to begin.
        permit: Permit,
        /// The action, which begins only while the permit is valid.
        action: NodeAction,
        /// Takes the output, or the error.
        reply: oneshot::Sender<Result<String, NodeError>>,
    },
    /// An action ended.
    Acted,
}

impl Addressed for NodeMessage {
    const ACTOR: &'static str = "node";
}

/// Messages of the operation runner.
#[derive(Debug)]
pub enum RunnerMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// The next pass is due.
    Tick,
    /// The nodes and etcd were read.
    Collected {
        /// Number of the collection; the actor ignores older ones.
        number: u64,
        /// The state of the nodes and of etcd.
        collected: Box<Collected>,
    },
    /// The authorities answered whether they issue certificates.
    Authorities {
        /// Number of the collection that the question belongs to; the actor ignores older ones.
        number: u64,
        /// The reason why not.
        ready: Result<(), String>,
    },
    /// An event of a change or of the command that it announced.
    Effect(EffectEvent<OperationEnd>),
    /// API servers, by address, listed their namespaces in these times.
    Measured(BTreeMap<String, Result<Duration, KubernetesError>>),
    /// The commit of the phase ended.
    PhaseWritten(Result<Committed, CommitError>),
    /// Withdraws the endpoints of a control plane node's API server, moves etcd's leadership away from the node, and ends the API
    /// server: the reboot of the node is about to begin. Dropping the receiver of the reply cancels the rest.
    PrepareReboot {
        /// Address of the node.
        node: String,
        /// Takes the reason not to reboot, such as invariant I13. No reply: the runner cannot tell at present.
        reply: oneshot::Sender<Result<(), String>>,
    },
}

impl Addressed for RunnerMessage {
    const ACTOR: &'static str = "operation-runner";
}

/// Messages of the actor of backups.
#[derive(Debug)]
pub enum BackupMessage {
    /// The state of the store changed.
    State(Arc<ClusterState>, HandledSignal),
    /// A backup may be due, and its age has grown.
    Tick,
    /// A backup ended.
    Ended(Box<BackupEnd>),
}

impl Addressed for BackupMessage {
    const ACTOR: &'static str = "etcd-backup";
}

/// The result of a backup, with the older backups that it removed.
#[derive(Debug)]
pub struct BackupEnd {
    /// The committed record and its revision, or the reason why no backup counts.
    pub outcome: Result<(BackupRecord, i64), BackupFailure>,
    /// Names of older backups that were removed, or the error.
    pub removed: Result<Vec<String>, BackupError>,
}

/// The reason why no backup counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupFailure {
    /// There is no backup, or it is not proved.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The record of the backup is not known to be written.
    #[error("the backup was written, but its record in etcd was not: {0}")]
    Commit(#[from] CommitError),
}

impl BackupFailure {
    /// A short name for metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Backup(error) => error.name(),
            Self::Commit(_) => "commit",
        }
    }
}

/// The state of the nodes and of etcd, with the errors of the reads.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The states of the nodes that answered, by address.
    pub nodes: BTreeMap<String, NodeStatus>,
    /// The errors of the others.
    pub errors: BTreeMap<String, String>,
    /// True if the runner queried etcd, which it does as soon as etcd has data.
    pub asked_etcd: bool,
    /// The answer of etcd; `None` if it was not asked or did not answer.
    pub etcd: Option<EtcdStatus>,
    /// `Err`: the reason why the authorities issue no certificates; `None` if the runner did not query them.
    pub authorities: Option<Result<(), String>>,
    /// The answers of the components of Kubernetes; `None` if they were not asked.
    pub kubernetes: Option<KubernetesAnswers>,
}

/// The end of a command of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationEnd {
    /// The command succeeded on all targets.
    Succeeded,
    /// The command failed.
    Failed {
        /// Nodes on which it failed; empty if no node is the cause.
        nodes: BTreeSet<String>,
        /// The errors in words, for the record.
        why: String,
    },
    /// The operation must be held. The command found that before it changed anything, and no node is the cause.
    Held {
        /// The reason, as the end of a sentence.
        why: String,
    },
}

impl Addressed for RepairMessage {
    const ACTOR: &'static str = "repair-queue";
}

/// Messages of the fetcher of metrics.
#[derive(Debug)]
pub enum FetcherMessage {
    /// Placement's resources were listed, or changed.
    Followed(FollowEvent, HandledSignal),
    /// The next pass is due.
    Tick,
    /// A fetch ended.
    Fetched {
        /// Number of the fetch; the fetcher ignores cancelled fetches.
        fetch: u64,
        /// The samples of the fetch.
        samples: Samples,
    },
    /// A value may have become too old.
    Reconcile,
}

impl Addressed for FetcherMessage {
    const ACTOR: &'static str = "metrics-fetcher";
}

/// Messages of the scheduler.
#[derive(Debug)]
pub enum SchedulerMessage {
    /// The scheduler's stored state was read.
    Remembered(Snapshot),
    /// Placement's resources were listed, or changed.
    Followed(FollowEvent, HandledSignal),
    /// New observed states of metrics.
    Metrics(Arc<MetricsObserved>, HandledSignal),
    /// A reconcile pass is due: the time to collect changes is over, a deadline passed, or a commit can be retried.
    Reconcile,
    /// A transaction of a pass ended.
    Written {
        /// Number of the transaction in sending order.
        number: usize,
        /// Result of its commit.
        result: Result<Committed, CommitError>,
    },
    /// Requests an explanation of the decision on an application.
    Explain {
        /// Key of the application.
        application: ObjectKey,
        /// Hypothetical changes of the inputs.
        what_if: WhatIf,
        /// Replies with all candidates, or with the error.
        reply: RpcReplyPort<Result<Box<Explanation>, ExplainError>>,
    },
}

impl Addressed for SchedulerMessage {
    const ACTOR: &'static str = "app-scheduler";
}
