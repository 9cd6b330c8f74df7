//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// How often the owner's key may change between a look at it and the claim, before that is tried later.
pub(crate) const MOST_CLAIMS: usize = 3;

/// Pause before a claim of placement is tried again after it failed. Longer than that before the start of a reign: a user
/// that may not write at the root never may, and nothing else waits for it.
pub(crate) const CLAIM_RETRY: Duration = Duration::from_secs(5);

/// Changes kept with the last plan. A first plan of thousands of nodes would not fit into a value.
pub const MOST_CHANGES_KEPT: usize = 200;
/// Reasons kept with the last plan; a reason takes some 200 bytes.
pub const MOST_REASONS_KEPT: usize = 500;

/// How long giving the lease back may take when the actor stops. The lease ends by itself anyway, and the service ends
/// within 2 s of its signal, whether the store answers or not.
pub const RESIGN_DEADLINE: Duration = Duration::from_secs(1);
/// Pause before the start of a reign is tried again after the store failed.
pub(crate) const START_RETRY: Duration = Duration::from_millis(500);

const _: () = assert!(MOST_CHANGES_KEPT < MOST_REASONS_KEPT, "each change has a reason");
