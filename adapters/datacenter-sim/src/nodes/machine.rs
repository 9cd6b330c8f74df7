//! The state of one simulated node, and the effects of actions on it.
//!
//! Does not: know time, faults or etcd.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::certificate::NodeCertificate;
use madako_domain::component::{self, Component, KUBECONFIGS};
use madako_domain::containers::{Container, ContainerName, ETCD_MARK, ETCD_PKI, ServiceParams};
use madako_domain::host_key::HostKey;
use madako_domain::node_status::{ContainerStatus, NodeStatus};
use madako_protocol::node::{ContainerSpec, FileContent, NodeAction, SnapshotRestore};
use tokio::time::Instant;

use super::encryption::keys_of_file;
use super::etcd::Process;
use super::objects::kubernetes_version_of_image;

/// Directory of etcd's data in its container.
pub(crate) const DATA_DIRECTORY: &str = "/var/lib/etcd";

/// Exit code of docker if it cannot run a container.
const CANNOT_RUN: u32 = 125;
/// Exit code of the real driver's commands for a foreign container.
const FOREIGN: u32 = 80;
/// Exit code of the real driver's command for a snapshot that cannot be restored.
pub(crate) const BAD_SNAPSHOT: u32 = 83;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Empty,
    Member(MemberData),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberData {
    pub cluster: u64,
    pub member: u64,
    /// Number of the last write of the cluster's client that the member has.
    pub writes: u64,
    /// The member was connected with a majority: it knows which members have started.
    pub has_joined: bool,
}

/// A snapshot of etcd in a file of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Number of the last write of the cluster's client in it.
    pub(crate) writes: u64,
    /// Users; `None` while authentication is off.
    pub(crate) users: Option<BTreeSet<String>>,
    pub(crate) is_damaged: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct StartedContainer {
    pub(crate) status: ContainerStatus,
    /// Volumes: name and path in the container.
    volumes: Vec<(String, String)>,
    /// Number of this start, unique in the world.
    pub(crate) start: u64,
    pub(crate) since: Option<Instant>,
    /// The keys with which an API server encrypts Secrets since this start, the first one first.
    pub(crate) encryption_keys: Vec<String>,
    /// The member of etcd that runs in the container.
    pub(crate) process: Option<Process>,
}

impl StartedContainer {
    pub(crate) fn data_volume(&self) -> Option<&str> {
        let is_data = |(_, path): &&(String, String)| path == DATA_DIRECTORY;
        self.volumes.iter().find(is_data).map(|(name, _)| name.as_str())
    }

    pub(crate) fn args(&self) -> impl Iterator<Item = &str> {
        self.status.builtin.args.iter().chain(&self.status.extra.args).map(String::as_str)
    }

    pub(crate) fn end(&mut self) {
        self.status.running = false;
        self.process = None;
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActionFailure {
    pub(crate) code: u32,
    pub(crate) why: String,
}

fn refused_start(why: impl Into<String>) -> ActionFailure {
    ActionFailure { code: CANNOT_RUN, why: why.into() }
}

#[derive(Debug)]
pub(crate) struct Machine {
    /// Number of the node, for choices.
    pub(crate) index: u32,
    pub(crate) rack: u32,
    /// Number of choices so far.
    pub(crate) choices: u32,
    /// False from a power loss until the node has started.
    pub(crate) is_on: bool,
    /// Changes when all connections break.
    pub(crate) connections: u64,
    /// Changes when the node loses its power.
    pub(crate) boots: u64,
    /// Beginning of the present silence towards clients.
    pub(crate) silent_since: Option<Instant>,
    installations: u32,
    pub(crate) containers: BTreeMap<String, StartedContainer>,
    pub(crate) volumes: BTreeMap<String, Content>,
    pub(crate) images: BTreeSet<String>,
    pub(crate) files: BTreeMap<String, FileContent>,
    /// Snapshots of etcd, by path.
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    /// Restored snapshots beside the data of etcd, by the name of the restore.
    pub(crate) staged: BTreeMap<String, Snapshot>,
    /// Names of restores whose data took the place of the data of etcd.
    pub(crate) swapped: BTreeSet<String>,
}

impl Machine {
    pub(crate) fn new(index: u32, rack: u32) -> Self {
        Self {
            index,
            rack,
            choices: 0,
            is_on: true,
            connections: 0,
            boots: 0,
            silent_since: None,
            installations: 0,
            containers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            images: BTreeSet::new(),
            files: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            staged: BTreeMap::new(),
            swapped: BTreeSet::new(),
        }
    }

    pub(crate) fn host_key(&self) -> HostKey {
        let key = format!("{}-{}", self.index, self.installations);
        HostKey {
            key: format!("ssh-ed25519 simulated-{key}"),
            fingerprint: format!("SHA256:simulated-{key}"),
        }
    }

    /// Installs the machine anew: disk and host key are gone.
    pub(crate) fn reinstall_machine(&mut self) {
        self.installations += 1;
        self.connections += 1;
        self.boots += 1;
        self.containers.clear();
        self.volumes.clear();
        self.images.clear();
        self.files.clear();
        self.snapshots.clear();
        self.staged.clear();
        self.swapped.clear();
    }

    /// True if the login can look into volumes, as on two thirds of the nodes.
    fn shows_content(&self) -> bool {
        self.index % 3 != 2
    }

    pub(crate) fn end_containers(&mut self) {
        self.containers.values_mut().for_each(StartedContainer::end);
    }

    /// The status, where `volume` is the configured one.
    pub(crate) fn node_status(&self, volume: &str) -> NodeStatus {
        let is_managed = |name: &&String| ContainerName::all().any(|one| one.as_str() == **name);
        let containers = self.containers.keys().filter(is_managed);
        let has_data = |(name, content): (&String, &Content)| name != volume && *content != Content::Empty;
        NodeStatus {
            reachable: true,
            containers: containers.map(|name| (name.clone(), self.containers[name].status.clone())).collect(),
            etcd_data: self.volumes.contains_key(volume),
            etcd_mark: self.volumes.contains_key(ETCD_MARK),
            etcd_empty: self
                .volumes
                .get(volume)
                .filter(|_| self.shows_content())
                .map(|it| *it == Content::Empty),
            etcd_other_volume: self.volumes.iter().any(has_data),
            etcd_certificates: self.read_certificates(),
            kubernetes_certificates: self.read_kubernetes_certificates(),
            configurations: self.read_configurations(),
        }
    }

    /// The certificates of etcd. One whose private key is missing does not count.
    fn read_certificates(&self) -> BTreeMap<String, NodeCertificate> {
        let certificate = |(path, content): (&String, &FileContent)| {
            let name = path.strip_prefix(ETCD_PKI)?.strip_prefix('/')?;
            let key = format!("{}.key", path.strip_suffix(".crt")?);
            let FileContent::Public(text) = content else { return None };
            let has_key = name.starts_with("ca-") || self.files.contains_key(&key);
            has_key.then(|| (name.to_owned(), NodeCertificate { text: text.clone(), validity: None }))
        };
        self.files.iter().filter_map(certificate).collect()
    }

    /// The certificates of Kubernetes, also those in kubeconfigs.
    fn read_kubernetes_certificates(&self) -> BTreeMap<String, NodeCertificate> {
        let in_file = |path: &str| match (self.files.get(path)?, path.strip_suffix(".crt")?) {
            (FileContent::Public(text), name) if self.files.contains_key(&format!("{name}.key")) => {
                Some(text.clone())
            }
            _ => None,
        };
        let in_kubeconfig = |path: &str| match self.files.get(path)? {
            FileContent::Private(text) => client_certificate(text.reveal()),
            FileContent::Public(text) => client_certificate(text),
        };
        let files = component::CERTIFICATES.into_iter().map(|path| (path, in_file(path)));
        let kubeconfigs = KUBECONFIGS.into_iter().map(|(path, _)| (path, in_kubeconfig(path)));
        let read = files.chain(kubeconfigs).filter_map(|(path, text)| {
            Some((path.to_owned(), NodeCertificate { text: text?, validity: None }))
        });
        read.collect()
    }

    /// The configuration files of Kubernetes' components.
    fn read_configurations(&self) -> BTreeMap<Component, Option<String>> {
        let file = |component: Component| {
            let text = self.files.get(component.configuration_path()?).and_then(|content| match content {
                FileContent::Public(text) => Some(text.clone()),
                FileContent::Private(_) => None,
            });
            Some((component, text))
        };
        Component::ALL.into_iter().filter_map(file).collect()
    }

    /// Carries an action out. `start` is the number of a container that the action may start; `full`: nothing can be
    /// written.
    pub(crate) fn apply(
        &mut self,
        action: &NodeAction,
        start: u64,
        full: bool,
    ) -> Result<String, ActionFailure> {
        match action {
            NodeAction::PullImage { image } => self.pull(image, full)?,
            NodeAction::RunContainer { spec, restart } => self.run(spec, *restart, start, full)?,
            NodeAction::StopContainer(container)
            | NodeAction::EndContainer { container, .. }
            | NodeAction::KillContainer(container) => {
                self.refuse_foreign(*container)?;
                self.containers.remove(container.as_str());
            }
            NodeAction::CreateVolume { name } => {
                self.create_volume(name, full)?;
            }
            NodeAction::RemoveVolume { name } => self.remove_volume(name)?,
            NodeAction::WriteFiles { tools, files, .. } => {
                self.pull(tools, full)?;
                if full {
                    return Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() });
                }
                self.files.extend(files.iter().map(|file| (file.path.clone(), file.content.clone())));
            }
            NodeAction::MakeDirectories { tools, .. } => {
                self.pull(tools, full)?;
                if full {
                    return Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() });
                }
            }
            NodeAction::EmptyDirectory { tools, directory } => {
                self.pull(tools, full)?;
                let is_inside =
                    |path: &str| path.strip_prefix(directory.as_str()).is_some_and(|it| it.starts_with('/'));
                self.files.retain(|path, _| !is_inside(path));
            }
            NodeAction::InstallCni { tools } => {
                self.pull(tools, full)?;
                if full {
                    return Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() });
                }
                self.files.insert(CNI_PLUGIN.to_owned(), FileContent::Public("a program".to_owned()));
            }
            NodeAction::ImageVersion { image, program, pull } => {
                if !pull && !self.images.contains(image) {
                    return Err(ActionFailure { code: 125, why: format!("No such image: {image}") });
                }
                self.pull(image, full)?;
                return Ok(match program {
                    None => format!("etcd Version: {}\n", version_of_image(image)),
                    Some(_) => format!("Kubernetes v{}\n", kubernetes_version_of_image(image)),
                });
            }
            NodeAction::StageSnapshot(restore) => self.stage_snapshot(restore, full)?,
            NodeAction::UseSnapshot(restore) => self.may_use(restore)?,
        }
        Ok(String::new())
    }

    fn pull(&mut self, image: &str, full: bool) -> Result<(), ActionFailure> {
        if full && !self.images.contains(image) {
            return Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() });
        }
        self.images.insert(image.to_owned());
        Ok(())
    }

    fn stage_snapshot(&mut self, restore: &SnapshotRestore, full: bool) -> Result<(), ActionFailure> {
        let SnapshotRestore { volume, path, id, .. } = restore;
        self.create_volume(volume, full)?;
        if self.staged.contains_key(id) || self.swapped.contains(id) {
            return Ok(());
        }
        let bad = |why: &str| ActionFailure { code: BAD_SNAPSHOT, why: why.to_owned() };
        match self.snapshots.get(path) {
            None => Err(bad("there is no such file")),
            Some(snapshot) if snapshot.is_damaged => Err(bad("expected sha256")),
            Some(_) if full => Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() }),
            Some(snapshot) => {
                self.staged = BTreeMap::from([(id.clone(), snapshot.clone())]);
                Ok(())
            }
        }
    }

    /// Refuses the use of a restored snapshot beside etcd, and without one.
    fn may_use(&self, restore: &SnapshotRestore) -> Result<(), ActionFailure> {
        let failed = |why: &str| Err(ActionFailure { code: 1, why: why.to_owned() });
        if self.containers.get(Container::Etcd.name()).is_some_and(|ran| ran.status.running) {
            return failed("etcd runs, and its data cannot be replaced");
        }
        if !self.staged.contains_key(&restore.id) && !self.swapped.contains(&restore.id) {
            return failed("there is no restored snapshot in the volume of etcd");
        }
        Ok(())
    }

    fn refuse_foreign(&self, container: ContainerName) -> Result<(), ActionFailure> {
        let name = container.as_str();
        if self.containers.get(name).is_some_and(|known| known.status.foreign) {
            let why = format!("the container {name} belongs to another program");
            return Err(ActionFailure { code: FOREIGN, why });
        }
        Ok(())
    }

    fn run(
        &mut self,
        spec: &ContainerSpec,
        restart: bool,
        start: u64,
        full: bool,
    ) -> Result<(), ActionFailure> {
        self.refuse_foreign(spec.container)?;
        let name = spec.container.as_str();
        let runs = self.containers.get(name).is_some_and(|known| known.status.running);
        if runs && !restart {
            return Ok(());
        }
        if restart && !runs && spec.container == ContainerName::from(Component::Kubelet) {
            let why = "the kubelet does not run, so that it boots instead".to_owned();
            return Err(ActionFailure { code: 1, why });
        }
        self.containers.remove(name);
        if full {
            return Err(refused_start(NO_SPACE));
        }
        // docker pulls an image and makes a volume that it does not have.
        self.pull(&spec.image, full)?;
        for (volume, _) in &spec.volumes {
            self.create_volume(volume, full)?;
        }
        let status = ContainerStatus {
            running: true,
            image: spec.image.clone(),
            builtin: spec.builtin.clone(),
            extra: spec.extra.clone(),
            foreign: false,
            started_at: None,
        };
        let ran = StartedContainer {
            status,
            volumes: spec.volumes.clone(),
            start,
            since: None,
            encryption_keys: keys_of_file(&self.files),
            process: None,
        };
        self.containers.insert(name.to_owned(), ran);
        Ok(())
    }

    /// Starts a container of another program.
    pub(crate) fn run_foreign(&mut self, name: &str, start: u64) {
        let status = ContainerStatus {
            running: true,
            image: "foreign:1".to_owned(),
            builtin: ServiceParams::default(),
            extra: ServiceParams::default(),
            foreign: true,
            started_at: None,
        };
        let ran = StartedContainer {
            status,
            volumes: Vec::new(),
            start,
            since: None,
            encryption_keys: Vec::new(),
            process: None,
        };
        self.containers.insert(name.to_owned(), ran);
    }

    fn create_volume(&mut self, name: &str, full: bool) -> Result<(), ActionFailure> {
        if full && !self.volumes.contains_key(name) {
            return Err(ActionFailure { code: 1, why: NO_SPACE.to_owned() });
        }
        self.volumes.entry(name.to_owned()).or_insert(Content::Empty);
        Ok(())
    }

    fn remove_volume(&mut self, name: &str) -> Result<(), ActionFailure> {
        let uses = |ran: &StartedContainer| ran.volumes.iter().any(|(volume, _)| volume == name);
        if self.containers.values().any(uses) {
            return Err(ActionFailure { code: 1, why: format!("volume {name} is in use") });
        }
        self.volumes.remove(name);
        Ok(())
    }

    pub(crate) fn etcd_process(&self) -> Option<&Process> {
        self.containers.get(Container::Etcd.name())?.process.as_ref()
    }

    pub(crate) fn process_mut(&mut self) -> Option<&mut Process> {
        self.containers.get_mut(Container::Etcd.name())?.process.as_mut()
    }

    pub(crate) fn etcd_image(&self) -> Option<&str> {
        Some(self.containers.get(Container::Etcd.name())?.status.image.as_str())
    }

    pub(crate) fn member_data(&self) -> Option<MemberData> {
        match self.volumes.get(&self.etcd_process()?.volume) {
            Some(Content::Member(data)) => Some(*data),
            _ => None,
        }
    }

    pub(crate) fn data_mut(&mut self) -> Option<&mut MemberData> {
        let volume = self.etcd_process()?.volume.clone();
        match self.volumes.get_mut(&volume) {
            Some(Content::Member(data)) => Some(data),
            _ => None,
        }
    }
}

fn client_certificate(kubeconfig: &str) -> Option<String> {
    let data = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("client-certificate-data: "))?;
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}

/// The plugin in the tools image.
const CNI_PLUGIN: &str = "/opt/cni/bin/loopback";

pub(crate) const NO_SPACE: &str = "no space left on device";

/// The version of the program in an image: the first three numbers of its tag.
pub(crate) fn version_of_image(image: &str) -> String {
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    tag.split('.').take(3).collect::<Vec<_>>().join(".")
}
