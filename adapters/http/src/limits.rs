//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Bytes of a path in the log: the longest path of the API with usual names fits.
pub(crate) const LOGGED_PATH_MAX_BYTES: usize = 200;

/// Bytes in flight in each direction of an in-memory connection: about those of a socket.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// Connections that may wait to be accepted, as in a kernel's backlog.
pub(crate) const BACKLOG: usize = 128;

/// Assumptions per question: each adds a check of every candidate, and a question has one or two.
pub(crate) const MOST_ASSUMPTIONS: usize = 32;

/// Time limit of an answer that waits for a requested state (`?blocking=`), as in Krake.
pub const BLOCKING: Duration = Duration::from_secs(60);
/// Concurrent watches and waiting answers: twice the 1,000 that the service promises.
pub const STREAMS: usize = 2_000;

/// Krake's interval of heartbeats in a watch.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// The longest useful interval: no connection lives so long without a heartbeat.
pub(crate) const MAX_HEARTBEAT: Duration = Duration::from_secs(24 * 60 * 60);
/// Characters of a query's value in a message: more do not fit on a line.
pub(crate) const MAX_QUERY_SHOWN: usize = 60;

/// Requirements in a selector: more than any tool produces.
pub(crate) const MAX_TERMS: usize = 100;

/// Upper bound of an answer in bytes: Keystone's contains the whole service catalogue, about 20 KiB on a large cloud.
pub(crate) const MAX_TOKEN_ANSWER: usize = 1024 * 1024;
/// Time for an answer: half of a request's.
pub(crate) const TOKEN_DEADLINE: Duration = Duration::from_secs(5);

/// Attempts to start a watch at a revision that the store has just lost: each needs a compaction in the moment
/// between two requests.
pub(crate) const ATTEMPTS: u32 = 3;

/// Longer request ids are not repeated, in bytes. One of cybozu-go's has 36.
pub(crate) const REQUEST_ID_MAX_BYTES: usize = 128;

/// Number of concurrent handshakes; one costs some tens of KiB and a millisecond of a core.
pub(crate) const HANDSHAKES: usize = 64;
/// Time for a handshake, as in the embedded store.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

const _: () =
    assert!(HEARTBEAT.as_secs() < MAX_HEARTBEAT.as_secs() && HEARTBEAT.as_secs() < BLOCKING.as_secs());
const _: () = assert!(HANDSHAKES <= BACKLOG, "handshakes are a part of the backlog");
