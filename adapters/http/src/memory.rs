//! HTTP connections in memory instead of a network, for the simulation and tests.

use std::io;

use axum::serve::Listener;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::limits::{BACKLOG, BUFFER_BYTES};

/// Accepts the connections of its [`Dialer`].
#[derive(Debug)]
pub struct MemoryListener(mpsc::Receiver<DuplexStream>);

#[derive(Debug, Clone)]
pub struct Dialer(mpsc::Sender<DuplexStream>);

#[must_use]
pub fn memory_listener() -> (Dialer, MemoryListener) {
    let (dialer, accepts) = mpsc::channel(BACKLOG);
    (Dialer(dialer), MemoryListener(accepts))
}

impl Dialer {
    /// Connects as soon as the backlog has room.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] when the listener is gone.
    pub async fn connect(&self) -> io::Result<DuplexStream> {
        let (here, there) = tokio::io::duplex(BUFFER_BYTES);
        self.0.send(there).await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(here)
    }
}

impl Listener for MemoryListener {
    type Io = DuplexStream;
    type Addr = &'static str;

    async fn accept(&mut self) -> (DuplexStream, &'static str) {
        match self.0.recv().await {
            Some(io) => (io, "memory"),
            // All dialers are gone, so no connection can arrive.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<&'static str> {
        Ok("memory")
    }
}
