//! Limits and durations of the simulated nodes and of their etcd.

use std::time::Duration;

/// Time-out of a connection attempt: CKE's for TCP, handshake and session.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Time-out of a status, as with the real driver.
pub(crate) const STATUS_DEADLINE: Duration = Duration::from_secs(10);
/// Time-out of an action: CKE's for a command.
pub(crate) const ACTION_DEADLINE: Duration = Duration::from_secs(600);
/// Silence after which a connection is broken: three keep-alives of 5 s.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(15);
/// Time-out of a request to etcd: CKE's.
pub(crate) const ETCD_DEADLINE: Duration = Duration::from_secs(5);
/// etcd adds a member only if all voting members were connected for this time (its `HealthInterval`).
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Learners that a cluster of etcd has at most (etcd's default of `--experimental-max-learners`).
pub(crate) const MAX_LEARNERS: usize = 1;

/// Number of kept facts, some hundred bytes each; the oldest are dropped. A day of simulated operations has fewer.
pub const MAX_FACTS: usize = 100_000;
/// Factor of the network's latency to and from a node with the fault `delay`: a request and its answer take some
/// 0.4 s, within each deadline.
pub(crate) const DELAY_FACTOR: u32 = 20;

/// Mean of the nodes' mean latencies, one way.
pub(crate) const LATENCY: Duration = Duration::from_millis(10);
/// Mean duration of a pull: some 100 MB.
pub(crate) const PULL_TAKES: Duration = Duration::from_secs(8);
/// Mean duration of the restore of a snapshot: some 100 MB.
pub(crate) const STAGE_TAKES: Duration = Duration::from_secs(3);
/// Mean duration of `docker run`: an idle machine needs about half a second.
pub(crate) const RUN_TAKES: Duration = Duration::from_millis(600);
/// Mean duration of a stop by SIGTERM: rivers and etcd end within a second.
pub(crate) const STOP_TAKES: Duration = Duration::from_secs(1);
/// Mean duration of any other action, and of a status.
pub(crate) const SHORT_TAKES: Duration = Duration::from_millis(200);
/// Mean time from the start of a container until its member of etcd answers.
pub(crate) const ETCD_START_TAKES: Duration = Duration::from_secs(1);
/// Time from the start of a component of Kubernetes until it is healthy: an API server needs some seconds.
pub(crate) const COMPONENT_START_TAKES: Duration = Duration::from_secs(4);
/// Time-out of a question to a component of Kubernetes: CKE's.
pub(crate) const COMPONENT_DEADLINE: Duration = Duration::from_secs(5);
/// Mean time from the first contact of a member with its cluster until it has all data.
pub(crate) const CATCH_UP_TAKES: Duration = Duration::from_secs(2);
/// Mean time from power-on until a node answers: shorter than the minutes of a real server, so that runs of an hour
/// have several boots.
pub(crate) const BOOT_TAKES: Duration = Duration::from_secs(40);

const _: () = assert!(CONNECT_DEADLINE.as_secs() < MAX_SILENCE.as_secs());
const _: () = assert!(PULL_TAKES.as_secs() < ACTION_DEADLINE.as_secs());
const _: () = assert!(LATENCY.as_millis() * (DELAY_FACTOR as u128) < STATUS_DEADLINE.as_millis());
