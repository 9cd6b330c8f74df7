//! What an actor hears of the effects that it announces; the crate `madako-effects` has the rules.

use crate::actors::{CommitError, Committed};
use crate::permit::Permit;

/// How an attempt of an effect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd<O> {
    /// It ended for good, or nobody knows how: no attempt follows.
    Final(O),
    /// It failed, and may be tried again.
    Failed(O),
    /// It did not begin: its permit had ended.
    NotBegun,
}

/// Something that became of a change or an effect. The number is that of the action which led to it: an event of an action that was given
/// up is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectEvent<O> {
    /// A commit was answered.
    Committed {
        /// Number of the commit.
        number: u64,
        /// The answer.
        result: Result<Committed, CommitError>,
    },
    /// The leader answered who asked for a permit.
    Permitted {
        /// Number of the question.
        number: u64,
        /// The permit; `None`: none is given now.
        permit: Option<Permit>,
    },
    /// An attempt ended.
    Ended {
        /// Number of the attempt.
        number: u64,
        /// How.
        end: AttemptEnd<O>,
    },
    /// The pause between two attempts is over.
    Paused {
        /// Number of the pause.
        number: u64,
        /// What speaks against another attempt.
        against: Option<String>,
    },
    /// A time came that was waited for.
    Passed,
    /// The epoch is over.
    Lost,
}
