//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

/// Changes of the owner's key between its read and the claim before the claim is postponed: with one instance for
/// each prefix, a second change at the same moment is rare.
pub(crate) const MOST_CLAIMS: usize = 3;

/// Pause before a failed claim of placement is retried. It is longer than the pause before a start of a reign: a user
/// without permission at the root stays without, and nothing else waits for the claim.
pub(crate) const CLAIM_RETRY: Duration = Duration::from_secs(5);

/// Changes kept with the last plan: those of a first plan with thousands of nodes exceed the size of a value.
pub const MOST_CHANGES_KEPT: usize = 200;
/// Reasons kept with the last plan, about 200 bytes each.
pub const MOST_REASONS_KEPT: usize = 500;

/// Time to give the lease back when the actor stops. The lease ends by itself anyway, and the service must end within
/// 2 s of its signal even if the store does not answer.
pub const RESIGN_DEADLINE: Duration = Duration::from_secs(1);
/// Pause before a failed start of a reign is retried: a restarted store is back within a second.
pub(crate) const START_RETRY: Duration = Duration::from_millis(500);

const _: () = assert!(MOST_CHANGES_KEPT < MOST_REASONS_KEPT, "each change has a reason");
