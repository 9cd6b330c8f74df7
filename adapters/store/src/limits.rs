//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// The longest first wait: a store that was restarted is back within a second, and a connection that
/// was merely cut works again at once.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest wait: an operator who repaired the store sees the effect within this time, and a
/// hundred instances ask it fewer than fifty times a second.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Events that wait for the receiver. More wait here only as one of each kind can.
pub(crate) const CAMPAIGN_EVENTS: usize = 16;
/// Commands that wait for the campaign: one instance has one to give at a time.
pub(crate) const CAMPAIGN_COMMANDS: usize = 4;

/// A lease is renewed when this part of it is over, as etcd's own client does: two more tries fit.
pub(crate) const RENEW_AFTER: u32 = 3;
/// The part of the lease that is not believed in: it covers clocks that run at different rates, and
/// the time from "it is over" to the last effect being stopped.
pub(crate) const TTL_MARGIN: u32 = 10;
/// The longest such part: clocks that drift more than this in a lease are broken.
pub(crate) const LONGEST_MARGIN: Duration = Duration::from_secs(5);
/// The longest lease that etcd grants (its `MaxLeaseTTL`), in seconds.
pub(crate) const LONGEST_TTL: i64 = 9_000_000_000;

/// Keys that are named in an error at most.
pub(crate) const MOST_KEYS_NAMED: usize = 3;

/// The deadline of a request when nothing is said (CKE's default).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most endpoints: etcd's documents advise against more than seven members; this leaves room for
/// names that overlap.
pub(crate) const MOST_ENDPOINTS: usize = 32;
/// The longest deadline: a leader that waits longer for the store has long lost its lease.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
/// How often a connection is asked whether it still lives, also when idle. etcd closes connections
/// that ask more often than every five seconds (its `--grpc-keepalive-min-time`); CKE asks as often.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The window of a connection in bytes: bytes that a watcher that does not read may have in flight (2 MiB a
/// stream, hyper's default) times more watches than an instance has, so that stalled watches cannot
/// hold up the renewal of the lease on the same connection.
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;

/// How often a copy is begun again when the store forgot its revision in the middle of it, which takes a compaction.
pub(crate) const COPY_TRIES: u32 = 3;

/// The longest text of a failure that is kept, in bytes: a server's message could be of any length.
pub(crate) const LONGEST_ERROR: usize = 500;

/// The largest answer that is read, in bytes. etcd takes requests of 1.5 MiB by default and of 10 MiB
/// where its operators raise that; a page of a list that is larger is asked for again in smaller ones.
pub(crate) const LARGEST_ANSWER: usize = 64 << 20;

/// Keys a page: CKE's longest list (1,000 records) is one page, and with
/// values of 50 KB each it still fits into one answer.
pub(crate) const LIST_PAGE: i64 = 1024;
/// The most keys of a list: a hundred times as many as a data center of 10,000 machines has.
pub(crate) const MOST_LISTED_KEYS: usize = 1_000_000;
/// The most bytes of values of a list.
pub(crate) const MOST_LISTED_BYTES: usize = 512 << 20;

/// The longest description of the faults of a value, in bytes: a value could have any number of wrong fields.
pub(crate) const LONGEST_WHY: usize = 1000;

/// How long a part of a snapshot may take: a store of gigabytes is copied before its first part is sent.
pub(crate) const SNAPSHOT_PART_DEADLINE: Duration = Duration::from_secs(30);

/// Values that are decoded before others get their turn: a few milliseconds' worth.
pub(crate) const MOST_FED_AT_ONCE: usize = 256;
/// New faults that are logged of one change of the store; the rest are counted.
pub(crate) const MOST_LOGGED: usize = 20;

/// Readers that wait for the next read at most; a further one waits for a place, within its deadline.
pub(crate) const MOST_READS_WAITING: usize = 4096;
/// Revisions that readers were told, of which that is remembered. At one a millisecond they last a quarter of a second,
/// a hundred times as long as a reader takes to follow.
pub(crate) const MOST_TOLD: usize = 256;

/// Changes that are kept at most. 3,500 creations a second for 18 seconds; a watcher whose client reads slower than that
/// is told that it missed something.
pub(crate) const MOST_CHANGES: usize = 65_536;
/// Bytes of JSON that the kept changes hold at most. What was decoded from it takes two to four times as much, so
/// that a ring that is full of applications (1.7 KB each) stays near 100 MB, and holds 19,000 of their changes.
pub(crate) const MOST_RING_BYTES: usize = 32 << 20;
/// Changes that a follower takes at once, as long as a revision does not have more: as many as a client reads in one go.
pub(crate) const MOST_READ_AT_ONCE: usize = 1024;

/// Requests under way at most: while one is on etcd's disk, the next is put together.
pub(crate) const LANES: usize = 2;
/// Transactions in one request. etcd counts operations of all depths against `--max-txn-ops`, 128 by default.
pub(crate) const MOST_TOGETHER: usize = 32;
/// Conditions, and writes, of one that goes with others: those of a request to the API have one or two.
pub(crate) const MOST_OPERATIONS: usize = 8;
/// Bytes of keys and values in one request; etcd takes 1.5 MiB by default.
pub(crate) const MOST_TOGETHER_BYTES: usize = 512 << 10;
/// Transactions that wait at most; a further one waits for a place.
pub(crate) const MOST_WRITES_WAITING: usize = 4096;

/// Keys that can be given: one that encrypts, and former ones until everything was written again.
pub(crate) const MOST_SEALING_KEYS: usize = 16;

/// Events that wait for the receiver: enough that a short pause of it holds nothing up, few enough
/// that the store's own buffers, not this process's, keep the events that a receiver does not take.
pub(crate) const WATCH_BUFFER: usize = 16;
/// How long a stream may be silent before it is asked for a sign of life. Dead connections are found
/// by HTTP/2 pings within this time; the question finds a server that lost the watch.
pub(crate) const WATCH_SILENCE: Duration = Duration::from_secs(30);
/// A stream that lived this long, or brought an event, was a good one: the next failure begins a new
/// series of waits. Shorter ones are a store that accepts watches and ends them.
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
