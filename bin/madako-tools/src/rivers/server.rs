//! Accepts the TCP connections of rivers, finds an upstream for each, and drains them at the end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::SysRng;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::limits::ACCEPT_PAUSE;
use crate::rivers::log::Log;
use crate::rivers::relay::relay_streams;
use crate::rivers::settings::Settings;
use crate::rivers::sockets;
use crate::rivers::upstreams::{Upstream, is_lost};

pub(crate) struct Server {
    upstreams: Vec<Arc<Upstream>>,
    keep_alive: Duration,
    log: Log,
    chance: Mutex<ChaCha8Rng>,
    /// The last connection found no upstream. The log notes the change, not each connection.
    starved: AtomicBool,
}

impl Server {
    /// Starts the health checks.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn start(settings: Settings, log: Log) -> Result<Arc<Self>> {
        let chance = ChaCha8Rng::try_from_rng(&mut SysRng)
            .context("cannot get random numbers from the operating system")?;
        let upstream = |address| Arc::new(Upstream::new(address, &settings));
        let server = Arc::new(Self {
            upstreams: settings.upstreams.iter().copied().map(upstream).collect(),
            keep_alive: settings.keep_alive,
            log,
            chance: Mutex::new(chance),
            starved: AtomicBool::new(false),
        });
        for upstream in &server.upstreams {
            let (server, upstream) = (server.clone(), upstream.clone());
            tokio::spawn(async move { upstream.watch(settings.check, &server.log).await });
        }
        Ok(server)
    }

    /// Serves up to `capacity` connections at a time until `stop` ends, and returns those that are left.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        capacity: usize,
        stop: impl Future<Output = ()>,
    ) -> JoinSet<()> {
        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return connections,
                Some(ended) = connections.join_next() => self.note_end(ended),
                accepted = listener.accept(), if connections.len() < capacity => match accepted {
                    Ok((client, _)) => {
                        connections.spawn(self.clone().serve_connection(client));
                        if connections.len() == capacity {
                            self.log.log_warning("no more connections are accepted for now", &[("connections", &capacity)]);
                        }
                    }
                    Err(error) => {
                        self.log.log_error("cannot accept a connection", &[("error", &error)]);
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Waits for the end of connections, up to a time or the next signal, and ends those that are left.
    pub(crate) async fn drain(
        &self,
        connections: &mut JoinSet<()>,
        limit: Option<Duration>,
        stop: impl Future<Output = ()>,
    ) {
        self.log.log_info("rivers stop", &[("connections", &connections.len())]);
        let late = async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            while let Some(ended) = connections.join_next().await {
                self.note_end(ended);
            }
        };
        tokio::select! {
            () = ended => {}
            () = late => {}
            () = stop => {}
        }
        if !connections.is_empty() {
            self.log.log_warning("rivers cut connections", &[("connections", &connections.len())]);
        }
        connections.shutdown().await;
    }

    fn note_end(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            self.log.log_error("a connection failed", &[("error", &error)]);
        }
    }

    async fn serve_connection(self: Arc<Self>, mut client: TcpStream) {
        if let Err(error) = sockets::set_socket_options(&client, self.keep_alive) {
            self.log.log_debug("a client is gone", &[("error", &error)]);
            return;
        }
        let Some((upstream, health, mut stream)) = self.dial_upstream().await else { return };
        let address = &upstream.address;
        tokio::select! {
            ended = relay_streams(&mut client, &mut stream) => match ended {
                Ok(()) => self.log.log_debug("a connection ends", &[("upstream", address)]),
                Err(error) => {
                    self.log.log_debug("a connection breaks", &[("upstream", address), ("error", &error)]);
                }
            },
            () = is_lost(health) => self.log.log_debug("a connection loses its upstream", &[("upstream", address)]),
        }
    }

    /// A connection to a random healthy upstream, with its health. If all upstreams are unhealthy, each is dialled: one that
    /// started after its last check does not wait for the next.
    async fn dial_upstream(&self) -> Option<(&Upstream, watch::Receiver<bool>, TcpStream)> {
        let mut candidates: Vec<&Upstream> = self.upstreams.iter().map(|upstream| &**upstream).collect();
        candidates.shuffle(&mut *self.chance.lock().unwrap_or_else(PoisonError::into_inner));
        if candidates.iter().any(|upstream| upstream.is_healthy()) {
            candidates.retain(|upstream| upstream.is_healthy());
        }
        let mut last: io::Result<()> = Ok(());
        for upstream in candidates {
            match upstream.dial().await {
                Ok(stream) => {
                    if self.starved.swap(false, Ordering::Relaxed) {
                        self.log.log_info(
                            "connections find an upstream again",
                            &[("address", &upstream.address)],
                        );
                    }
                    return Some((upstream, upstream.note_connection(&self.log), stream));
                }
                Err(error) => {
                    self.log.log_debug("cannot dial", &[("address", &upstream.address), ("error", &error)]);
                    last = Err(error);
                }
            }
        }
        if !self.starved.swap(true, Ordering::Relaxed) {
            let why = last.map_or_else(
                |error| error.to_string(),
                |()| "the last healthy upstream is unhealthy now".to_owned(),
            );
            self.log.log_error("connections find no upstream; rivers close them", &[("error", &why)]);
        }
        None
    }
}
