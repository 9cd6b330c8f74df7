//! What happens in a tree, as data: events, ends of children, the errors of a supervisor.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::spec::ChildId;
use crate::limits::REASON_MAX_BYTES;

/// Takes the events of a tree in order. It runs in the supervisor's task: it must not block;
/// it adds the time if it needs one.
pub type EventSink = Arc<dyn Fn(&TreeEvent) + Send + Sync>;

/// Something happened to a child or a supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// A child's first start succeeded.
    ChildStarted {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child.
        child: ChildId,
    },
    /// A child failed, or could not be started.
    ChildFailed {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child.
        child: ChildId,
        /// How it ended.
        reason: ChildExit,
        /// The wait before its restart; `None` if the budget is exceeded.
        restart_in: Option<Duration>,
    },
    /// A child that had failed runs again.
    ChildRestarted {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child.
        child: ChildId,
        /// Restarts since it was added, those that failed included.
        restarts: u64,
    },
    /// A [`Restart::Transient`](super::Restart::Transient) child came to its normal end and was removed.
    ChildEnded {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child.
        child: ChildId,
        /// The reason that it gave.
        reason: Option<String>,
    },
    /// A child was removed as asked for, or with its supervisor.
    ChildStopped {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child.
        child: ChildId,
        /// How it went.
        outcome: StopOutcome,
    },
    /// A child exceeded a budget of its own and was removed, because its specification says so.
    ChildGivenUp {
        /// Its supervisor.
        supervisor: ChildId,
        /// The child and its budget.
        exceeded: BudgetExceeded,
    },
    /// A supervisor's budget is exceeded: it stops its children and fails.
    Meltdown(Meltdown),
    /// A supervisor has ended in order; none of its children is left.
    Stopped {
        /// The supervisor.
        supervisor: ChildId,
    },
}

/// How a child ended without being asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildExit {
    /// It panicked or returned an error (ractor does not tell them apart).
    Failed(String),
    /// It was killed, or its task was cancelled.
    Killed,
    /// It stopped by itself or was stopped or drained by another.
    Ended(Option<String>),
    /// Its start failed, panicked, or took too long.
    StartFailed(String),
    /// It is a supervisor and melted down.
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

/// How the stop of a child went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopOutcome {
    /// It ended by itself (or had ended before), its `post_stop` included.
    Stopped,
    /// It was killed: asked for, or not ended within its deadline.
    Killed,
    /// It did not end after it was killed: it blocks its thread. Nothing more can be done; its name stays taken.
    Stuck,
}

impl StopOutcome {
    /// What it means for an actor that may have ended before: that cannot be killed.
    pub(super) fn of(self, ended: bool) -> Self {
        if ended && self == Self::Killed { Self::Stopped } else { self }
    }
}

/// A child's own budget is exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{child} needed more than {restarts} restarts within {window:?}; the last time it {reason}")]
pub struct BudgetExceeded {
    /// The child.
    pub child: ChildId,
    /// Restarts that its budget allows.
    pub restarts: u32,
    /// The budget's window.
    pub window: Duration,
    /// How it ended the last time.
    pub reason: ChildExit,
}

/// The error that a supervisor ends with when failures exceed its budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{supervisor} melted down: {exceeded}")]
pub struct Meltdown {
    /// The supervisor.
    pub supervisor: ChildId,
    /// The child whose failure was one too many, and the budget that it was charged to.
    pub exceeded: BudgetExceeded,
}

/// An error and its sources in one line of bounded length.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        if text.len() > REASON_MAX_BYTES {
            break;
        }
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    shorten(text)
}

/// Cuts a text at [`REASON_MAX_BYTES`], between characters.
pub(super) fn shorten(mut text: String) -> String {
    if text.len() > REASON_MAX_BYTES {
        text.truncate(text.floor_char_boundary(REASON_MAX_BYTES));
        text.push('…');
    }
    text
}
