//! The leader's present work (CKE's `status`, bound to the session's lease).

use time::OffsetDateTime;

use madako_json::go::{Time, ZERO_TIME, go_object, open_enum};

open_enum! {
    /// Where the leader is on the way to the configured cluster.
    pub enum OperationPhase {
        /// The upgrade cannot go on.
        UpgradeAborted = "upgrade-aborted",
        /// The form of the cluster is being brought up to date.
        Upgrade = "upgrade",
        /// The rivers are being started.
        Rivers = "rivers",
        /// etcd cannot be bootstrapped.
        EtcdBootAborted = "etcd-boot-aborted",
        /// etcd is being bootstrapped.
        EtcdBoot = "etcd-boot",
        /// etcd is being started.
        EtcdStart = "etcd-start",
        /// etcd is not in order yet.
        EtcdWait = "etcd-wait",
        /// Kubernetes is being started.
        K8sStart = "k8s-start",
        /// Members of etcd are being changed.
        EtcdMaintain = "etcd-maintain",
        /// Kubernetes is being brought to its configuration.
        K8sMaintain = "k8s-maintain",
        /// The control plane is being stopped where it does not belong.
        StopControlPlane = "stop-control-plane",
        /// Machines are being repaired.
        RepairMachines = "repair-machines",
        /// Nodes are being uncordoned.
        UncordonNodes = "uncordon-nodes",
        /// Nodes are being rebooted.
        RebootNodes = "reboot-nodes",
        /// There is nothing to do.
        Completed = "completed",
    }
}

go_object! {
    /// What the leader is doing, and since when.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerStatus {
        /// Where it is.
        pub phase: OperationPhase = "phase";
        /// When that was noted.
        pub timestamp: OffsetDateTime = "timestamp" as Time;
        ..rest
    }
}

impl ServerStatus {
    /// A status with the time `now`.
    #[must_use]
    pub fn new(phase: OperationPhase, now: OffsetDateTime) -> Self {
        Self { phase, timestamp: now, rest: madako_json::go::UnknownFields::default() }
    }
}

impl Default for ServerStatus {
    fn default() -> Self {
        Self::new(OperationPhase::default(), ZERO_TIME)
    }
}
