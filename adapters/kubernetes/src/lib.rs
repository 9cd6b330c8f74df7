//! The API server of the cluster: the port `Kubernetes` on kube-rs.
//!
//! For: draining nodes before repairs, and the taints that the planner needs.
//!
//! Guarantees:
//! - every call has a deadline ([`READ_DEADLINE`], [`WRITE_DEADLINE`]) for all of its requests, and each answer has at most
//!   [`MAX_ANSWER_BYTES`]; lists are read in pages, and end at [`MAX_NODES`], [`MAX_NAMESPACES`] and [`MAX_PODS`];
//! - a list is given whole or not at all;
//! - a write begins only with a permit that holds, and is given up when the permit ends;
//! - a pod is evicted or deleted by its uid: another one of the same name is left alone;
//! - only the API server's own word that a disruption budget forbids it is [`Eviction::Refused`]. Any other 429 is an error:
//!   a busy API server must not look like a budget, for pods that a budget holds may be deleted next;
//! - no token, key, certificate or password is in an error, a log or `Debug`.
//!
//! Assumes: a tokio runtime; RBAC that allows `list` of nodes, namespaces and pods, `get` and `delete` of pods, `create` of
//! `pods/eviction` and `patch` of nodes.
//!
//! Does not: retry (whoever drains knows when), watch, follow redirects, use proxies, or run programs that a kubeconfig names.
//!
//! [`Eviction::Refused`]: madako_domain::kubernetes::Eviction::Refused

mod access;
mod answer;
mod api;
mod convert;
mod exchange;
mod limits;
mod telemetry;

pub use access::{Access, MAX_FILE_BYTES};
pub use api::{ApiServer, ConnectError, Limits};
pub use telemetry::describe_metrics;

pub use crate::limits::{
    CONNECT_TIMEOUT, MAX_ANSWER_BYTES, MAX_NAMESPACES, MAX_NODES, MAX_PODS, PAGE, READ_DEADLINE,
    WRITE_DEADLINE,
};
