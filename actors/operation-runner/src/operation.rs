//! The operations on nodes and etcd as data: their names, targets and commands.

use madako_domain::canary::{Canary, is_planted};
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::images::ImageName;
use madako_domain::invariants::{MemberLoss, Violation, check_quorum};
use madako_domain::node_status::EtcdMember;
use madako_json::named;
use serde::Serialize;

use crate::command::{Command, RunMode, Volume};
use crate::input::RequestedRestore;
use crate::kubernetes::command::KubernetesCommand;
use crate::kubernetes::objects::operation::ObjectOperationName;
use crate::kubernetes::operation::KubernetesOperationName;
use crate::wanted::client_url;

/// The name of an operation in records; CKE's names, where CKE has the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Serialize, strum::Display, strum::IntoStaticStr, strum::EnumString)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum OperationName {
    Upgrade,
    RiversBootstrap,
    RiversRestart,
    EtcdRiversBootstrap,
    EtcdRiversRestart,
    EtcdBootstrap,
    EtcdStart,
    EtcdWaitCluster,
    EtcdAddMember,
    EtcdRemoveMember,
    EtcdDestroyMember,
    EtcdPromoteMember,
    EtcdMarkMember,
    EtcdRestart,
    EtcdRestore,
    EtcdRenewCertificates,
    KubernetesRotateEncryptionKey,
    KubernetesRenewCertificates,
    StopEtcd,
    StopEtcdRivers,
    /// The text is that of the default inside, so that no other text is read as this variant.
    #[serde(untagged)]
    #[strum(transparent, serialize = "kube-apiserver-restart")]
    Kubernetes(KubernetesOperationName),
    #[serde(untagged)]
    #[strum(transparent, serialize = "wait-kubernetes")]
    Object(ObjectOperationName),
}

named!(OperationName);

impl OperationName {
    /// The operation of a record; `None` for an operation of another actor.
    #[must_use]
    pub fn from_record_name(name: &str) -> Option<Self> {
        let others = || name.parse().map(Self::Object);
        name.parse().or_else(|_| name.parse().map(Self::Kubernetes)).or_else(|_| others()).ok()
    }
}

/// Commands that run one after another under one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    pub name: OperationName,
    /// Addresses of the nodes on which commands run. [`OperationName::EtcdWaitCluster`] has URLs, and
    /// [`OperationName::EtcdRemoveMember`] the addresses of members.
    pub targets: Vec<String>,
    pub commands: Vec<Command>,
    /// Invariant I2 does not judge it: an operator asked for it with `madako etcd restart` or `madako etcd restore`, or it
    /// stops members of before a restore.
    #[serde(skip)]
    pub is_requested: bool,
}

impl Operation {
    pub(crate) fn new(name: OperationName, targets: Vec<String>, commands: Vec<Command>) -> Self {
        Self { name, targets, commands, is_requested: false }
    }

    /// True if the authorities must issue certificates for it.
    #[must_use]
    pub fn needs_certificates(&self) -> bool {
        self.commands.iter().any(|command| match command {
            Command::PrepareEtcdCertificates => true,
            Command::Kubernetes(command) => command.needs_certificates(),
            _ => false,
        })
    }

    /// The component of Kubernetes that the operation starts.
    #[must_use]
    pub fn started_component(&self) -> Option<Component> {
        self.commands.iter().find_map(|command| match command {
            Command::Kubernetes(KubernetesCommand::RunContainer { component, .. }) => Some(*component),
            _ => None,
        })
    }

    /// True if a command starts a container of this image.
    #[must_use]
    pub fn needs_image(&self, image: ImageName) -> bool {
        self.commands.iter().any(|command| match command {
            Command::RunContainer { container: Container::Etcd, .. }
            | Command::AddEtcdMember
            | Command::StageSnapshot { .. }
            | Command::UseSnapshot { .. } => image == ImageName::Etcd,
            Command::RunContainer { container: Container::Rivers | Container::EtcdRivers, .. }
            | Command::MakeFiles => image == ImageName::Tools,
            Command::Kubernetes(command) => command.needs_image(image),
            _ => false,
        })
    }

    /// Checks invariant I2 after each command.
    #[must_use]
    pub fn quorum_violation(&self, members: &[EtcdMember]) -> Option<Violation> {
        let mut loss = MemberLoss::default();
        self.commands.iter().find_map(|command| {
            let more = command.member_loss(&self.targets, members);
            loss.stopped.extend(more.stopped);
            loss.removed.extend(more.removed);
            check_quorum(members, &loss)
        })
    }
}

impl Command {
    /// True if the command may stop or remove members of etcd.
    pub(crate) fn may_lose_members(&self) -> bool {
        matches!(
            self,
            Self::StopContainer(Container::Etcd)
                | Self::KillContainers(Container::Etcd)
                | Self::RunContainer { container: Container::Etcd, run: RunMode::Restart }
                | Self::VolumeRemove(Volume::Data(_))
                | Self::RemoveEtcdMember { .. }
        )
    }

    /// The members that the command stops and removes when it runs for these targets.
    #[must_use]
    pub fn member_loss(&self, targets: &[String], members: &[EtcdMember]) -> MemberLoss {
        let stops = self.may_lose_members() && !matches!(self, Self::RemoveEtcdMember { .. });
        let on_target = |member: &&EtcdMember| targets.iter().any(|target| *target == member.address());
        let removed = if let Self::RemoveEtcdMember { ids } = self { ids.clone() } else { Vec::new() };
        MemberLoss {
            stopped: members.iter().filter(on_target).filter(|_| stops).map(|member| member.id).collect(),
            removed: removed.into_iter().collect(),
        }
    }
}

/// Makes the operations of one cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandMaker<'a> {
    pub(crate) etcd_image: &'a str,
    pub(crate) tools_image: &'a str,
    pub(crate) volume: &'a str,
    pub(crate) control_plane: &'a [String],
}

impl CommandMaker<'_> {
    pub(crate) fn upgrade(&self, marks: bool) -> Operation {
        single_command_operation(
            OperationName::Upgrade,
            self.control_plane.to_vec(),
            Command::UpgradeVersion { marks },
        )
    }

    /// `name` belongs to the container, and to whether it restarts.
    pub(crate) fn run_rivers(
        &self,
        name: OperationName,
        container: Container,
        run: RunMode,
        targets: Vec<String>,
    ) -> Operation {
        let image = self.tools_image.to_owned();
        let commands = vec![Command::ImagePull { image }, Command::RunContainer { container, run }];
        Operation::new(name, targets, commands)
    }

    pub(crate) fn bootstrap(&self, targets: Vec<String>) -> Operation {
        let commands = vec![
            self.pull_etcd(),
            Command::PrepareEtcdCertificates,
            Command::MakeFiles,
            Command::VolumeCreate(self.data_volume()),
            Command::RunContainer { container: Container::Etcd, run: RunMode::Initial(targets.clone()) },
            wait(&targets),
            Command::SetupEtcdAuth { members: targets.clone() },
            Command::VolumeCreate(Volume::Mark),
        ];
        Operation::new(OperationName::EtcdBootstrap, targets, commands)
    }

    pub(crate) fn wait_cluster(&self) -> Operation {
        let targets = self.control_plane.iter().map(|address| client_url(address)).collect();
        single_command_operation(OperationName::EtcdWaitCluster, targets, wait(self.control_plane))
    }

    /// `id` is the id of the target's member, if it is one.
    pub(crate) fn add_member(&self, target: String, id: Option<u64>) -> Operation {
        let targets = vec![target];
        let commands = vec![
            self.pull_etcd(),
            Command::StopContainer(Container::Etcd),
            Command::VolumeRemove(Volume::Mark),
            Command::VolumeRemove(self.data_volume()),
            Command::VolumeCreate(self.data_volume()),
            Command::PrepareEtcdCertificates,
            Command::MakeFiles,
            Command::AddEtcdMember,
            Command::PromoteEtcdMember { id },
            wait(&targets),
            Command::VolumeCreate(Volume::Mark),
        ];
        Operation::new(OperationName::EtcdAddMember, targets, commands)
    }

    /// `ids` may have members of nodes that are not targets, because they are not reachable. A target may be a former
    /// member without an id.
    pub(crate) fn destroy_members(&self, targets: Vec<String>, ids: Vec<u64>) -> Operation {
        let mut commands = vec![Command::VolumeRemove(Volume::Mark)];
        if !ids.is_empty() {
            commands.push(Command::RemoveEtcdMember { ids });
        }
        commands.extend([
            Command::KillContainers(Container::Etcd),
            Command::VolumeRemove(self.data_volume()),
            wait(self.control_plane),
        ]);
        if is_planted(Canary::DataRemovedFirst) {
            commands[1..4].rotate_left(1);
        }
        Operation::new(OperationName::EtcdDestroyMember, targets, commands)
    }

    pub(crate) fn restart(&self, target: String) -> Operation {
        let members = self.control_plane.to_vec();
        let commands = vec![
            Command::WaitEtcdSync { members: members.clone(), redundant: true },
            self.pull_etcd(),
            Command::StopContainer(Container::Etcd),
            Command::RunContainer { container: Container::Etcd, run: RunMode::Initial(members) },
        ];
        Operation::new(OperationName::EtcdRestart, vec![target], commands)
    }

    /// A restart that an operator asked for. It does not need other members, and ends when etcd answers again.
    pub(crate) fn asked_restart(&self, target: String) -> Operation {
        let mut operation = self.restart(target);
        operation.commands.retain(|command| !matches!(command, Command::WaitEtcdSync { .. }));
        operation.commands.push(wait(&operation.targets));
        Operation { is_requested: true, ..operation }
    }

    /// Restores a snapshot on the target. `stopped` are the nodes with a container of etcd. A restore that is under way does
    /// not prove the loss of etcd again: it may have stopped members.
    pub(crate) fn restore(
        &self,
        target: String,
        stopped: Vec<String>,
        RequestedRestore { request, is_under_way }: &RequestedRestore<'_>,
    ) -> Operation {
        let targets = vec![target];
        let members = self.control_plane.to_vec();
        let (path, id) = (request.path.clone(), request.id());
        let mut commands =
            vec![self.pull_etcd(), Command::StageSnapshot { path: path.clone(), id: id.clone() }];
        if !is_under_way {
            commands.push(Command::ConfirmEtcdLoss { members });
        }
        commands.extend([Command::StopEtcdMembers { nodes: stopped }, Command::UseSnapshot { path, id }]);
        commands.extend(run_restored(&targets));
        Operation { is_requested: true, ..Operation::new(OperationName::EtcdRestore, targets, commands) }
    }

    /// The rest of a restore whose data are in their place: it stops nothing.
    pub(crate) fn start_restored(&self, target: String) -> Operation {
        let targets = vec![target];
        let commands = std::iter::once(self.pull_etcd()).chain(run_restored(&targets)).collect();
        Operation::new(OperationName::EtcdRestore, targets, commands)
    }

    fn pull_etcd(&self) -> Command {
        Command::ImagePull { image: self.etcd_image.to_owned() }
    }

    fn data_volume(&self) -> Volume {
        Volume::Data(self.volume.to_owned())
    }
}

fn wait(members: &[String]) -> Command {
    Command::WaitEtcdSync { members: members.to_vec(), redundant: false }
}

/// Starts the restored member, or leaves it as it is.
fn run_restored(targets: &[String]) -> [Command; 5] {
    [
        Command::PrepareEtcdCertificates,
        Command::MakeFiles,
        Command::RunContainer { container: Container::Etcd, run: RunMode::Start },
        wait(targets),
        Command::VolumeCreate(Volume::Mark),
    ]
}

pub(crate) fn single_command_operation(
    name: OperationName,
    targets: Vec<String>,
    command: Command,
) -> Operation {
    Operation::new(name, targets, vec![command])
}

/// Starts members on their data.
pub(crate) fn start(targets: Vec<String>) -> Operation {
    let commands = vec![
        Command::PrepareEtcdCertificates,
        Command::MakeFiles,
        Command::RunContainer { container: Container::Etcd, run: RunMode::Start },
        wait(&targets),
    ];
    Operation::new(OperationName::EtcdStart, targets, commands)
}

/// Replaces the certificates of a member that runs: etcd reads them anew for each connection.
pub(crate) fn renew_certificates(target: String) -> Operation {
    let commands = vec![Command::PrepareEtcdCertificates, Command::MakeFiles];
    Operation::new(OperationName::EtcdRenewCertificates, vec![target], commands)
}
