//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Greatest length of a kubeconfig and of each file that it names, in bytes. A cluster's has some 5 KiB, a bundle of
/// authorities 200 KiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Depth and parser events of a kubeconfig; one with a hundred contexts has some 3,000.
pub(crate) const MAX_DEPTH: usize = 16;
pub(crate) const MAX_EVENTS: usize = 100_000;

/// Characters of an API server's message that an error repeats.
pub(crate) const MAX_SAID: usize = 300;

/// Greatest length of a label selector in bytes: some dozens of labels.
pub(crate) const MAX_SELECTOR: usize = 16 * 1024;

/// Greatest length of a name of Kubernetes, in bytes (RFC 1123, as its own documents give it).
pub(crate) const MAX_NAME: usize = 253;

/// Idle connections are closed after this, before firewalls commonly forget them (60 s).
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections kept: drains of a few nodes overlap.
pub(crate) const MAX_IDLE: usize = 4;

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
/// Most nodes that are taken: twice as many as Kubernetes supports.
pub const MAX_NODES: usize = 10_000;
/// Most namespaces that are taken: as many as Kubernetes was tested with.
pub const MAX_NAMESPACES: usize = 10_000;
/// Most pods on one node that are taken: a kubelet runs 110 by default, but pods that ended stay until garbage collection,
/// which begins at 12,500 in the cluster.
pub const MAX_PODS: usize = 15_000;

const _: () = assert!(
    CONNECT_TIMEOUT.as_secs() < WRITE_DEADLINE.as_secs()
        && WRITE_DEADLINE.as_secs() < READ_DEADLINE.as_secs()
);
const _: () = assert!((PAGE as usize) < MAX_NODES && MAX_NAMESPACES <= MAX_PODS);
const _: () = assert!(
    PAGE as usize * 100 * 1024 < MAX_ANSWER_BYTES,
    "a page of the largest usual things is one answer"
);
