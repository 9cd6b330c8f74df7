//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_leader::limits::RESIGN_DEADLINE;
use madako_protocol::limits::PROVIDER_DEADLINE;
use madako_repair_queue::limits::SAME_REPORT;
use madako_sabakan::limits::REQUEST_DEADLINE;

/// Depth of nesting that a configuration may have; ours has two.
pub(crate) const MAX_SETTINGS_DEPTH: usize = 16;
/// Parser events; a configuration has fewer than a hundred.
pub(crate) const MAX_SETTINGS_EVENTS: usize = 20_000;
/// Characters of a wrong value that are shown.
pub(crate) const MAX_SHOWN: usize = 60;
/// Depth of nesting of a document that is kept as it is.
pub(crate) const MAX_VALUE_DEPTH: usize = 64;

/// Longest name of a label: Kubernetes' limit, and sabakan's.
pub(crate) const MAX_LABEL: usize = 63;

/// Greatest size of a request's body that can be set: etcd takes no larger request than 10 MiB where its operators
/// raise its limit, and a body becomes one value.
pub(crate) const MAX_BODY: u64 = 10 << 20;
/// Greatest number of repeated transactions that can be set: each repeats all of a request's reading.
pub(crate) const MAX_RETRIES: u64 = 100;
/// The longest span in seconds that can be set: ten years.
pub(crate) const MAX_SECONDS: f64 = 315_360_000.0;
/// Greatest size of a TOSCA template in bytes: it goes into each cluster that is created, which is one value.
pub(crate) const MAX_TOSCA: u64 = 1 << 20;
/// Time between rounds of metrics.
pub(crate) const METRICS_INTERVAL: Duration = Duration::from_secs(15);
/// Greatest time between rounds: an older value says nothing about the present.
pub(crate) const MAX_METRICS_INTERVAL: Duration = Duration::from_secs(3_600);
/// Greatest age of a value that counts.
pub(crate) const MAX_METRIC_AGE: Duration = Duration::from_secs(86_400);

/// Greatest length of a PEM file in bytes; the system's whole bundle has a quarter of that.
pub(crate) const MAX_PEM: u64 = 1 << 20;

/// Events that a slow listener may be behind. A live view reads many times a second.
pub(crate) const JOURNAL_BEHIND: usize = 1024;
/// Most addresses that one line names.
pub(crate) const MOST_NAMED: usize = 20;

/// A supervisor that must hurry first gives up a start in flight, then a stuck child, each after one
/// grace time; only after both is it stuck itself.
pub(crate) const SUPERVISOR_GRACES: u32 = 3;

/// Longest text of a reason that is kept, in bytes: status and events stay small whatever a child says.
pub(crate) const REASON_MAX_BYTES: usize = 1024;

/// Time for a child's start (`pre_start`), by default: a first read of the store with its retries.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(30);
/// Time for a child's graceful end, by default: one command to an outside thing and its deadline.
pub(crate) const ACTOR_STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Time for a supervisor's graceful end as a child, by default: six children that use all of theirs.
pub(crate) const SUPERVISOR_STOP_DEADLINE: Duration = Duration::from_secs(30);
/// Time that a killed actor has to end, by default: it ends at its next await, so this is generous.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(5);

/// Time for a question that a supervisor answers from memory: it never waits in a handler.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// No wait is longer, at any setting: a longer one is as good as none. It keeps sums of times in range.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Pause before the store is asked again whether it lets us read.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the scheduler may take to explain: a pass, and an explanation of every candidate behind it.
pub(crate) const EXPLAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Greatest length of the file, in bytes. Real ones have a few kilobytes; certificates add some.
pub(crate) const MAX_FILE: u64 = 1 << 20;
/// Greatest length of the prefix in bytes: etcd's keys may have 1.5 MiB, which no prefix needs.
pub(crate) const MAX_PREFIX: usize = 1024;

/// How long an instance stays away from leadership after its reign failed too often. Longer than the
/// default session TTL (60 s), so that any other instance is elected first.
pub(crate) const PAUSE_AFTER_MELTDOWN: Duration = Duration::from_secs(120);
/// How long a graceful stop of the whole tree may take; then the rest of it is killed. The process ends within 2 s of
/// its signal. Servers drain from the beginning, side by side with everything else.
pub(crate) const INSTANCE_STOP_DEADLINE: Duration = Duration::from_millis(1_400);

/// Time between two looks at commands of an earlier process. A watcher needs milliseconds to kill.
pub(crate) const PREDECESSOR_GLANCE: Duration = Duration::from_millis(100);
/// Time between two log lines about an earlier process that is waited for.
pub(crate) const PREDECESSOR_SAID_EVERY: Duration = Duration::from_secs(5);

/// Most bytes of a write to the embedded store: a configuration of 5,000 nodes has some 6 MB, and etcd itself advises
/// against more than 10 MiB.
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
