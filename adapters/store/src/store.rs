//! [`EtcdStore`]: implements the port `Store` over a connection to etcd.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::Client;
use madako_domain::store::{Epoch, Outcome, Snapshot, StoreError, StoreErrorKind, Transaction};
use madako_protocol::ports::Clock;
use madako_protocol::store::{Campaign, CampaignOptions, Store, WatchEvent};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::campaign::{self, ValidEpochs};
use crate::commit::{commit_together, commit_transaction};
use crate::config::{ConfigError, StoreConfig};
use crate::connections::{BoxedStream, Connection, Connections, Failed, Target};
use crate::encryption::Encryption;
use crate::list::{ReadExtent, list_keys, read_revision};
use crate::namespace::Namespace;
use crate::telemetry::Operation;
use crate::watch::{FeedEvent, WatchedKeys, watch, watch_every_revision};

/// The answer of etcd's request `Status`, as far as operators need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreCondition {
    pub size_bytes: u64,
    /// Alarms and faults in etcd's words, such as a database without space.
    pub alarms: Vec<String>,
}

/// etcd below one prefix. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    connections: Arc<Connections>,
    namespace: Namespace,
    encryption: Encryption,
    epochs: ValidEpochs,
    seed: u64,
    /// Number of generators so far: each purpose has its own.
    purposes: Arc<AtomicU64>,
}

impl EtcdStore {
    /// A store at the configured endpoints. The first request opens the connection.
    ///
    /// # Errors
    /// An invalid setting.
    pub fn open(config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        let targets = config
            .dial_endpoints()?
            .into_iter()
            .map(|(name, endpoint)| Target::Endpoint(name, Box::new(endpoint)));
        Self::new(targets.collect(), config, seed)
    }

    /// A store behind connections from `connect`, which is called for each new connection. Of the settings only prefix,
    /// deadline, user and password are used. For the store in the same process, and for tests.
    ///
    /// # Errors
    /// An invalid setting.
    pub fn with_connector<F>(
        connect: impl Fn() -> F + Send + Sync + 'static,
        config: &StoreConfig,
        seed: u64,
    ) -> Result<Self, ConfigError>
    where
        F: Future<Output = io::Result<BoxedStream>> + Send + 'static,
    {
        let connector =
            Arc::new(move || Box::pin(connect()) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>);
        Self::new(vec![Target::Connector(connector)], config, seed)
    }

    /// A store behind an existing client. Of the settings only prefix, deadline, user and password are used. The client
    /// should use HTTP/2 keep-alive; without it only deadlines detect a half-open connection.
    ///
    /// # Errors
    /// An invalid setting.
    pub fn from_client(client: Client, config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        Self::new(vec![Target::Client(Box::new(client))], config, seed)
    }

    fn new(targets: Vec<Target>, config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        Ok(Self {
            connections: Arc::new(Connections::new(targets, config, seed)?),
            namespace: Namespace::new(&config.prefix),
            encryption: config.encryption.clone(),
            epochs: ValidEpochs::default(),
            seed,
            purposes: Arc::new(AtomicU64::new(0)),
        })
    }

    /// The same store, with a metric of the time of its last answer. For the service; a one-time command has no
    /// scraper.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        self.connections.show_answers(clock);
        self
    }

    /// The endpoint in use. After a failure another one is used.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        self.connections.name()
    }

    /// The same store over the same connection with an empty prefix, that is with absolute keys. The epochs of
    /// campaigns are valid in both.
    #[must_use]
    pub fn with_absolute_keys(&self) -> Self {
        Self { namespace: Namespace::new(""), ..self.clone() }
    }

    #[must_use]
    pub fn prefix(&self) -> &str {
        self.namespace.prefix()
    }

    #[must_use]
    pub fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// The time until a lease expires, and its whole time to live; `None`: the lease is gone.
    ///
    /// # Errors
    /// The store does not answer or refuses.
    pub async fn lease_left(&self, lease: i64) -> Result<Option<(Duration, Duration)>, StoreError> {
        let connections = &self.connections;
        let ask = |connection: Arc<Connection>| async move {
            connection.lease_client().time_to_live(lease, None).await
        };
        let name = format!("{lease:x}");
        let answer =
            connections.send_request(Operation::TimeToLive, &name, connections.timeout(), ask).await?;
        // etcd answers -1 for a lease that is gone.
        let seconds = |number: i64| u64::try_from(number).ok().map(Duration::from_secs);
        Ok(seconds(answer.ttl()).zip(seconds(answer.granted_ttl())))
    }

    /// The size and the alarms of the store, from the endpoint in use; `None`: the user may not ask.
    ///
    /// # Errors
    /// The store does not answer or refuses.
    pub async fn read_condition(&self) -> Result<Option<StoreCondition>, StoreError> {
        let connections = &self.connections;
        let ask = |connection: Arc<Connection>| async move { connection.maintenance_client().status().await };
        match connections.send_request(Operation::Status, "", connections.timeout(), ask).await {
            Ok(answer) => Ok(Some(StoreCondition {
                size_bytes: u64::try_from(answer.db_size()).unwrap_or_default(),
                alarms: answer.errors().iter().map(|alarm| alarm.trim().to_owned()).collect(),
            })),
            Err(Failed { error, .. }) if error.kind == StoreErrorKind::Denied => Ok(None),
            Err(Failed { error, .. }) => Err(error),
        }
    }

    pub(crate) async fn revision(&self) -> Result<i64, StoreError> {
        Ok(read_revision(&self.connections).await?)
    }

    /// Several transactions in one request; see [`commit_together`].
    pub(crate) async fn commit_together(
        &self,
        transactions: Vec<Transaction>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let encrypted = transactions.into_iter().map(|transaction| self.encrypt_values(transaction));
        commit_together(&self.connections, &self.namespace, encrypted.collect::<Result<_, _>>()?).await
    }

    fn encrypt_values(&self, transaction: Transaction) -> Result<Transaction, StoreError> {
        self.encryption.encrypt_transaction(transaction, |key| self.namespace.absolute_key(key)).map_err(
            |error| StoreError {
                operation: "commit".to_owned(),
                kind: StoreErrorKind::Invalid,
                why: error.to_string(),
            },
        )
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.connections.timeout()
    }

    /// Watches the whole store: every revision, and the changes of interest.
    pub(crate) fn watch_every_revision(&self, interest: WatchedKeys) -> mpsc::Receiver<FeedEvent> {
        let root = Namespace::new("");
        watch_every_revision(Arc::clone(&self.connections), root, interest, self.new_backoff())
    }

    fn new_backoff(&self) -> Backoff {
        // The first purpose is the choice of an endpoint.
        Backoff::new(self.seed, 1 + self.purposes.fetch_add(1, Ordering::Relaxed))
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn list(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        Ok(list_keys(&self.connections, &self.namespace, prefix, ReadExtent::All, 0).await?)
    }

    async fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let transaction = self.encrypt_values(transaction)?;
        commit_transaction(&self.connections, &self.namespace, transaction).await
    }

    fn watch(&self, prefix: &str) -> mpsc::Receiver<WatchEvent> {
        watch(Arc::clone(&self.connections), self.namespace.clone(), prefix.to_owned(), self.new_backoff())
    }

    fn campaign(&self, options: CampaignOptions) -> Campaign {
        let candidates = self.watch(madako_domain::keys::LEADER);
        campaign::start(campaign::CampaignParts {
            connections: Arc::clone(&self.connections),
            namespace: self.namespace.clone(),
            epochs: self.epochs.clone(),
            options,
            candidates,
            backoff: self.new_backoff(),
        })
    }

    fn holds_until(&self, epoch: &Epoch) -> Option<Instant> {
        self.epochs.valid_until(epoch)
    }
}
