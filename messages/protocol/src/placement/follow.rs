//! A feed of placement's resources: the full list first, then each change.
//!
//! Guarantees: the mailbox has at most one message at any time; the next follows after that one was handled. A
//! follower that falls behind, or whose store is replaced, gets the full list again, with the reason. The feed ends
//! with its handle or with the actor.

use std::sync::Arc;

use ractor::ActorRef;

use super::objects::{FollowerGap, Objects};
use crate::feed::{HandledSignal, Task, deliver_message};
use crate::limits::RELIST_PAUSE;
use crate::mailbox::{Addressed, Envelope};
use madako_domain::placement::objects::{Change, Stored};

/// A message to a following actor.
#[derive(Debug)]
pub enum FollowEvent {
    /// All stored resources, which replace all earlier ones.
    Listed {
        /// The store's revision of the list.
        revision: i64,
        /// All resources of placement.
        objects: Vec<Arc<Stored>>,
        /// The reason for a repeated list.
        after: Option<FollowerGap>,
    },
    /// The changes since the last message.
    Changed(Vec<Arc<Change>>),
}

/// Starts the feed for an actor.
pub fn start_following<M>(
    objects: Arc<dyn Objects>,
    actor: ActorRef<Envelope<M>>,
    wrap: impl Fn(FollowEvent, HandledSignal) -> M + Send + 'static,
) -> Task
where
    M: Addressed + Send + 'static,
{
    Task::start(async move {
        let mut after = None;
        loop {
            let (revision, objects, mut follower) = objects.follow_all();
            let mut news = FollowEvent::Listed { revision, objects, after };
            let gap = loop {
                let Some(done) = deliver_message(&actor, |mark| wrap(news, mark)) else { return };
                let _ = done.await;
                news = match follower.next().await {
                    Ok(changes) => FollowEvent::Changed(changes),
                    Err(gap) => break gap,
                };
            };
            after = Some(gap);
            tokio::time::sleep(RELIST_PAUSE).await;
        }
    })
}

#[cfg(test)]
mod tests;
