//! The limits and time-outs of this crate, with their units, and how they are derived.

use std::time::Duration;

/// How many of an answer's GraphQL errors an error names: one cause seldom shows more than a few.
pub(crate) const MAX_MESSAGES: usize = 5;
/// Longest text taken from an answer into an error, in characters: enough to recognize it in a log line.
pub(crate) const MAX_TEXT: usize = 300;

/// How many problems of one file an error names: an operator mends them in a few rounds, not in a thousand lines.
pub(crate) const MAX_PROBLEMS: usize = 20;

/// Longest answer that is read, in bytes: 100,000 machines at some 500 bytes each (measured on a sabakan),
/// with room for long labels.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// Time for one request, connecting included: sabakan reads each machine from its etcd by itself, which
/// takes seconds for thousands of machines; the shortest sensible poll interval is a minute.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
