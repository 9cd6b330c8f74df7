//! Limits and times of this crate, with their units and derivations.

use std::time::Duration;

/// Deadline of a request (CKE's value).
pub(crate) const REQUEST: Duration = Duration::from_secs(5);
/// Deadline of a connection: a lost SYN is repeated after a second, so one may be lost.
pub(crate) const CONNECT: Duration = Duration::from_secs(2);
/// Interval of keep-alive pings, and the time for their answer. etcd closes connections that ping more often than every
/// five seconds.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Pause before the next address is asked too: many times longer than a grant takes on a busy disk, and short enough
/// that five dead nodes cost one second.
pub(crate) const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Time to live of the lease that shows a majority, in seconds (CKE's value).
pub(crate) const LEASE_TTL: i64 = 10;

/// Validity of the client certificate (CKE's value).
pub(crate) const CERTIFICATE: Duration = Duration::from_secs(3600);
/// Age at which the client certificate, and all connections with it, are replaced.
pub(crate) const CERTIFICATE_AGE: Duration = Duration::from_secs(1800);

/// Connections that are kept: some times the members of a large cluster (etcd advises against more than seven).
pub(crate) const MOST_CONNECTIONS: usize = 64;
/// Members that are asked at the same time.
pub(crate) const MOST_ASKED_AT_ONCE: usize = 16;
/// Kept bytes of an error message: a server's message could have any length.
pub(crate) const LONGEST_ERROR: usize = 500;

/// Random bytes of a password; it has two hexadecimal digits for each (CKE's length).
pub(crate) const PASSWORD_BYTES: usize = 32;

const _: () = assert!(CONNECT.as_millis() < REQUEST.as_millis());
const _: () = assert!(REQUEST.as_secs() < LEASE_TTL as u64, "the lease lives while members are asked");
const _: () = assert!(CERTIFICATE_AGE.as_secs() + 2 * REQUEST.as_secs() < CERTIFICATE.as_secs());
const _: () = assert!(KEEP_ALIVE.as_secs() >= 5, "etcd closes connections that ask more often");
