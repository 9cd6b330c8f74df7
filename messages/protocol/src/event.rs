//! What happens, as data: for the log, the live view, and the simulation's history.

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

/// Why nothing is planned at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blocked {
    /// Nothing was read from the store yet.
    NoState,
    /// The integration with the registry is switched off.
    Disabled,
    /// No template is stored.
    NoTemplate,
    /// A stored value that a plan needs cannot be used.
    Unusable {
        /// Its key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// No URL of the registry is stored.
    NoUrl,
    /// The registry has not answered yet.
    NoObservation,
    /// The last good answer belongs to another URL or other variables.
    OtherQuery,
    /// The last good answer is too old (design: three poll intervals).
    Stale {
        /// Its age.
        age: Duration,
    },
    /// The removal guard holds the observation back.
    Held(GuardState),
}

impl Blocked {
    /// A short name for a metric's label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoState => "no-state",
            Self::Disabled => "disabled",
            Self::NoTemplate => "no-template",
            Self::Unusable { .. } => "unusable-input",
            Self::NoUrl => "no-url",
            Self::NoObservation => "no-observation",
            Self::OtherQuery => "other-query",
            Self::Stale { .. } => "stale-observation",
            Self::Held(_) => "removal-guard",
        }
    }

    /// Every name.
    pub const NAMES: [&'static str; 9] = [
        "no-state",
        "disabled",
        "no-template",
        "unusable-input",
        "no-url",
        "no-observation",
        "other-query",
        "stale-observation",
        "removal-guard",
    ];
}

impl fmt::Display for Blocked {
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
            Self::Held(guard) => write!(
                f,
                "{} nodes vanished from the registry's list at once; {} of {} polls agree, or confirm the \
                 removal",
                guard.vanished.len(),
                guard.agreed,
                madako_domain::guard::POLLS_TO_AGREE
            ),
        }
    }
}

/// Something that happened in one instance.
#[derive(Debug, Clone)]
pub enum Event {
    /// A candidate behind a leader.
    Waiting {
        /// The leader's host name.
        leader: String,
    },
    /// Elected.
    Elected {
        /// The epoch.
        epoch: i64,
    },
    /// Leadership is over.
    Lost {
        /// The epoch.
        epoch: i64,
        /// Why.
        why: String,
    },
    /// The store does not answer.
    StoreInterrupted {
        /// What it said.
        why: String,
    },
    /// The store answers again.
    StoreBack,
    /// Values of the store that cannot be used now.
    StateFaults {
        /// Key and problem of each; empty when all is well again.
        faults: Vec<madako_domain::state::Fault>,
    },
    /// A record that another leader left unfinished was marked cancelled.
    RecordCancelled {
        /// Its id.
        id: i64,
    },
    /// The registry answered.
    Observed {
        /// Machines with an address.
        machines: usize,
        /// Machines without one.
        left_out: usize,
    },
    /// Which addresses several machines claim; empty when none is any more.
    SharedAddresses(BTreeMap<String, BTreeSet<String>>),
    /// A poll of the registry failed.
    PollFailed {
        /// Why.
        why: String,
    },
    /// The registry answered which machines should be repaired.
    Reported {
        /// How many.
        machines: usize,
    },
    /// A poll of what should be repaired failed.
    ReportsFailed {
        /// Why.
        why: String,
    },
    /// What became of reports for repair since the last time.
    Reports(ReportNews),
    /// The removal guard holds an observation back.
    Held(GuardState),
    /// The removal guard lets observations through again.
    Released {
        /// Why.
        why: String,
    },
    /// The taints of Kubernetes' nodes are known.
    TaintsKnown {
        /// How many nodes have some.
        nodes: usize,
    },
    /// The taints of Kubernetes' nodes are not known, or not any more: plans do without them.
    TaintsUnknown {
        /// Why.
        why: String,
        /// How old the last good answer is; `None`: there was none.
        age: Option<Duration>,
    },
    /// Nothing is planned.
    Blocked(Blocked),
    /// There is nothing to do.
    Calm {
        /// The reasons, one for each rule.
        plan: Arc<Plan>,
    },
    /// A plan was made.
    Planned {
        /// The plan.
        plan: Arc<Plan>,
        /// How long that took.
        took: Duration,
    },
    /// A plan cannot be made.
    PlanFailed(Arc<PlanError>),
    /// Something was committed.
    Committed {
        /// What, such as `cluster`.
        what: &'static str,
        /// Revision of the commit.
        revision: i64,
        /// Epoch that made it.
        epoch: i64,
        /// The action, for a cluster.
        action: Option<Action>,
    },
    /// Something could not be committed.
    CommitFailed {
        /// What.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// A commit was refused because it breaks an invariant.
    Violated(Vec<Violation>),
    /// Another prefix of the same etcd owns placement: this instance decides nothing about it.
    PlacementHeld {
        /// That prefix.
        owner: String,
    },
    /// This instance decides about placement from now on.
    PlacementOwned,
    /// A decision about placement that led to something was committed.
    Decided {
        /// What was decided about.
        application: ObjectKey,
        /// What, and why.
        decision: Box<Decision>,
    },
    /// Something was done with an entry of the repair queue.
    Repaired {
        /// Its index.
        index: i64,
        /// Address of its machine.
        address: String,
        /// Name of the operation.
        operation: &'static str,
        /// What, for people.
        what: String,
        /// Whether a step or the whole repair failed by it.
        failed: bool,
    },
    /// Something stands in the way of what comes next for an entry of the repair queue.
    RepairWaits {
        /// Its index.
        index: i64,
        /// Address of its machine.
        address: String,
        /// A short name of what stands in the way; empty when nothing does any more.
        reason: &'static str,
        /// What comes next, and what stands in its way.
        why: String,
    },
    /// The repair queue cannot ask Kubernetes, or not do something there.
    RepairTrouble {
        /// What is wrong; empty when all is well again.
        why: String,
    },
    /// An actor failed and is restarted after a pause.
    ActorFailed {
        /// Its name without the instance.
        actor: String,
        /// Why.
        why: String,
        /// The pause; `None` when it is not restarted by its supervisor.
        restart_in: Option<Duration>,
    },
    /// An actor runs again.
    ActorRestarted {
        /// Its name without the instance.
        actor: String,
        /// How often it was restarted so far.
        restarts: u64,
    },
    /// The reign failed too often: the instance gives up leadership for a while.
    Meltdown {
        /// How long it stays away.
        pause: Duration,
    },
}

/// Takes events. Must be quick and never block.
pub trait EventSink: Send + Sync + 'static {
    /// Something happened.
    fn emit(&self, event: Event);
}
