//! Connections to the store: one at a time, replaced when it stops answering.
//!
//! Guarantees: creating a connection object does no I/O, so that the service can start before the store. All requests
//! use one connection to one endpoint until it fails, then the next endpoint. A request timeout takes its connection
//! out of use, because it may be half-open. A token that the store does not know (it expired, or the store was
//! restarted) is renewed by password, once for all waiting requests.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, KvClient, LeaseClient, MaintenanceClient, WatchClient};
use futures::FutureExt as _;
use hyper_util::rt::TokioIo;
use madako_domain::store::{StoreError, StoreErrorKind};
use madako_protocol::ports::Clock;
use madako_protocol::secret::Secret;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Endpoint;

use crate::config::{ConfigError, StoreConfig, with_common_options};
use crate::error::{auth_is_off, classify_error_kind, refuses_token, store_error, was_never_sent};
pub(crate) use crate::limits::LARGEST_ANSWER;
use crate::telemetry::{self, Operation};

/// A byte stream in place of TCP.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
pub type BoxedStream = Box<dyn Stream>;

type Connecting = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>>;
/// Opens one connection per call.
pub(crate) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Target {
    Endpoint(String, Box<Endpoint>),
    Connector(Connector),
    /// An existing client of the caller.
    Client(Box<Client>),
}

impl Target {
    fn name(&self) -> &str {
        match self {
            Self::Endpoint(name, _) => name,
            Self::Connector(_) => "the given connector",
            Self::Client(_) => "the given client",
        }
    }

    /// A client that connects at its first use.
    fn connect_client(&self, timeout: Duration) -> Result<Client, Error> {
        let channel = match self {
            Self::Endpoint(_, endpoint) => endpoint.connect_lazy(),
            Self::Connector(connector) => {
                let connector = Arc::clone(connector);
                // This address is never dialled; it only names the authority of requests.
                let endpoint = with_common_options(Endpoint::from_static("http://localhost"), timeout);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
                    let connecting = connector();
                    async move { connecting.await.map(TokioIo::new) }
                }))
            }
            Self::Client(client) => return Ok(Client::clone(client)),
        };
        // A member without a leader reports an error instead of keeping silent streams.
        let options = ConnectOptions::new().with_require_leader(true);
        // Without a user, no authentication is awaited.
        Client::from_channel(etcd_client::Channel::Tonic(channel), Some(options))
            .now_or_never()
            .unwrap_or_else(|| Err(Error::Internal("the creation of the client had to wait".into())))
    }
}

pub(crate) struct Connection {
    client: Client,
    name: String,
    generation: u64,
    credentials: Option<(String, Secret)>,
    /// Number of tokens obtained; 0 for none.
    tokens: tokio::sync::Mutex<u64>,
    /// True if a request timed out, so that the connection may be half-open.
    suspect: watch::Sender<bool>,
}

impl Connection {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kv_client(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
    }

    pub(crate) fn watch_client(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(LARGEST_ANSWER)
    }

    pub(crate) fn lease_client(&self) -> LeaseClient {
        self.client.lease_client()
    }

    pub(crate) fn maintenance_client(&self) -> MaintenanceClient {
        self.client.maintenance_client()
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns when a request timeout makes the connection suspect.
    pub(crate) async fn wait_until_suspect(&self) {
        // `self` holds the sender, so the channel stays open.
        let _ = self.suspect.subscribe().wait_for(|suspect| *suspect).await;
    }

    /// Obtains a token if there is none, or if number `stale` is still the latest. Returns the number of the latest
    /// token.
    pub(crate) async fn renew_token(&self, stale: Option<u64>) -> Result<u64, Error> {
        let Some((user, password)) = &self.credentials else { return Ok(0) };
        let mut tokens = self.tokens.lock().await;
        if *tokens > 0 && stale != Some(*tokens) {
            return Ok(*tokens);
        }
        let taken = self.client.clone().update_user(Some((user.clone(), password.reveal().to_owned()))).await;
        let outcome = telemetry::outcome_label(taken.as_ref().map(drop).map_err(classify_error_kind));
        telemetry::madako_store_authentications_total(outcome).increment(1);
        match taken {
            Ok(()) => {}
            Err(error) if auth_is_off(&error) => {
                // CKE's client also continues without a token.
                tracing::warn!(endpoint = %self.name, "a password is configured, but the store has authentication switched off");
            }
            Err(error) => return Err(error),
        }
        *tokens += 1;
        Ok(*tokens)
    }
}

struct CurrentConnection {
    target: usize,
    generation: u64,
    connection: Option<Arc<Connection>>,
}

pub(crate) struct Connections {
    targets: Vec<Target>,
    credentials: Option<(String, Secret)>,
    timeout: Duration,
    current: Mutex<CurrentConnection>,
    /// Clock for the metric of the last answer; unset, the metric is not shown.
    clock: OnceLock<Arc<dyn Clock>>,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.targets.iter().map(Target::name)).finish()
    }
}

impl Connections {
    /// The seed selects the first target, so that instances spread over them.
    pub(crate) fn new(targets: Vec<Target>, config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        let target = ChaCha8Rng::seed_from_u64(seed).random_range(0..targets.len());
        Ok(Self {
            targets,
            credentials: config.credentials(),
            timeout: config.check_timeout()?,
            current: Mutex::new(CurrentConnection { target, generation: 0, connection: None }),
            clock: OnceLock::new(),
        })
    }

    /// Enables the metric of the last answer, with this clock unless one was set before.
    pub(crate) fn show_answers(&self, clock: Arc<dyn Clock>) {
        self.clock.get_or_init(|| clock);
    }

    pub(crate) fn name(&self) -> &str {
        let target = self.lock_current().target;
        self.targets[target].name()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn lock_current(&self) -> std::sync::MutexGuard<'_, CurrentConnection> {
        // No code panics while it holds the lock, and its fields are consistent at any moment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open_connection(&self) -> Result<Arc<Connection>, Error> {
        let mut current = self.lock_current();
        if let Some(connection) = &current.connection {
            return Ok(Arc::clone(connection));
        }
        let target = &self.targets[current.target];
        let connection = Arc::new(Connection {
            client: target.connect_client(self.timeout)?,
            name: target.name().to_owned(),
            generation: current.generation,
            credentials: self.credentials.clone(),
            tokens: tokio::sync::Mutex::new(0),
            suspect: watch::Sender::new(false),
        });
        current.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Takes a connection out of use after a failure that another one may not have.
    pub(crate) fn replace_after(&self, connection: &Connection, kind: StoreErrorKind) {
        let replace = match kind {
            // It may be half-open.
            StoreErrorKind::Deadline => true,
            // The connection to a single endpoint reconnects by itself.
            StoreErrorKind::Unavailable => self.targets.len() > 1,
            _ => false,
        };
        if replace {
            connection.suspect.send_replace(true);
        }
        let mut current = self.lock_current();
        if replace && current.generation == connection.generation {
            current.target = (current.target + 1) % self.targets.len();
            current.generation += 1;
            current.connection = None;
            telemetry::madako_store_connections_replaced_total().increment(1);
            tracing::info!(
                endpoint = %connection.name, next = %self.targets[current.target].name(), ?kind,
                "the connection to the store is replaced"
            );
        }
    }

    /// Sends a request, within the deadline. Repeats it only if the store refused the token, or if no connection could
    /// be opened and there is another endpoint: in both cases it had no effect.
    pub(crate) async fn send_request<T, F>(
        &self,
        operation: Operation,
        object: &str,
        deadline: Duration,
        ask: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let began = Instant::now();
        let by = began + deadline;
        let mut endpoints_left = self.targets.len();
        let result = loop {
            let connection = match self.open_connection() {
                Ok(connection) => connection,
                Err(error) => {
                    break Err(Failed::new(
                        store_error(operation, object, "this process", &error),
                        Some(error),
                    ));
                }
            };
            match timeout_at(by, run_authorized(&connection, &ask)).await {
                Ok(Ok(value)) => break Ok(value),
                Ok(Err(error)) => {
                    let failure = store_error(operation, object, &connection.name, &error);
                    self.replace_after(&connection, failure.kind);
                    endpoints_left -= 1;
                    if endpoints_left == 0 || !was_never_sent(&error) {
                        break Err(Failed::new(failure, Some(error)));
                    }
                }
                Err(_) => {
                    self.replace_after(&connection, StoreErrorKind::Deadline);
                    let why = format!("no answer within {deadline:?}, from {}", connection.name);
                    let operation = operation.describe_on(object);
                    break Err(Failed::new(
                        StoreError { operation, kind: StoreErrorKind::Deadline, why },
                        None,
                    ));
                }
            }
        };
        let outcome = result.as_ref().map(drop).map_err(|failed| failed.error.kind);
        telemetry::count_request(operation, outcome, began.elapsed());
        if let (Ok(()), Some(clock)) = (outcome, self.clock.get()) {
            let now = clock.now().unix_timestamp() as f64;
            telemetry::madako_store_answer_timestamp_seconds().set(now);
        }
        result
    }
}

/// One request with a token that the store knows.
async fn run_authorized<T, F>(
    connection: &Arc<Connection>,
    ask: &impl Fn(Arc<Connection>) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let token = connection.renew_token(None).await?;
    match ask(Arc::clone(connection)).await {
        Err(error) if refuses_token(&error) && connection.has_credentials() => {
            connection.renew_token(Some(token)).await?;
            ask(Arc::clone(connection)).await
        }
        result => result,
    }
}

/// A failed request: the error for the caller, and the original error.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// `None` after a timeout.
    pub(crate) source: Option<Error>,
}

impl Failed {
    fn new(error: StoreError, source: Option<Error>) -> Self {
        Self { error, source }
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}
