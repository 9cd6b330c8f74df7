//! Sends one bounded request to a metrics provider, and classifies its failure.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use madako_protocol::placement::providers::FetchError;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpTransport};
use tokio::time::Instant;

use crate::address::Address;
use crate::limits::MAX_SERVER_TEXT;
use crate::telemetry;

/// Context that all requests of one fetch share.
pub(crate) struct Exchange<'a, T: HttpTransport + ?Sized> {
    pub(crate) transport: &'a Arc<T>,
    pub(crate) kind: &'static str,
    pub(crate) max_response_bytes: usize,
    pub(crate) begun: Instant,
    pub(crate) deadline: Duration,
}

pub(crate) struct Request<'a> {
    pub(crate) address: &'a Address,
    pub(crate) method: HttpMethod,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// A secret that an answer might repeat and that must not be shown; empty for none.
    pub(crate) secret: &'a str,
}

impl<T: HttpTransport + ?Sized> Exchange<'_, T> {
    /// Sends a request within the remaining deadline; returns the body of an answer with status 200.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Bytes, FetchError> {
        let begun = Instant::now();
        let result = self.send_unobserved(request).await;
        telemetry::record_fetch(self.kind, result.as_ref().err(), begun.elapsed());
        result
    }

    async fn send_unobserved(&self, request: Request<'_>) -> Result<Bytes, FetchError> {
        let Request { address, method, url, headers, body, secret } = request;
        let late = || FetchError::Deadline { address: address.shown.clone(), deadline: self.deadline };
        let left = self.deadline.saturating_sub(self.begun.elapsed());
        if left.is_zero() {
            return Err(late());
        }
        let sent = self.transport.send(HttpRequest {
            method,
            url,
            headers,
            body: Bytes::from(body),
            max_response_bytes: self.max_response_bytes,
            deadline: left,
        });
        let response = sent.await.map_err(|error| fetch_error(error, address, self.deadline))?;
        if response.status == 200 {
            return Ok(response.body);
        }
        // Far more than is shown, so that a hidden secret is never cut in two.
        let beginning = &response.body[..response.body.len().min(64 * 1024)];
        let message = server_text(address, secret, &String::from_utf8_lossy(beginning));
        Err(FetchError::Status { address: address.shown.clone(), status: response.status, message })
    }
}

/// The transport's error without its URL, whose query is long and may be secret.
fn fetch_error(error: HttpError, address: &Address, deadline: Duration) -> FetchError {
    let address = address.shown.clone();
    match error {
        HttpError::Invalid { why, .. } => FetchError::Definition { why },
        HttpError::Connect { why, .. } => FetchError::Unreachable { address, why },
        HttpError::Deadline { .. } => FetchError::Deadline { address, deadline },
        HttpError::TooLarge { limit, .. } => FetchError::TooLarge { address, limit },
        HttpError::Truncated { why, .. } => FetchError::CutOff { address, why },
    }
}

/// A server's text for an error message.
pub(crate) fn server_text(address: &Address, secret: &str, text: &str) -> String {
    if address.has_credentials() {
        // The server may repeat them in any encoding.
        "the answer is not shown, because the address has credentials".to_owned()
    } else {
        shorten_text(&hide_secret(text, secret))
    }
}

pub(crate) fn hide_secret(text: &str, secret: &str) -> String {
    if secret.is_empty() { text.to_owned() } else { text.replace(secret, "[secret]") }
}

/// On one line, without control characters, and of limited length.
pub(crate) fn shorten_text(text: &str) -> String {
    let mut words = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
        if words.len() > 4 * MAX_SERVER_TEXT {
            break;
        }
    }
    match words.char_indices().nth(MAX_SERVER_TEXT) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words,
    }
}
