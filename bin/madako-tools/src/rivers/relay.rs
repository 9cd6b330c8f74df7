//! Carries the bytes of a connection in both directions.
//!
//! All connections of a thread read into one buffer, because a read and the write of its bytes happen in one poll. Only
//! bytes that a slow receiver does not take at once are kept in a buffer of their own, and nothing more is read from
//! their sender until they are written. So an idle connection holds no buffer, and a congested one at most
//! `RELAY_BUFFER` in each direction.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::limits::RELAY_BUFFER;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; RELAY_BUFFER].into_boxed_slice());
}

/// Carries bytes until both directions have ended. The end of one direction is passed on as a half-close.
///
/// # Errors
/// One of the two connections broke.
pub(crate) async fn relay_streams(client: &mut TcpStream, upstream: &mut TcpStream) -> io::Result<()> {
    let (from_client, to_client) = client.split();
    let (from_upstream, to_upstream) = upstream.split();
    let mut up = Direction::new(from_client, to_upstream);
    let mut down = Direction::new(from_upstream, to_client);
    poll_fn(|context| {
        let up = up.poll(context)?;
        let down = down.poll(context)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Open,
    /// The sender has ended; the half-close is not passed on yet.
    Ending,
    Ended,
}

struct Direction<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    stage: Stage,
    /// Bytes that the receiver has not taken, of which `written` are written.
    kept: Vec<u8>,
    written: usize,
}

impl<'a> Direction<'a> {
    fn new(from: ReadHalf<'a>, to: WriteHalf<'a>) -> Self {
        Self { from, to, stage: Stage::Open, kept: Vec::new(), written: 0 }
    }

    /// Is ready when the direction has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.stage {
                Stage::Open => {
                    ready!(self.poll_kept(context))?;
                    if ready!(self.poll_copy(context))? == 0 {
                        self.stage = Stage::Ending;
                    }
                }
                Stage::Ending => {
                    ready!(Pin::new(&mut self.to).poll_shutdown(context))?;
                    self.stage = Stage::Ended;
                }
                Stage::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes the kept bytes.
    fn poll_kept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            self.written += ready!(poll_write(&mut self.to, context, &self.kept[self.written..]))?;
        }
        if !self.kept.is_empty() {
            self.kept = Vec::new();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once, writes as much as the receiver takes, and keeps the rest. Returns the number of bytes read.
    fn poll_copy(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.from).poll_read(context, &mut buffer))?;
            let mut rest = buffer.filled();
            while !rest.is_empty() {
                match poll_write(&mut self.to, context, rest)? {
                    Poll::Ready(written) => rest = &rest[written..],
                    Poll::Pending => {
                        self.kept = rest.to_vec();
                        break;
                    }
                }
            }
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }
}

/// Writes at least one byte.
fn poll_write(to: &mut WriteHalf<'_>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(context, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        written => Poll::Ready(Ok(written)),
    }
}
