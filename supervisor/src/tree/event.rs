//! The events and errors of a supervisor, and the ends of its children, as data.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use madako_protocol::causes::error_with_causes;

use super::spec::ChildId;
use crate::limits::REASON_MAX_BYTES;

/// Receives the events of a tree in order. It runs in the supervisor's task and must not block. It adds a timestamp
/// if needed.
pub type EventSink = Arc<dyn Fn(&TreeEvent) + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// A child's first start succeeded.
    ChildStarted { supervisor: ChildId, child: ChildId },
    ChildFailed {
        supervisor: ChildId,
        child: ChildId,
        reason: ChildExit,
        /// Back-off before the restart; `None`: the budget is exceeded.
        restart_in: Option<Duration>,
    },
    /// A failed child runs again.
    ChildRestarted {
        supervisor: ChildId,
        child: ChildId,
        /// Restarts since the child was added, including failed ones.
        restarts: u64,
    },
    /// A [`Restart::Transient`](super::Restart::Transient) child ended normally and was removed.
    ChildEnded { supervisor: ChildId, child: ChildId, reason: Option<String> },
    /// A child was removed on request or with its supervisor.
    ChildStopped { supervisor: ChildId, child: ChildId, outcome: StopOutcome },
    /// A child exceeded its own budget and was removed, as its specification demands.
    ChildGivenUp { supervisor: ChildId, exceeded: BudgetExceeded },
    /// A supervisor's budget is exceeded: it stops its children and fails.
    Meltdown(Meltdown),
    /// A supervisor ended in order; none of its children is left.
    Stopped { supervisor: ChildId },
}

/// End of a child without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildExit {
    /// It panicked or returned an error; ractor does not distinguish them.
    Failed(String),
    /// It was killed, or its task was cancelled.
    Killed,
    /// It stopped by itself, or another actor stopped or drained it.
    Ended(Option<String>),
    /// Its start failed, panicked, or exceeded its deadline.
    StartFailed(String),
    Meltdown(Box<Meltdown>),
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Killed => f.write_str("killed"),
            Self::Ended(None) => f.write_str("ended"),
            Self::Ended(Some(why)) => write!(f, "ended: {why}"),
            Self::StartFailed(why) => write!(f, "not started: {why}"),
            Self::Meltdown(meltdown) => meltdown.fmt(f),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopOutcome {
    /// It ended by itself, now or earlier, including its `post_stop`.
    Stopped,
    /// It was killed, on request or because it exceeded its deadline.
    Killed,
    /// It did not end after a kill, because it blocks its thread. No further action is possible; its name stays
    /// taken.
    Stuck,
}

impl StopOutcome {
    /// Corrects the outcome for an actor that ended before the kill.
    pub(super) fn with_end(self, ended: bool) -> Self {
        if ended && self == Self::Killed { Self::Stopped } else { self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the actor {child} needed more than {restarts} restarts within {window:?}; last exit: {reason}")]
pub struct BudgetExceeded {
    pub child: ChildId,
    pub restarts: u32,
    pub window: Duration,
    pub reason: ChildExit,
}

/// Error of a supervisor whose budget is exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the supervisor {supervisor} ended, because an actor failed too often: {exceeded}")]
pub struct Meltdown {
    pub supervisor: ChildId,
    /// The child with the last failure, and the charged budget.
    pub exceeded: BudgetExceeded,
}

/// An error and its causes in one line of bounded length.
pub(super) fn failure_reason(error: &(dyn Error + 'static)) -> String {
    shorten_reason(error_with_causes(error))
}

/// Cuts a text at [`REASON_MAX_BYTES`], between characters.
pub(super) fn shorten_reason(mut text: String) -> String {
    if text.len() > REASON_MAX_BYTES {
        text.truncate(text.floor_char_boundary(REASON_MAX_BYTES));
        text.push('…');
    }
    text
}
