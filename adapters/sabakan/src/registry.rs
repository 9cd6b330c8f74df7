//! Implements the port `Registry` with GraphQL requests over any `HttpTransport`.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::machine::{Machine, QueryVariables};
use madako_protocol::ports::{
    HttpMethod, HttpRequest, HttpTransport, Registry, RegistryError, RegistryMachines,
};
use tokio::time::Instant;

use crate::answer::{read_answer, shorten_text};
pub use crate::limits::{MAX_RESPONSE_BYTES, REQUEST_DEADLINE};
use crate::query::request_body;
use crate::telemetry;

#[derive(Debug)]
pub struct SabakanRegistry<T: HttpTransport + ?Sized> {
    transport: Arc<T>,
    max_response_bytes: usize,
    deadline: Duration,
}

impl<T: HttpTransport + ?Sized> SabakanRegistry<T> {
    /// Uses [`MAX_RESPONSE_BYTES`] and [`REQUEST_DEADLINE`].
    pub fn new(transport: Arc<T>) -> Self {
        Self { transport, max_response_bytes: MAX_RESPONSE_BYTES, deadline: REQUEST_DEADLINE }
    }

    #[must_use]
    pub fn with_limits(self, max_response_bytes: usize, deadline: Duration) -> Self {
        Self { max_response_bytes, deadline, ..self }
    }

    async fn ask(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError> {
        let request = HttpRequest {
            method: HttpMethod::Post,
            url: url.to_owned(),
            // sabakan's server accepts GraphQL over POST with this content type only.
            headers: vec![
                ("content-type".to_owned(), "application/json".to_owned()),
                ("accept".to_owned(), "application/json".to_owned()),
            ],
            body: Bytes::from(request_body(variables)),
            max_response_bytes: self.max_response_bytes,
            deadline: self.deadline,
        };
        let response = self.transport.send(request).await.map_err(RegistryError::Http)?;
        if response.status != 200 {
            // A character has at most four bytes, so this contains all shown characters.
            let beginning = &response.body[..response.body.len().min(4096)];
            return Err(RegistryError::Status {
                status: response.status,
                body: shorten_text(&String::from_utf8_lossy(beginning)),
            });
        }
        Ok(leave_out_without_address(read_answer(&response.body)?))
    }
}

#[async_trait]
impl<T: HttpTransport + ?Sized> Registry for SabakanRegistry<T> {
    async fn machines(
        &self,
        url: &str,
        variables: Option<&QueryVariables>,
    ) -> Result<RegistryMachines, RegistryError> {
        let begun = Instant::now();
        let result = self.ask(url, variables).await;
        telemetry::record_request(&result, begun.elapsed());
        result
    }
}

/// Removes machines that cannot become nodes: those whose first address is missing or not IPv4.
///
/// sabakan writes an unreadable address as `<nil>`, which counts as missing.
#[must_use]
pub fn leave_out_without_address(machines: Vec<Machine>) -> RegistryMachines {
    let has_address =
        |machine: &Machine| machine.address().is_some_and(|address| address.parse::<Ipv4Addr>().is_ok());
    let (machines, left_out) = machines.into_iter().partition(has_address);
    RegistryMachines { machines, left_out }
}
