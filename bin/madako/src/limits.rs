//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

use madako_domain::limits::MOST_OPERATIONS;
use madako_http::limits::BLOCKING;

/// Levels of nesting of a document: as many as the API takes.
pub(crate) const MAX_DEPTH: usize = madako_json::krake::json::MAX_JSON_DEPTH;
/// Parser events of a file: a hundred manifests of a thousand values each have fewer.
pub(crate) const MAX_EVENTS: usize = 1_000_000;
/// Events that aliases may bring in altogether; an alias bomb needs millions.
pub(crate) const MAX_REPLAYED_EVENTS: usize = 100_000;
/// Bytes of a file of settings; real ones have some hundred.
pub(crate) const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Serials or addresses that are named; a line holds about as many.
pub(crate) const MAX_FILES_NAMED: usize = 5;

/// Longest line in bytes; cybozu-go/log has the same limit.
pub(crate) const MAX_LINE: usize = 1 << 20;

/// Which part of the session lease's time to live the service may stand still before its commands are killed. The lease is
/// kept alive three times in that time, so at least two parts are left of it when the service stops.
pub(crate) const SILENCE_SHARE: u32 = 3;

/// Time for one export, and for the last one when the service ends.
pub(crate) const EXPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Providers that are asked at a time.
pub(crate) const ASKED_AT_ONCE: usize = 16;
/// How long all providers together may take; a value that did not come by then is assumed.
pub(crate) const PROVIDERS_TAKE: Duration = Duration::from_secs(60);

/// The interval of progress lines, in time of the real clock.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Tries of a change that depends on a read value while other clients are faster.
pub(crate) const MAX_ACCESS_TRIES: usize = 5;
/// Most bytes of a value: the embedded store takes requests of 10 MiB, and etcd advises against more. The rest of a
/// request needs some, too.
pub(crate) const MAX_VALUE: usize = (10 << 20) - (1 << 12);

/// Time for a request: the API answers within milliseconds, or its actor is being started anew.
pub(crate) const DEMO_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of an answer: the demo's lists have some 30 KiB.
pub(crate) const MAX_DEMO_ANSWER: usize = 4 << 20;
/// Characters of a refusal that are shown.
pub(crate) const MAX_TOLD: usize = 300;

/// Items of one file that an error names; an operator mends them in a few rounds.
pub(crate) const MAX_PROBLEMS: usize = 20;

/// Resources that are stored at once: etcd's own limit on the operations of a transaction (`--max-txn-ops`).
pub(crate) const MAX_RESOURCES: usize = 128;
/// Tries of a replacement while another client changes the resource.
pub(crate) const MAX_BOOTSTRAP_TRIES: usize = 5;
/// Characters of a text from outside that a message shows.
pub(crate) const MAX_TEXT_SHOWN: usize = 60;

/// Records that are shown before new ones when no number is given (ckecli's).
pub(crate) const FIRST_FOLLOWED: usize = 20;
/// Most records that can be asked for: etcd would not hold as many.
pub(crate) const MOST_RECORDS: u32 = u32::MAX;

/// Tries of an update while another client changes the resource.
pub(crate) const MAX_TRIES: usize = 5;

/// Bytes of a certificate or key: a bundle has some hundred kilobytes.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Time to connect, TLS included.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a request and its answer: a list of all applications of a large site takes a few seconds in Krake.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// What a request that waits for a state may take more: the service itself waits for up to 60 s.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// Bytes of an answer: 100,000 applications of Krake's usual size.
pub(crate) const MAX_ANSWER_BYTES: usize = 192 << 20;
/// Bytes of a certificate or key file: a chain has a few kilobytes, a bundle of all authorities some hundred.
pub(crate) const MAX_PEM_BYTES: u64 = 4 << 20;
/// Characters of the service's words that a message shows.
pub(crate) const MAX_ANSWER_SHOWN: usize = 2000;

/// Dependents that are named before the question: more would scroll the first ones off a terminal.
pub(crate) const MAX_NAMED: usize = 20;

/// Bytes of a password; anything longer is something else.
pub(crate) const MAX_PASSWORD_BYTES: usize = 4096;

/// How often a change is tried when the service writes the same entry.
pub(crate) const MAX_CHANGE_TRIES: usize = 20;

/// How often it is tried when others add entries at the same time: each try that fails let one of them through.
pub(crate) const MAX_ADD_TRIES: usize = 100;

const _: () = assert!(CONNECT_TIMEOUT.as_secs() < DEADLINE.as_secs());
const _: () = assert!(WAIT.as_secs() >= BLOCKING.as_secs(), "a command outlasts the service's own waiting");
const _: () = assert!(MAX_RESOURCES <= MOST_OPERATIONS, "one transaction stores the resources");
