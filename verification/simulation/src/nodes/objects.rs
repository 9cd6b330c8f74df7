//! Requests of an instance for Kubernetes objects, over a simulated network link that faults can cut.

use async_trait::async_trait;
use madako_domain::objects::{
    Annotations, FoundObject, Manifest, NodeChange, NodeObject, ObjectName, SecretVersion,
};
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::objects::Objects;
use madako_protocol::permit::Permit;
use serde_json::Value;

use super::components::LinkedComponents;

fn unread<T>(error: KubernetesError) -> FoundObject<T> {
    FoundObject::Unread(error.to_string())
}

#[async_trait]
impl Objects for LinkedComponents {
    async fn read_server_version(&self, address: &str) -> Result<String, KubernetesError> {
        let what = format!("version of the API server {address}");
        self.exchange(what, self.inner.read_server_version(address)).await
    }

    async fn read_node_objects(&self, servers: &[String]) -> Result<Vec<NodeObject>, KubernetesError> {
        self.exchange("Node objects".to_owned(), self.inner.read_node_objects(servers)).await
    }

    async fn read_annotations(&self, servers: &[String], object: &ObjectName) -> FoundObject<Annotations> {
        let asking = async { Ok(self.inner.read_annotations(servers, object).await) };
        self.exchange(object.key.to_string(), asking).await.unwrap_or_else(unread)
    }

    async fn read_object(&self, servers: &[String], object: &ObjectName) -> FoundObject<Value> {
        let asking = async { Ok(self.inner.read_object(servers, object).await) };
        self.exchange(object.key.to_string(), asking).await.unwrap_or_else(unread)
    }

    async fn apply_object(
        &self,
        permit: &Permit,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<(), KubernetesError> {
        let what = manifest.name().key.to_string();
        let applying = async {
            self.witness.judge_sent_effect(permit, "apply", &what).await;
            self.inner.apply_object(permit, servers, manifest).await
        };
        self.exchange(what.clone(), applying).await
    }

    async fn dry_run_apply(&self, servers: &[String], manifest: &Manifest) -> Result<Value, KubernetesError> {
        self.exchange(manifest.name().key.to_string(), self.inner.dry_run_apply(servers, manifest)).await
    }

    async fn change_node(
        &self,
        permit: &Permit,
        servers: &[String],
        change: &NodeChange,
    ) -> Result<(), KubernetesError> {
        let changing = async {
            self.witness.judge_sent_effect(permit, "change-node", &change.name).await;
            self.inner.change_node(permit, servers, change).await
        };
        self.exchange(format!("Node object {}", change.name), changing).await
    }

    async fn remove_node(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
    ) -> Result<(), KubernetesError> {
        let removing = async {
            self.witness.judge_sent_effect(permit, "remove-node", node).await;
            self.inner.remove_node(permit, servers, node).await
        };
        self.exchange(format!("removal of Node object {node}"), removing).await
    }

    async fn list_secrets(&self, servers: &[String]) -> Result<Vec<SecretVersion>, KubernetesError> {
        self.exchange("Secrets".to_owned(), self.inner.list_secrets(servers)).await
    }

    async fn rewrite_secret(
        &self,
        permit: &Permit,
        servers: &[String],
        secret: &SecretVersion,
    ) -> Result<(), KubernetesError> {
        let rewriting = async {
            self.witness.judge_sent_effect(permit, "rewrite-secret", secret).await;
            self.inner.rewrite_secret(permit, servers, secret).await
        };
        self.exchange(secret.to_string(), rewriting).await
    }
}
