//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

use madako_domain::limits::MOST_OPERATIONS;

/// Events kept of one rack. One is usual, and a rack has about forty machines; further events are merged.
pub(crate) const MAX_EVENTS: usize = 16;
/// Machines kept of one rack, over all of its events: about 100 bytes each; etcd accepts 1.5 MiB a request. Beyond
/// this number the earliest are kept: they hold the rack as well.
pub(crate) const MAX_MACHINES: usize = 8_192;
/// Time for which a released report is remembered while no answer has its machine: a day, in which the operator who
/// changed the variables of the query notices.
pub const MAX_ABSENCE: Duration = Duration::from_secs(24 * 3600);
/// Released reports of one rack, missing from answers, that are remembered: about 130 bytes each. Beyond this number,
/// the reports that are missing longest are forgotten.
pub(crate) const MAX_ABSENT: usize = 1_024;

/// Racks or entries of one change: etcd accepts 128 operations. The rest follows in the next change.
pub(crate) const MOST_REQUESTS: usize = 50;

/// Remembered removals: more than a site removes between two answers. Beyond this number all machines wait for the
/// next answer.
pub(crate) const MOST_REMOVALS: usize = 10_000;

/// Concurrent health checks: each is a process on this host that mostly waits for a machine.
pub(crate) const CHECKS_AT_ONCE: usize = 16;
/// Places of these that prefer machines about to be repaired: half, so that other machines are checked as well.
pub(crate) const CHECKS_FIRST: usize = CHECKS_AT_ONCE / 2;
/// Intervals for which an answer is valid: one until the next check, and one for that check to end.
pub(crate) const FRESH_INTERVALS: u32 = 2;

/// Intervals for which an answer of etcd is valid: etcd is asked once an interval, and an answer may take as long.
pub(crate) const FRESH_ANSWER_INTERVALS: u32 = 3;

/// Wait for a command's end after its deadline: the host ends all processes of a command, and a busy host reports
/// late.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(300);

/// Added to a wake-up, so that its time has passed at every clock's granularity.
pub(crate) const JUST_AFTER: Duration = Duration::from_millis(1);
/// A drain of an earlier leader does not time out for this long while Kubernetes has not answered: two reads with the
/// port's 30 s each.
pub(crate) const FIRST_DRAIN_CHECK: Duration = Duration::from_secs(60);
/// Polls to wait for the registry's first reports: reports become too old to act on after as many.
pub(crate) const FIRST_REPORTS_POLLS: u32 = 3;

/// Maximum clock skew between instances with synchronized clocks.
pub const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Reports of one machine with times this close are the same. A time is the arrival of an answer less a duration that
/// the registry measured while it made the answer, within the request's deadline of 30 s. So two times of one change
/// differ by up to 30 s; another 30 s allow for the clocks of two leaders.
pub const SAME_REPORT: Duration = Duration::from_secs(60);
/// Moves of two reports this close are one move: the registry needs a second or two from the first to the last of ten
/// thousand machines of an answer.
pub(crate) const SAME_MOVE: Duration = Duration::from_secs(10);

/// Minimum back-off after a given-up drain (CKE).
pub const BACK_OFF_BASE: Duration = Duration::from_secs(300);

const _: () = assert!(
    MOST_REQUESTS * 2 < MOST_OPERATIONS,
    "each change of a rack or entry is a comparison and a write"
);
const _: () = assert!(
    CHECKS_FIRST > 0 && CHECKS_FIRST < CHECKS_AT_ONCE,
    "neither kind of check waits for the other one"
);
const _: () = assert!(
    SAME_MOVE.as_millis() < SAME_REPORT.as_millis(),
    "reports that move together are no further apart than two of one machine"
);
