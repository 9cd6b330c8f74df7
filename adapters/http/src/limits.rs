//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Longest path that is logged, in bytes.
pub(crate) const LOGGED_PATH_MAX_BYTES: usize = 200;

/// Bytes that may be under way in each direction of a connection; a socket's buffers hold about as many.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// Connections that may wait to be accepted, as a kernel's backlog.
pub(crate) const BACKLOG: usize = 128;

/// Assumptions in a question: each is one more thing to look at in every candidate, and a question has one or two.
pub(crate) const MOST_ASSUMPTIONS: usize = 32;

/// How long an answer waits for a state that a client asked to wait for (`?blocking=`), as in Krake.
pub const BLOCKING: Duration = Duration::from_secs(60);
/// Watches and waiting answers at a time: twice the 1,000 that the service promises.
pub const STREAMS: usize = 2_000;

/// Krake's interval between two signs of life of a watch.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// The longest interval that makes a difference: no connection lives so long without a sign of life.
pub(crate) const MAX_HEARTBEAT: Duration = Duration::from_secs(24 * 60 * 60);
pub(crate) const MAX_QUERY_SHOWN: usize = 60;

/// Requirements of a selector: more than any tool makes.
pub(crate) const MAX_TERMS: usize = 100;

/// Size of an answer, in bytes: Keystone's has the whole catalogue of services, about 20 KiB on a large cloud.
pub(crate) const MAX_TOKEN_ANSWER: usize = 1024 * 1024;
/// Time for an answer: half of a request's.
pub(crate) const TOKEN_DEADLINE: Duration = Duration::from_secs(5);

/// How often a watch is tried to begin at a revision that the store has just lost.
pub(crate) const ATTEMPTS: u32 = 3;

/// A longer request id is not repeated, in bytes. One of cybozu-go's has 36.
pub(crate) const REQUEST_ID_MAX_BYTES: usize = 128;

/// Handshakes under way at a time; one costs some tens of KiB and a millisecond of a core.
pub(crate) const HANDSHAKES: usize = 64;
/// Time for a handshake: as long as the embedded store's.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

const _: () =
    assert!(HEARTBEAT.as_secs() < MAX_HEARTBEAT.as_secs() && HEARTBEAT.as_secs() < BLOCKING.as_secs());
const _: () = assert!(HANDSHAKES <= BACKLOG, "handshakes are a part of what waits");
