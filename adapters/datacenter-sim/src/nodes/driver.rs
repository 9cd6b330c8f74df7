//! Implements the port [`NodeDriver`] on simulated nodes.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::host_key::HostKey;
use madako_domain::node_status::NodeStatus;
use madako_protocol::node::{NodeAction, NodeConnection, NodeDriver, NodeError, NodeTarget, SnapshotContent};
use madako_protocol::permit::Permit;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::SimulatedNodes;
use super::limits::{ACTION_DEADLINE, CONNECT_DEADLINE, MAX_SILENCE, STATUS_DEADLINE};
use super::log::Effect;
use super::machine::BAD_SNAPSHOT;
use super::world::{Answer, NodeRequest, Reply, World};

const STATUS: &str = "status";

struct Connection {
    nodes: SimulatedNodes,
    address: String,
    key: HostKey,
    /// Number of the node's connections that this is one of.
    of: u64,
}

/// A time-out, and the error that it gives.
#[derive(Clone, Copy)]
struct RequestDeadline<'a> {
    what: &'a str,
    limit: Duration,
    until: Instant,
}

impl SimulatedNodes {
    /// Waits until `poll` is ready, a time that it returns has come, a fault has changed, or the time `until`. `None`:
    /// the time has come first.
    async fn wait<R>(
        &self,
        until: Instant,
        mut poll: impl FnMut(&mut World) -> (Poll<R>, Option<Instant>),
    ) -> Option<R> {
        loop {
            let mut changes = self.changes.subscribe();
            let (polled, wake) = self.with_world(&mut poll);
            if let Poll::Ready(ready) = polled {
                return Some(ready);
            }
            if Instant::now() >= until {
                return None;
            }
            let wake = wake.map_or(until, |wake| wake.min(until));
            // Both outcomes lead to another poll.
            let _ = timeout_at(wake, changes.changed()).await;
        }
    }
}

#[async_trait]
impl NodeDriver for SimulatedNodes {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        let address = target.address.clone();
        let began = Instant::now();
        // TCP, handshake and login: three exchanges.
        let ready = self.with_world(|world| began + world.draw_latency(&address) * 6);
        let until = began + CONNECT_DEADLINE;
        let answered = self.wait(until, |world| {
            if world.now < ready || !world.answers_requests(&address) {
                return (Poll::Pending, (world.now < ready).then_some(ready));
            }
            let machine = world.nodes.get(&address);
            (Poll::Ready(machine.map(|machine| (machine.host_key(), machine.connections))), None)
        });
        let Some(Some((key, of))) = answered.await else {
            return Err(NodeError::Unreachable { address, why: "connection timed out".to_owned() });
        };
        if let Some(pinned) = target.pinned.as_ref().filter(|pinned| **pinned != key) {
            let (pinned, offered) = (pinned.fingerprint.clone(), key.fingerprint);
            return Err(NodeError::HostKey { address, pinned, offered });
        }
        Ok(Arc::new(Connection { nodes: self.clone(), address, key, of }))
    }
}

impl Connection {
    fn unreachable_error(&self) -> NodeError {
        NodeError::Unreachable { address: self.address.clone(), why: "connection reset".to_owned() }
    }

    fn deadline_error(&self, patience: &RequestDeadline<'_>) -> NodeError {
        NodeError::Deadline {
            address: self.address.clone(),
            what: patience.what.to_owned(),
            limit: patience.limit,
        }
    }

    /// True if the connection is broken, else the time at which silence breaks it.
    fn is_broken(&self, world: &World) -> (bool, Option<Instant>) {
        let Some(machine) = world.nodes.get(&self.address) else { return (true, None) };
        let breaks = machine.silent_since.map(|since| since + MAX_SILENCE);
        (machine.connections != self.of || breaks.is_some_and(|breaks| breaks <= world.now), breaks)
    }

    /// Sends a request, and waits for its answer.
    async fn exchange(
        &self,
        request: NodeRequest,
        permitted: Option<Instant>,
        patience: RequestDeadline<'_>,
    ) -> Result<Answer, NodeError> {
        let (reply, mut answer) = oneshot::channel::<Reply>();
        let sent = self.nodes.with_world(|world| {
            let is_broken = self.is_broken(world).0;
            (!is_broken).then(|| world.send(&self.address, request, permitted, reply))
        });
        let Some(number) = sent else { return Err(self.unreachable_error()) };
        let mut arrives: Option<Reply> = None;
        let polled = self.nodes.wait(patience.until, |world| {
            if let Ok(reply) = answer.try_recv() {
                arrives = Some(reply);
            }
            let (is_broken, breaks) = self.is_broken(world);
            if is_broken {
                return (Poll::Ready(Err(self.unreachable_error())), None);
            }
            let at = arrives.as_ref().map(|reply| reply.at);
            if at.is_some_and(|at| at <= world.now) && world.answers_requests(&self.address) {
                return (Poll::Ready(Ok(())), None);
            }
            // A late answer of a silent node comes after a change of its faults.
            let due = at.filter(|at| *at > world.now).or_else(|| world.due_time_of(number));
            (Poll::Pending, due.into_iter().chain(breaks).min())
        });
        match polled.await {
            None => Err(self.deadline_error(&patience)),
            Some(Err(error)) => Err(error),
            Some(Ok(())) => match arrives.map(|reply| reply.answer) {
                Some(Answer::Killed) | None => Err(self.deadline_error(&patience)),
                Some(Answer::EngineDown) => Err(NodeError::Engine {
                    address: self.address.clone(),
                    why: "Cannot connect to the Docker daemon".to_owned(),
                }),
                Some(answer) => Ok(answer),
            },
        }
    }

    fn malformed_error(&self, what: &str) -> NodeError {
        let why = "the answer of another request".to_owned();
        NodeError::Malformed { address: self.address.clone(), what: what.to_owned(), why }
    }
}

#[async_trait]
impl NodeConnection for Connection {
    fn host_key(&self) -> &HostKey {
        &self.key
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        let until = Instant::now() + STATUS_DEADLINE;
        let patience = RequestDeadline { what: STATUS, limit: STATUS_DEADLINE, until };
        match self.exchange(NodeRequest::Status(volume.to_owned()), None, patience).await? {
            Answer::Status(status) => Ok(*status),
            _ => Err(self.malformed_error(STATUS)),
        }
    }

    async fn snapshot(&self, _: &str, path: &str) -> Result<SnapshotContent, NodeError> {
        // The clock of the world begins at 0: a status of a snapshot has no time of this century.
        let modified = time::OffsetDateTime::UNIX_EPOCH;
        let found = self.nodes.with_world(|world| {
            let snapshot = world.nodes.get(&self.address)?.snapshots.get(path).cloned();
            snapshot.filter(|snapshot| !snapshot.is_damaged && world.answers_requests(&self.address))
        });
        match found {
            Some(snapshot) => {
                let revision = i64::try_from(snapshot.writes).unwrap_or(i64::MAX);
                Ok(SnapshotContent { revision, keys: snapshot.writes, bytes: snapshot.writes, modified })
            }
            None => Err(NodeError::Snapshot {
                address: self.address.clone(),
                path: path.to_owned(),
                why: "it is missing or damaged".to_owned(),
            }),
        }
    }

    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        let now = Instant::now();
        permit.check(now)?;
        let what = action.to_string();
        let outlives_permit = action.outlives_permit();
        let effect = Effect {
            number: self.nodes.with_world(World::next_event_number),
            epoch: permit.epoch(),
            address: self.address.clone(),
            what: what.clone(),
            outlives_permit,
        };
        let deadline = now + ACTION_DEADLINE;
        let until = if outlives_permit { deadline } else { deadline.min(permit.expires_at()) };
        let patience = RequestDeadline { what: &what, limit: until - now, until };
        match self
            .exchange(NodeRequest::Act(Box::new(action.clone()), effect), Some(permit.expires_at()), patience)
            .await?
        {
            Answer::Acted(Ok(output)) => Ok(output),
            Answer::Acted(Err(failure)) => {
                let (address, code, why) = (self.address.clone(), failure.code, failure.why);
                if let (BAD_SNAPSHOT, NodeAction::StageSnapshot(restore)) = (code, action) {
                    return Err(NodeError::Snapshot { address, path: restore.path.clone(), why });
                }
                Err(NodeError::Failed { address, what, code, why })
            }
            _ => Err(self.malformed_error(&what)),
        }
    }

    async fn closed(&self) {
        loop {
            let mut changes = self.nodes.changes.subscribe();
            let (is_broken, breaks) = self.nodes.with_world(|world| self.is_broken(world));
            if is_broken {
                return;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = async {
                    match breaks {
                        Some(breaks) => sleep_until(breaks).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }
}
