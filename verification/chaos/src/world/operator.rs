//! Sets the cluster up as an operator does, before the first fault of a chaos run.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::Method;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::{
    ANSWERS_WITHIN, LINKS, NAMESPACE, PROVIDER, Plan, World, WorldError, cluster_names, config, io_error,
};
use crate::datacenter::metric_of;
use crate::network::Node;
use crate::web::{self, WebRequest};

/// Time limit of an operator's command.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);

impl World {
    /// Stores the operator's settings, past the network.
    pub(super) async fn write_operator_config(&self, plan: &Plan<'_>) -> Result<(), WorldError> {
        let config = plan.data.join("operator.yml");
        let endpoints: Vec<String> = self.member_endpoints().into_values().collect();
        fs::write(&config, config::configuration_file(&endpoints, false, None))
            .map_err(io_error("cannot write the operator's configuration file"))?;
        let template = plan.data.join("template.yml");
        let own = plan.programs.own.display().to_string();
        let text = config::template_text(&own, &self.registry.control.to_string());
        fs::write(&template, text).map_err(io_error("cannot write the template"))?;
        let registry = self.registry_way;
        let run = async |args: &[&str]| run_madako(&plan.programs.madako, &config, args).await;
        run(&["sabakan", "set-url", &format!("http://{registry}/graphql")]).await?;
        for (name, value) in config::constraint_values(plan.wanted()) {
            run(&["constraints", "set", name, &value.to_string()]).await?;
        }
        run(&["sabakan", "set-template", &template.display().to_string()]).await
    }

    /// Creates the clusters of placement through the API of an instance.
    pub(crate) async fn settle(&mut self, plan: &Plan<'_>) -> Result<(), WorldError> {
        let Some(provider) = self.provider.as_ref().map(|provider| provider.address) else { return Ok(()) };
        let mut chance = ChaCha8Rng::seed_from_u64(plan.seed);
        chance.set_stream(LINKS + 1);
        let to = Node::Provider(PROVIDER.to_owned());
        let url = format!("http://{}", self.connect_nodes(to, provider, &mut chance).await?);
        let Some(at) = self.instances.values().next().map(|instance| instance.http) else { return Ok(()) };
        let send =
            async |method: &Method, path: &str, body: &Value| send_to_api(at, method, path, body).await;
        send(&Method::POST, "/core/globalmetricsproviders", &config::provider_resource(PROVIDER, &url))
            .await?;
        let all = format!("/kubernetes/namespaces/{NAMESPACE}/clusters");
        for (number, name) in cluster_names(plan.wanted()).iter().enumerate() {
            let metric = config::metric_resource(&metric_of(name), PROVIDER);
            send(&Method::POST, "/core/globalmetrics", &metric).await?;
            let mut made = send(&Method::POST, &all, &config::cluster_resource(name, number)).await?;
            made["status"]["state"] = "ONLINE".into();
            send(&Method::PUT, &format!("{all}/{name}/status"), &made).await?;
        }
        Ok(())
    }
}

/// Runs an operator's command.
async fn run_madako(madako: &Path, config: &Path, args: &[&str]) -> Result<(), WorldError> {
    let mut command = Command::new(madako);
    command.arg("--config").arg(config).args(args).kill_on_drop(true);
    let words = || args.join(" ");
    let output = timeout(COMMAND_WITHIN, command.output()).await.map_err(|_| WorldError::Late {
        what: format!("madako {} did not end", words()),
        within: COMMAND_WITHIN,
    })?;
    let output = output.map_err(io_error(format!("cannot run {}", madako.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(WorldError::Command { args: words(), output })
}

/// Sends a request that must succeed; retries while no instance leads yet.
async fn send_to_api(at: SocketAddr, method: &Method, path: &str, body: &Value) -> Result<Value, WorldError> {
    let what = format!("{method} {path}");
    let answer = web::send_request(at, WebRequest::send(method, path, body, ANSWERS_WITHIN)).await;
    let answer = answer.map_err(|error| WorldError::Unanswered(what.clone(), error))?;
    if answer.status.is_success() {
        return Ok(answer.json());
    }
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Err(WorldError::Refused(what, answer.status.as_u16(), body))
}
