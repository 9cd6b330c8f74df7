//! The surroundings of a demo: a data center, metrics of clusters, a store in a temporary directory, and the service.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use madako_datacenter_sim::host::{CommandBehaviour, HEALTH_CHECK, RESET, SUCCESS, SimulatedHost};
use madako_datacenter_sim::{
    Datacenter, DatacenterConfig, GRAPHQL_PATH, SimulatedPrometheus, SimulatedRegistry,
};
use madako_domain::keys;
use madako_domain::store::{Condition, Outcome, Transaction, Write};
use madako_http_client::ReqwestTransport;
use madako_protocol::event::Event;
use madako_protocol::feed::Task;
use madako_protocol::ports::{Clock, HttpTransport};
use madako_protocol::store::Store as _;
use madako_store::{EtcdStore, StoreConfig};
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::{DEFAULT_PREFIX, Embedded, Placement};
use madako_supervisor::instance::InstanceOptions;
use madako_supervisor::journal::Journal;
use madako_supervisor::service::{CommandRunner, Service, ServiceError, ServiceOptions, open_embedded};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::broadcast;

use super::DemoOptions;
use super::actions::Actions;
use super::placement::{self, DemoApi, PlacementDemo};

/// Time between polls: machines change every few seconds.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time to live of the session lease.
const SESSION_TTL: Duration = Duration::from_secs(10);
/// Shorter than the default of 300 s, so that the user sees a retired worker leave.
pub(crate) const RETIRE_WAIT: Duration = Duration::from_secs(10);

/// Commands of repairs: quick, and mostly successful, so that a repair fails when the user wants it to.
pub(crate) const COMMANDS: CommandBehaviour = CommandBehaviour {
    heals_percent: 60,
    fails_percent: 3,
    hangs_percent: 0,
    lost_percent: 0,
    confused_percent: 0,
    takes: Duration::from_secs(3),
};
/// Entries of the repair queue, also ended ones: less than the twelve machines of a rack without power, more than break otherwise.
pub(crate) const REPAIRS: u32 = 10;

pub(crate) struct World {
    pub(crate) registry: SimulatedRegistry,
    pub(crate) service: Service,
    pub(crate) events: broadcast::Receiver<Arc<Event>>,
    pub(crate) etcd: Option<SocketAddr>,
    pub(crate) placing: PlacementDemo,
    pub(crate) actions: Actions,
    /// The store as the operator of the demo uses it.
    pub(crate) operator: EtcdStore,
    directory: Directory,
    _servers: [Task; 2],
}

/// A temporary directory, removed with the demo.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                directory = %self.0.display(),
                "cannot delete the directory of the demo"
            );
        }
    }
}

impl World {
    pub(crate) async fn start(options: &DemoOptions) -> anyhow::Result<Self> {
        let clock = Arc::new(SystemClock);
        let datacenter = Datacenter::new(DatacenterConfig::for_demo(options.seed, clock.now()))?;
        let registry = SimulatedRegistry::new(datacenter, Arc::clone(&clock) as Arc<dyn Clock>);
        let prometheus = SimulatedPrometheus::new(options.seed, clock, placement::simulated_metrics());
        let host = SimulatedHost::new(registry.clone(), COMMANDS);
        let listener = bind_loopback().await?;
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr()?);
        let registry_server = Task::start(report_server_end(registry.clone().serve_tcp(listener)));
        let listener = bind_loopback().await?;
        let metrics_url = format!("http://{}", listener.local_addr()?);
        let metrics_server = Task::start(report_server_end(prometheus.clone().serve_tcp(listener)));

        let directory = Directory(std::env::temp_dir().join(format!("madako-demo-{}", std::process::id())));
        let embedded = Embedded {
            data_dir: directory.0.clone(),
            listen: options.etcd,
            ..Embedded::without_configuration()
        };
        let store = match open_embedded(&embedded, options.seed).await {
            Err(ServiceError::Taken(_)) => {
                let listen = SocketAddr::new(options.etcd.ip(), 0);
                open_embedded(&Embedded { listen, ..embedded }, options.seed).await?
            }
            other => other?,
        };
        let etcd = store.address();
        let clients = StoreConfig { prefix: DEFAULT_PREFIX.to_owned(), ..StoreConfig::default() };
        let operator = store.connect_client(&clients, options.seed).await?;
        install(&operator, &url).await?;
        let journal = if options.log { Journal::new("demo") } else { Journal::without_log("demo") };
        let events = journal.listen();
        let service_options = ServiceOptions {
            operations: Default::default(),
            instance: instance_options("demo", crate::host::host_name(), options.seed),
            http: options.http.to_string(),
            metrics: crate::recorder::install_recorder()?,
            version: crate::VERSION,
            journal,
            placement: Some(placement_on(options.http)),
            kubernetes: None,
            host: Some(CommandRunner::Given(Arc::new(host.clone()))),
            simulated: None,
        };
        let service = Service::start_on_embedded(store, &clients, service_options).await?;
        let transport: Arc<dyn HttpTransport> = Arc::new(ReqwestTransport::new()?);
        let api = service
            .placement_http()
            .context("cannot use the placement API of the demo: its service serves none")?;
        let api = DemoApi::new(transport, format!("http://{api}"));
        let placing = PlacementDemo::start(api, prometheus, &metrics_url, options.seed).await?;
        let servers = [registry_server, metrics_server];
        let actions = Actions::new(registry.clone(), host);
        Ok(Self { registry, actions, operator, service, events, etcd, placing, directory, _servers: servers })
    }

    pub(crate) async fn stop(self) {
        // No client uses the API and the store when they end.
        drop(self.placing);
        drop(self.operator);
        self.service.stop().await;
        drop(self.directory);
    }
}

async fn bind_loopback() -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .context("cannot listen on a free port of 127.0.0.1 for a simulated server")
}

async fn report_server_end(server: impl Future<Output = io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(error = &error as &dyn std::error::Error, "a simulated server ended");
    }
}

/// Placement on the demo's port. It allows every request, so it must be on loopback: if the port is not, the API gets
/// its own.
fn placement_on(http: SocketAddr) -> Placement {
    let mut settings = placement::placement_settings();
    if !http.ip().to_canonical().is_loopback() {
        settings.api.listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string());
    }
    settings
}

pub(crate) fn instance_options(id: &str, host: String, seed: u64) -> InstanceOptions {
    InstanceOptions {
        url: String::new(),
        id: id.to_owned(),
        host,
        interval: INTERVAL,
        session_ttl: SESSION_TTL,
        retire_wait: RETIRE_WAIT,
        hold: Some(madako_domain::repair::hold::HoldSettings::default()),
        reboots: madako_domain::reboot::RebootSettings::default(),
        seed,
    }
}

/// Stores the operator's settings: the registry's URL, variables, constraints and a template.
pub(crate) async fn install(store: &EtcdStore, url: &str) -> anyhow::Result<()> {
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
        "repair": repair(),
    });
    let constraints = json!({
        "control-plane-count": 3, "minimum-workers": 30, "maximum-workers": 0, "maximum-repair-queue-entries": REPAIRS,
    });
    // Retiring and retired machines are included, to be seen; only boot servers are excluded.
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
        Outcome::Refused { .. } => {
            anyhow::bail!("cannot write the configuration of the demo: its new store has keys already")
        }
    }
}

/// Procedures for broken and for unreachable machines: a reset, and another one if the machine stays as it is.
fn repair() -> serde_json::Value {
    let step = |watch: u32| json!({"repair_command": [RESET], "command_timeout_seconds": 30, "watch_seconds": watch});
    let operation = |name: &str| {
        json!({
            "operation": name, "repair_steps": [step(10), step(20)],
            "health_check_command": [HEALTH_CHECK], "success_command": [SUCCESS],
        })
    };
    json!({
        "max_concurrent_repairs": 2,
        "repair_procedures": [{
            "machine_types": ["iDRAC-9", "IPMI-2.0"],
            "repair_operations": [operation("unhealthy"), operation("unreachable")],
        }],
    })
}
