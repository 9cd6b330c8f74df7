//! The caller of a repair command: whether its process still runs, and when it began.
//!
//! Guarantees: both answers hold however long the data center was stopped. A process that ends by any signal closes its
//! connections before its parent learns of its end, so that an open connection proves a running process. All processes
//! of a host share the monotonic clock of the start time.

use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::TcpListener;

/// The peer of a connection. Clones refer to the same connection.
#[derive(Debug, Clone)]
pub(super) struct Caller(Option<Arc<TcpStream>>);

impl Caller {
    /// True if the peer runs, from the system's state at this moment and not from buffered data. Yes if that cannot be
    /// checked.
    pub(super) fn is_there(&self) -> bool {
        let Some(stream) = &self.0 else { return true };
        match stream.peek(&mut [0]) {
            // End of stream: the peer closed the connection.
            Ok(0) => false,
            Ok(_) => true,
            // An idle open connection.
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        // The duplicate is non-blocking too: that is a property of the shared socket.
        let handle = stream.io().as_fd().try_clone_to_owned();
        Self(handle.ok().map(|handle| Arc::new(handle.into())))
    }
}

/// Microseconds of the system's monotonic clock.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative on this clock.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000)
}
