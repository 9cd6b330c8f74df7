//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Upper bound of the first wait: a restarted store is back within a second, and a connection that was merely cut can
/// be reopened at once.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Upper bound of a wait: an operator who has repaired the store sees the effect within this time, and a hundred
/// instances send fewer than fifty requests a second.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Number of events that wait for the receiver: an election has a few. At most one of each kind waits in addition.
pub(crate) const CAMPAIGN_EVENTS: usize = 16;
/// Commands that wait for the campaign: an instance sends one at a time.
pub(crate) const CAMPAIGN_COMMANDS: usize = 4;

/// A lease is renewed after this fraction of its TTL, as in etcd's own client: two more attempts fit.
pub(crate) const RENEW_AFTER: u32 = 3;
/// Divisor of the TTL, for the part that is not used: it covers clocks that run at different rates, and the time
/// from the end of an epoch until its last effect is stopped.
pub(crate) const TTL_MARGIN: u32 = 10;
/// Upper bound of that margin: a clock that drifts more than this during a lease is broken.
pub(crate) const LONGEST_MARGIN: Duration = Duration::from_secs(5);
/// Longest lease that etcd grants (its `MaxLeaseTTL`), in seconds.
pub(crate) const LONGEST_TTL: i64 = 9_000_000_000;

/// Number of keys that an error names: more do not fit on a line.
pub(crate) const MOST_KEYS_NAMED: usize = 3;

/// Default deadline of a request (CKE's default).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bound of endpoints: etcd's documents advise against more than seven members; this leaves room for several
/// names per member.
pub(crate) const MOST_ENDPOINTS: usize = 32;
/// Upper bound of a deadline: a leader that waits longer for the store has lost its lease long before.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of keep-alive pings, also on idle connections. etcd closes connections that ping more often than every five
/// seconds (its `--grpc-keepalive-min-time`); CKE uses the same interval.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Window of a connection in bytes: the window of one stream (2 MiB, hyper's default), which an unread watch may fill,
/// times more watches than an instance has. Stalled watches therefore cannot delay the renewal of the lease on the same
/// connection.
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;

/// Attempts to read a copy if a compaction removes its revision during the read: compactions are minutes apart, and
/// a read takes seconds.
pub(crate) const COPY_TRIES: u32 = 3;

/// Kept bytes of an error message: a server's message could have any length.
pub(crate) const LONGEST_ERROR: usize = 500;

/// Upper bound of an answer in bytes. etcd accepts requests of 1.5 MiB by default, and of 10 MiB if its operators raise
/// the limit. A larger page of a list is requested again as smaller pages.
pub(crate) const LARGEST_ANSWER: usize = 64 << 20;

/// Keys per page: CKE's longest list (1,000 records) is one page, and with values of 50 KB each it still fits into one
/// answer.
pub(crate) const LIST_PAGE: i64 = 1024;
/// Upper bound of keys in a list: a hundred times the number in a data center of 10,000 machines.
pub(crate) const MOST_LISTED_KEYS: usize = 1_000_000;
/// Upper bound of values in a list, in bytes.
pub(crate) const MOST_LISTED_BYTES: usize = 512 << 20;

/// Upper bound of the description of a value's faults, in bytes: a value could have any number of invalid fields.
pub(crate) const LONGEST_WHY: usize = 1000;

/// Time for a part of a snapshot: etcd copies a store of gigabytes before it sends the first part.
pub(crate) const SNAPSHOT_PART_DEADLINE: Duration = Duration::from_secs(30);

/// Values to decode before yielding to other tasks: a few milliseconds of work.
pub(crate) const MOST_FED_AT_ONCE: usize = 256;
/// New faults that are logged per change of the store: a screen. The others are counted.
pub(crate) const MOST_LOGGED: usize = 20;

/// Readers that may wait for the next read; a further one waits for a slot, within its deadline.
pub(crate) const MOST_READS_WAITING: usize = 4096;
/// Revisions reported to readers that are remembered. At one per millisecond they cover a quarter of a second, a
/// hundred times as long as a reader needs to start following.
pub(crate) const MOST_REPORTED: usize = 256;

/// Upper bound of kept changes: 3,500 creations a second for 18 seconds. A slower watcher gets a gap.
pub(crate) const MOST_CHANGES: usize = 65_536;
/// Upper bound of the JSON of kept changes, in bytes. The decoded form takes two to four times as much, so a full ring
/// of applications (1.7 KB each) stays near 100 MB and holds 19,000 changes.
pub(crate) const MOST_RING_BYTES: usize = 32 << 20;
/// Changes that a follower takes at once, unless a single revision has more: about one read of a client.
pub(crate) const MOST_READ_AT_ONCE: usize = 1024;

/// Concurrent requests: while etcd writes one to disk, the next one is assembled.
pub(crate) const LANES: usize = 2;
/// Transactions per request. etcd counts operations of all depths against `--max-txn-ops`, 128 by default.
pub(crate) const MOST_TOGETHER: usize = 32;
/// Conditions, and writes, of a transaction that shares a request: those of API requests have one or two.
pub(crate) const MOST_OPERATIONS: usize = 8;
/// Keys and values per request, in bytes; etcd accepts 1.5 MiB by default.
pub(crate) const MOST_TOGETHER_BYTES: usize = 512 << 10;
/// Transactions that may wait, as many as in the embedded store; a further one waits for a slot.
pub(crate) const MOST_WRITES_WAITING: usize = 4096;

/// Events that wait for the receiver: enough that a short pause of the receiver delays nothing, few enough that the
/// store's buffers hold the backlog, not this process.
pub(crate) const WATCH_BUFFER: usize = 16;
/// Silence of a stream before a progress request. HTTP/2 pings find dead connections within this time; the request
/// finds a server that lost the watch.
pub(crate) const WATCH_SILENCE: Duration = Duration::from_secs(30);
/// A stream that lasted this long, or delivered an event, resets the back-off. Shorter ones come from a store that
/// accepts watches and ends them.
pub(crate) const WATCH_LIVED: Duration = Duration::from_secs(1);

const _: () = assert!(MOST_TOGETHER + MOST_OPERATIONS <= 128, "etcd takes a full request");
const _: () = assert!(FIRST_PAUSE.as_millis() < LONGEST_PAUSE.as_millis());
const _: () = assert!(DEFAULT_TIMEOUT.as_millis() < LONGEST_TIMEOUT.as_millis());
const _: () = assert!(KEEP_ALIVE_INTERVAL.as_secs() >= 5, "etcd closes connections that ask more often");
const _: () =
    assert!(KEEP_ALIVE_INTERVAL.as_secs() < WATCH_SILENCE.as_secs(), "a ping finds a dead connection first");
const _: () = assert!(
    WATCH_LIVED.as_millis() > FIRST_PAUSE.as_millis(),
    "a series of waits grows while streams end at once"
);
const _: () = assert!(MOST_TOGETHER_BYTES < LARGEST_ANSWER && MOST_RING_BYTES <= LARGEST_ANSWER);
const _: () = assert!(MOST_READ_AT_ONCE <= MOST_CHANGES, "the ring holds a whole reading");
