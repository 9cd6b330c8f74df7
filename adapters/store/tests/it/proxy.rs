//! Test support: a proxy between a client and its store that breaks connections as networks do: over TCP, or in memory.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Clear,
    /// Connections stay open and new ones are accepted, but no bytes pass, as on a half-open connection.
    BlackHole,
    /// Bytes from the store do not pass; bytes to the store do.
    Deaf,
}

#[derive(Debug, Clone, Copy)]
struct State {
    weather: Weather,
    /// Connections with a lower number are cut.
    cuts: u64,
    /// Connections with a lower number no longer carry bytes.
    strands: u64,
}

/// The path between a client and its store.
#[derive(Debug, Clone)]
pub(crate) struct Way(watch::Sender<State>);

impl Way {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State { weather: Weather::Clear, cuts: 0, strands: 0 }))
    }

    pub(crate) fn weather(&self, weather: Weather) {
        self.0.send_modify(|state| state.weather = weather);
    }

    /// Resets every connection; new ones are accepted.
    pub(crate) fn cut(&self) {
        self.0.send_modify(|state| state.cuts += 1);
    }

    /// Leaves every connection half-open for good; new ones work.
    pub(crate) fn strand(&self) {
        self.0.send_modify(|state| state.strands += 1);
    }

    /// Carries bytes in both directions until one side ends or the path is cut.
    pub(crate) async fn carry<C, S>(self, client: C, server: S)
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut state = self.0.subscribe();
        let born = *state.borrow();
        let (from_client, to_client) = split(client);
        let (from_server, to_server) = split(server);
        let deaf = [Weather::BlackHole, Weather::Deaf];
        tokio::select! {
            biased;
            _ = state.wait_for(|state| state.cuts > born.cuts) => {}
            () = copy(from_client, to_server, self.0.subscribe(), born.strands, &[Weather::BlackHole]) => {}
            () = copy(from_server, to_client, self.0.subscribe(), born.strands, &deaf) => {}
        }
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    born: u64,
    held: &[Weather],
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if state.wait_for(|state| state.strands == born && !held.contains(&state.weather)).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

/// A path over TCP; it ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    way: Way,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let way = Way::new();
        let task = tokio::spawn(accept(listener, upstream, way.clone()));
        Self { address, way, task }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn weather(&self, weather: Weather) {
        self.way.weather(weather);
    }

    pub(crate) fn cut(&self) {
        self.way.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: String, way: Way) {
    // Dropped with the task, so that its connections end too.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, way) = (upstream.clone(), way.clone());
        connections.spawn(async move {
            if let Ok(server) = TcpStream::connect(upstream).await {
                way.carry(client, server).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}
