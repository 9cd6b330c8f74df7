//! The nodes of a simulated deployment, and the actions that the words of a scripted scenario have on them.
//!
//! A script names a node by its place in the cluster configuration, such as `control-plane-1` or `worker-3`. The name
//! stays with the node even if the configuration changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions};
use madako_datacenter_sim::SimulatedRegistry;
use madako_datacenter_sim::nodes::{
    NodeFault, NodePlace, SimulatedBackups, SimulatedNodes, UnsignedAuthorities,
};
use madako_datacenter_sim::vault::SimulatedVault;
use madako_domain::authority::Authority;
use madako_domain::backup::BackupSchedule;
use madako_domain::certificate::Validity;
use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::host_key::HostKey;
use madako_domain::images::ImageName;
use madako_domain::keys;
use madako_domain::node_status::NodeStatus;
use madako_protocol::authorities::{
    Authorities, AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
};
use madako_protocol::node::{NodeAction, NodeConnection, NodeDriver, NodeError, NodeTarget, SnapshotContent};
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_simulation::world::PREFIX;
use madako_supervisor::nodes::{
    BackupPorts, HostKeyPolicy, KubernetesMode, OperationsMode, OperationsPorts, RunnerPorts, Settings,
};
use serde_json::Value;
use tokio::time::sleep;

use crate::vault::{issuing, set_up};

/// Life of certificates, as with the real authorities.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Time between backups: longer than any scenario leaves etcd without a majority.
const BACKUP_EVERY: Duration = Duration::from_secs(3600);

/// The nodes of all machines of the registry.
pub struct Nodes {
    pub world: SimulatedNodes,
    pub backups: SimulatedBackups,
    /// Life of the certificates that are issued from now on.
    pub life: Arc<Mutex<Duration>>,
    clock: Arc<dyn Clock>,
    /// Issues the certificates, with the store that names it; without it, other authorities do.
    vault: Option<(SimulatedVault, Arc<dyn Store>)>,
    /// Additional time until a node answers a query of its state.
    pub late: Arc<Mutex<Duration>>,
    /// Addresses of nodes whose certificates the login cannot read.
    hidden: Arc<Mutex<BTreeSet<String>>>,
    /// Addresses of the nodes that the script named.
    named: BTreeMap<String, String>,
}

impl Nodes {
    pub fn of(registry: &SimulatedRegistry, clock: &Arc<dyn Clock>) -> Self {
        let world = SimulatedNodes::new(1);
        for machine in registry.list_machines() {
            world.add(machine.address().unwrap(), machine.spec.rack.try_into().unwrap());
        }
        let life = Arc::new(Mutex::new(YEAR));
        let backups = SimulatedBackups::new(&world);
        let (clock, late, hidden) = (Arc::clone(clock), Arc::default(), Arc::default());
        Self { world, backups, life, clock, vault: None, late, hidden, named: BTreeMap::new() }
    }

    /// Sets a Vault up, which issues from the next start of an instance on. Returns the access to it.
    pub async fn use_vault(&mut self, store: Arc<dyn Store>) -> String {
        let vault = SimulatedVault::new(Arc::new(self.lasting()));
        let access = set_up(&vault).await;
        self.vault = Some((vault, store));
        access
    }

    /// The Vault of the script.
    pub fn vault(&self) -> &SimulatedVault {
        &self.vault.as_ref().unwrap().0
    }

    /// The ports of an instance, with this image of etcd.
    pub fn ports(&self, etcd: Option<&str>) -> OperationsPorts {
        let mut settings = Settings::default();
        if let Some(etcd) = etcd {
            etcd.clone_into(settings.configured_images.image_mut(ImageName::Etcd));
        }
        OperationsPorts {
            mode: OperationsMode::Act,
            driver: Arc::new(Impaired {
                inner: self.world.driver_port(),
                late: Arc::clone(&self.late),
                hidden: Arc::clone(&self.hidden),
            }),
            host_keys: HostKeyPolicy::Pin,
            settings,
            runner: RunnerPorts {
                etcd: self.world.etcd_port(),
                authorities: self.authorities(),
                components: self.world.components_port(),
                secrets: self.world.secrets_port(),
            },
            backups: Some(BackupPorts {
                schedule: BackupSchedule { every: BACKUP_EVERY, dir: "/b".to_owned(), keep: 3, prove: true },
                backups: Arc::new(self.backups.clone()),
            }),
        }
    }

    /// The ports of an instance that keeps the components of Kubernetes, too.
    pub fn ports_with_components(&self) -> OperationsPorts {
        let mut ports = self.ports(None);
        ports.settings.kubernetes = KubernetesMode::Act;
        ports
    }

    /// Ends all components of Kubernetes. Their starts issue their certificates anew.
    pub fn end_components(&self) {
        for node in self.world.registered_taints().keys() {
            for component in Component::ALL {
                self.world.end_container(node, component);
            }
        }
    }

    fn authorities(&self) -> Arc<dyn Authorities> {
        let own = Arc::new(self.lasting());
        match &self.vault {
            Some((vault, store)) => Arc::new(issuing(vault, Arc::clone(store), own)),
            None => own,
        }
    }

    fn lasting(&self) -> Lasting {
        Lasting { clock: Arc::clone(&self.clock), life: Arc::clone(&self.life) }
    }

    /// The address of a node.
    pub fn address(&mut self, name: &str, cluster: &Cluster) -> String {
        let find = || {
            let (role, number) = name.rsplit_once('-').unwrap();
            let number: usize = number.parse().unwrap();
            let mut nodes =
                cluster.nodes.iter().filter(|node| node.control_plane == (role == "control-plane"));
            nodes.nth(number - 1).unwrap_or_else(|| panic!("the cluster has no {name}")).address.clone()
        };
        self.named.entry(name.to_owned()).or_insert_with(find).clone()
    }

    /// Carries out a step on the node at an address.
    pub fn act(&self, address: &str, words: &[&str]) {
        let place = NodePlace::Address(address.to_owned());
        match words {
            ["begins", fault] => self.world.begin(&place, fault_of(fault)),
            ["ends", fault] => self.world.end(&place, fault_of(fault)),
            ["reinstalled"] => self.world.reinstall_node(address),
            ["loses", "rivers"] => self.world.end_container(address, Container::Rivers),
            ["hides", "certificates"] => drop(self.hidden.lock().unwrap().insert(address.to_owned())),
            ["shows", "certificates"] => drop(self.hidden.lock().unwrap().remove(address)),
            _ => panic!("unknown words: {words:?}"),
        }
    }
}

fn fault_of(word: &str) -> NodeFault {
    match word {
        "kill" => NodeFault::Kill,
        "cut" => NodeFault::Cut,
        "disk-full" => NodeFault::DiskFull,
        _ => panic!("no such fault of a node: {word}"),
    }
}

/// Deletes the records of bootstraps of etcd.
pub async fn forget_bootstrap(mut client: Client) {
    let options = GetOptions::new().with_prefix();
    let records = client.get(format!("{PREFIX}{}", keys::RECORDS), Some(options)).await.unwrap();
    for kv in records.kvs() {
        let record: Value = serde_json::from_slice(kv.value()).unwrap();
        if record["operation"] == "etcd-bootstrap" {
            client.delete(kv.key(), None).await.unwrap();
        }
    }
}

/// Authorities whose certificates last as long as the script says.
struct Lasting {
    clock: Arc<dyn Clock>,
    life: Arc<Mutex<Duration>>,
}

impl Lasting {
    fn now(&self) -> UnsignedAuthorities {
        UnsignedAuthorities::new(Arc::clone(&self.clock), *self.life.lock().unwrap())
    }
}

#[async_trait]
impl Authorities for Lasting {
    async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
        self.now().certificate(authority).await
    }

    async fn issue(&self, request: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
        self.now().issue(request).await
    }

    fn validity(&self, certificate: &str) -> Option<Validity> {
        self.now().validity(certificate)
    }

    fn due(
        &self,
        certificate: Option<&str>,
        issuer: &str,
        wanted: &CertificateRequest,
    ) -> Option<RenewalReason> {
        self.now().due(certificate, issuer, wanted)
    }
}

/// A driver of nodes whose container engines answer late, or whose logins cannot read certificates.
struct Impaired {
    inner: Arc<dyn NodeDriver>,
    late: Arc<Mutex<Duration>>,
    hidden: Arc<Mutex<BTreeSet<String>>>,
}

#[async_trait]
impl NodeDriver for Impaired {
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError> {
        let inner = self.inner.connect(target).await?;
        let (late, hidden) = (Arc::clone(&self.late), Arc::clone(&self.hidden));
        Ok(Arc::new(ImpairedConnection { inner, address: target.address.clone(), late, hidden }))
    }
}

struct ImpairedConnection {
    inner: Arc<dyn NodeConnection>,
    address: String,
    late: Arc<Mutex<Duration>>,
    hidden: Arc<Mutex<BTreeSet<String>>>,
}

#[async_trait]
impl NodeConnection for ImpairedConnection {
    fn host_key(&self) -> &HostKey {
        self.inner.host_key()
    }

    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError> {
        let late = *self.late.lock().unwrap();
        sleep(late).await;
        let mut status = self.inner.status(volume).await?;
        if self.hidden.lock().unwrap().contains(&self.address) {
            status.etcd_certificates.clear();
        }
        Ok(status)
    }

    async fn snapshot(&self, image: &str, path: &str) -> Result<SnapshotContent, NodeError> {
        self.inner.snapshot(image, path).await
    }

    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError> {
        self.inner.act(permit, action).await
    }

    async fn closed(&self) {
        self.inner.closed().await;
    }
}
