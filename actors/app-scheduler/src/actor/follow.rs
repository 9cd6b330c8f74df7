//! What wakes the scheduler: resources that change, and time.

use std::sync::Arc;
use std::time::Duration;

use madako_messages::actors::SchedulerMessage;
use madako_messages::feed::{Task, handled};
use madako_messages::mailbox::Letter;
use madako_messages::placement::objects::Objects;
use ractor::ActorRef;

/// Pause before everything is listed again after changes were missed: whoever is too slow must not spin.
const RELIST_PAUSE: Duration = Duration::from_millis(100);

/// Tells the actor to look after a while.
pub(super) fn after(actor: ActorRef<Letter<SchedulerMessage>>, pause: Duration) -> Task {
    Task::start(async move {
        tokio::time::sleep(pause).await;
        // The actor is gone: nobody is left to look.
        let _ = actor.cast(SchedulerMessage::Look.into());
    })
}

/// Brings everything that is stored, and then each change, one message at a time.
pub(super) async fn follow(objects: Arc<dyn Objects>, actor: ActorRef<Letter<SchedulerMessage>>) {
    loop {
        let (revision, all, mut follower) = objects.follow_all();
        let (mark, done) = handled();
        let listed = SchedulerMessage::Listed { revision, objects: all, handled: mark };
        if actor.cast(listed.into()).is_err() {
            return;
        }
        // An error is the mark being dropped: handled, or the actor is gone and the next cast says so.
        let _ = done.await;
        loop {
            match follower.next().await {
                Ok(changes) => {
                    let (mark, done) = handled();
                    if actor.cast(SchedulerMessage::Changed(changes, mark).into()).is_err() {
                        return;
                    }
                    let _ = done.await;
                }
                Err(gap) => {
                    tracing::info!(%gap, "resources are listed again");
                    break;
                }
            }
        }
        tokio::time::sleep(RELIST_PAUSE).await;
    }
}
