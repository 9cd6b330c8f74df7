//! Limits and times of this crate, with their units and derivations.

use time::Duration;

/// Upper bound of a PEM text in bytes: an RSA key of 4,096 bits has 3.3 KiB, a certificate with a hundred names 8 KiB.
pub(crate) const MAX_PEM: usize = 64 << 10;

/// Begin of a certificate before the present time: clocks of nodes differ from ours by less, as etcd and Kubernetes
/// need clocks that agree much better.
pub(crate) const SKEW: Duration = Duration::minutes(5);

/// Validity of an authority, as in CKE (`ttl` 876000h).
pub(crate) const CA_VALIDITY: Duration = Duration::hours(876_000);

/// A certificate is renewed when less than this fraction of its life is left ...
pub(crate) const RENEWED_PART: i32 = 3;
/// ... or less than this time, whichever is shorter: 30 days are enough for an operator to see alerts and to act.
pub(crate) const RENEWED_BEFORE: Duration = Duration::days(30);

const _: () = assert!(SKEW.whole_seconds() < RENEWED_BEFORE.whole_seconds());
