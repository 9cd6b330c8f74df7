//! The HTTP server: accepts connections, limits their number, and drains them at shutdown.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use madako_protocol::telemetry::CountedGauge;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::connection::{Client, answer_connection};
use crate::placement::ClientCertificate;
use crate::telemetry::madako_http_connections;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections; further ones wait in the listener's backlog.
    pub connections: usize,
    /// Time for the head of a request, from the end of the previous one; also limits idle connections.
    pub header_read: Duration,
    pub header_bytes: usize,
    /// Time for the answer to a request, until its body begins.
    pub request: Duration,
    /// Time for which a client may stop reading an answer.
    pub write_stall: Duration,
    /// Time for pending answers after the shutdown signal.
    pub drain: Duration,
}

impl Limits {
    /// For the few clients of an instance: probes, Prometheus, a browser. CKE also reads for 30 s.
    pub const DEFAULT: Self = Self {
        connections: 256,
        header_read: Duration::from_secs(30),
        header_bytes: 16 * 1024,
        request: Duration::from_secs(10),
        write_stall: Duration::from_secs(10),
        // The service ends within 2 s of its signal; that includes this time and the rest of its shutdown.
        drain: Duration::from_secs(1),
    };

    /// For the clients of placement too: room for every watch that its settings allow, and as many other connections.
    pub const PLACEMENT: Self = Self { connections: 4_096, ..Self::DEFAULT };
}

#[derive(Debug, thiserror::Error)]
#[error("the HTTP server cannot listen on {address}")]
pub struct BindError {
    /// The address as it was given.
    pub address: String,
    #[source]
    pub source: io::Error,
}

/// Listens on `host:port`; without a host on all addresses, as in Go's programs.
///
/// # Errors
/// [`BindError`] names the address.
pub async fn bind_listener(address: &str) -> Result<TcpListener, BindError> {
    let listener = if address.starts_with(':') {
        // The first address also accepts IPv4; if IPv6 is disabled, only the second works.
        match TcpListener::bind(format!("[::]{address}")).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind(format!("0.0.0.0{address}")).await,
        }
    } else {
        TcpListener::bind(address).await
    };
    listener.map_err(|source| BindError { address: address.to_owned(), source })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeOutcome {
    /// Connections that were cut off because they did not end within the drain time.
    pub cut_off: usize,
}

/// Extracts the client's certificate from the listener's peer information.
pub type IdentifyPeer<A> = fn(&A) -> Option<ClientCertificate>;

/// For a listener without client certificates.
pub fn ignore_client_certificate<A>(_: &A) -> Option<ClientCertificate> {
    None
}

/// Answers the listener's connections with `router` until `shutdown` is ready.
///
/// Dropping the future cuts off every connection.
pub async fn serve<L>(
    mut listener: L,
    router: Router,
    limits: Limits,
    identify: IdentifyPeer<L::Addr>,
    shutdown: impl Future<Output = ()>,
) -> ServeOutcome
where
    L: Listener,
    L::Addr: Display,
{
    let mut shutdown = std::pin::pin!(shutdown);
    let places = Arc::new(Semaphore::new(limits.connections));
    let closing = watch::Sender::new(false);
    // Ends its tasks when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // Before the accept, so that excess connections stay in the backlog.
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => report_panic(ended),
            Some((place, (io, peer))) = accepted => {
                let client = Client { peer: peer.to_string(), certificate: identify(&peer) };
                let serving = answer_connection(io, client, router.clone(), limits, closing.subscribe());
                connections.spawn(async move {
                    let _place = place;
                    let _open = CountedGauge::new(madako_http_connections());
                    serving.await;
                });
            }
            else => break,
        }
    }
    drop(listener);
    closing.send_replace(true);
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            report_panic(ended);
        }
    };
    // The remaining ones are counted and cut off below.
    let _ = tokio::time::timeout(limits.drain, drained).await;
    let cut_off = connections.len();
    connections.shutdown().await;
    ServeOutcome { cut_off }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a connection panicked");
    }
}
