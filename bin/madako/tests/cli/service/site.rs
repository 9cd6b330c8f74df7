//! Test support: a data center with its registry, a store, and an operator with a configuration file for it.

use std::sync::Arc;

use madako_datacenter_sim::{Datacenter, DatacenterConfig, GRAPHQL_PATH, SimulatedRegistry};
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::keys::{Cluster, Keys};
use super::stage::{Serve, eventually};
use crate::program::{Answer, Files, TEMPLATE, madako};

/// Address of stores and registries. Connections come from the first address of loopback, so that none of them takes
/// the port of a stopped server.
pub(crate) const HOST: &str = "127.0.2.1";
/// Workers of the first cluster.
pub(crate) const WORKERS: usize = 6;
/// Roles of the machines: enough of each for all tests.
pub(crate) const MACHINES: [(&str, u32); 2] = [("compute", 28), ("storage", 14)];

/// A free port of [`HOST`].
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind((HOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Machines change only by the test itself.
struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-11-21 12:00 UTC)
    }
}

pub(crate) struct Site {
    pub(crate) registry: SimulatedRegistry,
    pub(crate) keys: Keys,
    pub(crate) files: Files,
    config: String,
    url: String,
    server: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Site {
    /// A site of 4 racks, with the store of `config`.
    pub(crate) async fn new(files: Files, config: &str, keys: Keys) -> Self {
        Self::of(files, config, keys, 4, &MACHINES).await
    }

    pub(crate) async fn of(
        files: Files,
        config: &str,
        keys: Keys,
        racks: u32,
        machines: &[(&str, u32)],
    ) -> Self {
        let datacenter = DatacenterConfig::new(7, FixedClock.now(), racks, machines);
        let registry = SimulatedRegistry::new(Datacenter::new(datacenter).unwrap(), Arc::new(FixedClock));
        let listener = TcpListener::bind((HOST, 0)).await.unwrap();
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr().unwrap());
        let serving = registry.clone();
        let server = tokio::spawn(async move { serving.serve_tcp(listener).await.unwrap() });
        Self { registry, keys, files, config: config.to_owned(), url, server }
    }

    pub(crate) fn config(&self) -> &str {
        &self.config
    }

    /// Runs an operator's command.
    pub(crate) async fn run(&self, args: &[&str]) -> Answer {
        madako(&[&["--config", self.config.as_str()], args].concat()).await
    }

    /// Stores the operator's initial settings.
    pub(crate) async fn equip(&self) {
        self.run(&["sabakan", "set-url", &self.url]).await.calm();
        self.run(&["constraints", "set", "control-plane-count", "3"]).await.calm();
        self.run(&["constraints", "set", "minimum-workers", &WORKERS.to_string()]).await.calm();
        let template = self.files.write("template.yml", TEMPLATE);
        self.run(&["sabakan", "set-template", &template]).await.calm();
    }

    /// Waits for the first cluster, which is written once.
    pub(crate) async fn first_cluster(&self) -> Cluster {
        let cluster = eventually("a cluster is committed", async || self.keys.cluster().await).await;
        assert_eq!((cluster.control_plane.len(), cluster.workers.len(), cluster.version), (3, WORKERS, 1));
        cluster
    }

    /// A service with this site's configuration file.
    pub(crate) async fn serve(&self, session_ttl: &str, interval: &str) -> Serve {
        Serve::start(&self.config, session_ttl, interval).await
    }

    /// Stores another number of workers.
    pub(crate) async fn ask_for(&self, workers: usize) {
        self.run(&["constraints", "set", "minimum-workers", &workers.to_string()]).await.calm();
    }

    /// Waits until the cluster has this many workers.
    pub(crate) async fn until_workers(&self, workers: usize) -> Cluster {
        eventually(&format!("{workers} workers"), async || {
            self.keys.cluster().await.filter(|cluster| cluster.workers.len() == workers)
        })
        .await
    }

    /// Changes the number of workers; returns the committed cluster, after exactly one write.
    pub(crate) async fn grow_to(&self, workers: usize) -> Cluster {
        let before = self.keys.cluster().await.unwrap();
        self.ask_for(workers).await;
        let after = self.until_workers(workers).await;
        assert_eq!(after.version, before.version + 1, "one change, one write");
        assert_eq!(after.control_plane, before.control_plane);
        after
    }

    /// Checks that the cluster was not written again.
    pub(crate) async fn unchanged(&self, before: &Cluster, why: &str) {
        assert_eq!(self.keys.cluster().await.as_ref(), Some(before), "{why}");
    }
}

/// Waits until one of the services leads in a later epoch; returns its index and the epoch.
pub(crate) async fn leader_after(services: &[&Serve], epoch: i64) -> (usize, i64) {
    eventually(&format!("an instance leads after epoch {epoch}"), async || {
        for (index, service) in services.iter().enumerate() {
            if let Some(newer) = service.epoch().await.filter(|newer| *newer > epoch) {
                return Some((index, newer));
            }
        }
        None
    })
    .await
}

/// Interval of polls for tests that wait for polls.
pub(crate) const QUICK: &str = "200ms";
