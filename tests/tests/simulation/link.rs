//! An instance's way to the store: open, stalled (bytes wait) or cut (connections break, none is made).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use madako_embedded_etcd::EmbeddedEtcd;
use madako_store::BoxedStream;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// What a link does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Open,
    Stalled,
    Cut,
}

struct Inner {
    mode: Mode,
    /// Grows with each cut: a connection of an older generation stays broken.
    generation: u64,
    waiting: Vec<Waker>,
}

/// Clones are the same link.
#[derive(Clone)]
pub struct Link(Arc<Mutex<Inner>>);

impl Link {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner { mode: Mode::Open, generation: 0, waiting: Vec::new() })))
    }

    pub fn set(&self, mode: Mode) {
        let waiting = {
            let mut inner = self.0.lock().unwrap();
            if mode == Mode::Cut {
                inner.generation += 1;
            }
            inner.mode = mode;
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Makes connections to the store over this link.
    pub fn connector(
        &self,
        store: Arc<EmbeddedEtcd>,
    ) -> impl Fn() -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>> + Send + Sync + use<>
    {
        let link = self.clone();
        move || {
            let (link, store) = (link.clone(), Arc::clone(&store));
            Box::pin(async move {
                let generation = std::future::poll_fn(|context| link.passes(None, context)).await?;
                let stream: BoxedStream =
                    Box::new(Gate { stream: store.connect_in_memory(), link, generation });
                Ok(stream)
            })
        }
    }

    /// Ready when bytes may pass; waits while stalled; fails when cut or cut since `generation`.
    fn passes(&self, generation: Option<u64>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let mut inner = self.0.lock().unwrap();
        if generation.is_some_and(|generation| generation != inner.generation) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match inner.mode {
            Mode::Open => Poll::Ready(Ok(inner.generation)),
            Mode::Cut => Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
            Mode::Stalled => {
                inner.waiting.push(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

struct Gate {
    stream: DuplexStream,
    link: Link,
    generation: u64,
}

impl Gate {
    fn passes(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.passes(Some(self.generation), context).map_ok(|_| ())
    }
}

/// Lets an operation through when the link does; a stalled one is woken when the link changes.
macro_rules! gated {
    ($gate:ident, $context:ident, $operation:expr) => {
        match $gate.passes($context) {
            Poll::Ready(Ok(())) => {
                let polled = $operation;
                if polled.is_pending() {
                    // A cut must also end what waits for bytes.
                    $gate.link.0.lock().unwrap().waiting.push($context.waker().clone());
                }
                polled
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    };
}

impl AsyncRead for Gate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        gated!(self, context, Pin::new(&mut self.stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Gate {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        gated!(self, context, Pin::new(&mut self.stream).poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        gated!(self, context, Pin::new(&mut self.stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
