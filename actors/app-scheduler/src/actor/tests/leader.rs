//! A leader for tests of the scheduler's actor: it checks invariant I11 and commits at once.

use std::sync::Arc;

use madako_domain::invariants::{PlacementChange, check_allowed_bindings};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::store::{Outcome, Transaction};
use madako_protocol::actors::{CommitError, Committed, LeaderMessage, Mutation};
use madako_protocol::mailbox::Envelope;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::store::{FakeStore, PREFIX};

pub(super) const EPOCH: i64 = 7;

pub(super) struct FakeLeader;

impl Actor for FakeLeader {
    type Msg = Envelope<LeaderMessage>;
    type State = Arc<FakeStore>;
    type Arguments = Arc<FakeStore>;

    async fn pre_start(
        &self,
        _: ActorRef<Envelope<LeaderMessage>>,
        store: Arc<FakeStore>,
    ) -> Result<Arc<FakeStore>, ActorProcessingErr> {
        Ok(store)
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<LeaderMessage>>,
        envelope: Envelope<LeaderMessage>,
        store: &mut Arc<FakeStore>,
    ) -> Result<(), ActorProcessingErr> {
        let LeaderMessage::Commit { epoch, mutation, reply } = envelope.open() else {
            panic!("not a commit")
        };
        assert_eq!(epoch, EPOCH);
        let Mutation::Placement(change) = mutation else { panic!("{mutation:?}") };
        let (conditions, writes) = (change.conditions(PREFIX), change.writes(PREFIX));
        let mut inner = store.lock();
        if let Some(before) = inner.before.take() {
            before(&mut inner);
        }
        let objects = inner.objects.clone();
        let find = move |key: &ObjectKey| objects.get(key).cloned();
        let evidence = &change.evidence;
        let check = check_allowed_bindings(&PlacementChange {
            conditions: &conditions,
            writes: &writes,
            evidence,
            stored: &find,
        });
        assert_eq!(check.violations, []);
        let fails = inner.fails.pop_front();
        let written = fails.as_ref().is_none_or(|(written, _)| *written);
        let result = if written {
            match inner.commit(Transaction { conditions, writes }) {
                Outcome::Committed { revision } => Ok(Committed { revision }),
                Outcome::Refused { failed } => Err(CommitError::Conflict {
                    keys: failed.into_iter().map(|condition| condition.compared_key().to_owned()).collect(),
                }),
            }
        } else {
            Ok(Committed { revision: 0 })
        };
        let _ = reply.send(fails.map_or(result, |(_, error)| Err(error)));
        Ok(())
    }
}
