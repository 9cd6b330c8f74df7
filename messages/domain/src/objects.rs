//! The objects of Kubernetes that the service keeps: their identity, the answers of an API server about them, and changes of
//! Node objects.
//!
//! Guarantees: `Debug` of a manifest shows its name, and nothing of its content, which may be a Secret.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use time::OffsetDateTime;

use crate::certificate::Validity;
use crate::cluster::Taint;
use crate::resource::{InvalidResource, ResourceKey};
use crate::skew::KubernetesVersion;

/// An object among all objects of an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectName {
    /// Group and version of its kind, such as `v1` or `apps/v1`.
    pub api_version: String,
    /// Kind, namespace and name.
    pub key: ResourceKey,
}

impl ObjectName {
    /// An object of a namespace.
    #[must_use]
    pub fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let [kind, namespace, name] = [kind, namespace, name].map(str::to_owned);
        let key = ResourceKey { kind, namespace: Some(namespace), name };
        Self { api_version: api_version.to_owned(), key }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.key, self.api_version)
    }
}

/// The wanted content of an object, for server-side apply.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
    name: ObjectName,
    content: Arc<Value>,
}

impl Manifest {
    /// # Errors
    /// The content names no object.
    pub fn new(content: Value) -> Result<Self, InvalidResource> {
        let key = ResourceKey::of_manifest(&content)?;
        let api_version = content["apiVersion"].as_str().unwrap_or_default().to_owned();
        Ok(Self { name: ObjectName { api_version, key }, content: Arc::new(content) })
    }

    /// The object that the manifest defines.
    #[must_use]
    pub fn name(&self) -> &ObjectName {
        &self.name
    }

    /// The manifest as JSON, with the fields that no type here knows.
    #[must_use]
    pub fn content(&self) -> &Value {
        &self.content
    }

    /// An annotation of the manifest.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.content["metadata"]["annotations"][name].as_str()
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Manifest").field(&self.name.key.to_string()).finish()
    }
}

/// The answer to a question about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundObject<T> {
    /// The object exists, with the part that was requested.
    Exists(T),
    /// The API server knows the kind and has no such object.
    Missing,
    /// Discovery does not know the kind: its definition may come later.
    KindUnknown,
    /// No API server answered, or one refused to; the text gives the reason.
    Unread(String),
}

impl<T> FoundObject<T> {
    /// The content, if the object exists.
    pub fn content(&self) -> Option<&T> {
        match self {
            Self::Exists(content) => Some(content),
            _ => None,
        }
    }
}

/// An object as the API server answered it, with all fields.
pub type Content = Value;

/// Annotations of an object.
pub type Annotations = BTreeMap<String, String>;

/// A Node object, as far as the service keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeObject {
    /// Name of the node in Kubernetes.
    pub name: String,
    /// The version that was read. A change is sent against it.
    pub resource_version: String,
    /// The labels, including those that other clients set.
    pub labels: BTreeMap<String, String>,
    /// The annotations, including those that other clients set.
    pub annotations: Annotations,
    /// The taints, including those of Kubernetes itself.
    pub taints: Vec<Taint>,
    /// The condition `Ready` is true.
    pub is_ready: bool,
    /// Time of the kubelet's last report on this condition, by the clock of the node, in whole seconds; `None` if unknown.
    pub reported_at: Option<OffsetDateTime>,
    /// Version of the kubelet; `None`: it does not report any more, so that the condition is unknown, or its text is no version.
    pub kubelet_version: Option<KubernetesVersion>,
    /// The deletion of the object has begun.
    pub is_deleted: bool,
}

/// A Secret at a version. It has no part of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretVersion {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret, unique in its namespace.
    pub name: String,
    /// The version that was read.
    pub resource_version: String,
}

impl fmt::Display for SecretVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret/{}/{}", self.namespace, self.name)
    }
}

/// A change of a Node object against the version that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeChange {
    /// Name of the node in Kubernetes.
    pub name: String,
    /// The version that was read.
    pub resource_version: String,
    /// Labels that are set, or removed (`None`).
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations that are set, or removed (`None`).
    pub annotations: BTreeMap<String, Option<String>>,
    /// All taints after the change; `None`: they stay.
    pub taints: Option<Vec<Taint>>,
}

impl NodeChange {
    /// True if nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.taints.is_none()
    }
}

/// Answers about objects at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectAnswers {
    /// The Node objects; `None` if no API server reported them.
    pub nodes: Option<Vec<NodeObject>>,
    /// Annotations of the static and user-defined resources.
    pub resources: BTreeMap<ResourceKey, FoundObject<Annotations>>,
    /// Validity of the certificates in Secrets of webhooks; `None`: the Secret has none that can be read.
    pub certificates: BTreeMap<ResourceKey, Option<Validity>>,
    /// The objects that are compared by their content.
    pub contents: BTreeMap<ResourceKey, FoundObject<Value>>,
}

/// The user-defined resources as typed, by key, with the revisions of their keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserResources(pub BTreeMap<String, (Bytes, i64)>);

impl fmt::Debug for UserResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn debug_shows_no_content_of_a_resource() {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "b"},
            "stringData": {"password": "hunter2"},
        });
        let stored = BTreeMap::from([("resource/Secret/b/a".to_owned(), (secret.to_string().into(), 7))]);
        let shown = format!("{:?} {:?}", Manifest::new(secret).unwrap(), UserResources(stored));
        assert_eq!(shown, r#"Manifest("Secret/b/a") {"resource/Secret/b/a"}"#);
    }
}
