//! The ports: what actors and adapters need from outside, as traits. Implementations are adapters;
//! the simulation has its own.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use time::OffsetDateTime;

use madako_domain::machine::{Machine, QueryVariables};

/// The wall clock. Intervals and deadlines use tokio's clock, which paused time moves.
pub trait Clock: Send + Sync + 'static {
    /// The time now, in UTC.
    fn now(&self) -> OffsetDateTime;
}

/// Method of an HTTP request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// GET.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
}

/// A bounded HTTP request.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// Method.
    pub method: HttpMethod,
    /// Absolute URL, `http` or `https`.
    pub url: String,
    /// Header names and values.
    pub headers: Vec<(String, String)>,
    /// Body; empty for none.
    pub body: Bytes,
    /// A longer answer is an error, in bytes.
    pub max_response_bytes: usize,
    /// Time for the whole exchange, connecting included.
    pub deadline: Duration,
}

/// A whole HTTP answer.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Bytes,
}

/// Why an HTTP exchange gave no whole answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request cannot be sent as it is.
    #[error("invalid request to {url}: {why}")]
    Invalid {
        /// URL without credentials.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// No connection.
    #[error("cannot connect to {url}: {why}")]
    Connect {
        /// URL without credentials.
        url: String,
        /// What the system said.
        why: String,
    },
    /// The deadline passed.
    #[error("no whole answer from {url} within {deadline:?}")]
    Deadline {
        /// URL without credentials.
        url: String,
        /// The deadline.
        deadline: Duration,
    },
    /// The answer is longer than allowed.
    #[error("the answer of {url} is longer than {limit} bytes")]
    TooLarge {
        /// URL without credentials.
        url: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection ended within the answer.
    #[error("the answer of {url} was cut off: {why}")]
    Truncated {
        /// URL without credentials.
        url: String,
        /// What the system said.
        why: String,
    },
}

/// Sends HTTP requests.
#[async_trait]
pub trait HttpTransport: Send + Sync + 'static {
    /// Sends one request and reads the whole answer.
    ///
    /// # Errors
    /// Any status is `Ok`; an exchange that gave no whole answer is an [`HttpError`].
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError>;
}

/// What a poll of the registry returned.
#[derive(Debug, Clone, PartialEq)]
pub struct Fetched {
    /// Machines with an address, in the registry's order.
    pub machines: Vec<Machine>,
    /// Machines without an IPv4 address, in the same order: no node can be made of them.
    pub left_out: Vec<Machine>,
}

impl Fetched {
    /// Serials of the machines that are left out.
    #[must_use]
    pub fn left_out_serials(&self) -> Vec<String> {
        self.left_out.iter().map(|machine| machine.spec.serial.clone()).collect()
    }
}

/// Why a poll of the registry failed. A failed poll changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No whole answer.
    #[error("query of the registry failed: {0}")]
    Http(HttpError),
    /// An HTTP status other than 200.
    #[error("query of the registry failed: status {status}: {body}")]
    Status {
        /// The status.
        status: u16,
        /// Beginning of the body.
        body: String,
    },
    /// The answer carries GraphQL errors.
    #[error("query of the registry failed: {}", messages.join("; "))]
    GraphQl {
        /// The messages, shortened.
        messages: Vec<String>,
    },
    /// The answer is not what the query asked for.
    #[error("the registry's answer is malformed: {why}")]
    Malformed {
        /// Where, and what was expected.
        why: String,
    },
}

/// The machine registry.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Asks for the machines that `variables` choose; without them, for those that the query's defaults choose.
    ///
    /// # Errors
    /// See [`RegistryError`]; nothing of a failed answer is used.
    async fn machines(&self, url: &str, variables: Option<&QueryVariables>)
    -> Result<Fetched, RegistryError>;
}
