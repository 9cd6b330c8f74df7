//! [`EmbeddedEtcd`]: the handle of an open embedded store, with its listeners, its clients and its shutdown.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::auto_compaction::AutoCompactor;
use crate::batch::WriterHead;
use crate::failure::Failure;
use crate::file::{OpenedFile, open_store};
use crate::leases::TimedLeases;
use crate::limits::{DUPLEX_BYTES, LEASE_RETRY};
use crate::net::{ServerHandle, ServerTls, TlsError, direct_client, serve_connection, serve_listener};
use crate::options::{Commit, OpenError, Options};
use crate::random::SplitMix64;
use crate::recent::RecentRevisions;
use crate::request_error::RequestError;
use crate::services::ServiceState;
use crate::store::{MAX_WAITING_WRITES, Operation, State, Store};
use crate::writer::{Writer, WriterSetup};

/// An open store.
///
/// Dropping it closes the store in the background; [`EmbeddedEtcd::shutdown`] closes it and waits.
#[derive(Debug)]
pub struct EmbeddedEtcd {
    store: Arc<Store>,
    router: axum::Router,
    own: axum::Router,
    left: EarlierLeases,
    leases: JoinHandle<()>,
    writer: Option<JoinHandle<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the embedded store cannot listen on {address} (`embedded.listen`)")]
    Listen { address: SocketAddr, source: std::io::Error },
    /// The operating system returned no local address.
    #[error("cannot read the local address of the embedded store's listener from the operating system")]
    Address(#[source] std::io::Error),
    #[error("cannot set up TLS for the listener of the embedded store")]
    Tls(#[from] TlsError),
}

impl EmbeddedEtcd {
    /// Opens a store. Must be called on a tokio runtime with time. The whole file is read before this returns.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let OpenedFile { database, disk, loaded, lock } = open_store(&options)?;
        let (sender, jobs) = mpsc::channel(MAX_WAITING_WRITES);
        let mut lease_ids = SplitMix64::new(options.seed ^ loaded.identity.term);
        // Skip one number, so that the lease ids differ from the member and cluster ids.
        lease_ids.next();
        let noted = loaded.leases.iter().filter_map(|(id, lease)| {
            lease.owner.as_ref().map(|owner| LeftLease { id, owner: owner.to_string() })
        });
        let noted = noted.collect();
        let mut auto_compactor = AutoCompactor::new(options.auto_compaction);
        for (main, bytes) in loaded.index.bytes_after(loaded.view.compacted) {
            auto_compactor.record_write(main, bytes);
        }
        let setup = WriterSetup {
            head: WriterHead {
                view: loaded.view,
                leases: loaded.leases.clone(),
                alarms: loaded.alarms,
                lease_ids,
            },
            auto_compactor,
            superseded: loaded.superseded,
            quota_bytes: options.quota_bytes,
            cache_bytes: options.cache_bytes,
        };
        let state = State {
            index: loaded.index,
            view: loaded.view,
            leases: TimedLeases::with_full_ttls(loaded.leases, Instant::now()),
            recent: RecentRevisions::default(),
            alarms: loaded.alarms,
        };
        let store = Arc::new(Store::new(
            loaded.identity,
            disk,
            database,
            state,
            loaded.data_bytes,
            options.max_request_bytes,
            sender,
        ));
        let left = EarlierLeases { store: Arc::downgrade(&store), leases: noted };
        let lock = Lock { file: lock, failure: store.failure.clone() };
        let writer = Writer::new(Arc::clone(&store), jobs, setup);
        let (mut task, mut thread) = (None, None);
        match options.commit {
            Commit::Inline => {
                task = Some(tokio::spawn(async move {
                    writer.run().await;
                    // Release the directory only after the file is closed.
                    drop(lock);
                }));
            }
            Commit::Thread => thread = Some(start_thread(writer, lock)?),
        }
        let api = ServiceState::new(Arc::clone(&store), &options.name, &options.advertise_client_urls);
        let router = api.router();
        let own =
            options.owner.as_deref().map_or_else(|| router.clone(), |owner| api.for_owner(owner).router());
        let leases = tokio::spawn(end_leases(Arc::clone(&store)));
        Ok(Self { store, router, own, left, leases, writer: task, thread })
    }

    /// Time until a lease expires unless it is renewed; `None` if the lease does not exist.
    #[must_use]
    pub fn lease_remaining(&self, id: i64) -> Option<std::time::Duration> {
        self.store.lock_state().leases.remaining_time(id, Instant::now())
    }

    /// Listens on `address` and serves; with `tls`, only over TLS.
    pub async fn serve(
        &self,
        address: SocketAddr,
        tls: Option<&ServerTls>,
    ) -> Result<ServerHandle, ServeError> {
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
        self.serve_on(listener, tls)
    }

    pub fn serve_on(
        &self,
        listener: TcpListener,
        tls: Option<&ServerTls>,
    ) -> Result<ServerHandle, ServeError> {
        let tls = tls.map(ServerTls::load_config).transpose()?;
        serve_listener(listener, tls, self.router.clone(), self.store.watch_stop())
            .map_err(ServeError::Address)
    }

    /// An in-memory connection in place of TCP, for gRPC clients. A test can wrap, delay or drop it.
    pub fn connect_in_memory(&self) -> DuplexStream {
        let (client, server) = tokio::io::duplex(DUPLEX_BYTES);
        tokio::spawn(serve_connection(server, self.router.clone(), self.store.watch_stop()));
        client
    }

    /// The owner's own client. It calls the services directly, without a connection. Its leases are recorded with
    /// [`Options::owner`].
    pub async fn direct_client(&self) -> Result<etcd_client::Client, etcd_client::Error> {
        direct_client(self.own.clone()).await
    }

    /// Leases of earlier owners, as of the opening of this store.
    #[must_use]
    pub fn earlier_leases(&self) -> EarlierLeases {
        self.left.clone()
    }

    /// The reason for the store's failure. A failed store neither reads nor writes; restart the process.
    pub fn failure_reason(&self) -> Option<String> {
        self.store.failure.reason()
    }

    /// Waits until the store fails. The future does not keep the store open.
    pub fn wait_for_failure(&self) -> impl Future<Output = String> + Send + 'static {
        let failure = self.store.failure.clone();
        async move { failure.wait().await }
    }

    /// Ends streams, commits pending writes, closes the file, and returns when all this is done.
    pub async fn shutdown(mut self) {
        self.store.stop();
        match self.store.close().await {
            // Already stopped: the writer has closed the file.
            Ok(()) | Err(RequestError::Stopped) => {}
            Err(refusal) => {
                // The storage does not answer, so waiting for the writer would not end either.
                tracing::warn!(%refusal, "the embedded store did not close in time");
                return;
            }
        }
        if let Some(writer) = self.writer.take()
            && let Err(error) = writer.await
        {
            tracing::error!(%error, "the embedded store's writer failed");
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the embedded store's writer panicked");
        }
    }
}

/// A lease of an earlier owner's own client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftLease {
    pub id: i64,
    pub owner: String,
}

/// Leases of earlier owners. Does not keep the store open.
#[derive(Debug, Clone)]
pub struct EarlierLeases {
    store: Weak<Store>,
    leases: Vec<LeftLease>,
}

impl EarlierLeases {
    #[must_use]
    pub fn leases(&self) -> &[LeftLease] {
        &self.leases
    }

    /// Time until a lease expires; `None` if it has ended or the store is closed.
    #[must_use]
    pub fn remaining_time(&self, lease: &LeftLease) -> Option<Duration> {
        self.store.upgrade()?.lock_state().leases.remaining_time(lease.id, Instant::now())
    }

    /// Revokes a lease. A lease that has ended is not an error.
    ///
    /// # Errors
    /// The store does not write; the text gives the reason.
    pub async fn end(&self, lease: &LeftLease) -> Result<(), String> {
        let Some(store) = self.store.upgrade() else { return Ok(()) };
        match store.write(Operation::Revoke { id: lease.id }).await {
            Ok(_) | Err(RequestError::LeaseNotFound | RequestError::Stopped) => Ok(()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }
}

/// Lock of the directory against other processes. After a failure this process holds it until its exit: the next owner
/// takes the lock as proof that no task of the earlier owner still uses the store.
struct Lock {
    file: Option<File>,
    failure: Failure,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.failure.reason().is_some() || std::thread::panicking() {
            std::mem::forget(self.file.take());
        }
    }
}

impl Drop for EmbeddedEtcd {
    fn drop(&mut self) {
        self.store.stop();
        self.leases.abort();
        self.store.close_soon();
    }
}

/// The only thread that this crate starts.
#[expect(
    clippy::disallowed_methods,
    reason = "the runtime must never wait for the disk; `Commit::Inline` is for runs that must repeat"
)]
fn start_thread(writer: Writer, lock: Lock) -> Result<std::thread::JoinHandle<()>, OpenError> {
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("etcd-writer".to_owned())
        .spawn(move || {
            // The thread uses the runtime's clock.
            let _entered = runtime.enter();
            writer.run_blocking();
            drop(lock);
        })
        .map_err(OpenError::Thread)
}

async fn end_leases(store: Arc<Store>) {
    // Without this task no lease ends, and no instance learns of that.
    let _fails = store.failure.fail_on_panic("the end of leases");
    let stopping = store.watch_stop();
    loop {
        let next = store.lock_state().leases.next_end();
        let until_next = async {
            match next {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stopping.wait() => return,
            () = store.lease_granted.notified() => continue,
            () = until_next => {}
        }
        if let Err(refusal) = store.write(Operation::RevokeEnded).await {
            tracing::warn!(%refusal, "ended leases could not be revoked; trying again");
            tokio::time::sleep(LEASE_RETRY).await;
        }
    }
}
