//! The inputs of a decision about operations: cluster configuration, states of nodes and of etcd, images, and the
//! newest records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::containers::{Container, ContainerOptions};
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::images::{GivenImages, ImageName};
use madako_domain::node_status::FleetStatus;
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::repair::queue::Items;
use madako_domain::resource::ResourceKey;
use madako_domain::restore::RestoreRequest;
use madako_domain::rollout::Rollout;
use time::OffsetDateTime;

use crate::early_ends::ComponentOnNode;
use crate::images::UnclearImages;
use crate::kubernetes::minor_upgrade::MinorUpgrade;
use crate::kubernetes::objects::apply::{FailedApply, ReadResources};
use crate::kubernetes::objects::decide::ConfiguredDnsImages;
use crate::kubernetes::options::KubernetesOptions;
use crate::limits::{CERTS_GC_INTERVAL, MAX_CONCURRENT_UPDATES};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    pub etcd: String,
    /// The image with rivers and the programs that write files.
    pub tools: String,
    /// The image of all components of Kubernetes.
    pub kubernetes: String,
    /// Images of the DNS servers. Without them, the present objects keep theirs.
    pub dns: ConfiguredDnsImages,
}

impl Default for Images {
    /// The images of CKE 1.30.
    fn default() -> Self {
        let of_cke = |name: ImageName| name.default_image().to_owned();
        Self {
            etcd: of_cke(ImageName::Etcd),
            tools: of_cke(ImageName::Tools),
            kubernetes: of_cke(ImageName::Kubernetes),
            dns: ConfiguredDnsImages::default(),
        }
    }
}

impl Images {
    #[must_use]
    pub fn image_of(&self, container: Container) -> &str {
        match container {
            Container::Rivers | Container::EtcdRivers => &self.tools,
            Container::Etcd => &self.etcd,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Nodes on which one operation starts or restarts rivers.
    pub max_concurrent_updates: usize,
    /// The images of the pass: see [`with_images`](crate::images::with_images).
    pub images: Images,
    pub configured_images: GivenImages,
    /// Images that could not be chosen. Operations with them wait.
    pub unclear_images: UnclearImages,
    /// Time between two removals of expired certificates from Vault.
    pub certs_gc_interval: Duration,
    pub kubernetes: KubernetesMode,
    pub minor_upgrade: MinorUpgrade,
}

/// The treatment of Kubernetes' containers (`kubernetes.mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[derive(strum::EnumString, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum KubernetesMode {
    /// They are left to CKE: nothing is asked, decided or shown.
    #[default]
    Off,
    /// Due operations are shown as held.
    Observe,
    Act,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_concurrent_updates: MAX_CONCURRENT_UPDATES,
            images: Images::default(),
            configured_images: GivenImages::default(),
            unclear_images: UnclearImages::new(),
            certs_gc_interval: CERTS_GC_INTERVAL,
            kubernetes: KubernetesMode::default(),
            minor_upgrade: MinorUpgrade::default(),
        }
    }
}

/// A restore of etcd that an operator asked for.
#[derive(Debug, Clone, Copy)]
pub struct RequestedRestore<'a> {
    pub request: &'a RestoreRequest,
    /// The members of before were stopped, or are about to be.
    pub is_under_way: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub cluster: &'a Cluster,
    pub options: &'a ContainerOptions,
    pub status: &'a FleetStatus,
    pub now: OffsetDateTime,
    /// Addresses of nodes whose last command failed a short time ago, and names of operations that failed without a node.
    pub backing_off: &'a BTreeSet<String>,
    /// Addresses of nodes whose member of etcd an operator asked to restart.
    pub restarts: &'a BTreeSet<String>,
    pub restore: Option<RequestedRestore<'a>>,
    /// Addresses of nodes that may have data of before the last restore of etcd.
    pub stale: &'a BTreeSet<String>,
    /// The reason for which no certificate can be issued at present; `None`: there is none, or the authorities were not asked.
    pub authorities: Option<&'a str>,
    /// `None`: Kubernetes is left to CKE.
    pub kubernetes: Option<KubernetesPart<'a>>,
    pub settings: &'a Settings,
}

#[derive(Debug, Clone, Copy)]
pub struct KubernetesPart<'a> {
    /// The options of the cluster for Kubernetes, or the reason why they cannot be used.
    pub options: Result<&'a KubernetesOptions, &'a str>,
    /// Addresses of nodes that drain, reboot or are repaired.
    pub busy: &'a BTreeSet<String>,
    /// Addresses of nodes whose API server is not known to be healthy for a while.
    pub settling: &'a BTreeSet<String>,
    /// Components whose next start waits, because they ended soon after each start.
    pub ending: &'a BTreeSet<ComponentOnNode>,
    /// The roll of kubelets and proxies, or the reason why it cannot be read; `None`: the first wave is to come.
    pub rollout: Result<Option<&'a Rollout>, &'a str>,
    /// The entries of the reboot queue, and the drains for upgrades.
    pub reboots: &'a Items<RebootQueueEntry>,
    /// Times at which the newest reboot command of each node ended, by address.
    pub reboot_ends: &'a BTreeMap<String, OffsetDateTime>,
    /// The rotation of the encryption key, or the reason why it cannot be read; `None`: there is none.
    pub rotation: Result<Option<&'a EncryptionRotation>, &'a str>,
    pub objects: ObjectsPart<'a>,
}

#[derive(Debug, Clone, Copy)]
pub struct ObjectsPart<'a> {
    pub user: &'a ReadResources,
    /// Addresses of the nodes that endpoints have as not ready: those under repair, and while the reboot queue is enabled,
    /// those that drain for a reboot or reboot.
    pub leaving: &'a BTreeSet<String>,
    /// Objects whose last change failed.
    pub failed: &'a BTreeMap<ResourceKey, FailedApply>,
    /// The removal guard holds an observation of the registry back.
    pub is_guarded: bool,
    /// The Node objects of many nodes are surplus for three passes.
    pub is_removal_agreed: bool,
}

static NO_RESOURCES: ReadResources = ReadResources { wanted: Vec::new(), faults: BTreeMap::new() };
static NO_FAILURES: BTreeMap<ResourceKey, FailedApply> = BTreeMap::new();
static NO_NODES: BTreeSet<String> = BTreeSet::new();

impl Default for ObjectsPart<'_> {
    fn default() -> Self {
        Self {
            user: &NO_RESOURCES,
            leaving: &NO_NODES,
            failed: &NO_FAILURES,
            is_guarded: false,
            is_removal_agreed: false,
        }
    }
}
