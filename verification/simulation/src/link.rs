//! A simulated network link between two processes: open, stalled (bytes wait) or cut (connections break, and none can
//! be made); without delay, or slow and lossy.
//!
//! Loss acts as in TCP: a lost segment is sent again after a time-out that doubles, and all later bytes wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use madako_store::BoxedStream;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::store_process::StoreProcess;

/// Minimum time until a lost segment is sent again (Linux' minimum time-out of TCP).
const RETRANSMIT: Duration = Duration::from_millis(200);

/// Maximum number of losses of one segment. After more of them TCP gives up the connection.
const MOST_LOSSES: u32 = 8;

/// Bytes in flight on a slow connection in one direction: the buffer of a socket.
const UNDER_WAY: usize = 64 * 1024;

/// Bytes of one read or write: two segments of a local network.
const CHUNK: usize = 16 * 1024;

/// Treatment of bytes by a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Open,
    Stalled,
    /// Connections break, and none can be made.
    Cut,
}

struct LinkState {
    mode: Mode,
    /// Beginning of the present stall.
    stalled_since: Option<Instant>,
    delay: Duration,
    loss_percent: u32,
    chance: ChaCha8Rng,
    /// Grows with each cut: a connection of an older generation stays broken.
    generation: u64,
    /// Wakers by connection and direction, woken at each change.
    waiting: BTreeMap<(u64, u8), Waker>,
    /// Next id of a waiter that is not a connection, counted down from the maximum.
    passers: u64,
    used: LinkTraffic,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkTraffic {
    pub connections: u64,
    /// Bytes from the client.
    pub sent: u64,
    /// Bytes to the client.
    pub received: u64,
}

/// A link. Clones are the same one.
#[derive(Clone)]
pub struct Link(Arc<Mutex<LinkState>>);

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    #[must_use]
    pub fn new() -> Self {
        Self::from_seed(0)
    }

    /// An open link; `seed` decides which segments get lost.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(LinkState {
            mode: Mode::Open,
            stalled_since: None,
            delay: Duration::ZERO,
            loss_percent: 0,
            chance: ChaCha8Rng::seed_from_u64(seed),
            generation: 0,
            waiting: BTreeMap::new(),
            passers: u64::MAX,
            used: LinkTraffic::default(),
        })))
    }

    fn change(&self, change: impl FnOnce(&mut LinkState)) {
        let waiting = {
            let mut inner = self.0.lock().unwrap();
            change(&mut inner);
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    pub fn set(&self, mode: Mode) {
        self.change(|inner| {
            if mode == Mode::Cut {
                inner.generation += 1;
            }
            inner.stalled_since =
                (mode == Mode::Stalled).then(|| inner.stalled_since.unwrap_or_else(Instant::now));
            inner.mode = mode;
        });
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.lock().unwrap().mode
    }

    /// Delays bytes by `delay` in each direction, and loses `loss_percent` of 100 segments.
    pub fn slow_down(&self, delay: Duration, loss_percent: u32) {
        self.change(|inner| (inner.delay, inner.loss_percent) = (delay, loss_percent));
    }

    /// Breaks the present connections. New ones can be made.
    pub fn reset(&self) {
        self.change(|inner| inner.generation += 1);
    }

    #[must_use]
    pub fn traffic(&self) -> LinkTraffic {
        self.0.lock().unwrap().used
    }

    /// Draws the delay of the next segment, retransmissions included.
    #[must_use]
    pub fn draw_latency(&self) -> Duration {
        let mut inner = self.0.lock().unwrap();
        let mut latency = inner.delay;
        let mut again = RETRANSMIT;
        for _ in 0..MOST_LOSSES {
            if inner.loss_percent == 0 || inner.chance.random_range(0..100) >= inner.loss_percent {
                break;
            }
            latency += again;
            again *= 2;
        }
        latency
    }

    fn is_slow(&self) -> bool {
        let inner = self.0.lock().unwrap();
        !inner.delay.is_zero() || inner.loss_percent > 0
    }

    /// Returns a function that makes connections to the store over this link.
    pub fn make_connector(
        &self,
        store: StoreProcess,
    ) -> impl Fn() -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>> + Send + Sync + use<>
    {
        let link = self.clone();
        move || {
            let (link, store) = (link.clone(), store.clone());
            Box::pin(async move {
                let stream: BoxedStream = Box::new(link.connect(async { store.connect() }).await?);
                Ok(stream)
            })
        }
    }

    /// Makes a connection over this link: three segments, as in TCP.
    ///
    /// # Errors
    /// The link is cut, or the other end refuses connections.
    pub async fn connect<S>(
        &self,
        connecting: impl Future<Output = io::Result<S>>,
    ) -> io::Result<LinkStream<S>> {
        let generation = self.wait_until_passed().await?;
        for _ in 0..2 {
            let latency = self.draw_latency();
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
        }
        self.wait_until_passable(generation).await?;
        let stream = connecting.await?;
        let id = {
            let mut inner = self.0.lock().unwrap();
            inner.used.connections += 1;
            inner.used.connections
        };
        let (inward, outward) = (DelayedBytes::default(), DelayedBytes::default());
        Ok(LinkStream { stream, link: self.clone(), id, generation, inward, outward, ended: false })
    }

    /// Waits until the link is not stalled. Returns the generation of connections.
    ///
    /// # Errors
    /// The link is cut.
    pub async fn wait_until_passed(&self) -> io::Result<u64> {
        let passer = self.register_waiter();
        std::future::poll_fn(|context| self.poll_pass((passer.id, READS), None, context)).await
    }

    /// Waits until the link is not stalled, for a connection of `generation`.
    ///
    /// # Errors
    /// The connection broke meanwhile.
    pub async fn wait_until_passable(&self, generation: u64) -> io::Result<()> {
        let passer = self.register_waiter();
        std::future::poll_fn(|context| self.poll_pass((passer.id, READS), Some(generation), context)).await?;
        Ok(())
    }

    /// Returns when connections of `generation` are broken.
    pub async fn wait_until_broken(&self, generation: u64) {
        let passer = self.register_waiter();
        std::future::poll_fn(|context| {
            let mut inner = self.0.lock().unwrap();
            if inner.generation != generation || inner.mode == Mode::Cut {
                return Poll::Ready(());
            }
            inner.waiting.insert((passer.id, READS), context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Returns when the link has been stalled for `limit`.
    pub async fn wait_until_silent(&self, limit: Duration) {
        loop {
            let since = self.wait_for_stall().await;
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(since + limit) => return,
                // Either outcome ends the stall.
                _ = self.wait_until_passed() => {}
            }
        }
    }

    /// Waits for a stall, and returns its beginning.
    async fn wait_for_stall(&self) -> Instant {
        let passer = self.register_waiter();
        std::future::poll_fn(|context| {
            let mut inner = self.0.lock().unwrap();
            if let Some(since) = inner.stalled_since {
                return Poll::Ready(since);
            }
            inner.waiting.insert((passer.id, READS), context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ready when bytes may pass. Pending while the link is stalled. Fails if the link is cut, or was cut or reset
    /// since `generation`.
    fn poll_pass(
        &self,
        who: (u64, u8),
        generation: Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<u64>> {
        let mut inner = self.0.lock().unwrap();
        if generation.is_some_and(|generation| generation != inner.generation) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match inner.mode {
            Mode::Open => Poll::Ready(Ok(inner.generation)),
            Mode::Cut => Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
            Mode::Stalled => {
                inner.waiting.insert(who, context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn register_waiter(&self) -> ConnectionWaiter<'_> {
        let mut inner = self.0.lock().unwrap();
        inner.passers -= 1;
        ConnectionWaiter { link: self, id: inner.passers }
    }

    fn wait(&self, who: (u64, u8), context: &Context<'_>) {
        let mut inner = self.0.lock().unwrap();
        match inner.waiting.get_mut(&who) {
            Some(waker) => waker.clone_from(context.waker()),
            None => drop(inner.waiting.insert(who, context.waker().clone())),
        }
    }
}

/// A waiter without a connection. Dropping it removes its waker.
struct ConnectionWaiter<'a> {
    link: &'a Link,
    id: u64,
}

impl Drop for ConnectionWaiter<'_> {
    fn drop(&mut self) {
        self.link.0.lock().unwrap().waiting.remove(&(self.id, READS));
    }
}

const READS: u8 = 0;
const WRITES: u8 = 1;

/// Bytes in flight with their times of arrival.
#[derive(Default)]
struct DelayedBytes {
    queue: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl DelayedBytes {
    fn push(&mut self, data: Bytes, latency: Duration) {
        let due = Instant::now() + latency;
        // Bytes arrive in the order in which they were sent.
        let due = self.queue.back().map_or(due, |(before, _)| due.max(*before));
        self.bytes += data.len();
        self.queue.push_back((due, data));
    }

    /// Ready when the first bytes have arrived; pending for ever without bytes.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some((due, _)) = self.queue.front() else { return Poll::Pending };
        if *due <= Instant::now() {
            return Poll::Ready(());
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(*due)));
        if timer.deadline() != *due {
            timer.as_mut().reset(*due);
        }
        timer.as_mut().poll(context)
    }

    fn take(&mut self, count: usize) {
        if let Some((_, data)) = self.queue.front_mut() {
            data.advance(count);
            self.bytes -= count;
            if data.is_empty() {
                self.queue.pop_front();
            }
        }
    }
}

pub struct LinkStream<S> {
    stream: S,
    link: Link,
    id: u64,
    generation: u64,
    inward: DelayedBytes,
    outward: DelayedBytes,
    /// The other end has closed its direction.
    ended: bool,
}

impl<S> LinkStream<S> {
    fn poll_link(&self, what: u8, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_pass((self.id, what), Some(self.generation), context).map_ok(|_| ())
    }
}

impl<S> Drop for LinkStream<S> {
    fn drop(&mut self) {
        let mut inner = self.link.0.lock().unwrap();
        inner.waiting.remove(&(self.id, READS));
        inner.waiting.remove(&(self.id, WRITES));
    }
}

impl<S: AsyncWrite + Unpin> LinkStream<S> {
    /// Writes the arrived bytes to the other end.
    fn write_arrived_bytes(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.outward.poll_due(context).is_ready() {
            let Some((_, data)) = self.outward.queue.front() else { break };
            match Pin::new(&mut self.stream).poll_write(context, data) {
                Poll::Ready(Ok(count)) => self.outward.take(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> LinkStream<S> {
    /// Reads the bytes that the other end sent.
    fn take_in(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        while !self.ended && self.inward.bytes < UNDER_WAY {
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => self.ended = true,
                Poll::Ready(Ok(())) => {
                    let data = Bytes::copy_from_slice(buffer.filled());
                    self.inward.push(data, self.link.draw_latency());
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for LinkStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_link(READS, context))?;
        let before = buffer.filled().len();
        self.write_arrived_bytes(context)?;
        let polled = if self.link.is_slow() || !self.inward.queue.is_empty() || self.ended {
            self.take_in(context)?;
            if self.inward.queue.is_empty() && self.ended {
                return Poll::Ready(Ok(()));
            }
            let polled = self.inward.poll_due(context);
            if polled.is_ready()
                && let Some((_, data)) = self.inward.queue.front()
            {
                let count = data.len().min(buffer.remaining());
                buffer.put_slice(&data[..count]);
                self.inward.take(count);
            }
            polled.map(Ok)
        } else {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        };
        if polled.is_pending() {
            // A cut also ends this wait for bytes.
            self.link.wait((self.id, READS), context);
        }
        self.link.0.lock().unwrap().used.received += (buffer.filled().len() - before) as u64;
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LinkStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_link(WRITES, context))?;
        self.write_arrived_bytes(context)?;
        let polled = if self.link.is_slow() || !self.outward.queue.is_empty() {
            if self.outward.bytes >= UNDER_WAY {
                Poll::Pending
            } else {
                let count = bytes.len().min(CHUNK);
                let latency = self.link.draw_latency();
                self.outward.push(Bytes::copy_from_slice(&bytes[..count]), latency);
                // Registers the waker for the arrival of these bytes.
                self.write_arrived_bytes(context)?;
                Poll::Ready(Ok(count))
            }
        } else {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        };
        match &polled {
            Poll::Ready(Ok(count)) => self.link.0.lock().unwrap().used.sent += *count as u64,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.link.wait((self.id, WRITES), context),
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_link(WRITES, context))?;
        self.write_arrived_bytes(context)?;
        if !self.outward.queue.is_empty() {
            // The bytes are in flight; the next read delivers them.
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_pending() {
            self.link.wait((self.id, WRITES), context);
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.outward.queue.is_empty() && self.poll_link(WRITES, context).is_ready() {
            self.write_arrived_bytes(context)?;
            if !self.outward.queue.is_empty() {
                self.link.wait((self.id, WRITES), context);
                return Poll::Pending;
            }
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
