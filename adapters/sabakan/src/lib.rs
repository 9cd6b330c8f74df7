//! The machine registry over sabakan's GraphQL API.
//!
//! [`SabakanRegistry`] fetches the machines (the port `Registry`). [`parse_machines`] reads the same machines from a
//! file. [`endpoint_url`] turns an operator's URL into that of the GraphQL endpoint.
//!
//! Guarantees: an answer is used completely or not at all. Every request is bounded in time and in the size of its
//! answer. Each failure is one typed error. Machines keep the registry's order, and duplicate addresses are kept.
//!
//! Does not: retry, cache or evaluate. The caller counts a failed poll.

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
pub use telemetry::METRICS;

#[cfg(test)]
mod tests;
