//! Benchmark support: a store, and the service with the placement API on it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::http::{Connection, build_request};
use super::resources;
use crate::processes::{Etcd, Madako, PATIENCE, WorkDirectory, free_port};

/// The store of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    /// A real etcd.
    Etcd,
    Embedded,
}

impl StoreKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Embedded => "embedded store",
        }
    }
}

/// The configuration of the service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) on: StoreKind,
    /// True if roles are checked; otherwise every request is allowed.
    pub(super) rbac: bool,
    /// True if the instance schedules applications.
    pub(super) controllers: bool,
}

/// The processes of a measurement.
pub(super) struct PlacementFixture {
    pub(super) address: SocketAddr,
    pub(super) endpoint: String,
    pub(super) madako: Madako,
    pub(super) etcd: Option<Etcd>,
    place: WorkDirectory,
}

impl PlacementFixture {
    /// Starts all processes, and waits until the API answers.
    pub(super) async fn start(settings: Settings) -> anyhow::Result<Self> {
        let flags = ["--http", "127.0.0.1:0", "--interval", "5s", "--session-ttl", "60s"];
        Self::serving(settings, &flags).await
    }

    /// [`Self::start`] with further flags of `serve`.
    pub(super) async fn serving(settings: Settings, flags: &[&str]) -> anyhow::Result<Self> {
        let place = WorkDirectory::new()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let (etcd, endpoint, store) = match settings.on {
            StoreKind::Etcd => {
                let etcd = Etcd::start(&place)?;
                let endpoint = etcd.endpoint.clone();
                (Some(etcd), endpoint.clone(), format!("endpoints: [{endpoint}]"))
            }
            StoreKind::Embedded => {
                let (listen, data) = (format!("127.0.0.1:{}", free_port()?), place.path_of("data"));
                let store = format!("embedded: {{data-dir: {}, listen: '{listen}'}}", data.display());
                (None, format!("http://{listen}"), store)
            }
        };
        let authorization = if settings.rbac { "RBAC" } else { "always-allow" };
        let config = format!(
            "{store}\nplacement: {{controllers: {}, api: {{host: 127.0.0.1, port: {}, \
             authorization: {authorization}, \
             authentication: {{strategy: {{static: {{enabled: true, name: bench}}}}}}}}}}\n",
            settings.controllers,
            address.port(),
        );
        let config = place.write_config("config.yml", &config)?;
        let madako = Madako::serve(&config, &place.path_of("log"), flags)?;
        let stage = Self { address, endpoint, madako, etcd, place };
        let ready = stage.wait_until_ready(settings.rbac).await;
        stage.explain(ready)?;
        Ok(stage)
    }

    async fn wait_until_ready(&self, rbac: bool) -> anyhow::Result<()> {
        let question = build_request("GET", "/me", "");
        let answers = async {
            loop {
                if let Ok(mut connection) = Connection::open(self.address).await
                    && connection.ask(&question).await?.0 == 200
                {
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, answers).await.context("the API does not answer")??;
        if rbac { self.allow().await } else { Ok(()) }
    }

    /// Writes roles as an operator does, straight into the store: the client's role, and others.
    async fn allow(&self) -> anyhow::Result<()> {
        let mut client = etcd_client::Client::connect([&self.endpoint], None).await?;
        let stamp = |name: &str| {
            json!({"name": name, "uid": name, "created": "2026-01-01T00:00:00+00:00",
                "modified": "2026-01-01T00:00:00+00:00"})
        };
        for (name, user, rules) in [
            (
                "all",
                "bench",
                json!([{"api": "", "resources": [""], "namespaces": [""],
                "verbs": ["create", "list", "get", "update", "delete", "list_all"]}]),
            ),
            ("nothing", "somebody", json!([])),
        ] {
            let role = json!({"api": "core", "kind": "Role", "metadata": stamp(name), "rules": rules});
            let binding = json!({"api": "core", "kind": "RoleBinding", "metadata": stamp(name),
                "users": [user], "roles": [name]});
            client.put(format!("/core/roles/{name}"), role.to_string(), None).await?;
            client.put(format!("/core/rolebindings/{name}"), binding.to_string(), None).await?;
        }
        Ok(())
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(self.address).await
    }

    /// Creates the metrics, and clusters that are not online yet.
    pub(super) async fn create_metrics_and_clusters(&self, clusters: usize) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        for (path, resource) in resources::make_metrics() {
            connection.expect(&build_request("POST", path, &resource.to_string())).await?;
        }
        let path = format!("/kubernetes/namespaces/{}/clusters", resources::NAMESPACE);
        for number in 0..clusters {
            let cluster = resources::cluster_json(number).to_string();
            connection.expect(&build_request("POST", &path, &cluster)).await?;
        }
        Ok(())
    }

    /// Sets clusters online, as Krake's observers do.
    pub(super) async fn set_online(&self, clusters: usize) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        for number in 0..clusters {
            let name = resources::cluster_name(number);
            let path = format!("/kubernetes/namespaces/{}/clusters/{name}", resources::NAMESPACE);
            let mut cluster: Value =
                serde_json::from_slice(connection.expect(&build_request("GET", &path, "")).await?)?;
            cluster["status"]["state"] = json!("ONLINE");
            let path = format!("{path}/status");
            connection.expect(&build_request("PUT", &path, &cluster.to_string())).await?;
        }
        Ok(())
    }

    /// Adds the end of the log to an error.
    pub(super) fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.with_context(|| {
            let log = std::fs::read_to_string(self.place.path_of("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            format!("the end of the log:\n{}", lines[lines.len().saturating_sub(30)..].join("\n"))
        })
    }
}
