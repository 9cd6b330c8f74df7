//! The ports to nodes and to their etcd, over the link of an instance: an instance that is cut off or paused reaches no
//! node. Each effect is judged when it is sent.
//!
//! A connection breaks when its link is cut or reset, and when the link is silent for longer than the keep-alive allows.
//!
//! Does not: slow down or lose single packets of a command; a link that is late makes whole requests and answers late.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::host_key::HostKey;
use madako_domain::node_status::{EtcdMember, EtcdStatus, NodeStatus};
use madako_protocol::etcd::{EtcdCluster, EtcdError};
use madako_protocol::node::{NodeAction, NodeConnection, NodeDriver, NodeError, NodeTarget, SnapshotContent};
use madako_protocol::permit::Permit;
use tokio::time::{sleep, timeout};

use super::EffectObserver;
use crate::link::Link;

/// Time-out of a connection attempt: CKE's for TCP, handshake and session.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Silence after which a connection is broken: three keep-alives of 5 s.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(15);
/// Time-out of a request to etcd or to a component of Kubernetes: CKE's.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// Waits as long as a request or an answer takes on a link, and until it can pass.
pub(super) async fn pass_link(link: &Link, generation: u64) -> io::Result<()> {
    let latency = link.draw_latency();
    if !latency.is_zero() {
        sleep(latency).await;
    }
    link.wait_until_passable(generation).await
}

/// The nodes, as an instance reaches them.
pub(crate) struct LinkedNodes {
    pub(crate) inner: Arc<dyn NodeDriver>,
    pub(crate) link: Link,
    pub(crate) witness: EffectObserver,
}

struct LinkedConnection {
    inner: Arc<dyn NodeConnection>,
    link: Link,
    generation: u64,
    address: String,
    witness: EffectObserver,
}

fn unreachable_node(address: &str, why: &str) -> NodeError {
    NodeError::Unreachable { address: address.to_owned(), why: why.to_owned() }
}

#[async_trait]
impl NodeDriver for LinkedNodes {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        let address = target.address.clone();
        let lost = |error: io::Error| unreachable_node(&address, &error.kind().to_string());
        let connecting = async {
            let generation = self.link.wait_until_passed().await.map_err(lost)?;
            pass_link(&self.link, generation).await.map_err(lost)?;
            let inner = tokio::select! {
                biased;
                () = self.link.wait_until_broken(generation) => return Err(unreachable_node(&address, "connection reset")),
                connected = self.inner.connect(target) => connected?,
            };
            pass_link(&self.link, generation).await.map_err(lost)?;
            Ok((inner, generation))
        };
        let connected = timeout(CONNECT_DEADLINE, connecting).await;
        let (inner, generation) =
            connected.map_err(|_| unreachable_node(&address, "connection timed out"))??;
        let (link, witness) = (self.link.clone(), self.witness.clone());
        Ok(Arc::new(LinkedConnection { inner, link, generation, address, witness }))
    }
}

impl LinkedConnection {
    /// Returns when the link has broken this connection.
    async fn wait_for_loss(&self) {
        tokio::select! {
            biased;
            () = self.link.wait_until_broken(self.generation) => {}
            () = self.link.wait_until_silent(MAX_SILENCE) => {}
        }
    }

    /// Sends a request, and waits for its answer.
    async fn exchange<R>(
        &self,
        request: impl Future<Output = Result<R, NodeError>> + Send,
    ) -> Result<R, NodeError> {
        let lost = |error: io::Error| unreachable_node(&self.address, &error.kind().to_string());
        let exchange = async {
            pass_link(&self.link, self.generation).await.map_err(lost)?;
            let answer = request.await;
            pass_link(&self.link, self.generation).await.map_err(lost)?;
            answer
        };
        tokio::select! {
            biased;
            () = self.wait_for_loss() => Err(unreachable_node(&self.address, "connection reset")),
            answer = exchange => answer,
        }
    }
}

#[async_trait]
impl NodeConnection for LinkedConnection {
    fn host_key(&self) -> &HostKey {
        self.inner.host_key()
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        self.exchange(self.inner.status(volume)).await
    }

    async fn snapshot(&self, image: &str, path: &str) -> Result<SnapshotContent, NodeError> {
        self.exchange(self.inner.snapshot(image, path)).await
    }

    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        let acting = async {
            self.witness.judge_sent_effect(permit, action, &self.address).await;
            self.inner.act(permit, action).await
        };
        let result = self.exchange(acting).await;
        self.witness.report_effects();
        result
    }

    async fn closed(&self) {
        tokio::select! {
            biased;
            () = self.wait_for_loss() => {}
            () = self.inner.closed() => {}
        }
    }
}

/// Sends a request over a link, and waits for its answer.
pub(super) async fn exchange_over<R, E>(
    link: &Link,
    request: impl Future<Output = Result<R, E>> + Send,
    unavailable: impl Fn(String) -> E + Send + Sync,
) -> Result<R, E> {
    let lost = |error: io::Error| unavailable(error.kind().to_string());
    let exchange = async {
        let generation = link.wait_until_passed().await.map_err(lost)?;
        pass_link(link, generation).await.map_err(lost)?;
        let answer = tokio::select! {
            biased;
            () = link.wait_until_broken(generation) => return Err(unavailable("connection reset".to_owned())),
            answer = request => answer,
        };
        pass_link(link, generation).await.map_err(lost)?;
        answer
    };
    let answer = timeout(REQUEST_DEADLINE, exchange).await;
    answer.unwrap_or_else(|_| Err(unavailable(format!("no answer within {REQUEST_DEADLINE:?}"))))
}

/// The etcd of the nodes, as an instance reaches it.
pub(crate) struct LinkedEtcd {
    pub(crate) inner: Arc<dyn EtcdCluster>,
    pub(crate) link: Link,
    pub(crate) witness: EffectObserver,
}

impl LinkedEtcd {
    /// Sends a request, and waits for its answer.
    async fn exchange<R>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<R, EtcdError>> + Send,
    ) -> Result<R, EtcdError> {
        exchange_over(&self.link, request, |why| EtcdError::Unavailable { what, why }).await
    }

    /// As [`Self::exchange`], for a change of etcd.
    async fn change<R>(
        &self,
        what: &'static str,
        permit: &Permit,
        request: impl Future<Output = Result<R, EtcdError>> + Send,
    ) -> Result<R, EtcdError> {
        let changing = async {
            self.witness.judge_sent_effect(permit, what, "etcd").await;
            request.await
        };
        let result = self.exchange(what, changing).await;
        self.witness.report_effects();
        result
    }
}

#[async_trait]
impl EtcdCluster for LinkedEtcd {
    async fn status(&self, addresses: &[String]) -> Result<EtcdStatus, EtcdError> {
        self.exchange("status", self.inner.status(addresses)).await
    }

    async fn revisions(&self, addresses: &[String]) -> BTreeMap<String, i64> {
        let revisions = async { Ok(self.inner.revisions(addresses).await) };
        self.exchange("revisions", revisions).await.unwrap_or_default()
    }

    async fn add_learner(
        &self,
        permit: &Permit,
        addresses: &[String],
        peer_url: &str,
    ) -> Result<Vec<EtcdMember>, EtcdError> {
        let request = self.inner.add_learner(permit, addresses, peer_url);
        self.change("addition of a member", permit, request).await
    }

    async fn promote(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        self.change("promotion of a member", permit, self.inner.promote(permit, addresses, id)).await
    }

    async fn remove(&self, permit: &Permit, addresses: &[String], id: u64) -> Result<(), EtcdError> {
        self.change("removal of a member", permit, self.inner.remove(permit, addresses, id)).await
    }

    async fn move_leader(&self, permit: &Permit, addresses: &[String], from: &str) -> Result<(), EtcdError> {
        self.change("move of the leadership", permit, self.inner.move_leader(permit, addresses, from)).await
    }

    async fn set_up_auth(&self, permit: &Permit, addresses: &[String]) -> Result<(), EtcdError> {
        self.change("setup of authentication", permit, self.inner.set_up_auth(permit, addresses)).await
    }
}

#[cfg(test)]
mod tests {
    use madako_datacenter_sim::nodes::SimulatedNodes;
    use madako_domain::containers::{Container, ContainerName};
    use tokio::time::Instant;

    use super::*;
    use crate::link::Mode;

    async fn connected(link: &Link) -> Arc<dyn NodeConnection> {
        let nodes = SimulatedNodes::new(1);
        nodes.add("10.0.0.1", 0);
        let driver = LinkedNodes {
            inner: nodes.driver_port(),
            link: link.clone(),
            witness: EffectObserver::default(),
        };
        let target = NodeTarget { address: "10.0.0.1".to_owned(), user: "cke".to_owned(), pinned: None };
        driver.connect(&target).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_silence_makes_an_answer_late_and_a_long_one_breaks_the_connection() {
        let link = Link::new();
        let connection = connected(&link).await;
        let began = Instant::now();
        link.set(Mode::Stalled);
        let waiting = async {
            sleep(MAX_SILENCE - Duration::from_secs(1)).await;
            link.set(Mode::Open);
        };
        let (answer, ()) = tokio::join!(connection.status("v"), waiting);
        assert!(answer.unwrap().reachable && began.elapsed() > Duration::from_secs(13));
        link.set(Mode::Stalled);
        let began = Instant::now();
        let (closed, answer) = tokio::join!(connection.closed(), connection.status("v"));
        assert_eq!((closed, began.elapsed().as_secs()), ((), MAX_SILENCE.as_secs()));
        assert!(matches!(answer, Err(NodeError::Unreachable { .. })), "{answer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_is_cut_off_reaches_neither_nodes_nor_etcd() {
        let link = Link::new();
        let connection = connected(&link).await;
        link.set(Mode::Cut);
        let permit = Permit::give(1, Instant::now() + Duration::from_secs(60));
        let action = NodeAction::StopContainer(ContainerName::for_container(Container::Rivers));
        let acted = connection.act(&permit, &action).await;
        assert!(matches!(acted, Err(NodeError::Unreachable { .. })), "{acted:?}");
        let inner = SimulatedNodes::new(1).etcd_port();
        let etcd = LinkedEtcd { inner, link: link.clone(), witness: EffectObserver::default() };
        let removed = etcd.remove(&permit, &["10.0.0.1".to_owned()], 1).await;
        assert!(matches!(removed, Err(EtcdError::Unavailable { .. })), "{removed:?}");
        link.set(Mode::Stalled);
        let began = Instant::now();
        let status = etcd.status(&["10.0.0.1".to_owned()]).await;
        assert!(matches!(status, Err(EtcdError::Unavailable { .. })), "{status:?}");
        assert_eq!(began.elapsed(), REQUEST_DEADLINE);
    }
}
