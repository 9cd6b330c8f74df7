//! One collection of the states of all nodes and of etcd.

use std::collections::BTreeMap;

use madako_domain::cluster::Cluster;
use madako_domain::containers::ContainerOptions;
use madako_domain::node_status::{FleetStatus, NodeStatus};
use madako_domain::state::ClusterState;
use madako_protocol::actors::{Collected, NodeMessage};
use madako_protocol::authorities::Authorities;
use madako_protocol::mailbox::Envelope;
use ractor::{ActorRef, registry};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Inputs, RunnerPorts};
use crate::limits::{ACTOR_DEADLINE, ACTOR_POLL, COLLECT_DEADLINE};

/// The question of a collection.
pub(crate) struct Question {
    addresses: Vec<String>,
    control_plane: Vec<String>,
    volume: String,
    /// etcd was bootstrapped, as far as the records show.
    bootstrapped: bool,
}

impl Question {
    pub(super) fn new(inputs: &Inputs) -> Self {
        Self::of(&inputs.cluster, &inputs.options, &inputs.state)
    }

    pub(crate) fn of(cluster: &Cluster, options: &ContainerOptions, state: &ClusterState) -> Self {
        Self {
            addresses: cluster.nodes.iter().map(|node| node.address.clone()).collect(),
            control_plane: cluster.control_plane().map(|node| node.address.clone()).collect(),
            volume: options.etcd_volume.clone(),
            bootstrapped: state.repair.records.bootstrap().is_some(),
        }
    }

    /// Reads all nodes at the same time, then etcd. `observe` reads a node, given its address and etcd's volume.
    pub(crate) async fn ask<F>(self, ports: RunnerPorts, observe: impl Fn(String, String) -> F) -> Collected
    where
        F: Future<Output = Result<NodeStatus, String>> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for address in &self.addresses {
            let state = observe(address.clone(), self.volume.clone());
            let address = address.clone();
            running.spawn(async move { (address, state.await) });
        }
        let (mut nodes, mut errors) = (BTreeMap::new(), BTreeMap::new());
        while let Some(joined) = running.join_next().await {
            // A task that ended early leaves its node without a state: unreachable.
            let Ok((address, state)) = joined else { continue };
            match state {
                Ok(mut status) => {
                    read_certificates(&mut status, &*ports.authorities);
                    nodes.insert(address, status);
                }
                Err(error) => drop(errors.insert(address, error)),
            }
        }
        let has_data = nodes.values().any(|node| node.etcd_data);
        let asked_etcd = has_data || self.bootstrapped;
        let answer = if asked_etcd { ports.etcd.status(&self.control_plane).await.ok() } else { None };
        Collected { nodes, errors, asked_etcd, etcd: answer }
    }
}

/// Adds the validity of certificates, which a node does not tell.
fn read_certificates(status: &mut NodeStatus, authorities: &dyn Authorities) {
    for certificate in status.etcd_certificates.values_mut() {
        certificate.validity = authorities.validity(&certificate.text);
    }
}

/// Asks the actor of a node. A node that does not answer within the deadline has no state.
pub(super) async fn observe(name: String, volume: String) -> Result<NodeStatus, String> {
    let state = timeout(COLLECT_DEADLINE, ask_actor(&name, volume)).await;
    state.unwrap_or_else(|_| Err(format!("no answer within {COLLECT_DEADLINE:?}")))
}

async fn ask_actor(name: &str, volume: String) -> Result<NodeStatus, String> {
    let found = || registry::where_is(name).map(ActorRef::<Envelope<NodeMessage>>::from);
    let begun = Instant::now();
    let actor = loop {
        match found() {
            Some(actor) => break actor,
            None if begun.elapsed() >= ACTOR_DEADLINE => return Err("it has no actor at present".to_owned()),
            None => sleep(ACTOR_POLL).await,
        }
    };
    let (reply, answer) = oneshot::channel();
    let gone = "its actor ended during the read";
    actor.cast(NodeMessage::Observe { volume, reply }.into()).map_err(|_| gone)?;
    answer.await.map_err(|_| gone)?.map_err(|error| error.to_string())
}

/// The input of a decision. `None`: the form of the stored cluster is unknown.
pub(crate) fn fleet(
    collected: &Collected,
    state: &ClusterState,
    image_version: Option<madako_domain::node_status::EtcdVersion>,
) -> Option<FleetStatus> {
    Some(FleetStatus {
        config_version: state.config_version?,
        nodes: collected.nodes.clone(),
        etcd: collected.etcd.clone(),
        bootstrap: state.repair.records.bootstrap(),
        interrupted_removals: state.repair.records.interrupted_removals(),
        etcd_image_version: image_version,
    })
}
