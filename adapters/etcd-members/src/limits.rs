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
/// Pause after authorities gave no certificate, while the former one is valid.
pub(crate) const RENEWAL_PAUSE: Duration = Duration::from_secs(30);

/// Connections that are kept: some times the members of a large cluster (etcd advises against more than seven).
pub(crate) const MOST_CONNECTIONS: usize = 64;
/// Members that are asked at the same time: more than twice the seven members that etcd advises at most.
pub(crate) const MOST_ASKED_AT_ONCE: usize = 16;
/// Kept bytes of an error message: a server's message could have any length.
pub(crate) const LONGEST_ERROR: usize = 500;

/// Random bytes of a password; it has two hexadecimal digits for each (CKE's length).
pub(crate) const PASSWORD_BYTES: usize = 32;

/// Longest silence within a snapshot: a member that writes to a busy disk pauses for seconds.
pub(crate) const SNAPSHOT_SILENCE: Duration = Duration::from_secs(30);
/// Bytes of a snapshot: twice the greatest size that etcd advises.
pub(crate) const MOST_SNAPSHOT_BYTES: u64 = 16 << 30;
/// Parts of a snapshot that wait for the disk: etcd sends parts of 32 or 64 KiB, so 2 MiB at most.
pub(crate) const PARTS_IN_MEMORY: usize = 32;
/// Bytes per read of a backup's verification: large enough for a disk's full rate.
pub(crate) const VERIFIED_AT_ONCE: usize = 1 << 20;
/// Number of files of a directory with backups that are looked at: 1,000 backups, as many refuted ones, and some of
/// others.
pub(crate) const MOST_FILES: usize = 10_000;

/// Keys of the first page of a read of all keys. A page of the largest values that etcd accepts by default has 24 MiB.
pub(crate) const FIRST_PAGE: i64 = 16;
/// Keys of the greatest page: with values of a kilobyte, as of most objects, such a page has the greatest size of
/// [`PAGE_BYTES`].
pub(crate) const MOST_PAGE: i64 = 4096;
/// Bytes of a page below which the next page has twice as many keys, and above which it has half as many.
pub(crate) const PAGE_BYTES: std::ops::RangeInclusive<usize> = (1 << 20)..=(4 << 20);
/// Bytes of the greatest page: the first page, if its values have the greatest size of an etcd whose limit was raised
/// tenfold, fits after the number of its keys was halved four times.
pub(crate) const MOST_PAGE_BYTES: usize = 32 << 20;
/// Deadline of a page: the member reads it from its disk.
pub(crate) const PAGE: Duration = Duration::from_secs(30);

/// Deadline of a question for the version of a program: a container that starts on a busy machine needs seconds.
pub(crate) const VERSION: Duration = Duration::from_secs(10);
/// Deadline of a restore: a snapshot of 16 GiB at 20 MiB/s.
pub(crate) const RESTORE: Duration = Duration::from_secs(15 * 60);
/// Time until a restored etcd answers: it reads all keys first.
pub(crate) const START: Duration = Duration::from_secs(5 * 60);
/// Pause between two attempts to reach a restored etcd; a small one answers after half a second.
pub(crate) const START_PAUSE: Duration = Duration::from_millis(50);
/// Life of a restored etcd: its start, and the reads of all pages of 16 GiB at 10 MiB/s.
pub(crate) const PROOF: Duration = Duration::from_secs(40 * 60);
/// Heartbeats and election time-out of a restored etcd in milliseconds, ten and five times less than etcd's own: a single
/// member waits up to an election time-out before it answers, and loses no election.
pub(crate) const HEARTBEAT_MS: u32 = 10;
/// The election time-out in milliseconds, five heartbeats: etcd refuses less.
pub(crate) const ELECTION_MS: u32 = 50;
/// Lines of etcd's messages in an error.
pub(crate) const MOST_LINES: usize = 3;

const _: () = assert!(ELECTION_MS >= 5 * HEARTBEAT_MS, "etcd refuses less");
const _: () = assert!(START.as_secs() < PROOF.as_secs() && FIRST_PAGE <= MOST_PAGE);
const _: () = assert!(*PAGE_BYTES.end() < MOST_PAGE_BYTES, "a page is halved before it is refused");
const _: () = assert!(CONNECT.as_millis() < REQUEST.as_millis());
const _: () = assert!(REQUEST.as_secs() < LEASE_TTL as u64, "the lease lives while members are asked");
const _: () = assert!(CERTIFICATE_AGE.as_secs() + 2 * REQUEST.as_secs() < CERTIFICATE.as_secs());
const _: () = assert!(KEEP_ALIVE.as_secs() >= 5, "etcd closes connections that ask more often");
