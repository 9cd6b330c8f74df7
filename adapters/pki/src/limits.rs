//! Limits and times of this crate, with their units and derivations.

use time::Duration;

/// Upper bound of a PEM text in bytes: an RSA key of 4,096 bits has 3.3 KiB, a certificate with a hundred names 8 KiB.
pub(crate) const MAX_PEM: usize = 64 << 10;

/// Begin of a certificate before the present time: clocks of nodes differ from ours by less, as etcd and Kubernetes
/// need clocks that agree much better.
pub(crate) const SKEW: Duration = Duration::minutes(5);

/// Validity of an authority, as in CKE (`ttl` 876000h).
pub(crate) const CA_VALIDITY: Duration = Duration::hours(876_000);
