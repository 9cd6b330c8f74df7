//! The actor of one node: its SSH connection, and the requests that wait for it.

mod requests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::host_key::{HostKey, PinnedKey, pinned_for};
use madako_domain::state::ClusterState;
use madako_protocol::actors::{Mutation, NodeMessage};
use madako_protocol::feed::{Task, send_later};
use madako_protocol::latest::Subscriber;
use madako_protocol::leader::commit;
use madako_protocol::mailbox::Envelope;
use madako_protocol::node::{Connection, NodeConnection, NodeDriver, NodeError, NodeTarget};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use self::requests::Request;
use crate::backoff::Backoff;
use crate::limits::MAX_WAITING;

madako_protocol::declare_metrics! {
    "Operations on nodes":
    counter madako_node_connections_total(outcome)
        "Attempts to connect to nodes: `connected`, `host-key` (the node has another key than the pinned one), \
         `login` (the node refused the login), `failed`.";
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum HostKeyPolicy {
    /// A node proves the key of its first connection.
    Pin,
    /// Any key, for machines that make new keys at each boot.
    Any,
}

#[derive(Debug, Clone)]
pub struct PinnedKeyWriter {
    /// Registered name of the leader actor.
    pub leader: String,
    pub epoch: i64,
}

#[derive(Clone)]
pub struct NodeArguments {
    pub address: String,
    pub user: String,
    /// Serial of the machine; empty if the cluster configuration does not name it.
    pub serial: String,
    pub host_keys: HostKeyPolicy,
    /// `None`: this instance only observes and pins no key.
    pub key_writer: Option<PinnedKeyWriter>,
    pub driver: Arc<dyn NodeDriver>,
    /// The pinned keys.
    pub state: Subscriber<Arc<ClusterState>>,
    /// Seed of the back-off jitter.
    pub seed: u64,
}

pub struct Node;

/// A cache: a new actor connects again.
pub struct NodeState {
    given: NodeArguments,
    myself: ActorRef<Envelope<NodeMessage>>,
    link: LinkState,
    /// Number of the newest attempt to connect.
    attempt: u64,
    backoff: Backoff,
    /// The error of the last attempt to connect; `None`: it succeeded.
    failed: Option<NodeError>,
    chance: ChaCha8Rng,
    /// Requests that wait for the end of the attempt to connect.
    early: Vec<Request>,
    /// Actions that wait for their turn.
    queue: VecDeque<Request>,
    acting: Option<Task>,
    observing: Option<Task>,
}

enum LinkState {
    /// An attempt runs. The task ends with this state.
    Connecting { _attempt: Task },
    /// The host key is on its way to the store.
    Pinning { connection: Arc<dyn NodeConnection>, _commit: Task },
    Up {
        connection: Arc<dyn NodeConnection>,
        /// The node answered a request on this connection. Some nodes accept logins and close each connection.
        has_answered: Arc<AtomicBool>,
        _watch: Task,
    },
    /// The next attempt follows a pause.
    Down { error: NodeError, _timer: Task },
}

impl Actor for Node {
    type Msg = Envelope<NodeMessage>;
    type State = NodeState;
    type Arguments = NodeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<NodeMessage>>,
        given: NodeArguments,
    ) -> Result<NodeState, ActorProcessingErr> {
        let idle = LinkState::Connecting { _attempt: Task::start_anew(async {}) };
        let chance = ChaCha8Rng::seed_from_u64(given.seed);
        let mut state = NodeState {
            given,
            myself,
            link: idle,
            attempt: 0,
            backoff: Backoff::default(),
            chance,
            failed: None,
            early: Vec::new(),
            queue: VecDeque::new(),
            acting: None,
            observing: None,
        };
        state.connect();
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Envelope<NodeMessage>>,
        envelope: Envelope<NodeMessage>,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        match envelope.open() {
            NodeMessage::Connect => state.connect(),
            NodeMessage::Connected { number, result } if number == state.attempt => {
                state.finish_connection(result)
            }
            NodeMessage::Pinned { number, failed } if number == state.attempt => state.finish_pinning(failed),
            NodeMessage::Closed { number } if number == state.attempt => {
                let why = "the connection broke".to_owned();
                state.reject_requests(NodeError::Unreachable { address: state.given.address.clone(), why });
            }
            NodeMessage::Connected { .. } | NodeMessage::Pinned { .. } | NodeMessage::Closed { .. } => {}
            NodeMessage::Observe { volume, reply } => state.take(Request::Observe { volume, reply }),
            NodeMessage::Act { permit, action, reply } => {
                state.take(Request::Act { permit, action: Box::new(action), reply });
            }
            NodeMessage::Acted => {
                state.acting = None;
                state.begin_next_action();
            }
        }
        Ok(())
    }
}

impl NodeState {
    fn connect(&mut self) {
        self.attempt += 1;
        let (number, driver, myself) = (self.attempt, Arc::clone(&self.given.driver), self.myself.clone());
        let target = NodeTarget {
            address: self.given.address.clone(),
            user: self.given.user.clone(),
            pinned: self.pinned_key().map(|(key, _)| key.host_key),
        };
        self.link = LinkState::Connecting {
            _attempt: Task::start_anew(async move {
                let result = driver.connect(&target).await.map(Connection);
                // The actor is gone: the connection closes.
                let _ = myself.cast(NodeMessage::Connected { number, result }.into());
            }),
        };
    }

    /// The pinned key of this machine, and its mod revision. A machine with another serial has no pinned key.
    fn pinned_key(&self) -> Option<(PinnedKey, i64)> {
        if self.given.host_keys == HostKeyPolicy::Any || is_planted(Canary::HostKeyReplaced) {
            return None;
        }
        let state = self.given.state.newest()?;
        pinned_for(&state.host_keys, &self.given.address, &self.given.serial).cloned()
    }

    fn finish_connection(&mut self, result: Result<Connection, NodeError>) {
        match result {
            Ok(Connection(connection)) => {
                let offered = connection.host_key().clone();
                // Another attempt may have pinned a key since this one began.
                match self.pinned_key().map(|(key, _)| key.host_key) {
                    Some(pinned) if pinned == offered => self.accept_requests(connection),
                    Some(pinned) => self.handle_refusal(NodeError::HostKey {
                        address: self.given.address.clone(),
                        pinned: pinned.fingerprint,
                        offered: offered.fingerprint,
                    }),
                    None => {
                        match self
                            .given
                            .key_writer
                            .clone()
                            .filter(|_| self.given.host_keys == HostKeyPolicy::Pin)
                        {
                            Some(key_writer) => self.start_pinning(key_writer, offered, connection),
                            None => self.accept_requests(connection),
                        }
                    }
                }
            }
            Err(error) => self.handle_refusal(error),
        }
    }

    /// Counts an attempt that gave no connection.
    fn handle_refusal(&mut self, error: NodeError) {
        let outcome = match error {
            NodeError::HostKey { .. } => "host-key",
            NodeError::Login { .. } => "login",
            _ => "failed",
        };
        madako_node_connections_total(outcome).increment(1);
        self.failed = Some(error.clone());
        self.reject_requests(error);
    }

    fn start_pinning(
        &mut self,
        key_writer: PinnedKeyWriter,
        host_key: HostKey,
        connection: Arc<dyn NodeConnection>,
    ) {
        let (number, myself) = (self.attempt, self.myself.clone());
        let (address, serial) = (self.given.address.clone(), self.given.serial.clone());
        let newest = self.given.state.newest();
        let stored = newest.as_ref().map_or(0, |state| {
            // An unreadable value has a revision, too: it blocks the pin, and the fault is in the log.
            state.host_keys.get(&address).map_or(0, |(_, revision)| *revision)
        });
        let mutation = Mutation::HostKey {
            address,
            pinned: PinnedKey { serial, host_key, pinned_at: None },
            revision: stored,
        };
        self.link = LinkState::Pinning {
            connection,
            _commit: Task::start_anew(async move {
                let failed = commit(&key_writer.leader, key_writer.epoch, mutation).await.err();
                let failed = failed.map(|error| error.to_string());
                // The actor is gone: its successor connects again.
                let _ = myself.cast(NodeMessage::Pinned { number, failed }.into());
            }),
        };
    }

    fn finish_pinning(&mut self, failed: Option<String>) {
        let LinkState::Pinning { connection, .. } = &self.link else { return };
        let connection = Arc::clone(connection);
        match failed {
            None => self.accept_requests(connection),
            Some(why) => {
                let why = format!("its host key could not be stored: {why}");
                self.handle_refusal(NodeError::Unreachable { address: self.given.address.clone(), why });
            }
        }
    }

    fn accept_requests(&mut self, connection: Arc<dyn NodeConnection>) {
        madako_node_connections_total("connected").increment(1);
        self.failed = None;
        let (number, myself) = (self.attempt, self.myself.clone());
        let watched = Arc::clone(&connection);
        let watch = Task::start_anew(async move {
            watched.closed().await;
            // The actor is gone.
            let _ = myself.cast(NodeMessage::Closed { number }.into());
        });
        self.link = LinkState::Up { connection, has_answered: Arc::default(), _watch: watch };
        for request in std::mem::take(&mut self.early) {
            self.take(request);
        }
    }

    fn reject_requests(&mut self, error: NodeError) {
        // Late messages of this attempt are ignored.
        self.attempt += 1;
        for request in self.early.drain(..).chain(self.queue.drain(..)) {
            request.refuse(error.clone());
        }
        if let LinkState::Up { has_answered, .. } = &self.link
            && has_answered.load(Ordering::Relaxed)
        {
            self.backoff.reset();
        }
        let pause = self.backoff.next_pause(self.chance.random_range(0.0..1.0));
        let timer = send_later(self.myself.clone(), pause, NodeMessage::Connect);
        self.link = LinkState::Down { error, _timer: timer };
    }

    fn take(&mut self, request: Request) {
        let is_full = self.early.len() + self.queue.len() >= MAX_WAITING;
        match (&self.link, request) {
            (LinkState::Down { error, .. }, request) => request.refuse(error.clone()),
            (_, request) if is_full => {
                let why = format!("{MAX_WAITING} requests wait already");
                request.refuse(NodeError::Unreachable { address: self.given.address.clone(), why });
            }
            // A dead node does not delay the collection of all others by each attempt to reach it.
            (LinkState::Connecting { .. }, request @ Request::Observe { .. }) if self.failed.is_some() => {
                if let Some(error) = &self.failed {
                    request.refuse(error.clone());
                }
            }
            (LinkState::Connecting { .. } | LinkState::Pinning { .. }, request) => self.early.push(request),
            (LinkState::Up { connection, has_answered, .. }, request @ Request::Observe { .. }) => {
                let (connection, has_answered) = (Arc::clone(connection), Arc::clone(has_answered));
                // A newer read replaces an older one, whose caller has given up.
                self.observing = Some(Task::start(async move {
                    let is_answered = request.execute(connection).await;
                    has_answered.fetch_or(is_answered, Ordering::Relaxed);
                }));
            }
            (LinkState::Up { .. }, request @ Request::Act { .. }) => {
                self.queue.push_back(request);
                self.begin_next_action();
            }
        }
    }

    /// Begins the next action, unless one runs.
    fn begin_next_action(&mut self) {
        let LinkState::Up { connection, has_answered, .. } = &self.link else { return };
        if self.acting.as_ref().is_some_and(|acting| !acting.has_ended()) {
            return;
        }
        let Some(request) = self.queue.pop_front() else { return };
        let (connection, has_answered) = (Arc::clone(connection), Arc::clone(has_answered));
        let myself = self.myself.clone();
        self.acting = Some(Task::start(async move {
            let is_answered = request.execute(connection).await;
            has_answered.fetch_or(is_answered, Ordering::Relaxed);
            // The actor is gone, and with it the queue.
            let _ = myself.cast(NodeMessage::Acted.into());
        }));
    }
}

#[cfg(test)]
mod tests;
