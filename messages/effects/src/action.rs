//! What a workflow is about, and what it says is to be done.

use std::time::Duration;

use madako_protocol::actors::{CommitError, Committed};
use madako_protocol::permit::Permit;

/// Something that is done outside the store.
pub trait Effect: Clone {
    /// How it ended: what is recorded.
    type Outcome;

    /// How often it is begun at most while it fails; at least once.
    fn attempts(&self) -> u32;

    /// How long nothing may be heard of an attempt: longer than its port lets it go on.
    fn attempt_limit(&self) -> Duration;

    /// The same of the pause before another attempt.
    fn pause_limit(&self) -> Duration;
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<A, E> {
    /// Commit a change through the leader, and answer [`EffectEvent::Committed`](crate::EffectEvent::Committed).
    Commit {
        /// Number of the commit.
        number: u64,
        /// The change.
        change: A,
    },
    /// The change in flight was answered.
    Answered {
        /// The answer.
        result: Result<Committed, CommitError>,
    },
    /// Ask the leader for a permit, and answer [`EffectEvent::Permitted`](crate::EffectEvent::Permitted).
    Ask {
        /// Number of the question.
        number: u64,
        /// What it is for.
        effect: E,
    },
    /// Begin an attempt, and answer [`EffectEvent::Ended`](crate::EffectEvent::Ended).
    Start {
        /// Number of the attempt.
        number: u64,
        /// Which attempt of the effect, from 1.
        attempt: u32,
        /// The effect.
        effect: E,
        /// The right to begin it.
        permit: Permit,
    },
    /// Wait before another attempt, and answer [`EffectEvent::Paused`](crate::EffectEvent::Paused).
    Pause {
        /// Number of the pause.
        number: u64,
        /// The effect.
        effect: E,
    },
    /// End what was started, asked or waited for of the effect.
    Abort,
    /// The effect ended: record its [`Workflow::conclusion`](crate::Workflow::conclusion).
    Record {
        /// The effect.
        effect: E,
        /// How long it took since its announcement was known to be durable.
        took: Duration,
    },
    /// Decide anew on the newest state: something changed that decisions stand on.
    Decide,
    /// The epoch is over and this effect is not recorded by it: tell, since nobody asks any more.
    Report {
        /// The effect.
        effect: E,
        /// How it was left.
        left: Left,
    },
}

/// How an effect was left when the epoch was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// No attempt began.
    NotBegun,
    /// An attempt began, and its end is not known.
    Unknown,
    /// It ended, or its last attempt did, and that is not recorded.
    NotRecorded,
}

/// How an effect ended that was announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion<O> {
    /// Its last attempt ended so.
    Ended(O),
    /// No attempt follows, as something speaks against it.
    Withdrawn {
        /// What.
        why: String,
        /// How the attempt before ended; `None`: none began.
        last: Option<O>,
    },
    /// An attempt began and nothing was heard of its end for too long.
    Unheard {
        /// How long.
        limit: Duration,
    },
}

/// What the newest state tells of an announcement whose commit has no known end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It is durable, and nothing speaks against the effect.
    Announced,
    /// It is durable, and this came meanwhile, which would have kept it from being announced.
    AnnouncedInVain {
        /// What.
        why: String,
    },
    /// It can never become durable any more.
    Never,
    /// Neither yet.
    NotYet,
}
