//! The port to the objects of Kubernetes: reads, server-side apply, and changes of Node objects.

use async_trait::async_trait;
use madako_domain::objects::{
    Annotations, Content, FoundObject, Manifest, NodeChange, NodeObject, ObjectName, SecretVersion,
};

use crate::kubernetes::KubernetesError;
use crate::permit::Permit;

/// The port to the objects. `servers` are the addresses of API servers, which are asked one after the other until one
/// answers. Each call has its own deadline.
///
/// An error about a Secret does not have the API server's message, which may show a part of it.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// The major and minor version of one API server, such as `1.34`.
    ///
    /// # Errors
    /// It did not answer.
    async fn read_server_version(&self, address: &str) -> Result<String, KubernetesError>;

    /// All Node objects.
    async fn read_node_objects(&self, servers: &[String]) -> Result<Vec<NodeObject>, KubernetesError>;

    /// The annotations of an object. A kind is looked up in the one part of discovery that can have it.
    async fn read_annotations(&self, servers: &[String], object: &ObjectName) -> FoundObject<Annotations>;

    /// A whole object, without the field managers.
    async fn read_object(&self, servers: &[String], object: &ObjectName) -> FoundObject<Content>;

    /// Applies an object by server-side apply with CKE's field manager, and takes over the fields of other managers.
    /// Idempotent.
    async fn apply_object(
        &self,
        permit: &Permit,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<(), KubernetesError>;

    /// The object as [`Self::apply`] would leave it. Changes nothing.
    async fn dry_run_apply(
        &self,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<Content, KubernetesError>;

    /// Changes a Node object.
    ///
    /// # Errors
    /// See [`KubernetesError`]. Status 409 means that another client has changed the object since it was read.
    async fn change_node(
        &self,
        permit: &Permit,
        servers: &[String],
        change: &NodeChange,
    ) -> Result<(), KubernetesError>;

    /// Cordons a node and deletes its Node object. A missing object is not an error.
    async fn remove_node(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
    ) -> Result<(), KubernetesError>;

    /// All Secrets at their present versions. Their contents are not read.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn list_secrets(&self, servers: &[String]) -> Result<Vec<SecretVersion>, KubernetesError>;

    /// Lets an API server write a Secret as it is, which encrypts it with the first key of that server. One that another client
    /// has changed is written at its new version, and a missing one is no error. Idempotent.
    ///
    /// # Errors
    /// See [`KubernetesError`].
    async fn rewrite_secret(
        &self,
        permit: &Permit,
        servers: &[String],
        secret: &SecretVersion,
    ) -> Result<(), KubernetesError>;
}
