//! A minimal HTTP/1.1 client for a load generator: prepared requests, answers with a known length, and chunked streams.
//! A client library would take more of the core than the measured service.

use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::processes::PATIENCE;

/// Bytes of the longest head of an answer: the service's have a few hundred.
const LONGEST_HEAD: usize = 16 << 10;
/// Bytes of one read.
const PIECE: usize = 64 << 10;

/// A connection that stays open.
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A request, ready to be sent.
pub(super) fn build_request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("the service does not listen")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a request; returns status and body.
    pub(super) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        let requested = async {
            self.stream.write_all(request).await?;
            self.buffer.clear();
            let (end, status) = self.read_head().await?;
            let head = std::str::from_utf8(&self.buffer[..end])?;
            let length = find_header(head, "content-length").context("an answer without its length")?;
            let length: usize = length.parse()?;
            while self.buffer.len() < end + length {
                self.read_more().await?;
            }
            anyhow::ensure!(self.buffer.len() == end + length, "more than was asked for");
            anyhow::Ok((end, status))
        };
        let (end, status) = timeout(PATIENCE, requested).await.context("no answer")??;
        Ok((status, &self.buffer[end..]))
    }

    /// Sends a request that must succeed.
    pub(super) async fn expect(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        let (status, body) = self.ask(request).await?;
        anyhow::ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(body));
        Ok(body)
    }

    /// Opens a stream of lines.
    pub(super) async fn follow(mut self, path: &str) -> anyhow::Result<LineStream> {
        let requested = async {
            self.stream.write_all(&build_request("GET", path, "")).await?;
            self.buffer.clear();
            let (end, status) = self.read_head().await?;
            anyhow::ensure!(status == 200, "a watch is refused: {status}");
            let head = std::str::from_utf8(&self.buffer[..end])?;
            anyhow::ensure!(
                find_header(head, "transfer-encoding") == Some("chunked"),
                "a watch without chunks"
            );
            anyhow::Ok(end)
        };
        let end = timeout(PATIENCE, requested).await.context("no watch")??;
        self.buffer.drain(..end);
        Ok(LineStream { connection: self, taken: 0, line: Vec::new() })
    }

    /// Reads a head; returns its length and the status.
    async fn read_head(&mut self) -> anyhow::Result<(usize, u16)> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let status = self.buffer.get(9..12).context("no status")?;
                return Ok((at + 4, std::str::from_utf8(status)?.parse()?));
            }
            anyhow::ensure!(self.buffer.len() < LONGEST_HEAD, "a head without an end");
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> anyhow::Result<()> {
        self.buffer.reserve(PIECE);
        let read = self.stream.read_buf(&mut self.buffer).await?;
        anyhow::ensure!(read > 0, "the service closed the connection");
        Ok(())
    }
}

fn find_header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        known.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

pub(super) struct LineStream {
    connection: Connection,
    /// Consumed bytes of the buffer.
    taken: usize,
    line: Vec<u8>,
}

impl LineStream {
    /// The next line that is not empty. Has no time limit.
    pub(super) async fn next(&mut self) -> anyhow::Result<&[u8]> {
        self.line.clear();
        loop {
            let size = self.chunk_size().await?;
            anyhow::ensure!(size > 0, "the watch ended");
            let end = self.taken + size;
            while self.connection.buffer.len() < end + 2 {
                self.connection.read_more().await?;
            }
            self.line.extend_from_slice(&self.connection.buffer[self.taken..end]);
            self.taken = end + 2;
            if self.line == b"\n" {
                self.line.clear();
            } else if let Some(line) = self.line.strip_suffix(b"\n") {
                // The service writes each change as a line of its own.
                anyhow::ensure!(!line.contains(&b'\n'), "two lines in a chunk");
                return Ok(&self.line[..self.line.len() - 1]);
            }
        }
    }

    async fn chunk_size(&mut self) -> anyhow::Result<usize> {
        loop {
            let left = &self.connection.buffer[self.taken..];
            if let Some(end) = left.windows(2).position(|two| two == b"\r\n") {
                let size = usize::from_str_radix(std::str::from_utf8(&left[..end])?, 16)?;
                self.taken += end + 2;
                return Ok(size);
            }
            self.connection.buffer.drain(..self.taken);
            self.taken = 0;
            self.connection.read_more().await?;
        }
    }
}
