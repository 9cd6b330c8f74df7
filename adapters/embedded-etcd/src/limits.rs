//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Maximum number of comparisons, and of operations in a branch, of a transaction (etcd's `--max-txn-ops`).
pub(crate) const MAX_TXN_OPERATIONS: usize = 128;

/// Capacity of an in-memory connection in bytes per direction: about that of a socket.
pub(crate) const DUPLEX_BYTES: usize = 64 * 1024;
/// Pause before a retry if ended leases could not be revoked: half of the resolution of a TTL, which is a second.
pub(crate) const LEASE_RETRY: Duration = Duration::from_millis(500);

/// Bytes of space that are filled with zeros ahead of use: fills are rare, and no write waits for more than this.
pub(crate) const FILL_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes. A write further beyond the filled part leaves a gap unfilled, so that it does not wait for the whole
/// fill.
pub(crate) const MAX_FILL_BYTES: u64 = 4 * FILL_BYTES;

/// Interval of log lines during a long verification: one or two lines for a file of some hundred MB on a disk of 100
/// MB/s.
pub(crate) const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(3);

/// Longest TTL that etcd grants, in seconds (its `lease.MaxLeaseTTL`).
pub(crate) const MAX_TTL_SECONDS: i64 = 9_000_000_000;
/// Shortest TTL, in seconds: etcd's, from its default election timeout (1.5 times 1 s, rounded up).
pub(crate) const MIN_TTL_SECONDS: i64 = 2;

/// Idle time of a connection before a keep-alive ping. etcd's two hours would hide a partition for most of a night;
/// this detects it within half a minute.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Timeout for the answer to a keep-alive ping: gRPC's usual 20 s.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Concurrent requests of one connection. Each watch stream counts as one; Go's clients multiplex over one connection.
pub(crate) const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// Time for the head of a request over HTTP: a client in the data center sends it at once.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for open requests to end after the store begins to stop: a write takes a few milliseconds, and watches
/// never end.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Unacknowledged bytes of a stream: room for a whole request, and for ranges without stalls.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Unacknowledged bytes of all streams of a connection together: two full streams.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Concurrent connections; further ones wait to be accepted. Each costs some tens of KiB.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// Time for a TLS handshake: milliseconds within a data center, and a lost SYN costs a second.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the operating system refused to accept a connection, for example for lack of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Default of [`Options::cache_bytes`]. The working set is the index, which is in memory anyway. This cache holds the
/// upper pages of the tree and the latest writes, and keeps the whole service within its 60 MiB.
pub const DEFAULT_CACHE_BYTES: usize = 8 * 1024 * 1024;
/// Default of [`Options::quota_bytes`]: etcd's own default.
pub const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Default of [`Options::max_request_bytes`]: etcd's own default.
pub const DEFAULT_MAX_REQUEST_BYTES: usize = 3 * 512 * 1024;

/// Upper bound of recent keys and values in bytes: the distance by which a watch may lag without reading the file.
pub(crate) const MAX_RECENT_BYTES: usize = 4 * 1024 * 1024;
/// Upper bound of recent revisions: with [`MAX_RECENT_BYTES`], a kilobyte each.
pub(crate) const MAX_RECENT_REVISIONS: usize = 4096;

/// Bytes of pairs in one part of a streamed range: below the size of a message that clients of etcd accept by
/// default (4 MiB).
pub(crate) const STREAMED_PART_BYTES: usize = 1024 * 1024;

/// Answers that may wait for a client. Keep-alives are answered one by one, so a client that reads has one.
pub(crate) const MAX_WAITING_ANSWERS: usize = 4;

/// Parts of a snapshot that may wait for a client: 128 KiB keep the connection busy.
pub(crate) const MAX_WAITING_PARTS: usize = 4;

/// Bytes of one snapshot message: etcd's own size.
pub(crate) const SNAPSHOT_PART_BYTES: usize = 32 * 1024;

/// Number of writes that may queue for the writer; further ones wait for a slot. etcd refuses writes above 5,000
/// pending ones.
pub(crate) const MAX_WAITING_WRITES: usize = 4096;
/// Time until a waiting client learns that the outcome of its write is unknown: etcd's request timeout.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(7);
/// Bytes by which etcd lets a message exceed the limit of a request.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;
/// Upper bound of revisions that one read for watches takes from the file: etcd's batch for lagging watchers.
pub(crate) const MAX_EVENT_REVISIONS: usize = 1000;
/// Upper bound of keys and values in bytes of one read for watches; its last revision may exceed it. As for
/// [`STREAMED_PART_BYTES`], the answer fits into a message.
pub(crate) const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Upper bound of watches in the store, over all streams: many times the need of one service and its tools.
pub(crate) const MAX_WATCHES: usize = 10_000;
/// Responses that may wait for a client. Each is at most about as large as one read of changes.
pub(crate) const MAX_WAITING_RESPONSES: usize = 4;
/// Interval of progress notifications on an idle watch that requested them: etcd's interval.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

/// Upper bound of writes that share a sync. Far above practical numbers; bounds the memory of a batch.
pub(crate) const MAX_BATCH: usize = 512;
/// Upper bound of compacted changes that one commit removes from the file, so that no write waits long for the removal.
pub(crate) const MAX_REMOVALS: usize = 500;
/// Upper bound of leases that one commit revokes: etcd's rate for half a second.
pub(crate) const MAX_ENDED_LEASES: usize = 500;
/// Pause of writes after the storage had no space or could not be opened for writing, and of the writer's own work
/// after any failed commit: rolling a commit back means reading the whole file.
pub(crate) const WRITER_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(MIN_TTL_SECONDS < MAX_TTL_SECONDS);
const _: () = assert!(
    STREAM_WINDOW_BYTES as usize >= DEFAULT_MAX_REQUEST_BYTES + MESSAGE_OVERHEAD_BYTES,
    "a request is sent without a stall"
);
const _: () =
    assert!(STREAM_WINDOW_BYTES < CONNECTION_WINDOW_BYTES, "one stream does not hold up the others");
const _: () = assert!(
    MAX_EVENT_BYTES <= MAX_RECENT_BYTES && MAX_EVENT_REVISIONS <= MAX_RECENT_REVISIONS,
    "the kept revisions serve a whole read"
);
const _: () = assert!(MAX_BATCH <= MAX_WAITING_WRITES, "a batch is made from writes that wait");
const _: () =
    assert!(WRITER_PAUSE.as_millis() < WRITE_TIMEOUT.as_millis(), "a write outlasts a pause of the writer");
const _: () = assert!(FILL_BYTES < MAX_FILL_BYTES && MAX_FILL_BYTES < DEFAULT_QUOTA_BYTES);
