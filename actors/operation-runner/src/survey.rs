//! One look at the nodes and at etcd without the actors of an instance, for `madako ops plan`. Changes nothing, and pins
//! no host key.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::authority::Authority;
use madako_domain::cluster::Cluster;
use madako_domain::containers::{ContainerOptions, ETCD_CLIENT_CA, ETCD_PEER, ETCD_PEER_CA, ETCD_SERVER};
use madako_domain::node_status::FleetStatus;
use madako_domain::state::ClusterState;
use madako_protocol::authorities::{Authorities, AuthorityError, Due};
use madako_protocol::node::{NodeDriver, NodeTarget};

use crate::RunnerPorts;
use crate::actor::collect::{Question, fleet};
use crate::certificates;
use crate::difference::DueFiles;

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

/// The files of etcd that the service would write, with the reasons: certificates for members that run, which are renewed,
/// and the files that the next start of a member would write.
///
/// # Errors
/// An authority cannot be read.
pub async fn due_files(
    authorities: &dyn Authorities,
    cluster: &Cluster,
    status: &FleetStatus,
) -> Result<DueFiles, AuthorityError> {
    let mut due = DueFiles::new();
    for node in cluster.control_plane() {
        let Some(state) = status.nodes.get(&node.address).filter(|state| state.reachable) else { continue };
        let known =
            |file: &str| state.etcd_certificates.get(file).map(|certificate| certificate.text.as_str());
        let mut found = BTreeMap::new();
        for (file, request) in
            [(ETCD_SERVER, certificates::server(node)), (ETCD_PEER, certificates::peer(node))]
        {
            let issuer = authorities.certificate(request.authority).await?;
            let why = match authorities.due(known(file), &issuer, &request) {
                None => continue,
                Some(Due::Missing) => {
                    "it is issued at the next start of etcd: it is missing or cannot be read"
                }
                Some(Due::Foreign) => {
                    "it is issued anew at the next start of etcd: another authority issued it, or it lacks a name"
                }
                Some(Due::Old) => "it is renewed: it ends soon",
            };
            found.insert(file.to_owned(), why.to_owned());
        }
        for (file, authority) in
            [(ETCD_PEER_CA, Authority::EtcdPeer), (ETCD_CLIENT_CA, Authority::EtcdClient)]
        {
            let certificate = authorities.certificate(authority).await?;
            if known(file).map(str::trim) != Some(certificate.trim()) {
                let why =
                    "it is written at the next start of etcd: it has not the certificate of its authority";
                found.insert(file.to_owned(), why.to_owned());
            }
        }
        if !found.is_empty() {
            due.insert(node.address.clone(), found);
        }
    }
    Ok(due)
}
