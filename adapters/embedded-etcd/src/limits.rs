//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// Most comparisons, and most operations of a branch, in a transaction (etcd's `--max-txn-ops`).
pub(crate) const MAX_TXN_OPERATIONS: usize = 128;

/// Bytes that a connection in memory holds in each direction.
pub(crate) const DUPLEX_BYTES: usize = 64 * 1024;
/// How long to wait before leases whose end could not be written are tried again.
pub(crate) const LEASE_RETRY: Duration = Duration::from_millis(500);

/// How far ahead of its use room is filled with zeros: rare enough, and no write waits for more than this.
pub(crate) const FILL_BYTES: u64 = 4 * 1024 * 1024;
/// A write further beyond the filled part leaves a gap of room as it is, instead of waiting for all of it.
pub(crate) const MAX_FILL_BYTES: u64 = 4 * FILL_BYTES;

/// Time between two log lines of a long verification: one or two on a disk of 100 MB/s and a file of some hundred MB.
pub(crate) const PROGRESS_SAID_EVERY: Duration = Duration::from_secs(3);

/// Longest TTL that etcd grants, in seconds (its `lease.MaxLeaseTTL`).
pub(crate) const MAX_TTL_SECONDS: i64 = 9_000_000_000;
/// Shortest TTL, in seconds: etcd's from its default election timeout (1.5 times 1 s, rounded up).
pub(crate) const MIN_TTL_SECONDS: i64 = 2;

/// How long a connection may be silent before it is asked whether the client is there: a third of etcd's two hours
/// would hide a partition for a night; this finds it within half a minute.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long the client may take to answer that: gRPC's usual 20 s.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that one connection may have open: each watch stream is one. Go's clients multiplex over one connection.
pub(crate) const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// How long a client of HTTP/1.1 may take to send its headers.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long requests may take to end after the store began to stop.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a stream that may be on their way unacknowledged: a whole request, and ranges without stalls.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// The same for all streams of a connection together.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Connections that are served at once; more wait to be accepted. Each costs some tens of KiB.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// How long a client may take for the TLS handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait after the operating system refused a connection, for example for want of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Default of [`Options::cache_bytes`]. The working set is the index, which is in memory anyway; this holds the tree's
/// upper pages and the last writes, and keeps the whole service within its 60 MiB.
pub const DEFAULT_CACHE_BYTES: usize = 8 * 1024 * 1024;
/// Default of [`Options::quota_bytes`]: etcd's own default.
pub const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Default of [`Options::max_request_bytes`]: etcd's own default.
pub const DEFAULT_MAX_REQUEST_BYTES: usize = 3 * 512 * 1024;

/// Most bytes of keys and values kept: as far as a watch may lag behind without reading the file.
pub(crate) const MAX_RECENT_BYTES: usize = 4 * 1024 * 1024;
/// Most revisions kept.
pub(crate) const MAX_RECENT_REVISIONS: usize = 4096;

/// Bytes of pairs in one part of a streamed range.
pub(crate) const STREAMED_PART_BYTES: usize = 1024 * 1024;

/// Answers that may wait for a client; keep-alives are answered one by one.
pub(crate) const MAX_WAITING_ANSWERS: usize = 4;

/// Parts of a snapshot that may wait for a client.
pub(crate) const MAX_WAITING_PARTS: usize = 4;

/// Bytes of one message: etcd's own size for it.
pub(crate) const SNAPSHOT_PART_BYTES: usize = 32 * 1024;

/// Writes that may wait for the writer; more wait for a place. etcd refuses above 5,000 that wait.
pub(crate) const MAX_WAITING_WRITES: usize = 4096;
/// How long a write may wait before the client is told that its outcome is unknown: etcd's request time-out.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(7);
/// What etcd lets a message be over the limit of a request.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;
/// Most revisions that one read for watches takes from the file: etcd's batch for watchers that lag.
pub(crate) const MAX_EVENT_REVISIONS: usize = 1000;
/// Most bytes of keys and values that one read for watches takes, the last revision of it excepted.
pub(crate) const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Most watches in the store, over all streams: many times as many as one service and its tools need.
pub(crate) const MAX_WATCHES: usize = 10_000;
/// Responses that may wait for a client. Each is at most about a read's worth of changes.
pub(crate) const MAX_WAITING_RESPONSES: usize = 4;
/// How often a watch that asked for it hears how far the store is, if nothing else happened: etcd's interval.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(600);

/// Most writes that share a sync. Far more than wait in practice; bounds the memory of a batch.
pub(crate) const MAX_BATCH: usize = 512;
/// Most compacted changes that are taken out of the file with one commit, so that no write waits long for it.
pub(crate) const MAX_REMOVALS: usize = 500;
/// Most leases that end with one commit: etcd's rate for half a second.
pub(crate) const MAX_ENDED_LEASES: usize = 500;
/// How long writes are refused after the storage had no room or could not be opened to be written, and how long nothing is begun
/// that no client waits for after any failed commit: taking one back means reading the whole file.
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
    "what is kept serves a whole reading"
);
const _: () = assert!(MAX_BATCH <= MAX_WAITING_WRITES, "a batch is made from writes that wait");
const _: () =
    assert!(WRITER_PAUSE.as_millis() < WRITE_TIMEOUT.as_millis(), "a write outlasts a pause of the writer");
const _: () = assert!(FILL_BYTES < MAX_FILL_BYTES && MAX_FILL_BYTES < DEFAULT_QUOTA_BYTES);
