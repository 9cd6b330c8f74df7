//! The embedded store as a process of its own: it can be killed and started again, on a disk that forgets.
//!
//! Guarantees: a killed store writes nothing more and answers nobody; a started one has what was synced.
//!
//! Does not: break the connections of those who were connected; their links do ([`crate::network`]).

use std::io;
use std::sync::{Arc, Mutex};

use etcd_client::Client;
use madako_embedded_etcd::{Backend, Commit, Contents, EmbeddedEtcd, OpenError, Options};
use tokio::io::DuplexStream;
use tokio::sync::Notify;

use crate::disk::{ForgetfulDisk, Forgotten};

/// Most bytes of a write to a store that holds what another one held: as the service's own store takes them.
const COPIED_REQUEST_BYTES: usize = 10 * 1024 * 1024;

struct Inside {
    disk: Option<ForgetfulDisk>,
    contents: Option<Contents>,
    seed: u64,
    running: Mutex<Option<Arc<EmbeddedEtcd>>>,
    /// Rings when it was started. Whoever waits is woken in the order of waiting: a `watch` channel would wake them in an order
    /// that no seed decides.
    starts: Notify,
}

/// The store. Clones are the same one.
#[derive(Clone)]
pub struct StoreProcess(Arc<Inside>);

impl StoreProcess {
    /// A store in memory, which runs and is never killed.
    ///
    /// # Panics
    /// Memory refuses to be opened.
    #[must_use]
    pub fn in_memory(seed: u64) -> Self {
        let etcd = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, seed));
        let running = Mutex::new(Some(Arc::new(etcd.unwrap())));
        Self(Arc::new(Inside { disk: None, contents: None, seed, running, starts: Notify::new() }))
    }

    /// A store on a disk. It does not run yet.
    #[must_use]
    pub fn on(disk: ForgetfulDisk, seed: u64) -> Self {
        Self::beginning_with(None, disk, seed)
    }

    /// The same; a new store begins with what another one held.
    #[must_use]
    pub fn beginning_with(contents: Option<Contents>, disk: ForgetfulDisk, seed: u64) -> Self {
        let starts = Notify::new();
        Self(Arc::new(Inside { disk: Some(disk), contents, seed, running: Mutex::new(None), starts }))
    }

    /// Starts it, if it does not run.
    ///
    /// # Errors
    /// What the disk holds cannot be opened.
    pub fn start(&self) -> Result<(), OpenError> {
        let mut running = self.0.running.lock().unwrap();
        if running.is_some() {
            return Ok(());
        }
        let disk = self.0.disk.as_ref().expect("a store in memory always runs");
        let mut options = Options::new(Backend::Custom(disk.open()), Commit::Inline, self.0.seed);
        if let Some(contents) = &self.0.contents {
            options.max_request_bytes = COPIED_REQUEST_BYTES;
            options.contents = Some(contents.clone());
        }
        *running = Some(Arc::new(EmbeddedEtcd::open(options)?));
        drop(running);
        self.0.starts.notify_waiters();
        Ok(())
    }

    /// Ends it at once. Says what its disk forgot.
    pub fn kill(&self) -> Forgotten {
        let forgotten = self.0.disk.as_ref().map(ForgetfulDisk::crash).unwrap_or_default();
        // Its tasks end by themselves: each finds the disk gone and nobody listening.
        drop(self.0.running.lock().unwrap().take());
        forgotten
    }

    /// The store itself; `None`: it does not run.
    #[must_use]
    pub fn etcd(&self) -> Option<Arc<EmbeddedEtcd>> {
        self.0.running.lock().unwrap().clone()
    }

    /// Why it writes nothing any more, if its disk failed it.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.etcd().and_then(|etcd| etcd.failure())
    }

    /// A connection, as a listener would take it.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        self.etcd()
            .map(|etcd| etcd.connect_in_memory())
            .ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }

    /// A client that needs no connection, for judges and for people whose ways do not matter; `None`: it does not run.
    pub async fn client(&self) -> Option<Client> {
        let etcd = self.etcd()?;
        Some(etcd.client().await.unwrap())
    }

    /// A client for people, who are told that nobody listens.
    ///
    /// # Errors
    /// It does not run.
    pub async fn people(&self) -> Result<Box<Client>, etcd_client::Error> {
        self.client()
            .await
            .map(Box::new)
            .ok_or_else(|| etcd_client::Error::IoError(io::ErrorKind::ConnectionRefused.into()))
    }

    /// A client of the store that runs, or of the next one that does.
    pub async fn next_client(&self) -> Client {
        loop {
            let mut started = std::pin::pin!(self.0.starts.notified());
            // Before the look, so that no start is missed.
            started.as_mut().enable();
            if let Some(client) = self.client().await {
                return client;
            }
            started.await;
        }
    }
}
