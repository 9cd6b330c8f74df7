//! The API server of the cluster: the ports `Kubernetes` and `KubernetesWorkloads` on kube-rs.
//!
//! For: draining nodes before repairs, the taints that the planner needs, and forecasts of drains.
//!
//! Guarantees:
//! - Every call has a deadline ([`READ_DEADLINE`], [`WRITE_DEADLINE`]) for all of its requests, and each answer has at
//!   most [`MAX_ANSWER_BYTES`]. Lists are read in pages and limited to [`MAX_NODES`], [`MAX_NAMESPACES`],
//!   [`MAX_DAEMON_SETS`] and [`MAX_PODS`].
//! - A list is returned complete or not at all.
//! - Nodes are listed once and then watched (`node_watch.rs`). Kept nodes are an answer for [`NODE_AGE`] after the last event.
//! - A write starts only with a valid permit and is abandoned when the permit ends.
//! - A pod is evicted or deleted by its uid, so that another pod of the same name is not affected.
//! - Only the API server's own statement that a disruption budget forbids an eviction is [`EvictionOutcome::Refused`].
//!   Any other 429 is an error: a busy API server must not look like a budget, because pods that a budget protects may
//!   be deleted next.
//! - No token, key, certificate or password is in an error, a log or `Debug`.
//!
//! Assumes: a tokio runtime; RBAC that allows `list` of nodes, namespaces and pods, `watch` of nodes (without it, each read of
//! the nodes is a list), `get` and `delete` of pods, `create` of `pods/eviction` and `patch` of nodes. A forecast of drains also needs `list` of ReplicaSets, Deployments,
//! StatefulSets, jobs and disruption budgets.
//!
//! Does not: retry (the caller decides), apart from the watch, follow redirects, use proxies, or run programs that a kubeconfig names.
//!
//! [`EvictionOutcome::Refused`]: madako_domain::kubernetes::EvictionOutcome::Refused

mod access;
mod answer;
mod api;
mod components;
mod control_plane;
mod convert;
mod exchange;
mod limits;
mod node_parts;
mod node_watch;
mod telemetry;
mod workloads;

pub use access::{ApiServerAccess, MAX_FILE_BYTES};
pub use api::{ApiServer, ConnectError, Limits};
pub use components::NodeComponents;
pub use control_plane::ControlPlane;
pub use telemetry::METRICS;

pub use crate::limits::{
    CONNECT_TIMEOUT, MAX_ANSWER_BYTES, MAX_DAEMON_SETS, MAX_NAMESPACES, MAX_NODES, MAX_PODS, NODE_AGE, PAGE,
    READ_DEADLINE, WRITE_DEADLINE,
};
