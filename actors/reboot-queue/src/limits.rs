//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

/// Minimum back-off after an aborted drain, and the range of its random part (CKE).
pub const BACK_OFF_BASE: Duration = Duration::from_secs(300);
/// Maximum back-off without the random part (CKE).
pub const BACK_OFF_MOST: Duration = Duration::from_secs(1200);
/// Workers that did not boot in time at which no further drain begins: one or two may be broken machines, three are a
/// broken image or a broken command.
pub const STUCK_REBOOTS: usize = 3;
/// Concurrent boot checks: each is a process on this host that mostly waits for a machine.
pub(crate) const CHECKS_AT_ONCE: usize = 16;
/// Intervals for which an answer of etcd is valid: etcd is asked once an interval, and an answer may take as long.
pub(crate) const FRESH_ANSWER_INTERVALS: u32 = 3;
/// A drain of an earlier leader does not time out for this long while Kubernetes has not answered: two reads with the
/// port's 30 s each.
pub(crate) const FIRST_DRAIN_CHECK: Duration = Duration::from_secs(60);
/// Time for the deletion of pods before a reboot: a list and some deletions with the port's 30 s and 15 s.
pub(crate) const DELETE_WITHIN: Duration = Duration::from_secs(60);
/// Time for the check of a drain before a reboot: a node and its pods with the port's 30 s each.
pub(crate) const CHECK_DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// Time for the preparation of a control plane node: the graceful end of its API server takes up to 70 s, each of two changes of
/// endpoints 15 s, health checks 5 s, the wait for proxies 5 s, and a move of etcd's leadership 10 s.
pub(crate) const PREPARE_WITHIN: Duration = Duration::from_secs(150);
/// Pause before the next question to an operation runner that does not run or does not know the newest configuration.
pub(crate) const PREPARE_PAUSE: Duration = Duration::from_secs(1);
/// Wait for a command's end after its deadline: the host ends all processes of a command, and a busy host reports
/// late.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(300);
/// Added to a wake-up, so that its time has passed at every clock's granularity.
pub(crate) const JUST_AFTER: Duration = Duration::from_millis(1);
/// Addresses that a message names: more do not fit on a line. The message counts the rest.
pub(crate) const MAX_SHOWN: usize = 5;
/// Owners of a pod that a forecast follows: a pod, its ReplicaSet, its Deployment and some objects of operators above it.
/// It also ends a circle.
pub(crate) const MAX_OWNERS: usize = 8;
/// Assumed time of a drain with its boot where the history has none. It orders the waves, and no output shows it.
pub(crate) const ASSUMED_REBOOT: Duration = Duration::from_secs(1200);

const _: () = assert!(BACK_OFF_BASE.as_secs() <= BACK_OFF_MOST.as_secs());
