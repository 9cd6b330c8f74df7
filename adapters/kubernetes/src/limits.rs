//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Upper bound of a kubeconfig and of each file that it names, in bytes. A cluster's kubeconfig has some 5 KiB, a CA
/// bundle 200 KiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Levels of nesting of a kubeconfig: its own types have seven.
pub(crate) const MAX_DEPTH: usize = 16;
/// Parser events of a kubeconfig; one with a hundred contexts has some 3,000.
pub(crate) const MAX_EVENTS: usize = 100_000;

/// Characters of an API server's message that an error repeats: a refusal with its reason has some 200.
pub(crate) const MAX_SERVER_TEXT: usize = 300;

/// Upper bound of a label selector in bytes: some dozens of labels.
pub(crate) const MAX_SELECTOR: usize = 16 * 1024;

/// Upper bound of a name in Kubernetes, in bytes (RFC 1123, as Kubernetes' documents state it).
pub(crate) const MAX_NAME: usize = 253;

/// Lifetime of an idle connection, shorter than the usual 60 s of firewalls.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections to keep: drains of a few nodes overlap.
pub(crate) const MAX_IDLE: usize = 4;

/// Time for all pages of a list. An API server needs about three seconds for 5,000 nodes, the maximum that Kubernetes
/// supports.
pub const READ_DEADLINE: Duration = Duration::from_secs(30);
/// Time for a write, including the read of the pod that may follow. Admission webhooks may take 10 s by default.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(15);
/// Time to connect. Within a data center it takes milliseconds; one lost SYN costs a second.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound of an answer in bytes. A page of usual pods (10 KiB each) has less than a tenth of it, and ten pods of
/// the largest size that etcd stores by default (1.5 MiB each) still fit.
pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Objects per page: a node with its images has some 20 KiB, a pod 10 KiB.
pub const PAGE: u32 = 250;
/// Upper bound of nodes: twice the number that Kubernetes supports.
pub const MAX_NODES: usize = 10_000;
/// Upper bound of namespaces: the number that Kubernetes was tested with.
pub const MAX_NAMESPACES: usize = 10_000;
/// Upper bound of DaemonSets: each runs a pod on many nodes, so real clusters have some tens.
pub const MAX_DAEMON_SETS: usize = 1_000;
/// Upper bound of pods on one node. A kubelet runs 110 by default, but ended pods stay until garbage collection, which
/// starts at 12,500 in the cluster.
pub const MAX_PODS: usize = 15_000;

/// Upper bound of bound pods in the cluster: Kubernetes supports 150,000.
pub(crate) const MAX_CLUSTER_PODS: usize = 200_000;
/// Upper bound of the ReplicaSets, Deployments, StatefulSets or jobs of the cluster: a Deployment keeps ten
/// ReplicaSets.
pub(crate) const MAX_OWNERS: usize = 200_000;
/// Upper bound of disruption budgets: two for each of the most namespaces.
pub(crate) const MAX_BUDGETS: usize = 20_000;
/// Deadlines of a read that a list for a forecast has: 150,000 pods are 600 pages of some 100 ms.
pub(crate) const WORKLOAD_DEADLINES: u32 = 4;

/// Time for a health check, as in CKE.
pub(crate) const CHECK_DEADLINE: Duration = Duration::from_secs(5);
/// Upper bound of an answer to a health check in bytes: a page with one namespace.
pub(crate) const MAX_CHECK_BYTES: usize = 1 << 20;
/// Upper bound of the metrics of an API server in bytes: one of a large cluster has some tens of megabytes.
pub(crate) const MAX_METRICS_BYTES: usize = 64 << 20;
/// Time for a read of them.
pub(crate) const METRICS_DEADLINE: Duration = Duration::from_secs(30);
/// Age at which the kinds of a group and version are asked anew: a definition seldom changes the form of its kind.
pub(crate) const KINDS_AGE: Duration = Duration::from_secs(600);
/// Age at which discovery is asked again about a kind that it did not know: a new kind is known a second after its
/// definition, and the resources of a pass ask once.
pub(crate) const ABSENCE_AGE: Duration = Duration::from_secs(2);
/// Number of groups and versions whose kinds are kept; a cluster has some tens.
pub(crate) const MAX_GROUPS: usize = 1000;
/// Time for which a container runs without a fault of its own: the back-off of one that ends by itself is at most 5 min.
pub(crate) const STEADY: Duration = Duration::from_secs(600);
/// Validity of the client certificate, as in CKE.
pub(crate) const CERTIFICATE: Duration = Duration::from_secs(25 * 3600);
/// Age at which another one is issued, as in CKE.
pub(crate) const CERTIFICATE_AGE: Duration = Duration::from_secs(24 * 3600);
/// Time until the next request for a certificate after a failed one. The former one is valid for an hour more.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(60);
/// Upper bound of Secrets: ten for each of the most namespaces, and twice that for releases of Helm.
pub(crate) const MAX_SECRETS: usize = 200_000;
/// Time for all pages of the list of Secrets: 200,000 are 800 pages of some 100 ms.
pub(crate) const SECRETS_DEADLINE: Duration = Duration::from_secs(120);
/// Age up to which kept Node objects are an answer: a change of a node waits no longer for a decision than for a poll of its
/// kubelet.
pub const NODE_AGE: Duration = Duration::from_secs(10);
/// Time without an event or a bookmark after which a watch is dead: API servers send a bookmark each minute.
pub(crate) const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// Pause before a watch goes on after its server has ended it, which many clients notice at the same time.
pub(crate) const WATCH_PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause after failures: an API server starts within half a minute.
pub(crate) const WATCH_PAUSE_MOST: Duration = Duration::from_secs(30);
/// Upper bound of an event in bytes: twice the largest object that etcd stores by default (1.5 MiB).
pub(crate) const MAX_EVENT_BYTES: usize = 3 << 20;
/// Attempts to change an object, such as a Node object, that other clients change at the same time: kubelets write to it every 5 min.
pub(crate) const CHANGE_TRIES: usize = 5;

const _: () = assert!(
    CONNECT_TIMEOUT.as_secs() < WRITE_DEADLINE.as_secs()
        && WRITE_DEADLINE.as_secs() < READ_DEADLINE.as_secs()
);
const _: () = assert!(
    CERTIFICATE_AGE.as_secs() + RENEWAL_PAUSE.as_secs() < CERTIFICATE.as_secs(),
    "a failed renewal is repeated while the former certificate is valid"
);
const _: () = assert!(
    NODE_AGE.as_secs() < WATCH_SILENCE.as_secs(),
    "reads do not wait until a silent watch is found dead"
);
const _: () = assert!(MAX_EVENT_BYTES < MAX_ANSWER_BYTES, "a watch delivers several events");
const _: () = assert!((PAGE as usize) < MAX_NODES && MAX_NAMESPACES <= MAX_PODS);
const _: () = assert!(
    PAGE as usize * 100 * 1024 < MAX_ANSWER_BYTES,
    "a page of the largest usual things is one answer"
);
