//! The events of effects that an actor announced; the crate `madako-effects` has the rules.

use crate::actors::{CommitError, Committed};
use crate::permit::Permit;

/// The end of an attempt at an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd<O> {
    /// The result is final, or unknown: no attempt follows.
    Final(O),
    /// The attempt failed; another may follow.
    Failed(O),
    /// The attempt did not begin, because its permit had expired.
    NotBegun,
}

/// An event of a change or an effect. Its number is that of the action that caused it; the workflow ignores events of
/// cancelled actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectEvent<O> {
    /// A commit ended.
    Committed {
        /// Number of the commit.
        number: u64,
        /// The result of the commit.
        result: Result<Committed, CommitError>,
    },
    /// The leader answered a request for a permit.
    Permitted {
        /// Number of the request.
        number: u64,
        /// The permit; `None` if the leader gives none now.
        permit: Option<Permit>,
    },
    /// An attempt ended.
    Ended {
        /// Number of the attempt.
        number: u64,
        /// The kind of end.
        end: AttemptEnd<O>,
    },
    /// The pause between two attempts is over.
    Paused {
        /// Number of the pause.
        number: u64,
        /// The reason against another attempt, if there is one.
        against: Option<String>,
    },
    /// A requested wake-up time has come.
    Passed,
    /// The epoch is over.
    Lost,
}
