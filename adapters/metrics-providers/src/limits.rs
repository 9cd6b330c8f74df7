//! The limits and time-outs of this crate, with their units, and how they are derived.

/// Characters of a server's message that an error repeats.
pub(crate) const MAX_SAID: usize = 200;

/// Names that one request asks for.
pub const INFLUX_NAMES: usize = 100;

/// Requests to one server at a time.
pub const KSQL_AT_ONCE: usize = 4;

/// Longest answer that is read, in bytes: some 60,000 series of a Prometheus at 250 bytes each.
pub const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Requests for single metrics that run at the same time, after one for many had too large an answer: together they take
/// as much memory as this many answers.
pub(crate) const ALONE_AT_ONCE: usize = 4;
/// Longest name that is asked for, in bytes. Usual names of metrics have fewer than 100.
pub const MAX_NAME_BYTES: usize = 1024;

/// Characters of a number's text. The longest exact form of a float has 1,077; servers write about 20.
pub(crate) const MAX_NUMBER: usize = 1100;

/// Names that one request asks for.
pub const PROMETHEUS_NAMES: usize = 500;
/// Longest query that goes in a URL, encoded, in bytes; a longer one is posted as a form. Common proxies take
/// 8 KiB for the whole head of a request; a gateway that lets only GET pass serves all but long lists so.
pub(crate) const MAX_IN_URL: usize = 4096;

const _: () = assert!(
    INFLUX_NAMES * MAX_NAME_BYTES < MAX_RESPONSE_BYTES
        && PROMETHEUS_NAMES * MAX_NAME_BYTES < MAX_RESPONSE_BYTES,
    "an answer holds the names that were asked for"
);
const _: () = assert!(MAX_NAME_BYTES < MAX_IN_URL, "one name goes in a URL");
