//! Benchmark support: a store, a registry, instances of the service on them, and an observer of the store.

use std::path::PathBuf;

use anyhow::Context as _;
use madako_domain::keys;
use serde_json::json;
use tokio::time::Instant;

use crate::processes::{Etcd, Madako, WorkDirectory, free_port};
use crate::registry::Registry;
use crate::witness::Witness;

/// Time between polls, as a flag.
pub(crate) const INTERVAL: &str = "1s";

/// Nodes of the control plane.
const CONTROL_PLANE: usize = 3;

/// The subject of a measurement.
pub(crate) struct Scene {
    pub(crate) place: WorkDirectory,
    pub(crate) registry: Registry,
    pub(crate) endpoint: String,
    /// Configuration of the instances that have the embedded store or dial etcd.
    config: PathBuf,
    ttl: &'static str,
    pub(crate) witness: Witness,
    pub(crate) workers: usize,
    _etcd: Option<Etcd>,
}

impl Scene {
    /// A real etcd, without instances.
    pub(crate) async fn with_etcd(machines: u32, ttl: &'static str) -> anyhow::Result<Self> {
        let place = WorkDirectory::new()?;
        let etcd = Etcd::start(&place)?;
        let endpoint = etcd.endpoint.clone();
        let config = place.write_config("config.yml", &format!("endpoints: [{endpoint}]\n"))?;
        let registry = Registry::serve(machines).await?;
        let witness = Witness::new(&endpoint).await?;
        Ok(Self { place, registry, endpoint, config, ttl, witness, workers: 0, _etcd: Some(etcd) })
    }

    /// A real etcd of three members, without instances.
    pub(crate) async fn with_three_etcds(
        machines: u32,
        ttl: &'static str,
    ) -> anyhow::Result<(Self, [Etcd; 3])> {
        let place = WorkDirectory::new()?;
        let members = Etcd::start_members(&place)?;
        let endpoints = members.each_ref().map(|member| member.endpoint.as_str());
        let config = place.write_config("config.yml", &format!("endpoints: [{}]\n", endpoints.join(", ")))?;
        let registry = Registry::serve(machines).await?;
        let endpoint = members[0].endpoint.clone();
        let witness = Witness::new(&endpoint).await?;
        Ok((Self { place, registry, endpoint, config, ttl, witness, workers: 0, _etcd: None }, members))
    }

    /// The embedded store, with the instance that has it.
    pub(crate) async fn with_embedded_leader(
        machines: u32,
        ttl: &'static str,
    ) -> anyhow::Result<(Self, Madako)> {
        Self::with_embedded_store(machines, ttl, "", "127.0.0.1:0").await
    }

    /// [`Self::with_embedded_leader`] with further sections of the configuration, and the address of its pages.
    pub(crate) async fn with_embedded_store(
        machines: u32,
        ttl: &'static str,
        sections: &str,
        pages: &str,
    ) -> anyhow::Result<(Self, Madako)> {
        let place = WorkDirectory::new()?;
        let listen = format!("127.0.0.1:{}", free_port()?);
        let data = place.path_of("data");
        let embedded = format!("embedded:\n  data-dir: {}\n  listen: {listen}\n{sections}", data.display());
        let config = place.write_config("config.yml", &embedded)?;
        let registry = Registry::serve(machines).await?;
        let flags = ["--http", pages, "--interval", INTERVAL, "--session-ttl", ttl];
        let instance = Madako::serve(&config, &place.path_of("log"), &flags)?;
        let endpoint = format!("http://{listen}");
        let witness = Witness::new(&endpoint).await?;
        let scene = Self { place, registry, endpoint, config, ttl, witness, workers: 0, _etcd: None };
        Ok((scene, instance))
    }

    /// A store that is running already, without instances.
    pub(crate) async fn beside_etcd(endpoint: &str, machines: u32) -> anyhow::Result<Self> {
        let place = WorkDirectory::new()?;
        let config = place.write_config("config.yml", &format!("endpoints: [{endpoint}]\n"))?;
        let registry = Registry::serve(machines).await?;
        let witness = Witness::new(endpoint).await?;
        let endpoint = endpoint.to_owned();
        Ok(Self { place, registry, endpoint, config, ttl: "60s", witness, workers: 0, _etcd: None })
    }

    /// Starts another instance with the scene's configuration.
    pub(crate) fn start_instance(&self) -> anyhow::Result<Madako> {
        Madako::start(&self.config, &self.place.path_of("log"), INTERVAL, self.ttl)
    }

    /// Starts another instance, which dials the store.
    pub(crate) fn start_dialling_instance(&self) -> anyhow::Result<Madako> {
        let config = self.place.write_config("dials.yml", &format!("endpoints: [{}]\n", self.endpoint))?;
        Madako::start(&config, &self.place.path_of("log"), INTERVAL, self.ttl)
    }

    /// The candidate's key of an instance that the caller has just started.
    pub(crate) async fn wait_for_candidate(&mut self) -> anyhow::Result<String> {
        let is_candidate =
            |seen: &crate::witness::TimedChange| seen.key.starts_with(keys::LEADER) && seen.entry.is_some();
        Ok(self.witness.wait_for_change("a candidate", |_, seen| is_candidate(seen)).await?.key)
    }

    /// Stores the operator's settings, and waits for the first cluster.
    pub(crate) async fn install(&mut self, workers: usize) -> anyhow::Result<()> {
        self.store_settings(workers).await?;
        self.witness.wait_until_workers(workers).await?;
        let masters = self.witness.cluster()?.control_plane().count();
        anyhow::ensure!(masters == CONTROL_PLANE, "{masters} control plane nodes");
        Ok(())
    }

    /// Stores the operator's settings.
    pub(crate) async fn store_settings(&mut self, workers: usize) -> anyhow::Result<()> {
        let worker = |role: &str, weight: &str| json!({"user": "cybozu", "labels": {"cke.cybozu.com/role": role, "cke.cybozu.com/weight": weight}});
        let template = json!({
            "name": "bench",
            "nodes": [
                {"user": "cybozu", "control_plane": true, "labels": {"cke.cybozu.com/role": "compute"}},
                worker("compute", "6.0"),
                worker("storage", "3.0"),
                worker("gpu", "1.0"),
            ],
            "service_subnet": "10.68.0.0/16",
        });
        // Retired machines stay in the list, to be tainted.
        let variables = json!({"having": null, "notHaving": {"roles": ["boot"]}});
        self.witness.put(keys::SABAKAN_VARIABLES, variables.to_string()).await?;
        self.witness.put(keys::SABAKAN_URL, self.registry.url.clone()).await?;
        self.set_constraints(workers).await?;
        self.witness.put(keys::SABAKAN_TEMPLATE, template.to_string()).await
    }

    /// Writes the minimum number of workers, as ckecli does. Returns the time before the write.
    pub(crate) async fn set_constraints(&mut self, workers: usize) -> anyhow::Result<Instant> {
        let constraints = json!({
            "control-plane-count": CONTROL_PLANE, "minimum-workers": workers, "maximum-workers": 0,
        });
        self.workers = workers;
        let began = Instant::now();
        self.witness.put(keys::CONSTRAINTS, constraints.to_string()).await?;
        Ok(began)
    }

    /// Demands one worker more. Returns the time before the write.
    pub(crate) async fn request_one_more_worker(&mut self) -> anyhow::Result<Instant> {
        self.set_constraints(self.workers + 1).await
    }

    /// The end of the instances' log, for messages of failures.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.place.path_of("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Adds the end of the log to an error.
    pub(crate) fn explain<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.with_context(|| format!("the end of the log:\n{}", self.log()))
    }
}
