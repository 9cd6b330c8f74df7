//! Who asks for a repair: whether its process is still there, and when it began.
//!
//! Guarantees: both are true however long the data center stood still meanwhile. A process that ends, by whatever signal, closes its
//! connections before anybody hears of its end, so who is seen at the other end of one does run; and all processes of a host share
//! the clock that the beginning is told by, which nobody sets.

use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::TcpListener;

/// The other end of a connection. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Caller(Option<Arc<TcpStream>>);

impl Caller {
    /// Whether it is there, by what the system knows now: not by what was read from it before. Who cannot be looked at is.
    pub(super) fn is_there(&self) -> bool {
        let Some(stream) = &self.0 else { return true };
        match stream.peek(&mut [0]) {
            // The end of what it sends: it closed the connection.
            Ok(0) => false,
            Ok(_) => true,
            // It sends nothing more, and waits.
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        // Does not block either: that is a property of what both handles are of.
        let handle = stream.io().as_fd().try_clone_to_owned();
        Self(handle.ok().map(|handle| Arc::new(handle.into())))
    }
}

/// Microseconds of the system's monotonic clock.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative on this clock.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000)
}
