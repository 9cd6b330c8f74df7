//! HTTP over TCP and TLS: the port `HttpTransport` on reqwest.
//!
//! Guarantees: every request is bounded in time and in the size of its answer. An answer is returned complete or not at
//! all. No error shows the user name and password of a URL.
//!
//! Does not: depend on the process's crypto provider (TLS uses ring explicitly); retry. The caller counts failed
//! requests.

mod limits;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use madako_protocol::causes::root_cause;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, Url, redirect};
use rustls::{ClientConfig, RootCertStore};

use crate::limits::{CONNECT_TIMEOUT, IDLE_TIMEOUT, MAX_IDLE, MAX_REDIRECTS};

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error(
        "cannot set up TLS for requests to servers: the versions of TLS do not suit the cryptographic library"
    )]
    Tls(#[source] rustls::Error),
    #[error("cannot create the client for HTTP requests")]
    Client(#[source] reqwest::Error),
}

/// HTTP/1.1 over TCP and TLS.
///
/// Proxies of the environment are not used, because all servers are inside the data center. Redirects are followed
/// within the same scheme, host and port only; any other redirect is returned as the answer.
#[derive(Debug, Clone)]
pub struct ReqwestTransport {
    client: Client,
}

impl ReqwestTransport {
    /// Trusts the operating system's certificate authorities. If there are none, `http` works and `https` is refused.
    pub fn new() -> Result<Self, TransportError> {
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "a trusted certificate of the operating system cannot be read");
        }
        let mut roots = RootCertStore::empty();
        let (_, ignored) = roots.add_parsable_certificates(native.certs);
        if ignored > 0 {
            tracing::debug!(ignored, "some trusted certificates of the operating system are not usable");
        }
        Self::with_roots(roots)
    }

    /// For requests to the scheme of this URL: as [`Self::new`], but only `https` reads the operating system's
    /// authorities, which takes some milliseconds.
    pub fn for_url(url: &str) -> Result<Self, TransportError> {
        let is_plain = Url::parse(url).is_ok_and(|url| url.scheme() == "http");
        if is_plain { Self::with_roots(RootCertStore::empty()) } else { Self::new() }
    }

    /// Trusts these certificate authorities only.
    pub fn with_roots(roots: RootCertStore) -> Result<Self, TransportError> {
        // An explicit provider, independent of the one that the process has installed.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TransportError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .redirect(redirect::Policy::custom(allow_same_origin))
            .build()
            .map_err(TransportError::Client)?;
        Ok(Self { client })
    }

    async fn exchange(&self, request: HttpRequest, shown: &str) -> Result<HttpResponse, HttpError> {
        let invalid = |why: String| HttpError::Invalid { url: shown.to_owned(), why };
        let url = Url::parse(&request.url).map_err(|error| invalid(error.to_string()))?;
        let method = match request.method {
            HttpMethod::Get => Method::GET,
            HttpMethod::Post => Method::POST,
            HttpMethod::Put => Method::PUT,
            HttpMethod::Delete => Method::DELETE,
        };
        let headers = header_map(&request.headers).map_err(invalid)?;
        let limit = request.max_response_bytes;
        let sent = self.client.request(method, url).headers(headers).body(request.body).send().await;
        let mut response = sent.map_err(|error| classify_error(error, shown, request.deadline))?;
        let status = response.status().as_u16();
        let headers = answer_headers(&response);
        let too_large = || HttpError::TooLarge { url: shown.to_owned(), limit };
        // The header may be wrong, so the body is measured too.
        let fits = |length: u64| usize::try_from(length).is_ok_and(|length| length <= limit);
        if response.content_length().is_some_and(|length| !fits(length)) {
            return Err(too_large());
        }
        let mut body = BytesMut::new();
        loop {
            let chunk: Option<Bytes> =
                response.chunk().await.map_err(|error| truncated_answer(&error, shown))?;
            let Some(chunk) = chunk else { break };
            if body.len() + chunk.len() > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(HttpResponse { status, headers, body: body.freeze() })
    }
}

#[async_trait]
impl HttpTransport for ReqwestTransport {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let shown = hide_credentials(&request.url);
        let deadline = request.deadline;
        let exchange = Box::pin(self.exchange(request, &shown));
        match tokio::time::timeout(deadline, exchange).await {
            Ok(result) => result,
            Err(_) => Err(HttpError::Deadline { url: shown, deadline }),
        }
    }
}

fn allow_same_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let previous = attempt.previous();
    let stays = previous.first().is_some_and(|first| first.origin() == attempt.url().origin());
    if stays && previous.len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
}

fn header_map(headers: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // The value may be a secret, so the error shows only the name.
        let problem = |what: &str| format!("header {name:?} has an impossible {what}");
        let key = HeaderName::try_from(name.as_str()).map_err(|_| problem("name"))?;
        map.append(key, HeaderValue::try_from(value.as_str()).map_err(|_| problem("value"))?);
    }
    Ok(map)
}

fn answer_headers(response: &Response) -> Vec<(String, String)> {
    response
        .headers()
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect()
}

/// Maps an error that occurred before the answer's head arrived.
fn classify_error(error: reqwest::Error, shown: &str, deadline: Duration) -> HttpError {
    let url = shown.to_owned();
    if error.is_connect() {
        return HttpError::Connect { url, why: innermost_error(&error) };
    }
    if error.is_timeout() {
        return HttpError::Deadline { url, deadline };
    }
    if error.is_builder() {
        return HttpError::Invalid { url, why: innermost_error(&error) };
    }
    truncated_answer(&error, shown)
}

fn truncated_answer(error: &reqwest::Error, shown: &str) -> HttpError {
    HttpError::Truncated { url: shown.to_owned(), why: innermost_error(error) }
}

/// The innermost error. The outer ones repeat the URL, which may contain credentials.
fn innermost_error(error: &reqwest::Error) -> String {
    let cause = root_cause(error);
    if cause.is::<reqwest::Error>() { "the exchange failed".to_owned() } else { cause.to_string() }
}

/// A URL for errors and logs: without user name and password.
fn hide_credentials(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "(not a URL)".to_owned() };
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        // Such a URL (`data:` and the like) cannot contain credentials.
        return format!("{}:", url.scheme());
    }
    url.to_string()
}

#[cfg(test)]
mod tests;
