//! Sets the options of the sockets of rivers, and raises the limit of open files.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{MAX_CONNECTIONS, RESERVED_FILES};

/// Connects to an upstream.
///
/// # Errors
/// The upstream refuses, or does not answer in time.
pub(crate) async fn dial(
    address: SocketAddr,
    limit: Duration,
    keep_alive: Duration,
) -> io::Result<TcpStream> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    let stream = timeout(limit, TcpStream::connect(address)).await.map_err(late)??;
    set_socket_options(&stream, keep_alive)?;
    Ok(stream)
}

/// Sends each write at once, and probes an idle peer.
///
/// # Errors
/// The peer has closed the connection already.
pub(crate) fn set_socket_options(stream: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, keep_alive)?;
    sockopt::set_tcp_keepintvl(stream, keep_alive)?;
    Ok(())
}

/// Upper bound of connections: two file descriptors each, after the limit of this process has been raised as far as it
/// may be.
///
/// # Errors
/// The limit does not suffice for a single connection.
pub(crate) fn connection_capacity() -> Result<usize> {
    let needed = RESERVED_FILES + 2 * MAX_CONNECTIONS as u64;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX).min(needed);
    let mut files = limit.current.unwrap_or(u64::MAX);
    if files < maximum {
        setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: limit.maximum })
            .with_context(|| format!("cannot raise the limit of open files to {maximum}"))?;
        files = maximum;
    }
    let connections = usize::try_from(files.saturating_sub(RESERVED_FILES) / 2)?.min(MAX_CONNECTIONS);
    ensure!(
        connections > 0,
        "the limit of open files is {files}, too few for one connection: raise it to {needed} (ulimit -n)"
    );
    Ok(connections)
}
