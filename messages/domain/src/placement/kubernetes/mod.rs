//! The resources of Krake's `kubernetes` group: applications and clusters.

mod application;
mod cluster;

pub use application::{
    Application, ApplicationComplete, ApplicationShutdown, ApplicationSpec, ApplicationState,
    ApplicationStatus, ClusterBinding, ClusterConstraints, Constraints, ContainerHealth,
};
pub use cluster::{
    CloudConstraints, Cluster, ClusterCloudConstraints, ClusterNode, ClusterNodeCondition,
    ClusterNodeMetadata, ClusterNodeStatus, ClusterSpec, ClusterState, ClusterStatus,
};
