//! The port to the nodes of the cluster: connections, the state of containers, and actions on them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::component::Component;
use madako_domain::containers::{ContainerName, ServiceParams};
use madako_domain::host_key::HostKey;
use madako_domain::node_status::NodeStatus;
use time::OffsetDateTime;

use crate::permit::{Permit, PermitEnded};
use crate::secret::Secret;

/// The destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTarget {
    /// IPv4 address of the node.
    pub address: String,
    /// Login name over SSH, from the cluster configuration.
    pub user: String,
    /// The host key that the node must prove; `None` accepts any key.
    pub pinned: Option<HostKey>,
}

/// The error of a connection or an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The permit had expired; the action did not begin.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// No connection, or the connection broke. An action may have happened.
    #[error("{address} is not reachable: {why}")]
    Unreachable {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The failure of the connection, as the system or SSH reports it.
        why: String,
    },
    /// The node has another host key than the pinned one.
    #[error(
        "{address} has the host key {offered}, and {pinned} is pinned: if the machine was installed anew, run \
         madako ssh forget {address}"
    )]
    HostKey {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// Fingerprint of the pinned key.
        pinned: String,
        /// Fingerprint of the node's key.
        offered: String,
    },
    /// There is no private key for the login.
    #[error("no private key for the login on {address}: {why}")]
    Key {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The reason, without a part of a key.
        why: String,
    },
    /// The node refused the login.
    #[error("{address} refused the login of {user}: {why}")]
    Login {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// Login name over SSH, from the cluster configuration.
        user: String,
        /// The reason, as far as the node names it.
        why: String,
    },
    /// The container engine of the node does not work.
    #[error("the container engine of {address} does not work: {why}")]
    Engine {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The message of the engine.
        why: String,
    },
    /// An action failed.
    #[error("{what} failed on {address} with exit code {code}: {why}")]
    Failed {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The action in words, for messages.
        what: String,
        /// Exit code of the remote command.
        code: u32,
        /// The beginning of its standard error.
        why: String,
    },
    /// A snapshot of etcd cannot be restored. Nothing of etcd was changed.
    #[error("the snapshot {path} on {address} cannot be restored: {why}")]
    Snapshot {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// Path of the snapshot.
        path: String,
        /// The reason, for an operator.
        why: String,
    },
    /// No answer in time. The remote command was killed, if the node still answers.
    #[error("{what} on {address} took longer than {limit:?}")]
    Deadline {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The action or query.
        what: String,
        /// Time limit of the action or query.
        limit: Duration,
    },
    /// The answer is longer than allowed, or does not have the expected form.
    #[error("unusable answer of {address} to {what}: {why}")]
    Malformed {
        /// Address of the node, as in the cluster configuration.
        address: String,
        /// The action or query.
        what: String,
        /// The fault of the answer.
        why: String,
    },
}

/// A file to write on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFile {
    /// Absolute path on the node.
    pub path: String,
    /// Content with the permissions of the file.
    pub content: FileContent,
}

/// The content of a file on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// A file that every user may read (mode 0644).
    Public(String),
    /// A file for its owner alone (mode 0600).
    Private(Secret),
}

/// A container to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Name of the container.
    pub container: ContainerName,
    /// Name of the image with its tag or digest.
    pub image: String,
    /// Options of the container engine for this kind of container.
    pub engine_options: &'static [&'static str],
    /// Volumes that the engine keeps: name and path in the container.
    pub volumes: Vec<(String, String)>,
    /// Parameters that the service derives, before those of the operator.
    pub builtin: ServiceParams,
    /// Parameters of the operator.
    pub extra: ServiceParams,
}

/// A snapshot of etcd on a node, and the cluster of one member that it becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRestore {
    /// Name of the image of etcd. It has a shell.
    pub image: String,
    /// Volume with the data of etcd.
    pub volume: String,
    /// Absolute path of the snapshot on the node.
    pub path: String,
    /// Digits that name the restore, in the names of directories.
    pub id: String,
    /// Name of the member.
    pub name: String,
    /// URL of the member for other members.
    pub peer_url: String,
}

/// The contents of a snapshot of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotContent {
    /// Revision of its last write.
    pub revision: i64,
    /// Number of its keys, with former revisions of each.
    pub keys: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time of the last change of the file.
    pub modified: OffsetDateTime,
}

/// An action on a node. Each may run twice: it does nothing if its result is there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAction {
    /// Pulls an image, unless the node has it. Outlives the permit.
    PullImage {
        /// Name of the image.
        image: String,
    },
    /// Starts a container and removes a stopped one of its name. A running one stays, unless `restart` is set.
    RunContainer {
        /// Name, image and parameters of the container.
        spec: ContainerSpec,
        /// Ends a running container first.
        restart: bool,
    },
    /// Ends a container with SIGTERM, and removes it.
    StopContainer(ContainerName),
    /// Waits for some seconds for the end of a container, and removes it then. Prints [`RUNNING`] if it still runs.
    EndContainer {
        /// Name of the container.
        container: ContainerName,
        /// Sends SIGTERM first. A second SIGTERM ends an API server at once.
        ask: bool,
    },
    /// Ends a container with SIGKILL, and removes it.
    KillContainer(ContainerName),
    /// Creates an empty volume; an existing one stays with its data.
    CreateVolume {
        /// Name of the volume.
        name: String,
    },
    /// Removes a volume with its data.
    RemoveVolume {
        /// Name of the volume.
        name: String,
    },
    /// Writes files through the tools image. Owner of all files is user and group 10000.
    WriteFiles {
        /// Name of the tools image.
        tools: String,
        /// Directory above all files.
        directory: String,
        /// The files, each with its absolute path.
        files: Vec<NodeFile>,
    },
    /// Creates directories with their parents through the tools image. Existing ones stay as they are.
    MakeDirectories {
        /// Name of the tools image.
        tools: String,
        /// Absolute paths on the node.
        directories: Vec<String>,
        /// Permission bits of new directories.
        mode: u32,
    },
    /// Removes all that a directory contains, through the tools image. A missing directory is created.
    EmptyDirectory {
        /// Name of the tools image.
        tools: String,
        /// Absolute path on the node.
        directory: String,
    },
    /// Copies the CNI plugins of the tools image to the node.
    InstallCni {
        /// Name of the tools image.
        tools: String,
    },
    /// Prints the version of the program in an image.
    ImageVersion {
        /// Name of the image.
        image: String,
        /// The program of an image with several; `None`: the image has one, which it starts by itself.
        program: Option<Component>,
        /// Pulls an image that the node lacks; without this, the action fails there.
        pull: bool,
    },
    /// Restores a snapshot beside the data of etcd, which stay as they are. Outlives the permit.
    StageSnapshot(SnapshotRestore),
    /// Puts a restored snapshot in the place of the data of etcd, which stay beside it. etcd does not run.
    UseSnapshot(SnapshotRestore),
}

/// Output of [`NodeAction::EndContainer`] about a container that still runs.
pub const RUNNING: &str = "running";

impl NodeAction {
    /// True if the action may end after its permit: neither running containers nor data of etcd depend on it.
    #[must_use]
    pub fn outlives_permit(&self) -> bool {
        matches!(self, Self::PullImage { .. } | Self::StageSnapshot(_))
    }
}

impl fmt::Display for NodeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PullImage { image } => write!(f, "pull of {image}"),
            Self::RunContainer { spec, .. } => write!(f, "start of the container {}", spec.container),
            Self::StopContainer(container) => write!(f, "stop of the container {container}"),
            Self::EndContainer { container, .. } => write!(f, "end of the container {container}"),
            Self::KillContainer(container) => write!(f, "kill of the container {container}"),
            Self::CreateVolume { name } => write!(f, "creation of the volume {name}"),
            Self::RemoveVolume { name } => write!(f, "removal of the volume {name}"),
            Self::WriteFiles { directory, .. } => write!(f, "write of files below {directory}"),
            Self::MakeDirectories { directories, .. } => {
                write!(f, "creation of the directories {}", directories.join(", "))
            }
            Self::EmptyDirectory { directory, .. } => write!(f, "removal of the files in {directory}"),
            Self::InstallCni { .. } => f.write_str("copy of the CNI plugins"),
            Self::ImageVersion { image, .. } => write!(f, "query of the version in {image}"),
            Self::StageSnapshot(restore) => write!(f, "restore of the snapshot {}", restore.path),
            Self::UseSnapshot(restore) => write!(f, "use of the snapshot {}", restore.path),
        }
    }
}

/// A connection to a node. Dropping a future kills its remote command; dropping the connection closes it.
#[async_trait]
pub trait NodeConnection: Send + Sync + 'static {
    /// The host key that the node proved.
    fn host_key(&self) -> &HostKey;

    /// Reads the state of the managed containers and volumes. `volume` is the configured volume of etcd.
    ///
    /// # Errors
    /// See [`NodeError`]. Nothing of an incomplete answer is used.
    async fn status(&self, volume: &str) -> Result<NodeStatus, NodeError>;

    /// Reads a snapshot of etcd, and restores it on trial into a container that is removed afterwards. Changes nothing.
    ///
    /// # Errors
    /// See [`NodeError`]. A node without the image gives [`NodeError::Failed`].
    async fn snapshot(&self, image: &str, path: &str) -> Result<SnapshotContent, NodeError>;

    /// Acts on the node, and returns the output of the action.
    ///
    /// # Errors
    /// See [`NodeError`]. After a lost connection or a deadline, the action may have happened.
    async fn act(&self, permit: &Permit, action: &NodeAction) -> Result<String, NodeError>;

    /// Waits until the connection has broken.
    async fn closed(&self);
}

/// A connection in a message.
pub struct Connection(pub Arc<dyn NodeConnection>);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

/// The port that connects to nodes.
#[async_trait]
pub trait NodeDriver: Send + Sync + 'static {
    /// Connects and logs in.
    async fn connect(&self, target: &NodeTarget) -> Result<Arc<dyn NodeConnection>, NodeError>;
}
