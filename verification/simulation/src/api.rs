//! A client of placement's API: one request a connection, over memory, as `krakectl` would over TCP.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::serving::Door;

/// How long a person waits: longer than the store's own deadline, so that refusals are heard.
const PATIENCE: Duration = Duration::from_secs(45);

/// The longest answer that is read, in bytes: some thousand applications.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The revision that the answer names as its version.
    pub tag: Option<i64>,
    /// The JSON of its body; null when there is none.
    pub body: Value,
}

/// A request.
pub struct Request<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// Path with its query.
    pub path: &'a str,
    /// The version that is changed; `None`: any.
    pub version: Option<i64>,
    /// What is sent.
    pub body: Option<&'a Value>,
}

/// Asks; an error leaves open what became of the request.
pub async fn ask(door: &Door, request: &Request<'_>) -> io::Result<Answer> {
    tokio::time::timeout(PATIENCE, exchange(door, request))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn exchange(door: &Door, request: &Request<'_>) -> io::Result<Answer> {
    let Request { method, path, version, body } = request;
    let body = body.map(Value::to_string).unwrap_or_default();
    let version = version.map(|revision| format!("If-Match: \"{revision}\"\r\n")).unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: placement.invalid\r\nConnection: close\r\n{version}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = door.connect().await?;
    stream.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    read(&answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Reads an answer; `None`: it is not whole.
fn read(answer: &[u8]) -> Option<Answer> {
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
