//! The objects that the service keeps in Kubernetes itself: static and user-defined resources, the configuration of both
//! DNS servers, the endpoints of API servers and etcd, and the labels, annotations and taints of nodes.
//!
//! # Guarantees
//! - All functions are pure.
//! - An object that CKE 1.30 applied for the same cluster and the same images is not applied again.
//! - Each object counts by itself: one that the API server refuses backs off alone.
//! - Static and user-defined resources wait while API servers of two minor versions serve. Endpoints do not.
//!
//! # Does not
//! Send a request, delete an object whose definition was deleted, or take an API server out of its endpoints before it
//! restarts.

pub mod apply;
pub mod decide;
pub mod dns;
pub mod endpoints;
pub mod failures;
pub mod nodes;
pub mod operation;
pub(crate) mod row;
pub mod shown;
pub mod static_resources;
pub mod webhooks;

use madako_domain::objects::ObjectName;

/// The namespace of most objects of the service.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";

/// An object in the namespace of the service.
pub(crate) fn system_object(api_version: &str, kind: &str, name: &str) -> ObjectName {
    ObjectName::new(api_version, kind, SYSTEM_NAMESPACE, name)
}

/// The object whose existence shows that the controller manager has begun its work.
#[must_use]
pub(crate) fn service_account() -> ObjectName {
    system_object("v1", "ServiceAccount", "default")
}
