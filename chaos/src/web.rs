//! Requests over HTTP, each on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of an answer: metrics of an instance have some 100 KiB.
const MAX_ANSWER: usize = 8 << 20;

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No connection could be made: nothing was sent.
    #[error("no connection to {0}")]
    NotSent(SocketAddr, #[source] std::io::Error),
    /// It was sent, and what became of it is not known.
    #[error("{0} gave no whole answer: {1}")]
    Unknown(SocketAddr, String),
    /// The same, since the time is over.
    #[error("{0} did not answer within {1:?}")]
    Late(SocketAddr, Duration),
}

/// What was answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// The revision that its tag tells.
    pub(crate) revision: Option<i64>,
    /// The body.
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON; `Null` if it is none.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// The method.
    pub(crate) method: &'a Method,
    /// The path.
    pub(crate) path: &'a str,
    /// The revision that is to be changed.
    pub(crate) expected: Option<i64>,
    /// The body.
    pub(crate) body: Option<&'a Value>,
    /// Time for all of it.
    pub(crate) within: Duration,
}

impl<'a> Ask<'a> {
    /// A request without body.
    #[must_use]
    pub(crate) fn get(path: &'a str, within: Duration) -> Self {
        Self { method: &Method::GET, path, expected: None, body: None, within }
    }

    /// A request that brings something.
    #[must_use]
    pub(crate) fn send(method: &'a Method, path: &'a str, body: &'a Value, within: Duration) -> Self {
        Self { method, path, expected: None, body: Some(body), within }
    }
}

/// Sends a request.
///
/// # Errors
/// See [`Unanswered`]; an answer of any status is one.
pub(crate) async fn ask(address: SocketAddr, ask: Ask<'_>) -> Result<Answer, Unanswered> {
    let late = || Unanswered::Late(address, ask.within);
    let exchanged = async {
        let stream =
            TcpStream::connect(address).await.map_err(|error| Unanswered::NotSent(address, error))?;
        exchange(address, stream, ask).await
    };
    timeout(ask.within, exchanged).await.unwrap_or_else(|_| Err(late()))
}

async fn exchange(address: SocketAddr, stream: TcpStream, ask: Ask<'_>) -> Result<Answer, Unanswered> {
    let unknown = |error: &dyn std::fmt::Display| Unanswered::Unknown(address, error.to_string());
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| unknown(&error))?;
    let mut request = Request::builder()
        .method(ask.method)
        .uri(ask.path)
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close");
    if let Some(revision) = ask.expected {
        request = request.header(header::IF_MATCH, format!("\"{revision}\""));
    }
    if ask.body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    let body = ask.body.map_or_else(Bytes::new, |body| body.to_string().into());
    let request = request.body(Full::new(body)).map_err(|error| unknown(&error))?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(|error| unknown(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| unknown(&error))?;
        let tag = head.headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let revision = tag.and_then(|tag| tag.trim_matches('"').parse().ok());
        Ok(Answer { status: head.status, revision, body: body.to_bytes() })
    };
    tokio::pin!(connection);
    tokio::select! {
        answer = answered => answer,
        // Without the connection there is no answer; it ends after one.
        Err(error) = &mut connection => Err(unknown(&error)),
    }
}
