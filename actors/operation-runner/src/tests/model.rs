//! A small model of nodes and etcd: the effects of commands, and the state that a status shows.
//!
//! The model fails as soon as a command does harm: it reaches an absent node or a foreign container, takes the
//! majority from a healthy etcd, starts a member on an empty volume, or initialises data a second time.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::containers::{Container, ContainerOptions, ServiceParams};
use madako_domain::node_status::{
    Bootstrap, ConfigVersion, ContainerStatus, EtcdMember, EtcdStatus, FleetStatus, NodeStatus,
};
use madako_domain::record::RecordStatus;
use madako_json::go::RawJson;
use time::OffsetDateTime;

use crate::command::{Command, RunMode, Volume};
use crate::difference::{DueFiles, find_differences};
use crate::operation::{Operation, OperationName};
use crate::wanted::{self, InitialCluster, peer_url};
use crate::{Decision, Images, Input, Settings, decide};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    Empty,
    Of(u64),
}

#[derive(Debug, Clone, Default)]
pub(super) struct ModelNode {
    pub(super) absent: bool,
    pub(super) containers: BTreeMap<Container, ContainerStatus>,
    pub(super) data: Option<Data>,
    pub(super) mark: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    id: u64,
    address: String,
    started: bool,
    learner: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) cluster: Cluster,
    options: ContainerOptions,
    /// All machines, also those that are not nodes.
    pub(super) nodes: BTreeMap<String, ModelNode>,
    members: Vec<Member>,
    /// Members whose data were initialised.
    initialised: BTreeSet<u64>,
    pub(super) has_auth: bool,
    pub(super) version: ConfigVersion,
    pub(super) record: Option<Bootstrap>,
    next_id: u64,
}

/// The point at which an operation ends early: after so many commands, the next of which reaches so many targets.
pub(super) type Cut = Option<(usize, usize)>;

impl Model {
    pub(super) fn new(control_plane: usize, workers: usize) -> Self {
        let mut model = Self {
            cluster: Cluster { name: "model".to_owned(), ..Cluster::default() },
            options: ContainerOptions::read(&RawJson::default()).unwrap(),
            nodes: BTreeMap::new(),
            members: Vec::new(),
            initialised: BTreeSet::new(),
            has_auth: false,
            version: ConfigVersion::One,
            record: None,
            next_id: 1,
        };
        for index in 0..control_plane + workers {
            let address = format!("10.0.0.{}", 11 + index);
            model.nodes.insert(address.clone(), ModelNode::default());
            let node = Node { address, control_plane: index < control_plane, ..Node::default() };
            model.cluster.nodes.push(node);
        }
        model
    }

    /// The decision on the present state. A state without differences has no due operation.
    pub(super) fn decide(&self) -> Decision {
        let (settings, backing_off) = (Settings::default(), BTreeSet::new());
        let input = Input {
            cluster: &self.cluster,
            options: &self.options,
            status: &self.status(),
            now: OffsetDateTime::UNIX_EPOCH,
            backing_off: &backing_off,
            restarts: &BTreeSet::new(),
            restore: None,
            stale: &BTreeSet::new(),
            authorities: None,
            kubernetes: None,
            settings: &settings,
        };
        let decision = decide(&input);
        assert_eq!(decision, decide(&input), "equal inputs");
        if find_differences(&input, &DueFiles::new()).is_empty() {
            assert_eq!((&decision.operations, &decision.held), (&Vec::new(), &Vec::new()), "{self:?}");
        }
        decision
    }

    fn status(&self) -> FleetStatus {
        let nodes =
            self.cluster.nodes.iter().map(|node| (node.address.clone(), self.node_status(&node.address)));
        FleetStatus {
            config_version: self.version,
            nodes: nodes.collect(),
            etcd: self.etcd_status(),
            bootstrap: self.record.clone(),
            interrupted_removals: BTreeSet::new(),
            etcd_image_version: None,
            kubernetes: None,
        }
    }

    fn node_status(&self, address: &str) -> NodeStatus {
        let node = &self.nodes[address];
        if node.absent {
            return NodeStatus::default();
        }
        let containers = node.containers.iter();
        NodeStatus {
            reachable: true,
            containers: containers.map(|(name, it)| (name.name().to_owned(), it.clone())).collect(),
            etcd_data: node.data.is_some(),
            etcd_mark: node.mark,
            etcd_empty: node.data.map(|data| data == Data::Empty),
            ..NodeStatus::default()
        }
    }

    fn etcd_status(&self) -> Option<EtcdStatus> {
        let answers = self.cluster.control_plane().any(|node| self.member_runs_on(&node.address));
        if !self.is_healthy() || !answers {
            return None;
        }
        let member = |member: &Member| EtcdMember {
            id: member.id,
            name: if member.started { member.address.clone() } else { String::new() },
            peer_urls: vec![peer_url(&member.address)],
            learner: member.learner,
            in_sync: Some(!member.learner && self.runs(member)),
            version: None,
        };
        Some(EtcdStatus { healthy: true, members: self.members.iter().map(member).collect() })
    }

    fn runs(&self, member: &Member) -> bool {
        let node = &self.nodes[&member.address];
        let is_running = node.containers.get(&Container::Etcd).is_some_and(|it| it.running && !it.foreign);
        is_running && node.data == Some(Data::Of(member.id))
    }

    fn member_runs_on(&self, address: &str) -> bool {
        self.members.iter().any(|member| member.address == address && self.runs(member))
    }

    pub(super) fn is_healthy(&self) -> bool {
        let voting = || self.members.iter().filter(|member| !member.learner);
        voting().filter(|member| self.runs(member)).count() * 2 > voting().count()
    }

    /// True if the members on the control plane are a majority without one node.
    pub(super) fn can_lose(&self, address: &str) -> bool {
        let mut stay: BTreeSet<&str> =
            self.cluster.control_plane().map(|node| node.address.as_str()).collect();
        stay.remove(address);
        let voting = || self.members.iter().filter(|member| !member.learner);
        let is_voting = voting().any(|member| member.address == address);
        let staying = voting().filter(|member| stay.contains(member.address.as_str()) && self.runs(member));
        self.is_healthy() && (!is_voting || staying.count() * 2 > voting().count())
    }

    pub(super) fn is_bootstrapped(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.status == RecordStatus::Completed)
    }

    /// Carries an operation out, up to a command that fails, or to a cut. `true`: it was completed.
    pub(super) fn carry_out(&mut self, operation: &Operation, cut: Cut) -> bool {
        let is_bootstrap = operation.name == OperationName::EtcdBootstrap;
        let record = |status| Some(Bootstrap { status, targets: operation.targets.clone() });
        if is_bootstrap {
            self.record = record(RecordStatus::Running);
        }
        for (index, command) in operation.commands.iter().enumerate() {
            let reached = match cut {
                Some((after, targets)) if after == index => Some(targets),
                _ => None,
            };
            let was_healthy = self.is_healthy();
            let succeeded = self.run(operation, command, reached);
            let touches_votes = matches!(command, Command::PromoteEtcdMember { .. });
            assert!(
                !was_healthy || self.is_healthy() || touches_votes,
                "{command} of {operation:?} broke etcd: {self:?}"
            );
            if !succeeded || reached.is_some() {
                if is_bootstrap {
                    self.record = record(RecordStatus::Cancelled);
                }
                return false;
            }
        }
        if is_bootstrap {
            self.record = record(RecordStatus::Completed);
        }
        true
    }

    /// Runs a command, on the first `reached` targets only if that is given.
    fn run(&mut self, operation: &Operation, command: &Command, reached: Option<usize>) -> bool {
        match command {
            Command::UpgradeVersion { marks } => {
                for target in &operation.targets {
                    self.on(target).mark |= marks;
                }
                self.version = ConfigVersion::Two;
            }
            Command::PrepareEtcdCertificates => {}
            Command::WaitEtcdSync { .. } => return self.is_healthy(),
            Command::SetupEtcdAuth { .. } => {
                self.has_auth |= self.is_healthy();
                return self.is_healthy();
            }
            Command::PromoteEtcdMember { id } => return self.promote(&operation.targets[0], *id),
            Command::RemoveEtcdMember { ids } => {
                let most = reached.unwrap_or(ids.len());
                let can = self.is_healthy();
                self.members.retain(|member| !can || !ids.iter().take(most).any(|id| *id == member.id));
                return can;
            }
            Command::AddEtcdMember => return self.add(&operation.targets[0], reached),
            _ => {
                let most = reached.unwrap_or(operation.targets.len());
                for target in operation.targets.iter().take(most) {
                    if !self.run_on(target, command) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// A node that commands may reach.
    fn on(&mut self, address: &str) -> &mut ModelNode {
        let node = self.nodes.get_mut(address).unwrap();
        assert!(!node.absent, "a command reaches the absent node {address}");
        node
    }

    fn run_on(&mut self, address: &str, command: &Command) -> bool {
        if let Command::RunContainer { container, run } = command {
            return self.run_container(address, *container, run);
        }
        let node = self.on(address);
        match command {
            Command::ImagePull { .. } | Command::MakeFiles => {}
            Command::StopContainer(container) | Command::KillContainers(container) => {
                let removed = node.containers.remove(container);
                assert!(removed.is_none_or(|removed| !removed.foreign), "a foreign container on {address}");
            }
            Command::VolumeCreate(Volume::Mark) => node.mark = true,
            Command::VolumeRemove(Volume::Mark) => node.mark = false,
            Command::VolumeCreate(Volume::Data(_)) => node.data = node.data.or(Some(Data::Empty)),
            // docker removes no volume that a container uses.
            Command::VolumeRemove(Volume::Data(_)) if node.containers.contains_key(&Container::Etcd) => {
                return false;
            }
            Command::VolumeRemove(Volume::Data(_)) => node.data = None,
            other => panic!("{other} runs on no node"),
        }
        true
    }

    fn run_container(&mut self, address: &str, container: Container, run: &RunMode) -> bool {
        let node = self.on(address);
        let known = node.containers.get(&container);
        assert!(known.is_none_or(|known| !known.foreign), "a foreign container on {address}");
        if known.is_some_and(|known| known.running) && *run != RunMode::Restart {
            return true;
        }
        let builtin = match (container, run) {
            (Container::Rivers, _) => wanted::rivers_parameters(&self.cluster),
            (Container::EtcdRivers, _) => wanted::etcd_rivers(&self.cluster),
            (Container::Etcd, RunMode::Initial(members)) => {
                wanted::etcd_parameters(address, InitialCluster::New(members))
            }
            (Container::Etcd, _) => wanted::etcd_parameters(address, InitialCluster::None),
        };
        if container == Container::Etcd && !matches!(self.on(address).data, Some(Data::Of(_))) {
            let RunMode::Initial(first) = run else {
                panic!("etcd starts on {address} without data: {self:?}")
            };
            self.initialise(address, first);
        }
        self.start(address, container, builtin);
        true
    }

    fn start(&mut self, address: &str, container: Container, builtin: ServiceParams) {
        let image = Images::default().image_of(container).to_owned();
        let status = ContainerStatus { running: true, image, builtin, ..ContainerStatus::default() };
        self.on(address).containers.insert(container, status);
    }

    /// First start of a first member.
    fn initialise(&mut self, address: &str, first: &[String]) {
        if self.initialised.is_empty() {
            self.members.clear();
            for address in first {
                let member =
                    Member { id: self.next_id, address: address.clone(), started: true, learner: false };
                self.members.push(member);
                self.next_id += 1;
            }
        }
        let member = self.members.iter().find(|member| member.address == address);
        let id = member.unwrap_or_else(|| panic!("a second cluster on {address}: {self:?}")).id;
        assert!(self.initialised.insert(id), "the data of {address} are initialised again: {self:?}");
        self.on(address).data = Some(Data::Of(id));
    }

    fn promote(&mut self, target: &str, id: Option<u64>) -> bool {
        let is_it = |member: &Member| id.map_or(member.address == target, |id| member.id == id);
        let Some(index) = self.members.iter().position(is_it) else { return false };
        let can = self.is_healthy() && self.runs(&self.members[index]);
        if can {
            self.members[index].learner = false;
        }
        can
    }

    /// Adds a member and starts it; `reached` 0: only adds it.
    fn add(&mut self, address: &str, reached: Option<usize>) -> bool {
        if !self.is_healthy() {
            return false;
        }
        if !self.members.iter().any(|member| member.address == address) {
            let (id, address) = (self.next_id, address.to_owned());
            self.members.push(Member { id, address, started: false, learner: true });
            self.next_id += 1;
        }
        if reached == Some(0) {
            return true;
        }
        let member = self.members.iter_mut().find(|member| member.address == address).unwrap();
        member.started = true;
        let id = member.id;
        if self.on(address).data != Some(Data::Of(id)) {
            assert!(self.initialised.insert(id), "the data of {address} are initialised again: {self:?}");
            assert_eq!(self.on(address).data, Some(Data::Empty), "the volume of {address} is new");
            self.on(address).data = Some(Data::Of(id));
        }
        self.start(address, Container::Etcd, wanted::etcd_parameters(address, InitialCluster::Existing(&[])));
        true
    }

    /// The addresses of the members, which must all be voting, started and in sync.
    pub(super) fn sound_members(&self) -> BTreeSet<&str> {
        for member in &self.members {
            assert!(!member.learner && member.started && self.runs(member), "{member:?}");
        }
        self.members.iter().map(|member| member.address.as_str()).collect()
    }
}
