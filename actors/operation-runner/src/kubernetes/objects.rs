//! The objects that the service keeps in Kubernetes itself: static resources, the configuration of both DNS servers,
//! and the decision which resources are applied next.
//!
//! # Guarantees
//! - All functions are pure.
//! - An object that CKE 1.30 applied for the same cluster and the same images is not applied again.
//!
//! # Does not
//! Send a request: `madako-kubernetes` applies manifests.

pub mod apply;
pub mod dns;
pub mod static_resources;

/// The namespace of all objects of the service.
pub(crate) const SYSTEM_NAMESPACE: &str = "kube-system";
