//! Effects outside etcd as data, and the actions that their workflow requests.

use std::time::Duration;

use madako_protocol::actors::{CommitError, Committed};
use madako_protocol::permit::Permit;

/// An operation outside the store.
pub trait Effect: Clone {
    /// The result to record.
    type Outcome;

    /// Maximum number of attempts while they fail; at least 1.
    fn attempts(&self) -> u32;

    /// Time after which an attempt without an answer counts as lost; longer than its port allows an attempt to run.
    fn attempt_limit(&self) -> Duration;

    /// Time after which a pause without an answer counts as lost; longer than the pause.
    fn pause_limit(&self) -> Duration;
}

/// An action for the actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<A, E> {
    /// Commit a change through the leader, and answer with [`EffectEvent::Committed`](crate::EffectEvent::Committed).
    Commit {
        /// Number of the commit.
        number: u64,
        /// The change to commit.
        change: A,
    },
    /// The change in flight was answered.
    Answered {
        /// The result of the commit, as the leader answered it.
        result: Result<Committed, CommitError>,
    },
    /// Request a permit from the leader, and answer with [`EffectEvent::Permitted`](crate::EffectEvent::Permitted).
    Ask {
        /// Number of the request.
        number: u64,
        /// The effect that needs the permit.
        effect: E,
    },
    /// Begin an attempt, and answer with [`EffectEvent::Ended`](crate::EffectEvent::Ended).
    Start {
        /// Number of the attempt.
        number: u64,
        /// Number of the attempt at this effect, from 1.
        attempt: u32,
        /// The effect of the attempt.
        effect: E,
        /// The right to begin the attempt.
        permit: Permit,
    },
    /// Wait before another attempt, and answer with [`EffectEvent::Paused`](crate::EffectEvent::Paused).
    Pause {
        /// Number of the pause.
        number: u64,
        /// The effect that waits.
        effect: E,
    },
    /// Stop all tasks of the effect: attempt, request and pause.
    Abort,
    /// The effect ended: record its [`Workflow::conclusion`](crate::Workflow::conclusion).
    Record {
        /// The effect that ended.
        effect: E,
        /// Time since its announcement was known to be durable.
        took: Duration,
    },
    /// Decide again on the newest state, because an input of decisions changed.
    Decide,
    /// The epoch is over, and this epoch has not recorded the effect: report it, because no later event concerns it.
    Report {
        /// The effect without a record.
        effect: E,
        /// The state of the effect.
        left: RemainingEffect,
    },
}

/// The state of an effect at the end of its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemainingEffect {
    /// No attempt began, so the effect did not happen.
    NotBegun,
    /// An attempt began, and its result is unknown.
    Unknown,
    /// The effect or its last attempt ended without a record.
    NotRecorded,
}

/// The end of an announced effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion<O> {
    /// The result of its last attempt.
    Ended(O),
    /// No further attempt follows, for a reason.
    Withdrawn {
        /// The reason, in words.
        why: String,
        /// The result of the previous attempt; `None` if none began.
        last: Option<O>,
    },
    /// An attempt began and did not answer within the limit.
    Unheard {
        /// The time that the attempt had.
        limit: Duration,
    },
}

/// The evidence in the newest state about an announcement whose commit has an unknown result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The announcement is durable, and the effect may begin.
    Announced,
    /// The announcement is durable, but a reason against the effect appeared meanwhile.
    AnnouncedInVain {
        /// The reason, in words.
        why: String,
    },
    /// The announcement can no longer become durable.
    Never,
    /// The state does not decide it yet.
    NotYet,
}
