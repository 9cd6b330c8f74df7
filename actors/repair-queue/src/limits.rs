//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_domain::limits::MOST_OPERATIONS;

/// Events that are kept of one rack. One is usual, and a rack has some forty machines; further ones are not kept apart.
pub(crate) const MAX_EVENTS: usize = 16;
/// Machines that are kept of one rack, in all of its events together: some 100 bytes each, of which etcd takes 1.5 MiB
/// a request. Beyond, the earliest are kept: they hold the rack as well.
pub(crate) const MAX_MACHINES: usize = 8_192;
/// How long a report that a rack was released for is remembered while no answer has its machine: a day, in which the operator who
/// changed the variables of the query finds out.
pub const MAX_ABSENCE: Duration = Duration::from_secs(24 * 3600);
/// Released reports of one rack whose machines no answer has that are remembered: some 130 bytes each. Beyond, those that are
/// absent longest are forgotten.
pub(crate) const MAX_ABSENT: usize = 1_024;

/// Racks, or entries, of one change: etcd takes 128 operations. The rest follows when that is done.
pub(crate) const MOST_REQUESTS: usize = 50;

/// Machines that are remembered, more than a site removes entries of between two answers. Beyond, all machines wait for the next.
pub(crate) const MOST_REMOVALS: usize = 10_000;

/// Health checks at one time: each is a process on this host that mostly waits for a machine.
pub(crate) const CHECKS_AT_ONCE: usize = 16;
/// Places of these that are first for machines that are about to be repaired: half, so that the others are asked as well.
pub(crate) const CHECKS_FIRST: usize = CHECKS_AT_ONCE / 2;
/// An answer is believed for this many rounds: one until the next check, and one for that to end.
pub(crate) const FRESH_ROUNDS: u32 = 2;

/// Pause between looks at the pods that are ending. Their grace period is 30 s unless they say otherwise.
pub(crate) const DRAIN_POLL: Duration = Duration::from_secs(5);

/// How long after its deadline the end of a command is waited for: the host ends all processes of a command, and a host that
/// is busy takes a while to report.
pub(crate) const HEARD_WITHIN: Duration = Duration::from_secs(300);

/// A time that is this much past is past on every clock's granularity.
pub(crate) const JUST_AFTER: Duration = Duration::from_millis(1);
/// How long a drain that was taken over is not given up for its time-out while Kubernetes was not seen yet: two reads, each
/// with the 30 s that its port gives it.
pub(crate) const FIRST_LOOK: Duration = Duration::from_secs(60);
/// Polls of the registry that its first reports are waited for: as many as after which reports are too old to be acted on.
pub(crate) const FIRST_REPORTS_POLLS: u32 = 3;

/// How far the clocks of instances differ where they are kept right.
pub const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Two reports of one machine are the same if their times differ by no more. A time is that of an answer less a
/// duration that the registry took while it made it, and it has 30 s for that (the deadline of a request), so that two
/// times of one change differ by up to 30 s; as much again is for the clocks of two leaders.
pub const SAME_REPORT: Duration = Duration::from_secs(60);
/// Moves of two reports are one move if they differ by no more: the time that the registry takes from the first to the last
/// machine of an answer, which is a second or two for ten thousand.
pub(crate) const SAME_MOVE: Duration = Duration::from_secs(10);

/// Least pause after draining was given up (CKE).
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
const _: () = assert!(JUST_AFTER.as_millis() < DRAIN_POLL.as_millis());
