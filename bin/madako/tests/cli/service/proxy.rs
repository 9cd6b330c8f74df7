//! Test support: a proxy between a service and its store that simulates faults of a network.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The treatment of connections and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything passes.
    Open,
    /// Bytes of the client are kept, and arrive when the proxy is open again; bytes of the store pass.
    Mute,
    /// Connections are cut, and new ones are closed at once.
    Cut,
}

/// The proxy; it ends when dropped.
pub(crate) struct Proxy {
    endpoint: String,
    way: watch::Sender<Way>,
    kept: watch::Receiver<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (way, seen) = watch::channel(Way::Open);
        let (keeps, kept) = watch::channel(Vec::new());
        let task = tokio::spawn(accept(listener, upstream, seen, keeps));
        Self { endpoint, way, kept, task }
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// True if the kept bytes of the client contain this text.
    pub(crate) fn keeps(&self, text: &str) -> bool {
        self.kept.borrow().windows(text.len()).any(|window| window == text.as_bytes())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: String,
    way: watch::Receiver<Way>,
    keeps: watch::Sender<Vec<u8>>,
) {
    // Dropped with the task, so that its connections end, too.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (upstream, mut way, keeps) = (upstream.clone(), way.clone(), keeps.clone());
        if *way.borrow() == Way::Cut {
            continue;
        }
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(upstream).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let speech = way.clone();
            tokio::select! {
                _ = way.wait_for(|way| *way == Way::Cut) => {}
                () = speak(from_client, to_server, speech, keeps) => {}
                () = listen(from_server, to_client) => {}
            }
        });
    }
}

async fn listen(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    // Either end may disappear.
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

/// Carries the client's bytes. While muted it reads and keeps all of them: they have left the client.
async fn speak(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
    keeps: watch::Sender<Vec<u8>>,
) {
    let mut bytes = vec![0; 64 * 1024];
    let mut waiting = Vec::new();
    loop {
        let open = *way.borrow_and_update() == Way::Open;
        if open && !waiting.is_empty() {
            if to.write_all(&waiting).await.is_err() {
                return;
            }
            waiting.clear();
        }
        tokio::select! {
            changed = way.changed() => if changed.is_err() { return },
            read = from.read(&mut bytes) => {
                let Ok(n @ 1..) = read else { return };
                waiting.extend_from_slice(&bytes[..n]);
                if *way.borrow() != Way::Open {
                    keeps.send_modify(|kept| kept.extend_from_slice(&bytes[..n]));
                }
            }
        }
    }
}
