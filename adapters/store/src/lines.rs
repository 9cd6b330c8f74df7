//! Connections to the store: one at a time, replaced when it stops answering.
//!
//! Guarantees: making a line does no I/O, so that the service can start before the store; all requests
//! go over one connection to one endpoint until it fails, then over the next; a request that was not
//! answered in time takes its connection out of use, since it may be half-open; a token that the store
//! does not know (it expired, the store was restarted) is renewed by password, once for all who wait.

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
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Endpoint;

use crate::config::{ConfigError, Secret, StoreConfig, tuned};
use crate::error::{auth_is_off, kind, never_sent, refuses_token, store_error};
pub(crate) use crate::limits::LARGEST_ANSWER;
use crate::telemetry::{self, Operation};

/// A carrier of bytes, instead of TCP.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
/// Any carrier.
pub type BoxedStream = Box<dyn Stream>;

type Connecting = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>>;
/// Makes one connection each time it is called.
pub(crate) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

/// Where a line can go.
#[derive(Clone)]
pub(crate) enum Target {
    /// Over the network.
    Endpoint(String, Box<Endpoint>),
    /// Over what the connector gives.
    Connector(Connector),
    /// Over a client that somebody else made.
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

    /// A client that connects when it is used first.
    fn client(&self, timeout: Duration) -> Result<Client, Error> {
        let channel = match self {
            Self::Endpoint(_, endpoint) => endpoint.connect_lazy(),
            Self::Connector(connector) => {
                let connector = Arc::clone(connector);
                // The address is never dialled; it only names the authority of requests.
                let endpoint = tuned(Endpoint::from_static("http://localhost"), timeout);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
                    let connecting = connector();
                    async move { connecting.await.map(TokioIo::new) }
                }))
            }
            Self::Client(client) => return Ok(Client::clone(client)),
        };
        // A member that lost sight of its cluster's leader says so, instead of keeping streams that
        // hear nothing.
        let options = ConnectOptions::new().with_require_leader(true);
        // Without a user there is nothing to wait for.
        Client::from_channel(etcd_client::Channel::Tonic(channel), Some(options))
            .now_or_never()
            .unwrap_or_else(|| Err(Error::Internal("making a client had to wait".into())))
    }
}

/// One connection.
pub(crate) struct Line {
    client: Client,
    name: String,
    generation: u64,
    credentials: Option<(String, Secret)>,
    /// How often a token was taken; 0: never.
    tokens: tokio::sync::Mutex<u64>,
    /// Whether a request was not answered in time, so that the connection may be half-open.
    suspect: watch::Sender<bool>,
}

impl Line {
    /// The endpoint's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
    }

    pub(crate) fn watches(&self) -> WatchClient {
        self.client.watch_client().max_decoding_message_size(LARGEST_ANSWER)
    }

    pub(crate) fn lease(&self) -> LeaseClient {
        self.client.lease_client()
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient {
        self.client.maintenance_client()
    }

    /// Whether requests carry a token of ours.
    pub(crate) fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns when there is reason to ask for a sign of life.
    pub(crate) async fn suspected(&self) {
        // The sender is ours, so that it is there as long as we are.
        let _ = self.suspect.subscribe().wait_for(|suspect| *suspect).await;
    }

    /// Takes a token if there is none, or if the one with the `stale` number is the last. Returns the
    /// number of the last one.
    pub(crate) async fn token(&self, stale: Option<u64>) -> Result<u64, Error> {
        let Some((user, password)) = &self.credentials else { return Ok(0) };
        let mut tokens = self.tokens.lock().await;
        if *tokens > 0 && stale != Some(*tokens) {
            return Ok(*tokens);
        }
        let taken = self.client.clone().update_user(Some((user.clone(), password.reveal().to_owned()))).await;
        telemetry::authenticated(taken.as_ref().map(drop).map_err(kind));
        match taken {
            Ok(()) => {}
            Err(error) if auth_is_off(&error) => {
                // CKE's client goes on without a token, too.
                tracing::warn!(endpoint = %self.name, "a password is configured, but the store has authentication switched off");
            }
            Err(error) => return Err(error),
        }
        *tokens += 1;
        Ok(*tokens)
    }
}

struct Current {
    /// Index into the targets.
    target: usize,
    generation: u64,
    line: Option<Arc<Line>>,
}

/// The connections of one store.
pub(crate) struct Lines {
    targets: Vec<Target>,
    credentials: Option<(String, Secret)>,
    timeout: Duration,
    current: Mutex<Current>,
    /// What tells when the store answered; without one that is not shown.
    clock: OnceLock<Arc<dyn Clock>>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.targets.iter().map(Target::name)).finish()
    }
}

impl Lines {
    /// The seed decides which target is the first, so that instances spread over them.
    pub(crate) fn new(targets: Vec<Target>, config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        let target = ChaCha8Rng::seed_from_u64(seed).random_range(0..targets.len());
        Ok(Self {
            targets,
            credentials: config.credentials(),
            timeout: config.checked_timeout()?,
            current: Mutex::new(Current { target, generation: 0, line: None }),
            clock: OnceLock::new(),
        })
    }

    /// Shows from now on when the store answered last, by this clock or by the one that was given before.
    pub(crate) fn show_answers(&self, clock: Arc<dyn Clock>) {
        self.clock.get_or_init(|| clock);
    }

    /// The name of the target in use.
    pub(crate) fn name(&self) -> &str {
        let target = self.current().target;
        self.targets[target].name()
    }

    /// The deadline of a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        // Nothing panics while it is held; its fields are whole at any moment anyway.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line to use now.
    pub(crate) fn line(&self) -> Result<Arc<Line>, Error> {
        let mut current = self.current();
        if let Some(line) = &current.line {
            return Ok(Arc::clone(line));
        }
        let target = &self.targets[current.target];
        let line = Arc::new(Line {
            client: target.client(self.timeout)?,
            name: target.name().to_owned(),
            generation: current.generation,
            credentials: self.credentials.clone(),
            tokens: tokio::sync::Mutex::new(0),
            suspect: watch::Sender::new(false),
        });
        current.line = Some(Arc::clone(&line));
        Ok(line)
    }

    /// Takes a line out of use, if it failed in a way that another may not.
    pub(crate) fn failed(&self, line: &Line, kind: StoreErrorKind) {
        let replace = match kind {
            // It may be half-open.
            StoreErrorKind::Deadline => true,
            // A single endpoint's connection is made anew by itself.
            StoreErrorKind::Unavailable => self.targets.len() > 1,
            _ => false,
        };
        if replace {
            line.suspect.send_replace(true);
        }
        let mut current = self.current();
        if replace && current.generation == line.generation {
            current.target = (current.target + 1) % self.targets.len();
            current.generation += 1;
            current.line = None;
            telemetry::connection_replaced();
            tracing::info!(
                endpoint = %line.name, next = %self.targets[current.target].name(), ?kind,
                "the connection to the store is replaced"
            );
        }
    }

    /// Asks the store, until the deadline at the latest. Asks again only if the store refused the
    /// token, or if no connection could be made and there is another endpoint: it did nothing then.
    pub(crate) async fn request<T, F>(
        &self,
        operation: Operation,
        object: &str,
        deadline: Duration,
        ask: impl Fn(Arc<Line>) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let began = Instant::now();
        let by = began + deadline;
        let mut endpoints_left = self.targets.len();
        let result = loop {
            let line = match self.line() {
                Ok(line) => line,
                Err(error) => {
                    break Err(Failed::new(
                        store_error(operation, object, "this process", &error),
                        Some(error),
                    ));
                }
            };
            match timeout_at(by, authorized(&line, &ask)).await {
                Ok(Ok(value)) => break Ok(value),
                Ok(Err(error)) => {
                    let told = store_error(operation, object, &line.name, &error);
                    self.failed(&line, told.kind);
                    endpoints_left -= 1;
                    if endpoints_left == 0 || !never_sent(&error) {
                        break Err(Failed::new(told, Some(error)));
                    }
                }
                Err(_) => {
                    self.failed(&line, StoreErrorKind::Deadline);
                    let why = format!("no answer within {deadline:?}, from {}", line.name);
                    let operation = operation.of(object);
                    break Err(Failed::new(
                        StoreError { operation, kind: StoreErrorKind::Deadline, why },
                        None,
                    ));
                }
            }
        };
        let outcome = result.as_ref().map(drop).map_err(|failed| failed.told.kind);
        telemetry::request(operation, outcome, began.elapsed());
        if let (Ok(()), Some(clock)) = (outcome, self.clock.get()) {
            telemetry::answered(&**clock);
        }
        result
    }
}

/// One request with a token that the store knows.
async fn authorized<T, F>(line: &Arc<Line>, ask: &impl Fn(Arc<Line>) -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let token = line.token(None).await?;
    match ask(Arc::clone(line)).await {
        Err(error) if refuses_token(&error) && line.has_credentials() => {
            line.token(Some(token)).await?;
            ask(Arc::clone(line)).await
        }
        result => result,
    }
}

/// A request that failed: what the caller is told, and what we saw.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) told: StoreError,
    /// `None` after a deadline.
    pub(crate) seen: Option<Error>,
}

impl Failed {
    fn new(told: StoreError, seen: Option<Error>) -> Self {
        Self { told, seen }
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        failed.told
    }
}
