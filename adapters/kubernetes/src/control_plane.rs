//! The API servers of the cluster's control plane as one: the ports [`Kubernetes`] and [`KubernetesWorkloads`] without a
//! kubeconfig.
//!
//! Each request goes to the API server that answered last. While one does not answer, the next one is asked, in the order of the
//! stored cluster. A refusal is an answer, unless the server refuses for a state of its own. All writes of the port are
//! idempotent, so that a write whose answer was lost may happen twice.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::kubernetes::workload::Workloads;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use madako_protocol::permit::Permit;
use madako_protocol::store::Store;

use crate::answer;
use crate::api::{ApiServer, Limits};
use crate::components::NodeComponents;

/// The control plane of the stored cluster, asked with the client certificate of [`NodeComponents`].
pub struct ControlPlane {
    components: Arc<NodeComponents>,
    store: Arc<dyn Store>,
    /// Address of the API server that answered last.
    last: Mutex<Option<String>>,
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane").finish_non_exhaustive()
    }
}

impl ControlPlane {
    #[must_use]
    pub fn new(components: Arc<NodeComponents>, store: Arc<dyn Store>) -> Self {
        Self { components, store, last: Mutex::default() }
    }

    /// Addresses of the API servers, that of the last answer first.
    async fn servers(&self, what: &str) -> Result<Vec<String>, KubernetesError> {
        let unknown = |why: &str| answer::unavailable_server(what, why);
        let stored = self.store.list(keys::CLUSTER).await;
        let stored = stored.map_err(|error| {
            unknown(&format!("the cluster, which names the API servers, cannot be read: {error}"))
        })?;
        let entry = stored.entries.get(keys::CLUSTER).ok_or_else(|| unknown("no cluster is stored"))?;
        let cluster: Cluster = serde_json::from_slice(&entry.value)
            .map_err(|error| unknown(&format!("the stored cluster cannot be used: {error}")))?;
        let mut servers: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        servers.sort_by_key(|address| Some(address) != last.as_ref());
        Ok(servers)
    }

    async fn ask<R, F>(
        &self,
        what: &str,
        ask: impl Fn(ApiServer) -> F + Send + Sync,
    ) -> Result<R, KubernetesError>
    where
        F: Future<Output = Result<R, KubernetesError>> + Send,
    {
        let mut failed = answer::unavailable_server(what, "the cluster has no control plane node");
        for address in self.servers(what).await? {
            let server = self.components.connect_server(what, &address).await?.with_limits(Limits::default());
            match ask(server).await {
                Err(error) if answer::is_of_server(&error) => failed = error,
                answered => {
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
                    return answered;
                }
            }
        }
        Err(failed)
    }
}

#[async_trait]
impl Kubernetes for ControlPlane {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        self.ask("nodes", |server| async move { server.nodes().await }).await
    }

    async fn node(&self, name: &str) -> Result<Option<KubeNode>, KubernetesError> {
        self.ask(&format!("node {name}"), |server| async move { server.node(name).await }).await
    }

    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError> {
        self.ask("namespaces", |server| async move { server.namespaces(selector).await }).await
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        self.ask(&format!("pods on {node}"), |server| async move { server.pods_on(node).await }).await
    }

    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError> {
        self.ask(&format!("pods on {node}"), |server| async move { server.on_delete_pods(node).await }).await
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.ask(&format!("node {node}"), |server| async move { server.cordon(permit, node).await }).await
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        self.ask(&format!("node {node}"), |server| async move { server.uncordon(permit, node).await }).await
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let ask = |server: ApiServer| async move { server.evict(permit, pod, dry_run).await };
        self.ask(&format!("eviction of {pod}"), ask).await
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        self.ask(&format!("pod {pod}"), |server| async move { server.delete(permit, pod).await }).await
    }
}

#[async_trait]
impl KubernetesWorkloads for ControlPlane {
    async fn workloads(&self) -> Result<Workloads, KubernetesError> {
        self.ask("workloads", |server| async move { server.workloads().await }).await
    }
}
