//! Placement's resources, told to an actor: everything first, then each change.
//!
//! Guarantees: at most one message is in the mailbox at any time, and the next comes when that was handled; whoever
//! fell behind, or whose store was replaced, is told everything anew, and why. It ends with its handle or with the
//! actor.

use std::sync::Arc;

use ractor::ActorRef;

use super::objects::{Gap, Objects};
use crate::feed::{Handled, Task, bring};
use crate::limits::RELIST_PAUSE;
use crate::mailbox::{Addressed, Letter};
use madako_domain::placement::objects::{Change, Stored};

/// What an actor that follows is told.
#[derive(Debug)]
pub enum Followed {
    /// Everything that is stored, instead of what was known before.
    Listed {
        /// The store's revision.
        revision: i64,
        /// The resources.
        objects: Vec<Arc<Stored>>,
        /// Why it is listed again.
        after: Option<Gap>,
    },
    /// What changed since.
    Changed(Vec<Arc<Change>>),
}

/// Lets an actor follow.
pub fn follow<M>(
    objects: Arc<dyn Objects>,
    actor: ActorRef<Letter<M>>,
    wrap: impl Fn(Followed, Handled) -> M + Send + 'static,
) -> Task
where
    M: Addressed + Send + 'static,
{
    Task::start(async move {
        let mut after = None;
        loop {
            let (revision, objects, mut follower) = objects.follow_all();
            let mut news = Followed::Listed { revision, objects, after };
            let gap = loop {
                let Some(done) = bring(&actor, |mark| wrap(news, mark)) else { return };
                let _ = done.await;
                news = match follower.next().await {
                    Ok(changes) => Followed::Changed(changes),
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
