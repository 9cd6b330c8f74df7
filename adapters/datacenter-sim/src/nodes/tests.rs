mod actions;
mod etcd;
mod faults;
mod history;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use madako_domain::component::Component;
use madako_domain::containers::{Container, ServiceParams};
use madako_domain::node_status::{EtcdMember, NodeStatus};
use madako_protocol::etcd::EtcdError;
use madako_protocol::node::{
    ContainerSpec, FileContent, NodeAction, NodeConnection, NodeError, NodeFile, NodeTarget,
};
use madako_protocol::permit::Permit;
use madako_protocol::secret::Secret;
use tokio::time::{Instant, sleep};

use super::machine::DATA_DIRECTORY;
use super::{EtcdFact, Observed, SimulatedNodes};

const VOLUME: &str = "etcd-cke";
const IMAGE: &str = "ghcr.io/cybozu/etcd:3.5.15.1";
const TOOLS: &str = "ghcr.io/cybozu-go/cke-tools:1.30.0";
const CERTIFICATE: &str = "/etc/etcd/pki/server.crt";
/// Longer than all starts and catch-ups.
const A_WHILE: Duration = Duration::from_secs(20);

/// Nodes 10.0.0.1, 10.0.0.2 and so on; two in each rack.
struct Fleet {
    nodes: SimulatedNodes,
    all: Vec<String>,
}

enum Initial<'a> {
    None,
    New(&'a [String]),
    Existing(&'a [String]),
}

impl Fleet {
    fn new(count: u32) -> Self {
        Self::seeded(7, count)
    }

    fn seeded(seed: u64, count: u32) -> Self {
        let nodes = SimulatedNodes::new(seed);
        let all: Vec<String> = (1..=count).map(|number| format!("10.0.0.{number}")).collect();
        for (address, number) in all.iter().zip(0..) {
            nodes.add(address, number / 2);
        }
        Self { nodes, all }
    }

    /// A fleet whose nodes are the members of etcd.
    async fn bootstrapped(count: u32) -> Self {
        let fleet = Self::new(count);
        fleet.bootstrap().await;
        fleet
    }

    async fn bootstrap(&self) {
        for address in &self.all {
            self.start(address, &Initial::New(&self.all)).await.unwrap();
        }
        sleep(A_WHILE).await;
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn NodeConnection>, NodeError> {
        let target = NodeTarget { address: address.to_owned(), user: "u".to_owned(), pinned: None };
        self.nodes.driver_port().connect(&target).await
    }

    async fn act(&self, address: &str, action: &NodeAction) -> Result<String, NodeError> {
        self.connect(address).await?.act(&permit(), action).await
    }

    async fn status(&self, address: &str) -> NodeStatus {
        self.connect(address).await.unwrap().status(VOLUME).await.unwrap()
    }

    /// Writes the certificate, and starts a member on the data volume.
    async fn start(&self, address: &str, initial: &Initial<'_>) -> Result<String, NodeError> {
        self.act(address, &files()).await?;
        let spec = etcd(address, initial);
        self.act(address, &NodeAction::RunContainer { spec, restart: false }).await
    }

    async fn stop(&self, address: &str) {
        self.act(address, &NodeAction::StopContainer(Container::Etcd.into())).await.unwrap();
    }

    async fn remove_data(&self, address: &str) {
        self.act(address, &NodeAction::RemoveVolume { name: VOLUME.to_owned() }).await.unwrap();
    }

    async fn members(&self) -> Vec<EtcdMember> {
        self.nodes.etcd_port().status(&self.all).await.unwrap().members
    }

    async fn add_learner(&self, address: &str) -> Result<Vec<EtcdMember>, EtcdError> {
        self.nodes.etcd_port().add_learner(&permit(), &self.all, &peer_url(address)).await
    }

    fn facts(&self) -> Vec<EtcdFact> {
        let facts = self.nodes.facts_since(0).into_iter();
        facts
            .filter_map(|fact| match fact.what {
                Observed::Etcd(fact) => Some(fact),
                _ => None,
            })
            .collect()
    }

    fn runs(&self, address: &str) -> bool {
        let containers = self.nodes.view_node(address).unwrap().containers;
        containers.get(Container::Etcd.name()).is_some_and(|container| container.running)
    }
}

fn permit() -> Permit {
    Permit::give(5, Instant::now() + Duration::from_secs(3600))
}

fn peer_url(address: &str) -> String {
    format!("https://{address}:2380")
}

fn named_url(address: &String) -> String {
    format!("{address}={}", peer_url(address))
}

fn files() -> NodeAction {
    let content = FileContent::Public("certificate".to_owned());
    let key = FileContent::Private(Secret::new("key".to_owned()));
    let file = |path: &str, content| NodeFile { path: path.to_owned(), content };
    let files = vec![file(CERTIFICATE, content), file("/etc/etcd/pki/server.key", key)];
    NodeAction::WriteFiles { tools: TOOLS.to_owned(), directory: "/etc/etcd/pki".to_owned(), files }
}

fn etcd(address: &str, initial: &Initial<'_>) -> ContainerSpec {
    let mut args = vec![format!("--name={address}"), format!("--cert-file={CERTIFICATE}")];
    let (members, state) = match initial {
        Initial::None => (None, ""),
        Initial::New(members) => (Some(members), "new"),
        Initial::Existing(members) => (Some(members), "existing"),
    };
    if let Some(members) = members {
        args.push(format!("--initial-advertise-peer-urls={}", peer_url(address)));
        let members: Vec<String> = members.iter().map(named_url).collect();
        args.push(format!("--initial-cluster={}", members.join(",")));
        args.push("--initial-cluster-token=cke".to_owned());
        args.push(format!("--initial-cluster-state={state}"));
    }
    ContainerSpec {
        container: Container::Etcd.into(),
        image: IMAGE.to_owned(),
        engine_options: &[],
        volumes: vec![(VOLUME.to_owned(), DATA_DIRECTORY.to_owned())],
        builtin: ServiceParams { args, ..ServiceParams::default() },
        extra: ServiceParams::default(),
    }
}
