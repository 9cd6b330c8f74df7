//! The port to the components of Kubernetes on the nodes: their health, and the few facts and changes of the API that the
//! start of components needs.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::deprecated_api::DeprecatedApi;
use time::OffsetDateTime;

use crate::kubernetes::KubernetesError;
use crate::objects::Objects;
use crate::permit::Permit;

/// The port to the components. Each call has its own deadline.
#[async_trait]
pub trait Components: Objects {
    /// Asks a component on a node whether it is healthy: the API server lists the namespaces, the others answer at their
    /// health endpoint.
    ///
    /// # Errors
    /// It is not healthy, or did not answer.
    async fn check(&self, component: Component, address: &str) -> Result<(), KubernetesError>;

    /// The time that an API server takes for a list of namespaces. Without an answer in time, it is the time until then.
    ///
    /// # Errors
    /// See [`KubernetesError`]. Status 429 means that the server asks for fewer requests, or answered so to any other request of
    /// this port since the last list.
    async fn time_list(&self, address: &str) -> Result<Duration, KubernetesError>;

    /// The deprecated APIs that clients requested since the start of an API server, from its metrics.
    async fn deprecated_apis(&self, address: &str) -> Result<BTreeSet<DeprecatedApi>, KubernetesError>;

    /// The holder of the lease of a controller manager or a scheduler; `None` if there is none. `servers` are the
    /// addresses of API servers, which are asked one after the other until one answers.
    ///
    /// # Errors
    /// No API server answered.
    async fn leader(
        &self,
        component: Component,
        servers: &[String],
    ) -> Result<Option<String>, KubernetesError>;

    /// Containers of pods on a node, as NAMESPACE/POD/CONTAINER, that ended at or after a time by the clock of the node and run
    /// again. One that ran for a short time only before its end is left out: it restarts by itself.
    ///
    /// # Errors
    /// No API server answered.
    async fn restarted_containers(
        &self,
        servers: &[String],
        node: &str,
        since: OffsetDateTime,
    ) -> Result<Vec<String>, KubernetesError>;

    /// The taints of a Node object at present; `None`: the object does not exist.
    ///
    /// # Errors
    /// No API server answered.
    async fn read_taints(
        &self,
        servers: &[String],
        node: &str,
    ) -> Result<Option<Vec<Taint>>, KubernetesError>;

    /// Adds taints to a Node object; one of the same key and effect gets the value. Idempotent.
    ///
    /// # Errors
    /// See [`KubernetesError`]. A Node object that is gone is not an error.
    async fn add_taints(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
        taints: &[Taint],
    ) -> Result<(), KubernetesError>;
}
