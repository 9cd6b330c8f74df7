//! The leader's present work (CKE's `status`, bound to the session's lease).

use time::OffsetDateTime;

use madako_json::go::{Time, ZERO_TIME, go_object, open_enum};

open_enum! {
    /// The leader's progress towards the configured cluster.
    pub enum OperationPhase {
        /// The upgrade cannot continue.
        UpgradeAborted = "upgrade-aborted",
        /// Upgrade of the form of the cluster.
        Upgrade = "upgrade",
        /// Start of the rivers.
        Rivers = "rivers",
        /// etcd cannot be bootstrapped.
        EtcdBootAborted = "etcd-boot-aborted",
        /// Bootstrap of etcd.
        EtcdBoot = "etcd-boot",
        /// Start of etcd.
        EtcdStart = "etcd-start",
        /// etcd is not healthy yet.
        EtcdWait = "etcd-wait",
        /// Start of Kubernetes.
        K8sStart = "k8s-start",
        /// Change of the members of etcd.
        EtcdMaintain = "etcd-maintain",
        /// Change of Kubernetes to its configuration.
        K8sMaintain = "k8s-maintain",
        /// Stop of control plane components on nodes outside the control plane.
        StopControlPlane = "stop-control-plane",
        /// Repair of machines.
        RepairMachines = "repair-machines",
        /// Uncordon of nodes.
        UncordonNodes = "uncordon-nodes",
        /// Reboot of nodes.
        RebootNodes = "reboot-nodes",
        /// No operation is due.
        Completed = "completed",
    }
}

go_object! {
    /// The leader's phase and its time.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ServerStatus {
        /// The work of the leader at that time; `completed` if none is due.
        pub phase: OperationPhase = "phase";
        /// Time at which the leader noted the phase.
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
