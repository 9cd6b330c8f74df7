//! The ports: the services that actors and adapters need from outside, as traits. Adapters implement them; the
//! simulation has its own implementations.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use time::OffsetDateTime;

use madako_domain::machine::{Machine, QueryVariables};

/// The wall clock. Intervals and deadlines use tokio's clock, which paused time moves.
pub trait Clock: Send + Sync + 'static {
    /// The present time in UTC.
    fn now(&self) -> OffsetDateTime;
}

/// The method of an HTTP request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE")]
pub enum HttpMethod {
    /// GET.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
}

madako_json::named!(HttpMethod);

/// An HTTP request with limits. `Debug` shows neither headers nor body: they may have tokens and keys.
#[derive(Clone)]
pub struct HttpRequest {
    /// Method of the request.
    pub method: HttpMethod,
    /// Absolute URL, `http` or `https`.
    pub url: String,
    /// Header names and values.
    pub headers: Vec<(String, String)>,
    /// Body of the request; empty for none.
    pub body: Bytes,
    /// Maximum length of the answer's body in bytes; a longer one is an error.
    pub max_response_bytes: usize,
    /// Time-out of the whole exchange, including the connection.
    pub deadline: Duration,
}

impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HttpRequest");
        shown.field("method", &self.method).field("url", &self.url).finish_non_exhaustive()
    }
}

/// A complete HTTP answer. `Debug` shows neither headers nor body.
#[derive(Clone)]
pub struct HttpResponse {
    /// HTTP status code, such as 200.
    pub status: u16,
    /// Header names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// Body of the answer.
    pub body: Bytes,
}

impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

/// The reason why an HTTP exchange gave no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request is invalid and was not sent.
    #[error("invalid request to {url}: {why}")]
    Invalid {
        /// URL without user and password, for messages.
        url: String,
        /// The fault, in words.
        why: String,
    },
    /// The connection failed.
    #[error("cannot connect to {url}: {why}")]
    Connect {
        /// URL without user and password, for messages.
        url: String,
        /// The message of the system.
        why: String,
    },
    /// The deadline passed.
    #[error("no complete answer from {url} within {deadline:?}")]
    Deadline {
        /// URL without user and password, for messages.
        url: String,
        /// The time-out of the exchange.
        deadline: Duration,
    },
    /// The answer is longer than allowed.
    #[error("the answer of {url} is longer than {limit} bytes")]
    TooLarge {
        /// URL without user and password, for messages.
        url: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection ended within the answer.
    #[error("the answer of {url} was cut off: {why}")]
    Truncated {
        /// URL without user and password, for messages.
        url: String,
        /// The message of the system.
        why: String,
    },
}

/// The port for HTTP requests.
#[async_trait]
pub trait HttpTransport: Send + Sync + 'static {
    /// Sends one request and reads the whole answer.
    ///
    /// # Errors
    /// An exchange without a complete answer is an [`HttpError`]. Every status code is `Ok`.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError>;
}

/// The answer to a poll of the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct RegistryMachines {
    /// Machines with an address, in the registry's order.
    pub machines: Vec<Machine>,
    /// Machines without an IPv4 address, in the same order: they cannot become nodes.
    pub left_out: Vec<Machine>,
}

impl RegistryMachines {
    /// Serials of the machines in `left_out`.
    #[must_use]
    pub fn left_out_serials(&self) -> Vec<String> {
        self.left_out.iter().map(|machine| machine.spec.serial.clone()).collect()
    }
}

/// The reason why a poll of the registry failed. A failed poll changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The exchange gave no complete answer.
    #[error("cannot query the machines of the registry: {0}")]
    Http(HttpError),
    /// An HTTP status other than 200.
    #[error("the registry refused the query for machines with status {status}: {body}")]
    Status {
        /// HTTP status code, such as 503.
        status: u16,
        /// Beginning of the answer's body.
        body: String,
    },
    /// The answer has GraphQL errors.
    #[error("the registry answered the query for machines with errors: {}", messages.join("; "))]
    GraphQl {
        /// The messages of the errors, shortened.
        messages: Vec<String>,
    },
    /// The answer does not fit the query.
    #[error("the registry's answer to the query for machines is malformed: {why}")]
    Malformed {
        /// The position, and the expected value.
        why: String,
    },
}

/// The port to the machine registry.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Requests the machines that `variables` select, or that the query's defaults select without them.
    ///
    /// # Errors
    /// See [`RegistryError`]; no part of a failed answer is used.
    async fn machines(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError>;
}
