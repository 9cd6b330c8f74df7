//! Events as data: for the log, the live view, and the simulation's history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::guard::GuardState;
use madako_domain::invariants::Violation;
use madako_domain::placement::decision::Decision;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::plan::{Action, Plan, PlanError};
use madako_domain::repair::refusal::ReportNews;
use madako_json::named;
use strum::{IntoStaticStr, VariantNames};

/// The reason why nothing is planned at present.
#[derive(Debug, Clone, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum PlanBlockedBy {
    /// The store has not been read yet.
    NoState,
    /// An operator disabled the integration with the registry.
    Disabled,
    /// The store has no template.
    NoTemplate,
    /// A stored value that a plan needs is unusable.
    #[strum(serialize = "unusable-input")]
    Unusable {
        /// Key of the value.
        key: String,
        /// The fault, in words.
        why: String,
    },
    /// The store has no URL of the registry.
    NoUrl,
    /// The registry has not answered yet.
    NoObservation,
    /// The last valid answer belongs to another URL or other variables.
    OtherQuery,
    /// The last valid answer is too old (design: three poll intervals).
    #[strum(serialize = "stale-observation")]
    Stale {
        /// Age of the answer.
        age: Duration,
    },
    /// The removal guard holds the observation back.
    #[strum(serialize = "removal-guard")]
    Held(GuardState),
    /// An operation on nodes is due or runs. As in CKE, the cluster changes only when its nodes agree with it.
    OperationDue,
    /// The plan would break invariant I2.
    Quorum {
        /// The violation, in words.
        violation: String,
    },
}

named!(PlanBlockedBy names);

impl fmt::Display for PlanBlockedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoState => f.write_str("nothing was read from the store yet"),
            Self::Disabled => f.write_str("the integration with the registry is disabled"),
            Self::NoTemplate => f.write_str("no template is stored"),
            Self::Unusable { key, why } => write!(f, "{key} cannot be used: {why}"),
            Self::NoUrl => f.write_str("no URL of the registry is stored"),
            Self::NoObservation => f.write_str("the registry has not answered yet"),
            Self::OtherQuery => {
                f.write_str("the last answer of the registry belongs to another URL or other variables")
            }
            Self::Stale { age } => {
                write!(f, "the last answer of the registry is {} s old", age.as_secs())
            }
            Self::OperationDue => f.write_str("an operation on nodes goes first (madako ops shows it)"),
            Self::Quorum { violation } => f.write_str(violation),
            Self::Held(guard) => write!(
                f,
                "{} nodes vanished from the registry's list at once; {} of {} polls agree: wait, or confirm \
                 the removal",
                guard.vanished.len(),
                guard.agreed,
                madako_domain::guard::POLLS_TO_AGREE
            ),
        }
    }
}

/// An event of one instance.
#[derive(Debug, Clone)]
pub enum Event {
    /// The instance is a candidate behind a leader.
    Waiting {
        /// Host name of the leader.
        leader: String,
    },
    /// The instance became leader.
    Elected {
        /// Number of the epoch.
        epoch: i64,
    },
    /// The instance is no longer leader.
    Lost {
        /// Number of the epoch.
        epoch: i64,
        /// The reason, in words.
        why: String,
    },
    /// The store does not answer.
    StoreInterrupted {
        /// The error of the store.
        why: String,
    },
    /// The store answers again.
    StoreBack,
    /// The set of unusable values in the store changed.
    StateFaults {
        /// Key and fault of each; empty when all values are usable again.
        faults: Vec<madako_domain::state::Fault>,
    },
    /// The leader cancelled a record that an earlier leader left unfinished.
    RecordCancelled {
        /// Id of the record.
        id: i64,
    },
    /// The registry answered a poll.
    Observed {
        /// Number of machines with an address.
        machines: usize,
        /// Number of machines without an address.
        left_out: usize,
    },
    /// Addresses that several machines share, with their serials; empty when no address is shared any more.
    SharedAddresses(BTreeMap<String, BTreeSet<String>>),
    /// A poll of the registry failed.
    PollFailed {
        /// The error, in words.
        why: String,
    },
    /// The registry reported machines to repair.
    Reported {
        /// Number of reported machines.
        machines: usize,
    },
    /// A poll for machines to repair failed.
    ReportsFailed {
        /// The error, in words.
        why: String,
    },
    /// The changes of refused reports and held racks.
    Reports(ReportNews),
    /// The removal guard holds an observation back.
    Held(GuardState),
    /// The removal guard lets observations pass again.
    Released {
        /// The reason, in words.
        why: String,
    },
    /// The taints of Kubernetes' nodes were read.
    TaintsKnown {
        /// Number of nodes with taints.
        nodes: usize,
    },
    /// The taints of Kubernetes' nodes are unknown or outdated: plans ignore them.
    TaintsUnknown {
        /// The error, in words.
        why: String,
        /// Age of the last valid answer; `None` if there was none.
        age: Option<Duration>,
    },
    /// Planning is blocked for this reason.
    Blocked(PlanBlockedBy),
    /// The cluster needs no change.
    Calm {
        /// The plan without an action, with a reason for each rule.
        plan: Arc<Plan>,
    },
    /// The planner made a plan.
    Planned {
        /// The plan before its commit.
        plan: Arc<Plan>,
        /// Duration of the planning.
        took: Duration,
    },
    /// The planner found no plan.
    PlanFailed(Arc<PlanError>),
    /// A change was committed.
    Committed {
        /// Name of the change, such as `cluster`.
        what: &'static str,
        /// Revision of the commit.
        revision: i64,
        /// Epoch of the commit.
        epoch: i64,
        /// The plan's action, for a cluster.
        action: Option<Action>,
    },
    /// A change was not committed.
    CommitFailed {
        /// Name of the change.
        what: &'static str,
        /// The error, in words.
        why: String,
    },
    /// A commit was refused because it violates an invariant.
    Violated(Vec<Violation>),
    /// Another prefix of the same etcd owns placement: this instance decides nothing about it.
    PlacementHeld {
        /// The prefix that owns placement.
        owner: String,
    },
    /// This instance now decides about placement.
    PlacementOwned,
    /// An effective decision about placement was committed.
    Decided {
        /// Key of the application.
        application: ObjectKey,
        /// The decision with its reasons.
        decision: Box<Decision>,
    },
    /// An entry of the repair queue advanced.
    Repaired {
        /// Index of the entry.
        index: i64,
        /// Address of the machine.
        address: String,
        /// Name of the operation.
        operation: &'static str,
        /// A description for people.
        what: String,
        /// True if a step or the whole repair failed.
        failed: bool,
    },
    /// The next step of an entry of the repair queue is blocked, or no longer blocked.
    RepairWaits {
        /// Index of the entry.
        index: i64,
        /// Address of the machine.
        address: String,
        /// A short name of the obstacle; empty when the step is no longer blocked.
        reason: &'static str,
        /// The next step and the obstacle.
        why: String,
    },
    /// An entry of the reboot queue advanced.
    Rebooted {
        /// Index of the entry.
        index: i64,
        /// Address of the node.
        node: String,
        /// Name of the operation.
        operation: &'static str,
        /// A description for people.
        what: String,
        /// True if a drain was aborted or a command failed.
        failed: bool,
    },
    /// The next action on an entry of the reboot queue is blocked, or no longer blocked.
    RebootWaits {
        /// Index of the entry.
        index: i64,
        /// Address of the node.
        node: String,
        /// A short name of the obstacle; empty when the action is no longer blocked.
        reason: &'static str,
        /// The next action and the obstacle.
        why: String,
    },
    /// A request of the repair queue to Kubernetes failed.
    RepairTrouble {
        /// The error; empty when requests succeed again.
        why: String,
    },
    /// An operation on nodes advanced.
    Operation {
        /// Id of its record.
        id: i64,
        /// Name of the operation, as in its record.
        operation: &'static str,
        /// A description for people.
        what: String,
        /// True if a command failed.
        failed: bool,
    },
    /// The set of operations that are held changed.
    OperationsHeld {
        /// Each operation with its reason and targets; empty when none is held.
        held: Vec<String>,
    },
    /// The leader has a new backup of etcd.
    EtcdBackup {
        /// Path of the file on the leader's host.
        file: String,
        /// Its size in bytes.
        size: u64,
        /// True if it was proved.
        proved: bool,
    },
    /// A backup of etcd failed.
    EtcdBackupFailed {
        /// The error, in words.
        why: String,
    },
    /// An actor failed; its restart follows after a pause.
    ActorFailed {
        /// Name of the actor without the instance.
        actor: String,
        /// The error, in words.
        why: String,
        /// The pause; `None` if its supervisor does not restart it.
        restart_in: Option<Duration>,
    },
    /// An actor runs again.
    ActorRestarted {
        /// Name of the actor without the instance.
        actor: String,
        /// Number of restarts so far.
        restarts: u64,
    },
    /// The reign failed too often: the instance pauses its candidacy.
    Meltdown {
        /// Time without candidacy.
        pause: Duration,
    },
}

/// A receiver of events. Must be quick and never block.
pub trait EventSink: Send + Sync + 'static {
    /// Takes an event without blocking.
    fn emit(&self, event: Event);
}
