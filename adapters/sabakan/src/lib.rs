//! The machine registry over sabakan's GraphQL API.
//!
//! [`SabakanRegistry`] asks which machines there are (the port `Registry`). [`parse_machines`] reads the same machines from a
//! file. [`endpoint_url`] turns the URL that an operator types into that of the GraphQL endpoint.
//!
//! Guarantees: an answer is used whole or not at all; every request is bounded in time and in the size of
//! its answer; each way to fail is one typed error; machines come in the registry's order, duplicate
//! addresses included.
//!
//! Does not: retry, cache or judge. The caller counts a failed poll.

mod answer;
mod endpoint;
mod file;
pub mod limits;
mod query;
mod registry;
mod telemetry;

pub use endpoint::endpoint_url;
pub use file::parse_machines;
pub use query::{query_text, request_body};
pub use registry::{MAX_RESPONSE_BYTES, REQUEST_DEADLINE, SabakanRegistry, leave_out_without_address};
pub use telemetry::describe_metrics;

#[cfg(test)]
mod tests;
