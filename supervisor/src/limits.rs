//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

use crate::tree::Budget;

use madako_leader::limits::RESIGN_DEADLINE;
use madako_protocol::limits::{PERMIT_MARGIN, PROVIDER_DEADLINE};
use madako_repair_queue::limits::SAME_REPORT;
use madako_sabakan::limits::REQUEST_DEADLINE;
use madako_ssh::limits::SHORTEST_ACTION;

/// Bytes of a label's name: Kubernetes' limit, and sabakan's.
pub(crate) const MAX_LABEL: usize = 63;

/// Maximum setting for the size of a request's body in bytes: etcd accepts at most 10 MiB even where operators raise
/// its limit, and a body becomes one value.
pub(crate) const MAX_BODY: i64 = 10 << 20;
/// Maximum setting for the number of repeated transactions: each repeats all reads of a request.
pub(crate) const MAX_RETRIES: i64 = 100;
/// Maximum setting for a span, in seconds: ten years.
pub(crate) const MAX_SECONDS: f64 = 315_360_000.0;
/// Maximum size of a TOSCA template in bytes: each created cluster contains it in one value.
pub(crate) const MAX_TOSCA: u64 = 1 << 20;
/// Default interval of metrics rounds: a usual interval of scrapes, so that each round has new values.
pub(crate) const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum interval of metrics rounds: an older value does not describe the present.
pub(crate) const MAX_METRICS_INTERVAL: Duration = Duration::from_secs(3_600);
/// Maximum setting for the age of a kept value: after a day without its provider, a value describes nothing.
pub(crate) const MAX_METRIC_AGE: Duration = Duration::from_secs(86_400);

/// Shortest session of a leader that acts on nodes. Just before a renewal, after a third of the session, and with the
/// margins of the lease (a tenth) and of permits, an action still has its shortest time.
pub const SHORTEST_ACTING_SESSION: Duration = Duration::from_secs(10);

const _: () = assert!(
    SHORTEST_ACTING_SESSION.as_millis() * 17 / 30
        >= (SHORTEST_ACTION.as_millis() + PERMIT_MARGIN.as_millis()),
    "a session of this length permits actions"
);

/// Maximum size of a PEM file in bytes; the system's whole bundle has a quarter of it.
pub(crate) const MAX_PEM: u64 = 1 << 20;

/// Events that a slow listener may lag behind. A live view reads many times a second.
pub(crate) const JOURNAL_BEHIND: usize = 1024;
/// Addresses named in one line: a few lines of a terminal.
pub(crate) const MOST_NAMED: usize = 20;

/// A hurried supervisor first gives up a start in flight, then a stuck child, each after one grace time; only after
/// both is it stuck itself.
pub(crate) const SUPERVISOR_GRACES: u32 = 3;

/// Bytes of a kept reason: status and events stay small whatever text a child returns.
pub(crate) const REASON_MAX_BYTES: usize = 1024;

/// Default time for a child's start (`pre_start`): a first read of the store with its retries.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(30);
/// Default time for a child's graceful end: one external command with its deadline.
pub(crate) const ACTOR_STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Default time for a nested supervisor's graceful end: six children that use all of theirs.
pub(crate) const SUPERVISOR_STOP_DEADLINE: Duration = Duration::from_secs(30);
/// Default time for a killed actor to end: it ends at its next await, so this is generous.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(5);

/// Time for a request to a supervisor, which answers from memory: its handlers never wait.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// Maximum wait at any setting: longer ones are practically endless. It keeps sums of times in range.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Pause before the next check of read permission in the store: an operator who grants it waits for the effect.
pub(crate) const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Time for the scheduler to explain: a pass, and then an explanation of every candidate.
pub(crate) const EXPLAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Maximum size of the file in bytes. Real files have a few kilobytes; certificates add some.
pub(crate) const MAX_FILE: u64 = 1 << 20;
/// Maximum length of the prefix in bytes: etcd's keys may have 1.5 MiB, which no prefix needs.
pub(crate) const MAX_PREFIX: usize = 1024;

/// Failures of the actor of one node before it is parked: its supervisor's default without it would end the reign.
pub(crate) const NODE_BUDGET: Budget = Budget::DEFAULT;
/// Pause of a parked node: an operator sees it on two scrapes, and the node is back in the same hour.
pub(crate) const NODE_PARKED: Duration = Duration::from_secs(600);

/// Pause of an instance's candidacy after its reign failed too often. It exceeds the default session TTL (60 s), so
/// that any other instance is elected first.
pub(crate) const PAUSE_AFTER_MELTDOWN: Duration = Duration::from_secs(120);
/// Time for a graceful stop of the whole tree; then the rest is killed. The process ends within 2 s of its signal.
/// Servers drain from the start of the stop, concurrently with everything else.
pub(crate) const INSTANCE_STOP_DEADLINE: Duration = Duration::from_millis(1_400);

/// Interval of checks for commands of an earlier process. A watcher kills within milliseconds.
pub(crate) const PREDECESSOR_GLANCE: Duration = Duration::from_millis(100);
/// Interval of log lines while waiting for an earlier process, which ends within milliseconds unless a disk does
/// not answer.
pub(crate) const PREDECESSOR_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum size of a write to the embedded store in bytes: a configuration of 5,000 nodes has about 6 MB, and etcd
/// advises against more than 10 MiB.
pub(crate) const MAX_REQUEST_BYTES: usize = 10 * 1024 * 1024;

const _: () = assert!(
    KILL_GRACE.as_secs() <= ACTOR_STOP_DEADLINE.as_secs()
        && ACTOR_STOP_DEADLINE.as_secs() * 6 <= SUPERVISOR_STOP_DEADLINE.as_secs()
);
const _: () = assert!(
    RESIGN_DEADLINE.as_millis() < INSTANCE_STOP_DEADLINE.as_millis(),
    "the lease is given back before the tree is killed"
);
const _: () = assert!(
    PROVIDER_DEADLINE.as_secs() < METRICS_INTERVAL.as_secs(),
    "each round is answered before the next one"
);
const _: () = assert!(
    METRICS_INTERVAL.as_secs() < MAX_METRICS_INTERVAL.as_secs()
        && MAX_METRICS_INTERVAL.as_secs() < MAX_METRIC_AGE.as_secs()
);
const _: () = assert!(
    SAME_REPORT.as_secs() >= 2 * REQUEST_DEADLINE.as_secs(),
    "the time that an answer of the registry takes, for two leaders"
);
const _: () =
    assert!(MAX_BODY as usize <= MAX_REQUEST_BYTES, "the embedded store takes each value that the API takes");
