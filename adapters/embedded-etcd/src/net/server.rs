use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::serve_connection;
use crate::bell::{Latch, Latched};
use crate::limits::{ACCEPT_PAUSE, HANDSHAKE_TIMEOUT, MAX_CONNECTIONS};

/// A running listener. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: Arc<Latch>,
    task: JoinHandle<()>,
}

impl ServerHandle {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, lets open requests end within a short time, and returns when all connections are closed.
    pub async fn shutdown(self) {
        self.stop.set();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the embedded store's listener failed");
        }
    }
}

pub(crate) fn serve_listener(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    store_stopping: Latched,
) -> std::io::Result<ServerHandle> {
    let address = listener.local_addr()?;
    let stop = Arc::new(Latch::new());
    let task = tokio::spawn(accept_connections(
        listener,
        tls.map(TlsAcceptor::from),
        router,
        store_stopping,
        Arc::clone(&stop),
    ));
    Ok(ServerHandle { address, stop, task })
}

async fn accept_connections(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    store_stopping: Latched,
    stop: Arc<Latch>,
) {
    let stopping = stop.subscribe();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Reap ended connections, so that the set does not grow.
        while connections.try_join_next().is_some() {}
        let place = Arc::clone(&places).acquire_owned();
        let accepted = tokio::select! {
            biased;
            () = stopping.wait() => break,
            () = store_stopping.wait() => break,
            accepted = async { (place.await, listener.accept().await) } => accepted,
        };
        let (Ok(place), Ok((stream, _))) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (tls, router, stopping) = (tls.clone(), router.clone(), stop.subscribe());
        connections.spawn(async move {
            handshake_and_serve(stream, tls, router, stopping).await;
            drop(place);
        });
    }
    drop(listener);
    stop.set();
    while connections.join_next().await.is_some() {}
}

async fn handshake_and_serve(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, stopping: Latched) {
    // Answers are small and latency matters.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection to the embedded store ended at once");
        return;
    }
    let Some(tls) = tls else { return serve_connection(stream, router, stopping).await };
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, router, stopping).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake with the embedded store failed"),
        Err(_) => tracing::debug!("a TLS handshake with the embedded store took too long"),
    }
}
