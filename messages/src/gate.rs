//! The way to the leader's gate, for actors that decide.

use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{ActorRef, registry};

use crate::actors::{CommitError, Committed, LeaderMessage, Mutation};
use crate::mailbox::Letter;

/// How long the leader may take to answer: a few of the store's time-outs (2 s each by default).
pub const COMMIT_DEADLINE: Duration = Duration::from_secs(10);

/// Asks the leader that is registered by this name to commit a decision.
///
/// # Errors
/// See [`CommitError`]. After [`CommitError::Unanswered`] and [`CommitError::Store`] the write may have
/// happened: the state that the watch brings tells.
pub async fn commit(leader: &str, epoch: i64, mutation: Mutation) -> Result<Committed, CommitError> {
    let Some(cell) = registry::where_is(leader) else {
        return Err(CommitError::NotLeader { epoch });
    };
    let leader = ActorRef::<Letter<LeaderMessage>>::from(cell);
    let letter = |reply| LeaderMessage::Commit { epoch, mutation, reply }.into();
    match leader.call(letter, Some(COMMIT_DEADLINE)).await {
        Ok(CallResult::Success(result)) => result,
        Ok(CallResult::Timeout) => Err(CommitError::Unanswered { deadline: COMMIT_DEADLINE }),
        Ok(CallResult::SenderError) | Err(_) => Err(CommitError::NotLeader { epoch }),
    }
}
