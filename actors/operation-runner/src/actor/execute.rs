//! Executes a command of an operation: on its targets through the actors of the nodes, or on etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use madako_domain::canary::{Canary, is_planted};
use madako_domain::certificate::NodeCertificate;
use madako_domain::cluster::Cluster;
use madako_domain::containers::{Container, ContainerOptions};
use madako_domain::invariants::check_quorum;
use madako_domain::node_status::{EtcdMember, EtcdStatus, EtcdVersion};
use madako_domain::skew::KubernetesVersion;
use madako_effects::{PERMIT_PAUSE, Permits};
use madako_protocol::actors::{NodeMessage, OperationEnd};
use madako_protocol::authorities::{Authorities, AuthorityError};
use madako_protocol::components::Components;
use madako_protocol::etcd::{EtcdCluster, EtcdError};
use madako_protocol::kubernetes_secrets::KubernetesSecrets;
use madako_protocol::mailbox::Envelope;
use madako_protocol::node::{ContainerSpec, NodeAction, NodeError, NodeFile};
use madako_protocol::permit::Permit;
use ractor::{ActorRef, registry};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::rotation::Rewritten;
use crate::command::{Command, RunMode, Volume};
use crate::input::Images;
use crate::kubernetes::options::KubernetesOptions;
use crate::kubernetes::versions::{PresentImages, UnseenComponents};
use crate::limits::{MAX_ERROR, PROMOTE_TRIES, WAIT_PAUSE, WAIT_TRIES};
use crate::operation::{Operation, OperationName};
use crate::wanted::{self, InitialCluster, peer_url};

/// Directory of a member's data in its container.
const ETCD_DATA: &str = "/var/lib/etcd";

/// The ports and results of earlier commands. Clones share both.
#[derive(Clone)]
pub(super) struct Executor {
    /// Prefix of the registered names of the nodes' actors.
    pub(super) nodes: String,
    pub(super) etcd: Arc<dyn EtcdCluster>,
    pub(super) authorities: Arc<dyn Authorities>,
    pub(super) components: Arc<dyn Components>,
    pub(super) secrets: Arc<dyn KubernetesSecrets>,
    pub(super) permits: Permits,
    pub(super) images: Images,
    /// Certificates and keys that wait for [`Command::MakeFiles`], by node.
    pub(super) prepared: Arc<Mutex<BTreeMap<String, Vec<NodeFile>>>>,
    pub(super) versions: Arc<Mutex<BTreeMap<String, EtcdVersion>>>,
    pub(super) kubernetes_versions: Arc<Mutex<BTreeMap<String, KubernetesVersion>>>,
    /// The Secrets that earlier commands of a rotation have rewritten.
    pub(super) rewritten: Arc<Mutex<Option<Rewritten>>>,
}

/// The configuration that an operation was decided on.
#[derive(Clone)]
pub(super) struct Basis {
    pub(super) cluster: Arc<Cluster>,
    pub(super) options: Arc<ContainerOptions>,
    /// The control plane nodes whose members may be asked.
    pub(super) askable_nodes: Vec<String>,
    /// Certificates on the targets before the operation: by address, then by the name of the file.
    pub(super) certificates: Arc<BTreeMap<String, BTreeMap<String, NodeCertificate>>>,
    /// The options for Kubernetes; `None`: Kubernetes is left to CKE, or they cannot be used.
    pub(super) kubernetes: Option<Arc<KubernetesOptions>>,
    /// Configuration files of the kubelets that run on the targets, by address.
    pub(super) kubelets: Arc<BTreeMap<String, String>>,
    pub(super) component_images: Arc<PresentImages>,
    /// Components on nodes without a known state.
    pub(super) unseen: Arc<UnseenComponents>,
    /// Addresses of the nodes on which a kubelet may get another minor version; `None`: all.
    pub(super) emptied: Option<BTreeSet<String>>,
    /// Addresses of API servers, healthy ones first.
    pub(super) servers: Vec<String>,
}

impl Basis {
    /// Members to ask, without those that are older than a restore. The targets of the operation have new members.
    fn members_to_ask(&self, members: &[String], targets: &[String]) -> Vec<String> {
        let may_be_asked =
            |address: &&String| self.askable_nodes.contains(address) || targets.contains(address);
        members.iter().filter(may_be_asked).cloned().collect()
    }
}

pub(super) struct Failure {
    /// Nodes on which it failed; empty if no node is the cause.
    pub(super) nodes: BTreeSet<String>,
    pub(super) why: String,
    /// The operation must be held.
    pub(super) is_hold: bool,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self { nodes: BTreeSet::new(), why, is_hold: false }
    }
}

impl From<EtcdError> for Failure {
    fn from(error: EtcdError) -> Self {
        error.to_string().into()
    }
}

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Self {
        error.to_string().into()
    }
}

impl Executor {
    /// Executes the command of an operation. Dropping the future cancels it on all nodes.
    pub(super) async fn execute(&self, operation: &Operation, index: usize, basis: &Basis) -> OperationEnd {
        let command = &operation.commands[index];
        if operation.name == OperationName::EtcdRestore {
            self.forget_rewritten();
        }
        let ended = match self.find_violation(operation, command, basis).await {
            Ok(()) => self.run(operation, command, basis).await,
            Err(failure) => Err(failure),
        };
        match ended {
            Ok(()) => OperationEnd::Succeeded,
            Err(Failure { nodes, mut why, is_hold }) => {
                let end = why.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_ERROR);
                why.truncate(end.unwrap_or(why.len()));
                if is_hold { OperationEnd::Held { why } } else { OperationEnd::Failed { nodes, why } }
            }
        }
    }

    /// I2, evaluated on the present members before each command that stops or removes one. `madako etcd restart` is
    /// exempt.
    async fn find_violation(
        &self,
        operation: &Operation,
        command: &Command,
        basis: &Basis,
    ) -> Result<(), Failure> {
        if let Command::Kubernetes(command) = command {
            self.refuse_api_gap(operation, command, basis).await?;
            self.refuse_skew(operation, command, basis).await?;
            return self.refuse_untainted_boot(operation, command, basis).await;
        }
        let is_exempt = operation.is_requested || is_planted(Canary::QuorumUnchecked);
        if is_exempt || !command.may_lose_members() {
            return Ok(());
        }
        // Members whose state is unknown count as not in sync: without an answer, none may be lost.
        let status = self.etcd.status(&basis.askable_nodes).await?;
        match check_quorum(&status.members, &command.member_loss(&operation.targets, &status.members)) {
            Some(violation) => Err(violation.to_string().into()),
            None => Ok(()),
        }
    }

    async fn run(&self, operation: &Operation, command: &Command, basis: &Basis) -> Result<(), Failure> {
        let targets = &operation.targets;
        let control_plane = &basis.askable_nodes;
        match command {
            Command::Kubernetes(command) => Box::pin(self.run_kubernetes(operation, command, basis)).await,
            Command::Object(command) => Box::pin(self.run_on_objects(command, basis)).await,
            Command::UpgradeVersion { marks: false } => Ok(()),
            Command::UpgradeVersion { marks: true } => {
                let name = Volume::Mark.name().to_owned();
                self.run_on_all_targets(targets, |_| NodeAction::CreateVolume { name: name.clone() }).await
            }
            Command::ImagePull { image } => {
                self.run_on_all_targets(targets, |_| NodeAction::PullImage { image: image.clone() }).await?;
                let replaces =
                    matches!(operation.name, OperationName::EtcdRestart | OperationName::EtcdAddMember);
                match targets.first().filter(|_| replaces && *image == self.images.etcd) {
                    Some(target) => self.refuse_older(target, image, control_plane).await,
                    None => Ok(()),
                }
            }
            Command::RunContainer { container, run } => {
                if let (Container::Etcd, RunMode::Start, Some(target)) = (container, run, targets.first()) {
                    self.refuse_older(target, &self.images.etcd, control_plane).await?;
                }
                let initial = match run {
                    RunMode::Initial(members) => InitialCluster::New(members),
                    RunMode::Start | RunMode::Restart => InitialCluster::None,
                };
                let restart = *run == RunMode::Restart;
                self.run_on_all_targets(targets, |address| NodeAction::RunContainer {
                    spec: self.container_spec(*container, address, initial, basis),
                    restart,
                })
                .await
            }
            Command::StopContainer(container) => {
                self.run_on_all_targets(targets, |_| NodeAction::StopContainer((*container).into())).await
            }
            Command::KillContainers(container) => {
                self.run_on_all_targets(targets, |_| NodeAction::KillContainer((*container).into())).await
            }
            Command::VolumeCreate(volume) => {
                let name = || volume.name().to_owned();
                self.run_on_all_targets(targets, |_| NodeAction::CreateVolume { name: name() }).await
            }
            Command::VolumeRemove(volume) => {
                let name = || volume.name().to_owned();
                self.run_on_all_targets(targets, |_| NodeAction::RemoveVolume { name: name() }).await
            }
            Command::PrepareEtcdCertificates => self.prepare(targets, basis).await,
            Command::MakeFiles => self.make_files(targets).await,
            Command::AddEtcdMember => self.add_member(targets, control_plane, basis).await,
            Command::PromoteEtcdMember { id } => self.promote(*id, targets, control_plane).await,
            Command::RemoveEtcdMember { ids } => {
                for id in ids {
                    let permit = self.permits.get().await;
                    self.etcd.remove(&permit, control_plane, *id).await?;
                    // Without its leader, etcd answers nothing until it has elected another one.
                    self.wait(control_plane, false).await?;
                }
                Ok(())
            }
            Command::WaitEtcdSync { members, redundant } => {
                Ok(self.wait(&basis.members_to_ask(members, targets), *redundant).await?)
            }
            Command::SetupEtcdAuth { members } => {
                let permit = self.permits.get().await;
                Ok(self.etcd.set_up_auth(&permit, members).await?)
            }
            Command::ConfirmEtcdLoss { members } => {
                self.confirm_loss(&basis.members_to_ask(members, targets)).await
            }
            Command::StopEtcdMembers { nodes } => {
                self.run_on_all_targets(nodes, |_| NodeAction::StopContainer(Container::Etcd.into())).await
            }
            Command::StageSnapshot { path, id } => {
                let action =
                    |address: &str| NodeAction::StageSnapshot(self.restore(address, path, id, basis));
                self.stage_restore(targets, action).await
            }
            Command::UseSnapshot { path, id } => {
                self.run_on_all_targets(targets, |address| {
                    NodeAction::UseSnapshot(self.restore(address, path, id, basis))
                })
                .await
            }
        }
    }

    fn container_spec(
        &self,
        container: Container,
        address: &str,
        initial: InitialCluster<'_>,
        basis: &Basis,
    ) -> ContainerSpec {
        let builtin = match container {
            Container::Rivers => wanted::rivers_parameters(&basis.cluster),
            Container::EtcdRivers => wanted::etcd_rivers(&basis.cluster),
            Container::Etcd => wanted::etcd_parameters(address, initial),
        };
        let volumes = match container {
            Container::Etcd => vec![(basis.options.etcd_volume.clone(), ETCD_DATA.to_owned())],
            Container::Rivers | Container::EtcdRivers => Vec::new(),
        };
        let image = self.images.image_of(container).to_owned();
        ContainerSpec {
            container: container.into(),
            image,
            engine_options: &[],
            volumes,
            builtin,
            extra: basis.options.extra(container).clone(),
        }
    }

    /// Acts on all nodes at the same time, and waits for all of them. Failures of single nodes cancel no other.
    pub(super) async fn run_on_all_targets(
        &self,
        targets: &[String],
        action: impl Fn(&str) -> NodeAction,
    ) -> Result<(), Failure> {
        self.ask_all_targets(targets, action).await.map(drop)
    }

    /// The same; returns the outputs by address.
    pub(super) async fn ask_all_targets(
        &self,
        targets: &[String],
        action: impl Fn(&str) -> NodeAction,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut running = JoinSet::new();
        for address in targets {
            let (executor, address, action) = (self.clone(), address.clone(), action(address));
            running.spawn(async move {
                let result = executor.act_on_node(&address, action).await;
                (address, result)
            });
        }
        let (mut outputs, mut errors) = (BTreeMap::new(), BTreeMap::new());
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((address, Ok(output))) => drop(outputs.insert(address, output)),
                Ok((address, Err(error))) => {
                    errors.insert(address, error.to_string());
                }
                Err(error) => return Err(format!("an action on a node ended early: {error}").into()),
            }
        }
        if errors.is_empty() {
            return Ok(outputs);
        }
        let why = errors.values().map(String::as_str).collect::<Vec<_>>().join("; ");
        Err(Failure { nodes: errors.into_keys().collect(), why, is_hold: false })
    }

    /// Acts on a node, and asks for another permit if the first one ended before the action began.
    pub(super) async fn act_on_node(&self, address: &str, action: NodeAction) -> Result<String, NodeError> {
        let gone = |why: &str| NodeError::Unreachable { address: address.to_owned(), why: why.to_owned() };
        loop {
            let permit = self.permits.get().await;
            let actor = registry::where_is(format!("{}{address}", self.nodes));
            let actor = actor.map(ActorRef::<Envelope<NodeMessage>>::from);
            let actor = actor.ok_or_else(|| gone("the actor of the node does not run at present"))?;
            let (reply, answer) = oneshot::channel();
            let message = NodeMessage::Act { permit, action: action.clone(), reply };
            actor.cast(message.into()).map_err(|_| gone("the actor of the node has ended"))?;
            match answer.await.map_err(|_| gone("the actor of the node ended during the action"))? {
                Err(NodeError::Permit(_)) => tokio::time::sleep(PERMIT_PAUSE).await,
                result => return result,
            }
        }
    }

    /// Refuses an image of etcd that is older than a running member, before anything stops or starts. Without a member
    /// whose version is known, there is nothing to compare. The version of an image is read once.
    async fn refuse_older(&self, target: &str, image: &str, control_plane: &[String]) -> Result<(), Failure> {
        let Ok(status) = self.etcd.status(control_plane).await else { return Ok(()) };
        let Some(running) = status.members.iter().filter_map(|member| member.version.as_ref()).max() else {
            return Ok(());
        };
        let known = || self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let version = known().get(image).cloned();
        let version = match version {
            Some(version) => version,
            None => {
                let action = NodeAction::ImageVersion { image: image.to_owned(), program: None, pull: true };
                let output = self.act_on_node(target, action).await.map_err(|error| Failure {
                    nodes: BTreeSet::from([target.to_owned()]),
                    why: error.to_string(),
                    is_hold: false,
                })?;
                let version = read_version(&output)
                    .ok_or_else(|| format!("the image {image} names no version of etcd: {output:.100}"))?;
                known().insert(image.to_owned(), version.clone());
                version
            }
        };
        if version < *running {
            let why = format!("{image} has etcd {version}, and a member runs {running}");
            return Err(Failure { nodes: BTreeSet::new(), why, is_hold: true });
        }
        Ok(())
    }

    async fn add_member(
        &self,
        targets: &[String],
        control_plane: &[String],
        basis: &Basis,
    ) -> Result<(), Failure> {
        let target = targets.first().ok_or_else(|| "the operation names no node to add".to_owned())?;
        // A learner that an interrupted operation left may have begun to run. It cannot come back without the data that this
        // operation removed, and it has no vote.
        let status = self.etcd.status(control_plane).await?;
        if let Some(learner) = member_of(&status, targets).filter(|member| member.learner) {
            let permit = self.permits.get().await;
            self.etcd.remove(&permit, control_plane, learner.id).await?;
        }
        let members = self.add_learner(&peer_url(target), control_plane).await?;
        let listed = members.iter().flat_map(|member| {
            let address = member.address().into_owned();
            member.peer_urls.iter().map(move |url| format!("{address}={url}"))
        });
        let listed: Vec<String> = listed.collect();
        let initial = InitialCluster::Existing(&listed);
        self.run_on_all_targets(targets, |address| NodeAction::RunContainer {
            spec: self.container_spec(Container::Etcd, address, initial, basis),
            restart: false,
        })
        .await
    }

    /// etcd refuses a learner until all members have been connected for 5 s, which follows each change of members.
    async fn add_learner(&self, url: &str, control_plane: &[String]) -> Result<Vec<EtcdMember>, Failure> {
        let mut tries = 1;
        loop {
            let permit = self.permits.get().await;
            match self.etcd.add_learner(&permit, control_plane, url).await {
                Err(EtcdError::Refused { .. }) if tries < WAIT_TRIES => {
                    tries += 1;
                    tokio::time::sleep(WAIT_PAUSE).await;
                }
                answered => return Ok(answered?),
            }
        }
    }

    /// Promotes a learner as soon as it is in sync.
    async fn promote(
        &self,
        id: Option<u64>,
        targets: &[String],
        control_plane: &[String],
    ) -> Result<(), Failure> {
        if is_planted(Canary::PromotionSkipped) {
            return Ok(());
        }
        let mut why = String::new();
        for attempt in 0..PROMOTE_TRIES {
            if attempt > 0 {
                tokio::time::sleep(WAIT_PAUSE).await;
            }
            let id = match id {
                Some(id) => id,
                None => match self.etcd.status(control_plane).await {
                    Ok(status) => match member_of(&status, targets) {
                        Some(member) => member.id,
                        None => return Err(format!("{} is not a member of etcd", targets.join(", ")).into()),
                    },
                    Err(error) => {
                        why = error.to_string();
                        continue;
                    }
                },
            };
            let permit: Permit = self.permits.get().await;
            match self.etcd.promote(&permit, control_plane, id).await {
                Ok(()) => return Ok(()),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why.into())
    }

    /// Waits until etcd grants a lease to one of the members, and until enough of them are in sync.
    async fn wait(&self, members: &[String], redundant: bool) -> Result<(), String> {
        let needed = if redundant { members.len().div_ceil(2) + 1 } else { 0 };
        let mut why = String::new();
        for attempt in 0..WAIT_TRIES {
            if attempt > 0 {
                tokio::time::sleep(WAIT_PAUSE).await;
            }
            why = match self.etcd.status(members).await {
                Err(error) => error.to_string(),
                Ok(status) if !status.healthy => "etcd grants no lease".to_owned(),
                Ok(status) => {
                    let in_sync = status.members.iter().filter(|member| member.is_in_sync()).count();
                    if in_sync >= needed {
                        return Ok(());
                    }
                    format!("{in_sync} members are in sync, and {needed} must be")
                }
            };
        }
        Err(why)
    }
}

fn member_of<'s>(status: &'s EtcdStatus, targets: &[String]) -> Option<&'s EtcdMember> {
    status.members.iter().find(|member| targets.iter().any(|target| *target == member.address()))
}

/// The version in the output of `etcd --version`, whose first line is `etcd Version: 3.5.15`.
pub(crate) fn read_version(output: &str) -> Option<EtcdVersion> {
    let (_, version) = output.lines().next()?.split_once("etcd Version:")?;
    version.trim().parse().ok()
}
