//! Limits and timeouts of this crate, with their units and derivations.

use std::time::Duration;

/// Number of an answer's GraphQL errors that an error names: one cause seldom produces more than a few.
pub(crate) const MAX_MESSAGES: usize = 5;
/// Upper bound of a text from an answer in an error, in characters: enough to recognize it in a log line.
pub(crate) const MAX_TEXT: usize = 300;

/// Number of problems in a file that an error names: operators fix them in a few iterations.
pub(crate) const MAX_PROBLEMS: usize = 20;

/// Upper bound of an answer in bytes: 100,000 machines at some 500 bytes each (measured on a sabakan), with room for
/// long labels.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// Time for one request, including the connection: sabakan reads each machine from its etcd separately, which takes
/// seconds for thousands of machines; the shortest sensible poll interval is a minute.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

const _: () = assert!(MAX_MESSAGES * MAX_TEXT < MAX_RESPONSE_BYTES, "an error repeats a part of an answer");
