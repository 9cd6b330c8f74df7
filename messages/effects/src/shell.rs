//! Executes the actions that an actor's [`Workflow`](crate::Workflow) returns: commits, permits, attempts. It decides
//! nothing.

use madako_protocol::actors::Mutation;
use madako_protocol::effect::EffectEvent;
use madako_protocol::feed::{Task, send_later};
use madako_protocol::leader::{ask_leader_for_permit, commit};
use madako_protocol::mailbox::{Addressed, Envelope};
use madako_protocol::permit::Moment;
use ractor::ActorRef;

use crate::permits::Permits;

/// Executes actions for one actor. Dropping it stops all its tasks.
#[derive(Debug)]
pub struct EffectRunner<M: Addressed + Send + 'static, O> {
    actor: ActorRef<Envelope<M>>,
    permits: Permits,
    wrap: fn(EffectEvent<O>) -> M,
    change: Option<Task>,
    effect: Option<Task>,
    timer: Option<(Moment, Task)>,
}

impl<M: Addressed + Send + 'static, O: Send + 'static> EffectRunner<M, O> {
    /// Hands that report results to an actor.
    #[must_use]
    pub fn new(actor: ActorRef<Envelope<M>>, permits: Permits, wrap: fn(EffectEvent<O>) -> M) -> Self {
        Self { actor, permits, wrap, change: None, effect: None, timer: None }
    }

    /// The source of permits.
    #[must_use]
    pub fn permits(&self) -> &Permits {
        &self.permits
    }

    /// Commits a change through the leader.
    pub fn commit(&mut self, number: u64, mutation: Mutation) {
        let Permits { leader, epoch } = self.permits.clone();
        self.change = Some(self.send_result(async move {
            EffectEvent::Committed { number, result: commit(&leader, epoch, mutation).await }
        }));
    }

    /// Requests a permit from the leader.
    pub fn ask(&mut self, number: u64) {
        let Permits { leader, epoch } = self.permits.clone();
        self.effect = Some(self.send_result(async move {
            EffectEvent::Permitted { number, permit: ask_leader_for_permit(&leader, epoch).await.ok() }
        }));
    }

    /// Executes an attempt, or a pause.
    pub fn carry_out(&mut self, what: impl Future<Output = EffectEvent<O>> + Send + 'static) {
        self.effect = Some(self.send_result(what));
    }

    /// Stops the request, attempt or pause of the effect.
    pub fn abort(&mut self) {
        self.effect = None;
    }

    /// Reports the time `wake` to the actor, in place of all earlier times.
    pub fn wake_at(&mut self, wake: Option<Moment>) {
        let set = self.timer.as_ref().filter(|(_, timer)| !timer.has_ended()).map(|(at, _)| *at);
        if set != wake {
            self.timer = wake.map(|at| {
                let pause = at.saturating_duration_since(Moment::now());
                (at, send_later(self.actor.clone(), pause, (self.wrap)(EffectEvent::Passed)))
            });
        }
    }

    /// A task in the current span, because its work belongs to the present work.
    fn send_result(&self, what: impl Future<Output = EffectEvent<O>> + Send + 'static) -> Task {
        let (actor, wrap) = (self.actor.clone(), self.wrap);
        Task::start(async move {
            let event = what.await;
            // If the actor has ended, its successor reads the store.
            let _ = actor.cast(wrap(event).into());
        })
    }
}
