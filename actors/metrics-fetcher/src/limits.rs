//! Limits and time-outs of this crate, with units and derivations.

use std::time::Duration;

/// Allowed values listed in a message: more do not fit on a line.
pub(crate) const LISTED: usize = 10;

/// Deadline of a fetch in percent of the interval, where that is shorter than
/// [`PROVIDER_DEADLINE`](madako_protocol::limits::PROVIDER_DEADLINE).
pub(crate) const DEADLINE_PERCENT: u32 = 67;
/// Concurrent fetches: at most 16 of one namespace, and 10 of providers whose last fetch failed. With a deadline of
/// 10 s, even 24 hanging providers of one namespace are all fetched within a round.
pub const ROUNDS_AT_ONCE: usize = 32;

/// Characters of a name in a message: usual names fit, and names on providers may have any length.
pub(crate) const MOST_SHOWN: usize = 100;

/// Consecutive failures before rounds are skipped. As many as rounds in the lifetime of a kept value: one slow answer
/// changes nothing.
pub const FAILURES: u32 = 3;
/// Maximum consecutive skipped rounds: with rounds of 15 s, a recovered provider is noticed within a minute.
pub const MOST_SKIPPED: u32 = 3;

/// Time for which values are remembered: an hour shows an operator how a metric moved before an alert.
pub const MEMORY: Duration = Duration::from_secs(3600);
/// Remembered values: one a second for an hour. A metric with more values loses its oldest ones.
pub const MOST_VALUES: usize = 3600;

const _: () = assert!(DEADLINE_PERCENT < 100, "each round is answered before the next one");
const _: () =
    assert!(MOST_VALUES as u64 >= MEMORY.as_secs(), "a value a second is remembered for the whole time");
