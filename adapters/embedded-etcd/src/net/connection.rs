//! One connection: HTTP/2 for gRPC, HTTP/1.1 for health and version, told apart by the first bytes.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::bell::Latched;

/// How long a connection may be silent before it is asked whether the client is there: a third of etcd's two hours
/// would hide a partition for a night; this finds it within half a minute.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long the client may take to answer that: gRPC's usual 20 s.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests that one connection may have open: each watch stream is one. Go's clients multiplex over one connection.
const MAX_CONCURRENT_STREAMS: u32 = 1024;
/// How long a client of HTTP/1.1 may take to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long requests may take to end after the store began to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a stream that may be on their way unacknowledged: a whole request, and ranges without stalls.
const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Serves one client until it goes or the store stops.
pub(crate) async fn serve_connection<S>(stream: S, router: Router, stopping: Latched)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = stopping.wait() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(DRAIN_TIMEOUT, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection to the embedded store ended");
    }
}
