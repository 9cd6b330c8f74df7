//! Sends the HTTP requests of a run, each on its own connection, and reads streamed answers line by line.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of an answer: metrics of an instance have some 100 KiB.
const MAX_ANSWER: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No connection: nothing was sent.
    #[error("the HTTP request was not sent: cannot connect to {0}")]
    NotSent(SocketAddr, #[source] std::io::Error),
    /// Sent, with an unknown outcome.
    #[error("the HTTP answer of {0} is incomplete: {1}")]
    Unknown(SocketAddr, String),
    /// Sent, with an unknown outcome, since the time limit passed.
    #[error("no HTTP answer from {0} within {1:?}")]
    Late(SocketAddr, Duration),
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Revision in the ETag.
    pub(crate) revision: Option<i64>,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON; `Null` if it is none.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WebRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    /// Revision for `If-Match`.
    pub(crate) expected: Option<i64>,
    pub(crate) body: Option<&'a Value>,
    /// Time limit of the whole request.
    pub(crate) within: Duration,
}

impl<'a> WebRequest<'a> {
    #[must_use]
    pub(crate) fn get(path: &'a str, within: Duration) -> Self {
        Self { method: &Method::GET, path, expected: None, body: None, within }
    }

    #[must_use]
    pub(crate) fn send(method: &'a Method, path: &'a str, body: &'a Value, within: Duration) -> Self {
        Self { method, path, expected: None, body: Some(body), within }
    }
}

/// Sends a request.
///
/// # Errors
/// See [`RequestError`]; an answer of any status is not an error.
pub(crate) async fn send_request(address: SocketAddr, ask: WebRequest<'_>) -> Result<Answer, RequestError> {
    let late = || RequestError::Late(address, ask.within);
    let exchanged = async {
        let stream =
            TcpStream::connect(address).await.map_err(|error| RequestError::NotSent(address, error))?;
        exchange(address, stream, ask).await
    };
    timeout(ask.within, exchanged).await.unwrap_or_else(|_| Err(late()))
}

async fn exchange(
    address: SocketAddr,
    stream: TcpStream,
    ask: WebRequest<'_>,
) -> Result<Answer, RequestError> {
    let unknown = |error: &dyn std::fmt::Display| RequestError::Unknown(address, error.to_string());
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| unknown(&error))?;
    let request = build_request(address, ask).map_err(|error| unknown(&error))?;
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
        // Without the connection there is no answer; the connection ends after the answer.
        Err(error) = &mut connection => Err(unknown(&error)),
    }
}

fn build_request(address: SocketAddr, ask: WebRequest<'_>) -> http::Result<Request<Full<Bytes>>> {
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
    request.body(Full::new(body))
}

pub(crate) struct LineStream {
    address: SocketAddr,
    body: Incoming,
    /// The connection; `None`: it is over, and the received data is still to be read.
    connection: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
    /// The beginning of the next line.
    begun: BytesMut,
}

/// Sends a request with a streamed answer, and waits for its head up to `within`.
///
/// # Errors
/// See [`RequestError`]; an answer without success is an error, too.
pub(crate) async fn open_stream(
    address: SocketAddr,
    path: &str,
    within: Duration,
) -> Result<LineStream, RequestError> {
    let unknown = |error: &dyn std::fmt::Display| RequestError::Unknown(address, error.to_string());
    let begun = async {
        let stream =
            TcpStream::connect(address).await.map_err(|error| RequestError::NotSent(address, error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unknown(&error))?;
        let mut connection = Box::pin(connection);
        let request =
            build_request(address, WebRequest::get(path, within)).map_err(|error| unknown(&error))?;
        let answer = tokio::select! {
            biased;
            answer = sender.send_request(request) => answer.map_err(|error| unknown(&error))?,
            ended = &mut connection => {
                let why = ended.err().map_or_else(|| "it hung up".to_owned(), |error| error.to_string());
                return Err(unknown(&why));
            }
        };
        if !answer.status().is_success() {
            return Err(unknown(&format!("status {}", answer.status())));
        }
        let body = answer.into_body();
        Ok(LineStream { address, body, connection: Some(connection), begun: BytesMut::new() })
    };
    timeout(within, begun).await.unwrap_or(Err(RequestError::Late(address, within)))
}

impl LineStream {
    /// The next line, without its line end. Cancel safe: no line is lost.
    ///
    /// # Errors
    /// See [`RequestError`]; the end of the stream is an error, too. An unfinished last line is dropped.
    pub(crate) async fn next(&mut self, within: Duration) -> Result<Bytes, RequestError> {
        let address = self.address;
        let next = async {
            loop {
                if let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
                    let line = self.begun.split_to(end + 1);
                    return Ok(line.freeze().slice(..end));
                }
                if self.begun.len() > MAX_ANSWER {
                    let why = format!("a line has more than {MAX_ANSWER} bytes");
                    return Err(RequestError::Unknown(address, why));
                }
                let piece = next_piece(&mut self.body, &mut self.connection).await;
                match piece {
                    Some(Ok(piece)) => self.begun.extend_from_slice(&piece),
                    Some(Err(error)) => {
                        return Err(RequestError::Unknown(address, error.to_string()));
                    }
                    None => return Err(RequestError::Unknown(address, "it ended".to_owned())),
                }
            }
        };
        timeout(within, next).await.unwrap_or(Err(RequestError::Late(address, within)))
    }
}

/// The next piece of a body; `None`: the end.
async fn next_piece(
    body: &mut Incoming,
    connection: &mut Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
) -> Option<hyper::Result<Bytes>> {
    loop {
        let frame = match connection {
            None => body.frame().await,
            Some(carries) => tokio::select! {
                biased;
                frame = body.frame() => frame,
                // The body reports why the connection ended.
                _ = carries => {
                    *connection = None;
                    continue;
                }
            },
        };
        match frame? {
            // A frame without data is skipped.
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}
