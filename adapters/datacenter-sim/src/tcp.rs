//! Serves the simulated registry and the simulated Prometheus on a TCP socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::service::SimulatedRegistry;

/// Concurrent connections: the instances and one browser need a handful.
const MAX_CONNECTIONS: usize = 256;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a retry after a failed accept or while the address is still in use.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl SimulatedRegistry {
    /// Serves on a listener until the future is dropped. While connections are refused, its address is released;
    /// afterwards it is bound again.
    ///
    /// # Errors
    /// The listener has no address.
    pub async fn serve_tcp(self, listener: TcpListener) -> io::Result<()> {
        let address = listener.local_addr()?;
        let mut listener = Some(listener);
        loop {
            let open = match listener.take() {
                Some(listener) => listener,
                None => bind_listener(address).await,
            };
            // Clients see the drop of the listener and of the connections as a refusal.
            self.serve_while_open(open).await;
            self.faults().wait_until_refusing(false).await;
        }
    }

    async fn serve_while_open(&self, listener: TcpListener) {
        let router = self.router();
        tokio::select! {
            biased;
            () = self.faults().wait_until_refusing(true) => {}
            () = serve(&listener, &router) => {}
        }
    }
}

/// Serves connections until the future is dropped, which closes every connection.
pub(crate) async fn serve(listener: &TcpListener, router: &axum::Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => { connections.spawn(serve_one(stream, router.clone())); }
                Err(error) => {
                    tracing::debug!(%error, "a simulated server cannot take a connection");
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            },
        }
    }
}

async fn serve_one(stream: TcpStream, router: axum::Router) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to a simulated server ended early");
    }
}

async fn bind_listener(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => {
                tracing::warn!(%address, %error, "the simulated registry's address is taken; trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}
