//! Test support: a cluster of three control plane nodes (10.0.0.11 to 13) and three workers (10.0.0.21 to 23).

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::certificate::{NodeCertificate, Validity};
use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::containers::{Container, ContainerOptions};
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::node_status::{
    Bootstrap, ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, FleetStatus, NodeStatus,
};
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::record::RecordStatus;
use madako_domain::repair::queue::Items;
use madako_domain::restore::RestoreRequest;
use madako_json::go::RawJson;
use time::OffsetDateTime;

use crate::kubernetes::options::KubernetesOptions;
use crate::wanted::{self, InitialCluster};
use crate::{Decision, Images, Input, KubernetesPart, ObjectsPart, RequestedRestore, Settings, decide};

pub(super) const A: &str = "10.0.0.11";
pub(super) const B: &str = "10.0.0.12";
pub(super) const C: &str = "10.0.0.13";
/// The next control plane node.
pub(super) const D: &str = "10.0.0.14";
pub(super) const X: &str = "10.0.0.21";
pub(super) const Y: &str = "10.0.0.22";
pub(super) const Z: &str = "10.0.0.23";

static NOTHING: BTreeSet<String> = BTreeSet::new();
static NOTHING_ENDS: BTreeSet<(String, Component)> = BTreeSet::new();
static NO_REBOOTS: Items<RebootQueueEntry> = BTreeMap::new();
static NO_REBOOT_ENDS: BTreeMap<String, OffsetDateTime> = BTreeMap::new();

/// The time of all decisions.
pub(super) const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

pub(super) struct Fleet {
    pub(super) cluster: Cluster,
    pub(super) options: ContainerOptions,
    pub(super) status: FleetStatus,
    pub(super) backing_off: BTreeSet<String>,
    pub(super) restarts: BTreeSet<String>,
    /// The request of a restore, and whether it is under way.
    pub(super) restore: Option<(RestoreRequest, bool)>,
    pub(super) stale: BTreeSet<String>,
    pub(super) authorities: Option<String>,
    pub(super) settings: Settings,
    /// `None`: Kubernetes is left to CKE.
    pub(super) kubernetes: Option<KubernetesOptions>,
    /// The rotation of the encryption key.
    pub(super) rotation: Result<Option<EncryptionRotation>, String>,
}

impl Fleet {
    /// Empty nodes that are reachable.
    pub(super) fn empty() -> Self {
        let mut fleet = Self {
            cluster: Cluster { name: "test".to_owned(), ..Cluster::default() },
            options: ContainerOptions::read(&RawJson::default()).unwrap(),
            status: FleetStatus {
                config_version: ConfigVersion::Two,
                nodes: [].into(),
                etcd: None,
                bootstrap: None,
                interrupted_removals: BTreeSet::new(),
                etcd_image_version: None,
                kubernetes: None,
            },
            backing_off: BTreeSet::new(),
            restarts: BTreeSet::new(),
            restore: None,
            stale: BTreeSet::new(),
            authorities: None,
            settings: Settings::default(),
            kubernetes: None,
            rotation: Ok(None),
        };
        for address in [A, B, C] {
            fleet.join(address, true);
        }
        for address in [X, Y, Z] {
            fleet.join(address, false);
        }
        fleet
    }

    /// Nodes on which all rivers run.
    pub(super) fn with_rivers() -> Self {
        let mut fleet = Self::empty();
        fleet.run_rivers();
        fleet
    }

    /// Nodes on which everything runs.
    pub(super) fn running() -> Self {
        let mut fleet = Self::with_rivers();
        for address in [A, B, C] {
            fleet.run_etcd(address);
        }
        fleet.bootstrapped("completed", &[A, B, C]);
        fleet.members(&[(A, '+'), (B, '+'), (C, '+')]);
        fleet
    }

    /// Everything as in [`Self::running`], and etcd is down.
    pub(super) fn stopped() -> Self {
        let mut fleet = Self::running();
        fleet.status.etcd = None;
        for address in [A, B, C] {
            fleet.stop(address, Container::Etcd);
        }
        fleet
    }

    /// Adds an empty node, or changes the part of a node.
    pub(super) fn join(&mut self, address: &str, control_plane: bool) {
        self.leave(address);
        let node = Node { address: address.to_owned(), control_plane, ..Node::default() };
        // Control plane nodes are first, in the order in which they join.
        let place = self.cluster.control_plane().count();
        self.cluster.nodes.insert(if control_plane { place } else { self.cluster.nodes.len() }, node);
        let status = NodeStatus { reachable: true, ..NodeStatus::default() };
        self.status.nodes.entry(address.to_owned()).or_insert(status);
    }

    pub(super) fn leave(&mut self, address: &str) {
        self.cluster.nodes.retain(|node| node.address != address);
    }

    pub(super) fn node(&mut self, address: &str) -> &mut NodeStatus {
        self.status.nodes.get_mut(address).unwrap()
    }

    pub(super) fn container(&mut self, address: &str, container: Container) -> &mut ContainerStatus {
        self.node(address).containers.entry(container.name().to_owned()).or_default()
    }

    /// Runs the wanted rivers on all nodes.
    pub(super) fn run_rivers(&mut self) {
        let (rivers, etcd_rivers) =
            (wanted::rivers_parameters(&self.cluster), wanted::etcd_rivers(&self.cluster));
        for node in self.cluster.nodes.clone() {
            let due = [
                (Container::Rivers, &rivers, true),
                (Container::EtcdRivers, &etcd_rivers, node.control_plane),
            ];
            for (container, builtin, _) in due.into_iter().filter(|(_, _, belongs)| *belongs) {
                let image = Images::default().tools;
                let status =
                    ContainerStatus { running: true, image, builtin: builtin.clone(), ..Default::default() };
                *self.container(&node.address, container) = status;
            }
        }
    }

    /// Runs an added member.
    pub(super) fn run_etcd(&mut self, address: &str) {
        *self.container(address, Container::Etcd) = ContainerStatus {
            running: true,
            image: Images::default().etcd,
            builtin: wanted::etcd_parameters(address, InitialCluster::New(&[A.to_owned()])),
            ..ContainerStatus::default()
        };
        let node = self.node(address);
        (node.etcd_data, node.etcd_mark) = (true, true);
    }

    pub(super) fn stop(&mut self, address: &str, container: Container) {
        self.container(address, container).running = false;
    }

    /// Makes a node unreachable: nothing is known about it.
    pub(super) fn lose(&mut self, address: &str) {
        *self.node(address) = NodeStatus::default();
    }

    /// A node that answers and has nothing but rivers.
    pub(super) fn wipe(&mut self, address: &str) {
        *self.node(address) = NodeStatus { reachable: true, ..NodeStatus::default() };
        self.run_rivers();
    }

    /// A healthy etcd. Each member has an address and a state: `+` in sync, `-` out of sync, `?` unknown, `n` without
    /// a name, `l` a learner.
    pub(super) fn members(&mut self, members: &[(&str, char)]) {
        let member = |(index, (address, state)): (usize, &(&str, char))| EtcdMember {
            id: 101 + index as u64,
            name: if *state == 'n' { String::new() } else { (*address).to_owned() },
            peer_urls: vec![format!("https://{address}:2380")],
            learner: *state == 'l',
            in_sync: if *state == '?' { None } else { Some(*state == '+') },
            version: None,
        };
        let members = members.iter().enumerate().map(member).collect();
        self.status.etcd = Some(EtcdStatus { healthy: true, members });
    }

    /// Certificates with these files on a node, which end after so many days and were issued a year before that.
    pub(super) fn certificates(&mut self, address: &str, files: &[(&str, i64)]) {
        let certificate = |(name, days): &(&str, i64)| {
            let to = NOW + time::Duration::days(*days);
            let validity = Some(Validity { from: to - time::Duration::days(365), to });
            ((*name).to_owned(), NodeCertificate { text: String::new(), validity })
        };
        self.node(address).etcd_certificates = files.iter().map(certificate).collect();
    }

    pub(super) fn bootstrapped(&mut self, status: &str, targets: &[&str]) {
        let targets = targets.iter().map(|target| (*target).to_owned()).collect();
        self.status.bootstrap = Some(Bootstrap { status: RecordStatus::from(status), targets });
    }

    pub(super) fn input(&self) -> Input<'_> {
        Input {
            cluster: &self.cluster,
            options: &self.options,
            status: &self.status,
            now: NOW,
            backing_off: &self.backing_off,
            restarts: &self.restarts,
            restore: self
                .restore
                .as_ref()
                .map(|(request, is_under_way)| RequestedRestore { request, is_under_way: *is_under_way }),
            stale: &self.stale,
            authorities: self.authorities.as_deref(),
            kubernetes: self.kubernetes.as_ref().map(|options| KubernetesPart {
                options: Ok(options),
                busy: &NOTHING,
                settling: &NOTHING,
                ending: &NOTHING_ENDS,
                rollout: Ok(None),
                reboots: &NO_REBOOTS,
                reboot_ends: &NO_REBOOT_ENDS,
                rotation: self.rotation.as_ref().map(Option::as_ref).map_err(String::as_str),
                objects: ObjectsPart::default(),
            }),
            settings: &self.settings,
        }
    }

    pub(super) fn decide(&self) -> Decision {
        decide(&self.input())
    }

    /// The decision in short: the phase, then each operation with its targets, then each held operation with its
    /// reason and targets. `.11` stands for 10.0.0.11.
    pub(super) fn short(&self) -> String {
        let decision = self.decide();
        let mut words = vec![decision.phase.to_string()];
        for operation in &decision.operations {
            words.push(format!("{}({})", operation.name, operation.targets.join(" ")));
        }
        for held in &decision.held {
            words.push(format!("held {} {}({})", held.what, held.reason.name(), held.targets.join(" ")));
        }
        words.join("; ").replace("10.0.0", "")
    }
}

/// Compares decisions about a changed fleet with the expected text.
#[track_caller]
pub(super) fn check(mut fleet: Fleet, change: impl FnOnce(&mut Fleet), expected: &str) {
    change(&mut fleet);
    assert_eq!(fleet.short(), expected);
}
