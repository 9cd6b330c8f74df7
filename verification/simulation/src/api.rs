//! A client of placement's API: one request per connection, in memory, as `krakectl` does over TCP.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::serving::LinkedDialer;

/// Deadline of a request: longer than the store's own deadline, so that the client receives refusals.
const PATIENCE: Duration = Duration::from_secs(45);

/// Maximum bytes of an answer: a few thousand applications.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The revision in the answer's `ETag`.
    pub tag: Option<i64>,
    /// The JSON of the body; null without a body.
    pub body: Value,
}

pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// The revision for `If-Match`; `None` accepts any.
    pub version: Option<i64>,
    pub body: Option<&'a Value>,
}

/// Sends a request. After an error it is unknown whether the request took effect.
pub async fn send_request(dialer: &LinkedDialer, request: &Request<'_>) -> io::Result<Answer> {
    tokio::time::timeout(PATIENCE, exchange(dialer, request))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn exchange(dialer: &LinkedDialer, request: &Request<'_>) -> io::Result<Answer> {
    let Request { method, path, version, body } = request;
    let body = body.map(Value::to_string).unwrap_or_default();
    let version = version.map(|revision| format!("If-Match: \"{revision}\"\r\n")).unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: placement.invalid\r\nConnection: close\r\n{version}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = dialer.connect().await?;
    stream.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    parse_answer(&answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Reads an answer; `None` if it is incomplete.
fn parse_answer(answer: &[u8]) -> Option<Answer> {
    let answer = std::str::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, &str)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_lowercase(), value.trim()))
        .collect();
    let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    let length: usize = header("content-length")?.parse().ok()?;
    if body.len() != length {
        return None;
    }
    let tag = header("etag").and_then(|tag| tag.trim_matches('"').parse().ok());
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).ok()? };
    Some(Answer { status, tag, body })
}
