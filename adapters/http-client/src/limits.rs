//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Time to connect, TLS included. Within a data center it takes milliseconds; one lost SYN costs a second.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Redirects followed within one origin: a load balancer may need one.
pub(crate) const MAX_REDIRECTS: usize = 3;
/// Idle connections are closed after this, before servers and firewalls commonly forget them (60 s).
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle connections kept for one server: polls do not overlap.
pub(crate) const MAX_IDLE: usize = 2;

const _: () = assert!(CONNECT_TIMEOUT.as_secs() < IDLE_TIMEOUT.as_secs());
