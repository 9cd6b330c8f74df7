//! The service as a process runs it: an instance on the real adapters.
//!
//! The store is an external etcd or the embedded one, which this module also serves to other clients. The embedded
//! store outlives the instance, so that leadership can be released when the service stops.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, OpenError, Options, ServeError, ServerHandle};
use madako_host::CommandsOnHost;
use madako_http::{BindError, Limits};
use madako_http_client::{ReqwestTransport, TransportError};
use madako_kubernetes::{ApiServer, ApiServerAccess, ConnectError};
use madako_protocol::event::EventSink;
use madako_protocol::feed::Task;
use madako_protocol::host::Host;
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::Subscriber;
use madako_protocol::operations::OperationsState;
use madako_protocol::placement::explainer::Explainer;
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::{Clock, HttpTransport};
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use madako_store::{CachedObjects, ConfigError, EtcdStore, StoreConfig};

use crate::clock::SystemClock;
use crate::config::{Config, Embedded, Operations, Placement, StoreChoice};
use crate::http::{self, BoundListener, HttpSettings, MetricsText, ServedRouter};
use crate::instance::{Instance, InstanceError, InstanceOptions, InstanceView, Ports};
use crate::journal::Journal;
use crate::limits::MAX_REQUEST_BYTES;
use crate::noted_nodes::NotedNodes;
use crate::operations;
use crate::placement::{self, ApiPorts, PlacementError, SchedulerExplainer};
use crate::predecessor::{self, Predecessor};
use crate::store_failure::{self, StoreFailures};

/// Settings beside the configuration file.
#[derive(Clone)]
pub struct ServiceOptions {
    pub instance: InstanceOptions,
    /// Listen address of health, version and metrics.
    pub http: String,
    pub metrics: MetricsText,
    pub version: &'static str,
    /// Receives the instance's events. A listener that subscribes before the start misses none.
    pub journal: Journal,
    /// `None`: neither API nor scheduler runs.
    pub placement: Option<Placement>,
    /// `None`: operations that keep Kubernetes reach its API servers themselves; without them, no node is drained, and taints of
    /// nodes are unknown.
    pub kubernetes: Option<ApiServerAccess>,
    /// The mode and the keys of operations on nodes.
    pub operations: Operations,
    /// `None`: the instance runs no commands.
    pub host: Option<CommandRunner>,
    /// Simulated machines; `None`: the configuration names the API server.
    pub simulated: Option<SimulatedCluster>,
}

/// The cluster on simulated machines, on which no operation runs.
#[derive(Clone)]
pub struct SimulatedCluster {
    pub kubernetes: Arc<dyn Kubernetes>,
    /// The state that an operation runner would read on the nodes.
    pub findings: Subscriber<Arc<OperationsState>>,
}

/// Runs the commands of repairs and backups.
#[derive(Clone)]
pub enum CommandRunner {
    OnHost(CommandsOnHost),
    /// Commands that are not processes of this host, as in a demo.
    Given(Arc<dyn Host>),
}

impl CommandRunner {
    /// The port of the host, with the notes of commands beside the embedded store, if there are any.
    fn into_host_port(self, predecessor: Option<&Predecessor>) -> Arc<dyn Host> {
        match (self, predecessor) {
            (Self::OnHost(host), Some(predecessor)) => Arc::new(host.with_notes(predecessor.notes())),
            (Self::OnHost(host), None) => Arc::new(host),
            (Self::Given(host), _) => host,
        }
    }
}

/// Error of starting the service. No part of it runs.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot open the embedded store in {directory} (`embedded.data-dir`)")]
    Open { directory: String, source: OpenError },
    #[error("{0}")]
    Taken(String),
    #[error("cannot serve the embedded store to other clients of etcd, as the section `embedded` says")]
    Serve(#[source] ServeError),
    /// The embedded store gave no client.
    #[error("cannot open a client of the embedded store in this process: restart the service")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The notes of commands beside the embedded store's file cannot be read.
    #[error("cannot read the notes of commands in {directory}: give the user of this process access to it")]
    Notes { directory: String, source: io::Error },
    /// The settings for access to the store.
    #[error("cannot use the settings of the configuration file for access to etcd")]
    Store(#[source] ConfigError),
    #[error("cannot create the client for the requests to the registry and to metrics providers")]
    Transport(#[source] TransportError),
    /// The client of the cluster's API server.
    #[error(transparent)]
    Kubernetes(ConnectError),
    #[error("cannot serve the pages for health, version and metrics on the address of `--http`")]
    Http(#[source] BindError),
    #[error(transparent)]
    Placement(PlacementError),
    #[error(transparent)]
    Instance(InstanceError),
}

/// URL of an instance's pages for other hosts. An address that means every interface is not one: the host name is.
fn pages_url(address: SocketAddr, host: &str) -> String {
    if address.ip().is_unspecified() {
        format!("http://{host}:{}", address.port())
    } else {
        format!("http://{address}")
    }
}

pub struct ServedStore {
    etcd: EmbeddedEtcd,
    server: Option<ServerHandle>,
    /// `None`: the store is in memory.
    predecessor: Option<Predecessor>,
    /// `None`: the store is in memory.
    failures: Option<StoreFailures>,
}

pub async fn open_embedded(embedded: &Embedded, seed: u64) -> Result<ServedStore, ServiceError> {
    // Bind first: the owner of a taken address may be the intended etcd, and then no file must be created.
    let listener = tokio::net::TcpListener::bind(embedded.listen).await.map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            ServiceError::Taken(embedded.explain_taken())
        } else {
            ServiceError::Serve(ServeError::Listen { address: embedded.listen, source })
        }
    })?;
    let mut options = Options::new(Backend::File(embedded.data_dir.clone()), Commit::Thread, seed);
    options.advertise_client_urls = vec![embedded.client_endpoint()];
    options.max_request_bytes = MAX_REQUEST_BYTES;
    options.cache_bytes = embedded.cache_bytes;
    options.owner = predecessor::own_mark();
    let mark = options.owner.clone();
    let etcd = EmbeddedEtcd::open(options).map_err(|source| ServiceError::Open {
        directory: embedded.data_dir.display().to_string(),
        source,
    })?;
    let failures = StoreFailures::in_directory(&embedded.data_dir);
    failures.show_noted();
    let predecessor = Predecessor::find(etcd.earlier_leases(), mark.as_deref(), &embedded.data_dir)?;
    let tls = embedded.tls.as_ref().map(|tls| madako_embedded_etcd::ServerTls {
        certificate: tls.certificate.clone().into_bytes(),
        key: tls.key.reveal().to_owned().into_bytes(),
        client_ca: tls.client_ca.clone().map(String::into_bytes),
    });
    let server = etcd.serve_on(listener, tls.as_ref()).map_err(ServiceError::Serve)?;
    Ok(ServedStore { etcd, server: Some(server), predecessor: Some(predecessor), failures: Some(failures) })
}

impl ServedStore {
    #[must_use]
    pub fn without_server(etcd: EmbeddedEtcd) -> Self {
        Self { etcd, server: None, predecessor: None, failures: None }
    }

    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(ServerHandle::address)
    }

    pub async fn connect_client(&self, clients: &StoreConfig, seed: u64) -> Result<EtcdStore, ServiceError> {
        let client = self.etcd.direct_client().await.map_err(|error| ServiceError::Client(error.into()))?;
        EtcdStore::from_client(client, clients, seed).map_err(ServiceError::Store)
    }

    /// Ends streams and closes the file. Notes a failure of the store.
    pub async fn shutdown(self) {
        let Self { etcd, server, failures, .. } = self;
        let failure = etcd.failure_reason();
        // Watches of other clients end with the store, and the listener waits for them.
        tokio::join!(etcd.shutdown(), async {
            if let Some(server) = server {
                server.shutdown().await;
            }
        });
        // The last act: a disk that failed the store may never answer, and everything else has ended.
        if let (Some(failures), Some(reason)) = (failures, failure)
            && let Err(error) = failures.note(SystemClock.now(), &reason)
        {
            tracing::error!(%error, "cannot record the failure of the embedded store for the next process");
        }
    }
}

pub struct Service {
    instance: Instance,
    embedded: Option<ServedStore>,
    store: Arc<EtcdStore>,
    http: SocketAddr,
    placement_http: Option<SocketAddr>,
    _denied: Option<Task>,
    _predecessor: Option<Task>,
}

impl Service {
    /// Starts the service: the store first, then the instance.
    pub async fn start(config: &Config, options: ServiceOptions) -> Result<Self, ServiceError> {
        let seed = options.instance.seed;
        match &config.store {
            StoreChoice::External => {
                let store = EtcdStore::open(&config.clients, seed).map_err(ServiceError::Store)?;
                Self::on_store(store, None, config.clients.timeout, options).await
            }
            StoreChoice::Embedded(embedded) => {
                let served = open_embedded(embedded, seed).await?;
                Self::start_on_embedded(served, &config.clients, options).await
            }
        }
    }

    /// Starts the service on an open embedded store.
    pub async fn start_on_embedded(
        served: ServedStore,
        clients: &StoreConfig,
        options: ServiceOptions,
    ) -> Result<Self, ServiceError> {
        let store = served.connect_client(clients, options.instance.seed).await?;
        Self::on_store(store, Some(served), clients.timeout, options).await
    }

    async fn on_store(
        store: EtcdStore,
        mut embedded: Option<ServedStore>,
        timeout: Duration,
        mut options: ServiceOptions,
    ) -> Result<Self, ServiceError> {
        let predecessor = embedded.as_mut().and_then(|store| store.predecessor.take());
        let host = options.host.map(|host| host.into_host_port(predecessor.as_ref()));
        let clock = Arc::new(SystemClock) as Arc<dyn Clock>;
        let store = Arc::new(store.with_clock(Arc::clone(&clock)));
        let journal = options.journal;
        let transport: Arc<dyn HttpTransport> =
            Arc::new(ReqwestTransport::new().map_err(ServiceError::Transport)?);
        let store_port = Arc::clone(&store) as Arc<dyn Store>;
        let seed = options.instance.seed;
        let components = operations::node_components(
            &options.operations,
            &store_port,
            Arc::clone(&clock),
            options.kubernetes.as_ref(),
            seed,
        );
        let components = components.map_err(ServiceError::Kubernetes)?;
        let control_plane = || operations::control_plane_port(&options.operations, &store_port, &components);
        let mut ports = Ports {
            store: Arc::clone(&store_port),
            registry: Arc::new(SabakanRegistry::new(Arc::clone(&transport))),
            clock: Arc::clone(&clock),
            events: Arc::new(journal) as Arc<dyn EventSink>,
            placement: None,
            operations: None,
            findings: options.simulated.as_ref().map(|simulated| simulated.findings.clone()),
            kubernetes: match (&options.simulated, &options.kubernetes) {
                (Some(simulated), _) => Some(Arc::clone(&simulated.kubernetes)),
                (None, None) => control_plane().map(|port| port as Arc<dyn Kubernetes>),
                (None, Some(access)) => {
                    let limits = madako_kubernetes::Limits { seed, ..madako_kubernetes::Limits::default() };
                    let server = ApiServer::new(access, limits);
                    Some(Arc::new(server.map_err(ServiceError::Kubernetes)?) as Arc<dyn Kubernetes>)
                }
            },
            host,
        };
        let host = ports.host.as_ref();
        ports.operations =
            operations::operations_ports(&options.operations, store_port, clock, components, host, seed);
        if let (Some(operations), Some(predecessor)) = (&mut ports.operations, &predecessor) {
            let (driver, notes) = (Arc::clone(&operations.driver), predecessor.notes().to_owned());
            operations.driver = Arc::new(NotedNodes { driver, notes });
        }
        let bound = BoundListener::new(&options.http).await.map_err(ServiceError::Http)?;
        let http = bound.address();
        options.instance.url = pages_url(http, &options.instance.host);
        let settings = HttpSettings {
            store: Arc::clone(&ports.store),
            timeout,
            metrics: options.metrics,
            version: options.version,
            lease_wait: predecessor.as_ref().map(|it| it.wait.clone()).unwrap_or_default(),
            operates: ports.operations.is_some(),
        };
        let mut denied = None;
        let api = match &options.placement {
            None => None,
            Some(placement) => {
                placement::log_encryption_key(store.encryption());
                let objects: Arc<dyn Objects> = Arc::new(CachedObjects::start(&store));
                denied = Some(placement::log_denied_read(Arc::clone(&objects)));
                if placement.controllers {
                    ports.placement =
                        Some(placement::placement_ports(placement, &store, &objects, &transport));
                }
                let (id, root) = (&options.instance.id, Arc::new(store.with_absolute_keys()));
                let explainer: Arc<dyn Explainer> =
                    Arc::new(SchedulerExplainer::for_instance(id, root, store.prefix()));
                let given = ApiPorts {
                    objects,
                    clock: Arc::clone(&ports.clock),
                    transport,
                    explainer: Some(explainer),
                };
                let seed = options.instance.seed;
                let ready = placement::build_api(placement, given, options.version, http, seed).await;
                Some(ready.map_err(ServiceError::Placement)?)
            }
        };
        let placement_http = api.as_ref().map(|api| api.own.as_ref().map_or(http, |own| own.bound.address()));
        let id = options.instance.id.clone();
        let children = |view: &InstanceView| {
            let (shared, tls, own) =
                api.map_or((None, None, None), |api| (api.shared, api.shared_tls, api.own));
            let limits = if shared.is_some() { Limits::PLACEMENT } else { Limits::DEFAULT };
            let pages =
                ServedRouter { bound, router: http::page_routes(settings, view, shared), limits, tls };
            let mut children = vec![http::http_child(&id, http::HTTP, pages, view)];
            children.extend(own.map(|own| http::http_child(&id, http::PLACEMENT_API, own, view)));
            children
        };
        let instance =
            Instance::start(options.instance, ports, children).await.map_err(ServiceError::Instance)?;
        let _predecessor = predecessor.map(|predecessor| Task::start(predecessor.end()));
        Ok(Self { instance, embedded, store, http, placement_http, _denied: denied, _predecessor })
    }

    #[must_use]
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    #[must_use]
    pub fn store(&self) -> &Arc<EtcdStore> {
        &self.store
    }

    #[must_use]
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Listen address of placement's API, if it is served.
    #[must_use]
    pub fn placement_http(&self) -> Option<SocketAddr> {
        self.placement_http
    }

    /// Waits until the service ends by itself: its tree melted down, or its embedded store failed for good. Returns
    /// the reason.
    pub async fn wait_for_end(&self) -> Option<String> {
        let store = async {
            match &self.embedded {
                Some(store) => {
                    let reason = store.etcd.wait_for_failure().await;
                    store_failure::show_now(SystemClock.now());
                    reason
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            reason = store => Some(format!(
                "the embedded store failed for good: {reason}; restart the service, which first checks the \
                 whole file"
            )),
            why = self.instance.wait_for_end() => why,
        }
    }

    /// Stops the instance, which releases leadership, and then the embedded store.
    pub async fn stop(self) {
        let Self { instance, embedded, store, .. } = self;
        instance.stop().await;
        drop(store);
        if let Some(embedded) = embedded {
            embedded.shutdown().await;
        }
    }
}
