//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Time to connect, including TLS. Within a data center it takes milliseconds; one lost SYN costs a second.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Redirects within one origin: a load balancer may need one.
pub(crate) const MAX_REDIRECTS: usize = 3;
/// Lifetime of an idle connection, shorter than the usual 60 s of servers and firewalls.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections per server: polls do not overlap.
pub(crate) const MAX_IDLE: usize = 2;

const _: () = assert!(CONNECT_TIMEOUT.as_secs() < IDLE_TIMEOUT.as_secs());
