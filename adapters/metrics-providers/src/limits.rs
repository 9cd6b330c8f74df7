//! Limits and timeouts of this crate, with their units and derivations.

/// Characters of a server's message that an error repeats: its first sentence.
pub(crate) const MAX_SERVER_TEXT: usize = 200;

/// Names per request to InfluxDB: with names of 100 bytes, a query of 10 KB.
pub const INFLUX_NAMES: usize = 100;

/// Concurrent requests to one KSQL server, which answers one metric each: a server has a few cores.
pub const KSQL_AT_ONCE: usize = 4;

/// Upper bound of an answer in bytes: some 60,000 series of a Prometheus at 250 bytes each.
pub const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Concurrent requests for single metrics, after an answer for many was too large: together they take as much memory as
/// this many answers.
pub(crate) const ALONE_AT_ONCE: usize = 4;
/// Upper bound of a name in bytes. Names of metrics usually have fewer than 100.
pub const MAX_NAME_BYTES: usize = 1024;

/// Upper bound of a number's text in characters. The longest exact form of a float has 1,077; servers write about 20.
pub(crate) const MAX_NUMBER: usize = 1100;

/// Names per request to Prometheus: with names of 100 bytes, a form of 50 KB.
pub const PROMETHEUS_NAMES: usize = 500;
/// Upper bound of a query in a URL, encoded, in bytes; a longer one is posted as a form. Common proxies accept 8 KiB
/// for the whole head of a request. Gateways that allow only GET thus serve all but long lists.
pub(crate) const MAX_IN_URL: usize = 4096;

const _: () = assert!(
    INFLUX_NAMES * MAX_NAME_BYTES < MAX_RESPONSE_BYTES
        && PROMETHEUS_NAMES * MAX_NAME_BYTES < MAX_RESPONSE_BYTES,
    "an answer holds the names that were asked for"
);
const _: () = assert!(MAX_NAME_BYTES < MAX_IN_URL, "one name goes in a URL");
