//! Requests of an instance to the components of Kubernetes, over a simulated network link that faults can cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::deprecated_api::DeprecatedApi;
use madako_protocol::components::Components;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::EffectObserver;
use super::ports::exchange_over;
use crate::link::Link;

/// The components, as an instance reaches them.
pub(crate) struct LinkedComponents {
    pub(crate) inner: Arc<dyn Components>,
    pub(crate) link: Link,
    pub(crate) witness: EffectObserver,
}

impl LinkedComponents {
    /// Sends a request, and waits for its answer.
    pub(super) async fn exchange<R>(
        &self,
        what: String,
        request: impl Future<Output = Result<R, KubernetesError>> + Send,
    ) -> Result<R, KubernetesError> {
        exchange_over(&self.link, request, |why| KubernetesError::Unavailable { what: what.clone(), why })
            .await
    }
}

#[async_trait]
impl Components for LinkedComponents {
    async fn check(&self, component: Component, address: &str) -> Result<(), KubernetesError> {
        self.exchange(format!("health of {component} on {address}"), self.inner.check(component, address))
            .await
    }

    async fn time_list(&self, address: &str) -> Result<Duration, KubernetesError> {
        let began = Instant::now();
        let what = format!("list of namespaces at {address}");
        self.exchange(what, self.inner.time_list(address)).await?;
        Ok(began.elapsed())
    }

    async fn deprecated_apis(&self, address: &str) -> Result<BTreeSet<DeprecatedApi>, KubernetesError> {
        self.exchange(format!("metrics of {address}"), self.inner.deprecated_apis(address)).await
    }

    async fn leader(
        &self,
        component: Component,
        servers: &[String],
    ) -> Result<Option<String>, KubernetesError> {
        self.exchange(format!("lease of {component}"), self.inner.leader(component, servers)).await
    }

    async fn restarted_containers(
        &self,
        servers: &[String],
        node: &str,
        since: OffsetDateTime,
    ) -> Result<Vec<String>, KubernetesError> {
        let what = format!("restarted containers on node {node}");
        self.exchange(what, self.inner.restarted_containers(servers, node, since)).await
    }

    async fn read_taints(
        &self,
        servers: &[String],
        node: &str,
    ) -> Result<Option<Vec<Taint>>, KubernetesError> {
        self.exchange(format!("taints of node {node}"), self.inner.read_taints(servers, node)).await
    }

    async fn add_taints(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
        taints: &[Taint],
    ) -> Result<(), KubernetesError> {
        let adding = async {
            self.witness.judge_sent_effect(permit, "taints", node).await;
            self.inner.add_taints(permit, servers, node, taints).await
        };
        self.exchange(format!("taints of node {node}"), adding).await
    }
}

#[cfg(test)]
mod tests {
    use madako_datacenter_sim::nodes::SimulatedNodes;
    use madako_protocol::objects::Objects;

    use super::*;
    use crate::link::Mode;
    use crate::nodes::ports::REQUEST_DEADLINE;

    #[tokio::test(start_paused = true)]
    async fn components_behind_a_cut_link_do_not_answer() {
        let link = Link::default();
        let inner = SimulatedNodes::new(1).components_port();
        let components = LinkedComponents { inner, link: link.clone(), witness: EffectObserver::default() };
        let why = |error: KubernetesError| error.to_string();
        let requested = components.read_node_objects(&[]).await.map_err(why);
        assert!(requested.unwrap_err().contains("no answer"), "the node does not exist");
        link.set(Mode::Cut);
        let requested = components.check(Component::Kubelet, "a").await.map_err(why);
        assert!(!requested.unwrap_err().contains("no answer"), "the link refuses");
        link.set(Mode::Stalled);
        let began = tokio::time::Instant::now();
        components.check(Component::Kubelet, "a").await.unwrap_err();
        assert_eq!(began.elapsed(), REQUEST_DEADLINE);
    }
}
