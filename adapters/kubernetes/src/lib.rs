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
mod telemetry;

use std::time::Duration;

pub use access::{Access, MAX_FILE_BYTES};
pub use api::{ApiServer, ConnectError, Limits};
pub use telemetry::describe_metrics;

/// Time for all pages of a list. 5,000 nodes, the most that Kubernetes supports, take an API server about three seconds.
pub const READ_DEADLINE: Duration = Duration::from_secs(30);

/// Time for a write, with the look at the pod that may follow. Admission webhooks may take 10 s by default.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(15);

/// Time to connect. Within a data center it takes milliseconds; one lost SYN costs a second.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer in bytes: a page of the largest pods that etcd stores by default (1.5 MiB each) has less than ten of them,
/// one of usual pods (10 KiB) a hundredth of this.
pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Things asked for in one page: a node with its images has some 20 KiB, a pod 10 KiB.
pub const PAGE: u32 = 250;

/// Most nodes that are taken: twice what Kubernetes supports.
pub const MAX_NODES: usize = 10_000;

/// Most namespaces that are taken: what Kubernetes says it was tested with.
pub const MAX_NAMESPACES: usize = 10_000;

/// Most pods on one node that are taken: a kubelet runs 110 by default, but pods that ended stay until garbage collection,
/// which begins at 12,500 in the cluster.
pub const MAX_PODS: usize = 15_000;
