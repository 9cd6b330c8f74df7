//! What a demo runs on: a data center, a store in a directory of its own, and the service.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use madako_datacenter_sim::{Datacenter, DatacenterConfig, GRAPHQL_PATH, SimulatedRegistry};
use madako_messages::event::Event;
use madako_messages::feed::Task;
use madako_messages::keys;
use madako_messages::ports::Clock;
use madako_messages::store::{Condition, Outcome, Store as _, Transaction, Write};
use madako_store::StoreConfig;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::{DEFAULT_PREFIX, Embedded};
use madako_supervisor::instance::InstanceOptions;
use madako_supervisor::journal::Journal;
use madako_supervisor::service::{Service, ServiceError, ServiceOptions, open_embedded};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use super::DemoOptions;

/// Time between polls: machines change every few seconds.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time to live of the session lease.
const SESSION_TTL: Duration = Duration::from_secs(10);
/// A retired worker leaves sooner than by default (300 s), so that it is seen while one watches.
pub(crate) const RETIRE_WAIT: Duration = Duration::from_secs(10);

/// A running demo.
pub(crate) struct World {
    pub(crate) registry: SimulatedRegistry,
    pub(crate) service: Service,
    pub(crate) events: broadcast::Receiver<Arc<Event>>,
    /// Where etcd's API is served.
    pub(crate) etcd: Option<SocketAddr>,
    directory: Directory,
    _registry_server: Task,
}

/// A directory that goes with the demo.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                directory = %self.0.display(),
                "the demo's directory stays"
            );
        }
    }
}

impl World {
    /// Starts everything.
    pub(crate) async fn start(options: &DemoOptions) -> anyhow::Result<Self> {
        let clock = Arc::new(SystemClock);
        let datacenter = Datacenter::new(DatacenterConfig::demo(options.seed, clock.now()))?;
        let registry = SimulatedRegistry::new(datacenter, clock);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("the simulated registry cannot listen on loopback")?;
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr()?);
        let server = registry.clone();
        let registry_server = Task::start(async move {
            if let Err(error) = server.serve_tcp(listener).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the simulated registry ended");
            }
        });

        let directory = Directory(std::env::temp_dir().join(format!("madako-demo-{}", std::process::id())));
        let embedded =
            Embedded { data_dir: directory.0.clone(), listen: options.etcd, ..Embedded::by_default() };
        let store = match open_embedded(&embedded, options.seed).await {
            Err(ServiceError::Taken(_)) => {
                let listen = SocketAddr::new(options.etcd.ip(), 0);
                open_embedded(&Embedded { listen, ..embedded }, options.seed).await?
            }
            other => other?,
        };
        let etcd = store.address();
        let clients = StoreConfig { prefix: DEFAULT_PREFIX.to_owned(), ..StoreConfig::default() };
        install(&store.client(&clients, options.seed).await?, &url).await?;
        let journal = if options.log { Journal::new("demo") } else { Journal::unlogged("demo") };
        let events = journal.listen();
        let service_options = ServiceOptions {
            instance: instance("demo", crate::host::name(), options.seed),
            http: options.http.to_string(),
            metrics: crate::recorder::install()?,
            version: crate::VERSION,
            journal,
            placement: None,
        };
        let service = Service::on_embedded(store, &clients, service_options).await?;
        Ok(Self { registry, service, events, etcd, directory, _registry_server: registry_server })
    }

    /// Stops everything in order.
    pub(crate) async fn stop(self) {
        self.service.stop().await;
        drop(self.directory);
    }
}

/// How the demo's instance works.
pub(crate) fn instance(id: &str, host: String, seed: u64) -> InstanceOptions {
    InstanceOptions {
        id: id.to_owned(),
        host,
        interval: INTERVAL,
        session_ttl: SESSION_TTL,
        retire_wait: RETIRE_WAIT,
        seed,
    }
}

/// Stores what an operator would: the registry's URL, variables, constraints and a template.
pub(crate) async fn install(store: &madako_store::EtcdStore, url: &str) -> anyhow::Result<()> {
    let worker = |role: &str, weight: &str| {
        json!({
            "user": "cybozu",
            "labels": {"cke.cybozu.com/role": role, "cke.cybozu.com/weight": weight},
        })
    };
    let template = json!({
        "name": "demo",
        "nodes": [
            {"user": "cybozu", "control_plane": true, "labels": {"cke.cybozu.com/role": "compute"}},
            worker("compute", "6.0"),
            worker("storage", "3.0"),
            worker("gpu", "1.0"),
        ],
        "service_subnet": "10.68.0.0/16",
        "options": {"kubelet": {"cri_endpoint": "unix:///run/containerd/containerd.sock"}},
    });
    let constraints = json!({"control-plane-count": 3, "minimum-workers": 30, "maximum-workers": 0});
    // Retiring and retired machines are to be seen; only those that boot the others are never asked for.
    let variables = json!({"having": null, "notHaving": {"roles": ["boot"]}});
    let values = [
        (keys::SABAKAN_URL, url.to_owned()),
        (keys::SABAKAN_VARIABLES, variables.to_string()),
        (keys::CONSTRAINTS, constraints.to_string()),
        (keys::SABAKAN_TEMPLATE, template.to_string()),
    ];
    let transaction = Transaction {
        conditions: values
            .iter()
            .map(|(key, _)| Condition::Unchanged { key: (*key).to_owned(), revision: 0 })
            .collect(),
        writes: values
            .into_iter()
            .map(|(key, value)| Write::Put { key: key.to_owned(), value: value.into(), lease: 0 })
            .collect(),
    };
    match store.commit(transaction).await? {
        Outcome::Committed { .. } => Ok(()),
        Outcome::Refused { .. } => anyhow::bail!("the demo's store is not empty"),
    }
}
