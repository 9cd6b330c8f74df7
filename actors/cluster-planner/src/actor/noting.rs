//! Reports the obstacles to planning to the leader when they differ from those that the store already has.

use std::sync::Arc;

use madako_domain::keys;
use madako_domain::observation::Observation;
use madako_domain::state::ClusterState;
use madako_protocol::actors::{Failure, Mutation, PlannerMessage};
use madako_protocol::event::Event;
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use ractor::ActorRef;
use time::OffsetDateTime;

use super::{InputEvaluation, PlannerState, STALE_AFTER_POLLS};
use crate::obstacles::{PlanningResult, obstacles_to_planning};

/// Identity of a state's question to the registry: revisions of URL and variables; `None`: the integration is
/// disabled.
pub(super) fn registry_query(state: &ClusterState) -> Option<(i64, i64)> {
    let query = (state.revision_of(keys::SABAKAN_URL), state.revision_of(keys::SABAKAN_VARIABLES));
    (!state.disabled).then_some(query)
}

impl PlannerState {
    /// The obstacles, if they differ from the noted ones.
    pub(super) fn new_obstacles(&self, considered: &InputEvaluation) -> Option<Mutation> {
        let state = self.state.as_deref()?;
        let result = match considered {
            InputEvaluation::Behind => return None,
            InputEvaluation::Blocked(why) => {
                PlanningResult::Blocked { why, silent: self.silent_since(state) }
            }
            InputEvaluation::Planned(decision) => match &decision.result {
                Ok(_) => PlanningResult::Planned,
                Err(error) => PlanningResult::Failed(error),
            },
        };
        let found = obstacles_to_planning(state, result, self.given.clock.now());
        let noted = state.obstacles.as_ref().map(|noted| &noted.value);
        let revision = state.revision_of(keys::OBSTACLES);
        // Unreadable obstacles are overwritten.
        let same = noted.map_or(revision == 0 && found.is_empty(), |noted| *noted == found);
        (!same).then_some(Mutation::Obstacles { noted: found, revision })
    }

    /// Time of the registry's last good answer to the current question, or of the question's start, once the silence
    /// is too long.
    fn silent_since(&self, state: &ClusterState) -> Option<OffsetDateTime> {
        let answers = |observation: &&Arc<Observation>| {
            registry_query(state) == Some((observation.query.url, observation.query.variables))
        };
        let answered = self.observation.as_ref().filter(answers).map(|observation| observation.received);
        let silence = self.asked_since.max(answered.unwrap_or(self.asked_since)).elapsed();
        (silence > self.given.interval * STALE_AFTER_POLLS).then(|| self.given.clock.now() - silence)
    }

    pub(super) async fn note(&mut self, myself: &ActorRef<Envelope<PlannerMessage>>, mutation: Mutation) {
        match commit(&self.given.leader, self.given.epoch, mutation).await {
            Ok(committed) => self.committed = self.committed.max(committed.revision),
            Err(error) => {
                self.given.events.emit(Event::CommitFailed { what: "obstacles", why: error.to_string() });
                if error.failure_class() == Failure::Unknown {
                    self.retry_later(myself);
                }
            }
        }
    }
}
