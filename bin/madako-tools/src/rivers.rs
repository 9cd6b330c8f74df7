//! `rivers`: forwards TCP connections to a random healthy upstream.
//!
//! Guarantees:
//! - Each connection goes to a random healthy upstream, and to the next if that one cannot be dialled. Each upstream is
//!   dialled at most once for a connection; a connection without an upstream is closed.
//! - Bytes and half-closes pass unchanged in both directions.
//! - A TCP connection each check interval decides the health of an upstream. An upstream that turns unhealthy loses its
//!   connections. An upstream counts as healthy until its first check has failed.
//! - SIGTERM and SIGINT stop the listener; connections may end until the shutdown timeout, or until another signal.
//! - Connections and buffers are bounded; an idle connection holds no buffer.
//!
//! Does not: look into the bytes, resolve host names other than `localhost`, or close idle connections.

mod log;
mod relay;
mod server;
mod settings;
mod sockets;
#[cfg(test)]
mod tests;
mod upstreams;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::flags::Failure;
use crate::rivers::log::Log;
use crate::rivers::server::Server;
use crate::rivers::settings::Settings;

pub(crate) const HELP: &str = "Forwards TCP connections to a random healthy upstream.

Usage: rivers --listen ADDRESS:PORT --upstreams ADDRESS:PORT,... [FLAGS]

  --upstreams A:P,...     addresses of the upstreams
  --listen A:P            address for connections
  --shutdown-timeout D    time for connections to end after SIGTERM; 0: no limit (default 10s)
  --dial-timeout D        time for a connection to an upstream; 0: the system's limit (default 10s)
  --dial-keep-alive D     time between keep-alive probes; 0: the default (default 15s)
  --check-interval D      time between health checks of an upstream (default 20s)
  --loglevel LEVEL        critical, error, warning, info or debug (default info)
  --logformat FORMAT      plain, logfmt or json (default plain)
  --logfile FILE          file for the log (default: standard error)

Example: rivers --upstreams=10.0.0.1:6443,10.0.0.2:6443 --listen=127.0.0.1:16443
";

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let settings = Settings::read(arguments)?;
    let log = Log::open(&settings.log)?;
    // One thread: the work of a connection is copying, which the kernel does.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("cannot start the threads of the proxy")?;
    Ok(runtime.block_on(forward_connections(settings, log))?)
}

async fn forward_connections(settings: Settings, log: Log) -> Result<()> {
    let mut stop = StopSignals::new().context("cannot listen for the signals that end the proxy")?;
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("the proxy cannot listen on {} (--listen)", settings.listen))?;
    let capacity = sockets::connection_capacity()?;
    let address = listener.local_addr()?;
    log.log_info("rivers listen", &[("address", &address), ("connections", &capacity)]);
    let shutdown = settings.shutdown;
    let server = Server::start(settings, log)?;
    let mut connections = server.serve(listener, capacity, stop.next_signal()).await;
    server.drain(&mut connections, shutdown, stop.next_signal()).await;
    Ok(())
}

struct StopSignals(Signal, Signal);

impl StopSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    }

    /// Returns at the next signal.
    async fn next_signal(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
}
