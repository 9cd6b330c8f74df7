//! A stream that breaks at once when its owner is gone, whatever its peer does.
//!
//! russh reads a dropped handle only between key exchanges; a peer that stalls one would keep the socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

pub(crate) struct OwnedStream<S> {
    stream: S,
    owner: oneshot::Receiver<()>,
}

/// The owner of a stream. Dropping it breaks the stream.
pub(crate) struct StreamOwner {
    _alive: oneshot::Sender<()>,
}

impl<S> OwnedStream<S> {
    pub(crate) fn new(stream: S) -> (Self, StreamOwner) {
        let (alive, owner) = oneshot::channel();
        (Self { stream, owner }, StreamOwner { _alive: alive })
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        // The sender never sends: ready means that it is gone. After that the receiver must not be polled again.
        if self.owner.is_terminated() || Pin::new(&mut self.owner).poll(context).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was dropped"));
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for OwnedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for OwnedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
