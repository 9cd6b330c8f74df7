//! The embedded store as a simulated process of its own: a test can kill it and start it again on a disk that loses
//! unsynced writes.
//!
//! Guarantees: a killed store writes and answers nothing; a restarted one has all synced data.
//!
//! Does not: break the connections of clients; [`crate::network`] does.

use std::io;
use std::sync::{Arc, Mutex};

use etcd_client::Client;
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, InitialContents, OpenError, Options};
use tokio::io::DuplexStream;
use tokio::sync::Notify;

use crate::disk::{ForgetfulDisk, ForgottenWrites};

/// Maximum bytes of a write to a store with copied contents: the limit of the service's own store.
const COPIED_REQUEST_BYTES: usize = 10 * 1024 * 1024;

struct StoreProcessState {
    disk: Option<ForgetfulDisk>,
    contents: Option<InitialContents>,
    seed: u64,
    running: Mutex<Option<Arc<EmbeddedEtcd>>>,
    /// Notified at each start. `Notify` wakes waiters in FIFO order; the order of a `watch` channel does not depend on
    /// the seed.
    starts: Notify,
}

/// The store. Clones are the same one.
#[derive(Clone)]
pub struct StoreProcess(Arc<StoreProcessState>);

impl StoreProcess {
    /// A store in memory that always runs.
    ///
    /// # Panics
    /// The store in memory cannot be opened.
    #[must_use]
    pub fn start_in_memory(seed: u64) -> Self {
        let etcd = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, seed));
        let running = Mutex::new(Some(Arc::new(etcd.unwrap())));
        Self(Arc::new(StoreProcessState { disk: None, contents: None, seed, running, starts: Notify::new() }))
    }

    #[must_use]
    pub fn on_disk(disk: ForgetfulDisk, seed: u64) -> Self {
        Self::beginning_with(None, disk, seed)
    }

    /// A stopped store on a disk; a new store starts with `contents`.
    #[must_use]
    pub fn beginning_with(contents: Option<InitialContents>, disk: ForgetfulDisk, seed: u64) -> Self {
        let starts = Notify::new();
        Self(Arc::new(StoreProcessState {
            disk: Some(disk),
            contents,
            seed,
            running: Mutex::new(None),
            starts,
        }))
    }

    /// Starts the store if it does not run.
    ///
    /// # Errors
    /// The data on the disk cannot be opened.
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

    /// Kills the store, and returns what its disk lost.
    pub fn kill(&self) -> ForgottenWrites {
        let forgotten = self.0.disk.as_ref().map(ForgetfulDisk::crash).unwrap_or_default();
        // The store's tasks end by themselves: their disk fails, and no client listens.
        drop(self.0.running.lock().unwrap().take());
        forgotten
    }

    #[must_use]
    pub fn running_etcd(&self) -> Option<Arc<EmbeddedEtcd>> {
        self.0.running.lock().unwrap().clone()
    }

    /// The reason why the store no longer writes, after a failure of its disk.
    #[must_use]
    pub fn failure_reason(&self) -> Option<String> {
        self.running_etcd().and_then(|etcd| etcd.failure_reason())
    }

    /// A connection as a listener accepts it.
    ///
    /// # Errors
    /// The store does not run.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        self.running_etcd()
            .map(|etcd| etcd.connect_in_memory())
            .ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }

    /// A client without a simulated link, for judges and operators; `None` if the store does not run.
    pub async fn connect_client(&self) -> Option<Client> {
        let etcd = self.running_etcd()?;
        Some(etcd.direct_client().await.unwrap())
    }

    /// A client for operators, with an error that says that the store refuses connections.
    ///
    /// # Errors
    /// The store does not run.
    pub async fn operator_client(&self) -> Result<Box<Client>, etcd_client::Error> {
        self.connect_client()
            .await
            .map(Box::new)
            .ok_or_else(|| etcd_client::Error::IoError(io::ErrorKind::ConnectionRefused.into()))
    }

    /// Waits until the store runs, and returns a client.
    pub async fn next_client(&self) -> Client {
        loop {
            let mut started = std::pin::pin!(self.0.starts.notified());
            // Registers before the check, so that no start is missed.
            started.as_mut().enable();
            if let Some(client) = self.connect_client().await {
                return client;
            }
            started.await;
        }
    }
}
