//! The commands of operations, as data. A record shows the name and the target of a command, in CKE's words.

use std::fmt;

use madako_domain::containers::{Container, ETCD_MARK};
use madako_json::named;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::kubernetes::command::KubernetesCommand;
use crate::kubernetes::objects::operation::ObjectCommand;
use crate::wanted::{client_url, etcd_files};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// The data of a member, under the configured name.
    Data(String),
    /// The mark of an added member.
    Mark,
}

impl Volume {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Data(name) => name,
            Self::Mark => ETCD_MARK,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunMode {
    /// Start it, or do nothing if it runs.
    Start,
    /// Stop it first.
    Restart,
    /// A member of etcd that starts for the first time, or again with its data, among these members.
    Initial(Vec<String>),
}

/// A command runs on all targets of its operation at the same time, or asks etcd. Each may run twice.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Command {
    /// Puts `config-version` 2.
    #[strum(serialize = "upgrade-version-from-1-to-2")]
    UpgradeVersion {
        /// Marks the control plane nodes first: etcd has data.
        marks: bool,
    },
    ImagePull {
        image: String,
    },
    RunContainer {
        container: Container,
        run: RunMode,
    },
    /// Ends and removes a container.
    StopContainer(Container),
    KillContainers(Container),
    VolumeCreate(Volume),
    VolumeRemove(Volume),
    PrepareEtcdCertificates,
    /// Writes what [`Command::PrepareEtcdCertificates`] made.
    MakeFiles,
    /// Adds the target as a learner, unless it is a member, and starts it.
    AddEtcdMember,
    PromoteEtcdMember {
        /// `None`: the member that this operation adds.
        id: Option<u64>,
    },
    RemoveEtcdMember {
        ids: Vec<u64>,
    },
    WaitEtcdSync {
        /// Addresses of the members to ask.
        members: Vec<String>,
        /// More than half of them must answer, and one more than that with an odd number.
        redundant: bool,
    },
    /// Makes the users and roles, which may exist, and turns authentication on.
    SetupEtcdAuth {
        /// Addresses of the members to ask.
        members: Vec<String>,
    },
    /// Proves a snapshot by its restore, beside the data of etcd.
    StageSnapshot {
        /// Path on the target.
        path: String,
        /// Name of the restore.
        id: String,
    },
    /// Ends well if no majority of the members answers for a while.
    ConfirmEtcdLoss {
        /// Addresses of the members to ask.
        members: Vec<String>,
    },
    /// Stops all reachable members before a restore.
    StopEtcdMembers {
        nodes: Vec<String>,
    },
    /// Puts the restored data in the place of the data of etcd.
    UseSnapshot {
        /// Path of the snapshot on the target.
        path: String,
        /// Name of the restore.
        id: String,
    },
    #[strum(transparent)]
    Kubernetes(KubernetesCommand),
    #[strum(transparent)]
    Object(ObjectCommand),
}

named!(Command);

impl Command {
    /// The target in records: the changed object, several by commas, or nothing.
    #[must_use]
    pub fn target(&self) -> String {
        match self {
            Self::UpgradeVersion { .. } => ETCD_MARK.to_owned(),
            Self::ImagePull { image } => image.clone(),
            Self::RunContainer { container, .. }
            | Self::StopContainer(container)
            | Self::KillContainers(container) => container.name().to_owned(),
            Self::VolumeCreate(volume) | Self::VolumeRemove(volume) => volume.name().to_owned(),
            Self::PrepareEtcdCertificates | Self::AddEtcdMember => String::new(),
            Self::MakeFiles => etcd_files().join(","),
            Self::PromoteEtcdMember { id } => id.map(|id| id.to_string()).unwrap_or_default(),
            Self::RemoveEtcdMember { ids } => ids.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
            Self::StageSnapshot { path, .. } | Self::UseSnapshot { path, .. } => path.clone(),
            Self::StopEtcdMembers { nodes } => nodes.join(","),
            Self::Kubernetes(command) => command.target(),
            Self::Object(command) => command.target(),
            Self::WaitEtcdSync { members, .. }
            | Self::SetupEtcdAuth { members }
            | Self::ConfirmEtcdLoss { members } => {
                members.iter().map(|address| client_url(address)).collect::<Vec<_>>().join(",")
            }
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target().as_str() {
            "" => f.write_str(self.name()),
            target => write!(f, "{} {target}", self.name()),
        }
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Command", 2)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("target", &self.target())?;
        fields.end()
    }
}
