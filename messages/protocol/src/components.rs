//! The port to the components of Kubernetes on the nodes: their health, and the few facts and changes of the API that the
//! start of components needs.

use async_trait::async_trait;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;

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

    /// Adds taints to a Node object; one of the same key and effect gets the value. Idempotent.
    ///
    /// # Errors
    /// See [`KubernetesError`]. A Node object that is gone is no error.
    async fn add_taints(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
        taints: &[Taint],
    ) -> Result<(), KubernetesError>;
}
