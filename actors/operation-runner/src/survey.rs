//! One look at the nodes and at etcd without the actors of an instance, for `madako ops plan`. Changes nothing, and pins
//! no host key.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::containers::ContainerOptions;
use madako_domain::node_status::FleetStatus;
use madako_domain::state::ClusterState;
use madako_protocol::node::{NodeDriver, NodeTarget};

use crate::RunnerPorts;
use crate::actor::collect::{Question, fleet};

/// Reads the state of all nodes and of etcd, each once. Also returns the errors of nodes without a known state. The
/// driver bounds the time.
///
/// `targets` are the login and the host key of each node. `None`: the form of the stored cluster is unknown.
pub async fn survey(
    driver: Arc<dyn NodeDriver>,
    targets: BTreeMap<String, NodeTarget>,
    ports: RunnerPorts,
    (cluster, options): (&Cluster, &ContainerOptions),
    state: &ClusterState,
) -> Option<(FleetStatus, BTreeMap<String, String>)> {
    let question = Question::of(cluster, options, state);
    let collected = question
        .ask(ports, |address, volume| {
            let (driver, target) = (Arc::clone(&driver), targets.get(&address).cloned());
            async move {
                let target = target.ok_or("it is no node of the cluster")?;
                let connection = driver.connect(&target).await.map_err(|error| error.to_string())?;
                connection.status(&volume).await.map_err(|error| error.to_string())
            }
        })
        .await;
    let status = fleet(&collected, state, None)?;
    Some((status, collected.errors))
}
