//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

/// Minimum back-off after an aborted drain, and the range of its random part (CKE).
pub const BACK_OFF_BASE: Duration = Duration::from_secs(300);
/// Maximum back-off without the random part (CKE).
pub const BACK_OFF_MOST: Duration = Duration::from_secs(1200);
/// Default time limit of a boot: a server with much memory tests it for about ten minutes.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Workers that did not boot in time at which no further drain begins: one or two may be broken machines, three are a
/// broken image or a broken command.
pub const STUCK_REBOOTS: usize = 3;
/// Addresses that a message names; it counts the rest.
pub(crate) const MAX_SHOWN: usize = 5;

const _: () = assert!(BACK_OFF_BASE.as_secs() <= BACK_OFF_MOST.as_secs());
