//! The machine registry over sabakan's GraphQL API.
//!
//! For: [`SabakanRegistry`] asks which machines there are (the port `Registry`); [`ReqwestTransport`]
//! carries its requests over TCP and TLS (the port `HttpTransport`); [`parse_machines`] reads the same
//! machines from a file; [`endpoint_url`] turns what an operator types into the URL that is asked.
//!
//! Guarantees: an answer is used whole or not at all; every request is bounded in time and in the size of
//! its answer; each way to fail is one typed error; machines come in the registry's order, duplicate
//! addresses included.
//!
//! Assumes: a crypto provider is not needed from outside, as TLS runs on ring by an explicit provider.
//!
//! Does not: retry, cache or judge. A failed poll is the caller's to count and to live with.

mod answer;
mod endpoint;
mod file;
mod query;
mod registry;
mod telemetry;
mod transport;

pub use endpoint::endpoint_url;
pub use file::parse_machines;
pub use query::{query_text, request_body};
pub use registry::{MAX_RESPONSE_BYTES, REQUEST_DEADLINE, SabakanRegistry, leave_out_without_address};
pub use telemetry::describe_metrics;
pub use transport::{ReqwestTransport, TransportError};

#[cfg(test)]
mod tests;
