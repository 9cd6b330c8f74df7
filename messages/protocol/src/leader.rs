//! Requests to the leader, for actors that decide: commits of changes, and permits for effects.

use ractor::rpc::CallResult;
use ractor::{ActorRef, registry};

use crate::actors::{CommitError, Committed, LeaderMessage, Mutation};
pub use crate::limits::{COMMIT_DEADLINE, PERMIT_DEADLINE};
use crate::mailbox::Envelope;
use crate::permit::{Permit, PermitEnded};

/// Asks the leader registered by this name to commit a decision.
///
/// # Errors
/// See [`CommitError`]. After [`CommitError::Unanswered`] and [`CommitError::Store`] the write may have happened; the
/// watch shows the resulting state.
pub async fn commit(leader: &str, epoch: i64, mutation: Mutation) -> Result<Committed, CommitError> {
    let Some(cell) = registry::where_is(leader) else {
        return Err(CommitError::NotLeader { epoch });
    };
    let leader = ActorRef::<Envelope<LeaderMessage>>::from(cell);
    let envelope = |reply| LeaderMessage::Commit { epoch, mutation, reply }.into();
    match leader.call(envelope, Some(COMMIT_DEADLINE)).await {
        Ok(CallResult::Success(result)) => result,
        Ok(CallResult::Timeout) => Err(CommitError::Unanswered { deadline: COMMIT_DEADLINE }),
        Ok(CallResult::SenderError) | Err(_) => Err(CommitError::NotLeader { epoch }),
    }
}

/// Asks the leader registered by this name for the right to act outside etcd in an epoch. Call it before every
/// effect.
///
/// # Errors
/// The epoch is over, or the leader did not answer in time: do not act.
pub async fn ask_leader_for_permit(leader: &str, epoch: i64) -> Result<Permit, PermitEnded> {
    let ended = PermitEnded { epoch };
    let leader = registry::where_is(leader).map(ActorRef::<Envelope<LeaderMessage>>::from).ok_or(ended)?;
    let envelope = |reply| LeaderMessage::Permit { epoch, reply }.into();
    match leader.call(envelope, Some(PERMIT_DEADLINE)).await {
        Ok(CallResult::Success(Some(permit))) => Ok(permit),
        Ok(CallResult::Success(None) | CallResult::Timeout | CallResult::SenderError) | Err(_) => Err(ended),
    }
}
