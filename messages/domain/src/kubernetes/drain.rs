//! The treatment of each pod during a drain, as CKE does it (its `op/reboot_decide.go`, `docs/repair.md`).
//!
//! Pods of DaemonSets return wherever they are ended, and only the node can end mirrors of static pods: both stay.
//! The drain waits for running jobs. All other pods are evicted; if the eviction is refused, they are deleted unless
//! their namespace is protected.

use std::collections::BTreeSet;
use std::fmt;

use crate::canary::{Canary, is_planted};
use crate::kubernetes::{KubeNode, Pod, PodId, PodPhase};

/// The treatment of a pod during a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The pod stays, and the drain does not wait for its end.
    Stay,
    /// The pod belongs to a running job: no pod is drained before the job ends.
    AwaitJob,
    /// The pod is evicted, as often as necessary.
    Evict,
    /// The pod is evicted, or deleted if a disruption budget forbids the eviction.
    EvictOrDelete,
}

/// The reason for a drain, which decides on the pods of jobs and on volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainPurpose {
    /// The machine is repaired, and may not return: pods of jobs are evicted unless they run.
    Repair,
    /// The node returns after its reboot: pods of jobs that have not begun or have ended stay (CKE).
    Reboot,
}

/// The treatment of a pod on a node that is being drained.
#[must_use]
pub fn treatment_of(pod: &Pod, protected: &BTreeSet<String>, purpose: DrainPurpose) -> Treatment {
    if pod.mirror || pod.controller.as_deref() == Some("DaemonSet") {
        return Treatment::Stay;
    }
    let ends_by_itself =
        matches!(pod.phase, PodPhase::Running | PodPhase::Unknown) && pod.deleted_at.is_none();
    if pod.controller.as_deref() == Some("Job") {
        let stays = purpose == DrainPurpose::Reboot && pod.deleted_at.is_none();
        match (ends_by_itself, stays) {
            (true, _) => return Treatment::AwaitJob,
            (false, true) => return Treatment::Stay,
            (false, false) => {}
        }
    }
    let evicts = protected.contains(&pod.id.namespace) && !is_planted(Canary::ProtectedPodsDeleted);
    if evicts { Treatment::Evict } else { Treatment::EvictOrDelete }
}

/// The reason why a node is not drained yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnfinishedDrain {
    /// A job is running.
    Job(PodId),
    /// A pod has not ended.
    Pod(PodId),
    /// A volume is in use (`status.volumesInUse`): a reboot could damage its file system.
    Volume(String),
}

/// The report of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainNews {
    /// The drain waits for the reason in the text.
    Waits(String),
    /// Only pods that stay are left.
    Done,
    /// The node does not report (condition `Ready` is unknown), and the pod has not ended: only its node ends a pod.
    Unreachable(PodId),
    /// The drain failed; the text gives the reason.
    Failed(String),
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for UnfinishedDrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(pod) => write!(f, "the pod {pod} of a job runs"),
            Self::Pod(pod) => write!(f, "the pod {pod} has not ended"),
            Self::Volume(volume) => write!(f, "the volume {volume} is in use"),
        }
    }
}

/// The first running job on a node.
#[must_use]
pub fn running_job(pods: &[Pod]) -> Option<&PodId> {
    let none = BTreeSet::new();
    let runs = |pod: &&Pod| treatment_of(pod, &none, DrainPurpose::Repair) == Treatment::AwaitJob;
    pods.iter().find(runs).map(|pod| &pod.id)
}

/// The pod or volume that the drain waits for; `None` when only pods that stay are left. `node` is read for reboots.
#[must_use]
pub fn unfinished_drain(
    pods: &[Pod],
    node: Option<&KubeNode>,
    purpose: DrainPurpose,
) -> Option<UnfinishedDrain> {
    let none = BTreeSet::new();
    let pod = pods.iter().find_map(|pod| match treatment_of(pod, &none, purpose) {
        Treatment::Stay => None,
        Treatment::AwaitJob => Some(UnfinishedDrain::Job(pod.id.clone())),
        Treatment::Evict | Treatment::EvictOrDelete => Some(UnfinishedDrain::Pod(pod.id.clone())),
    });
    pod.or_else(|| {
        let volume = node.filter(|_| purpose == DrainPurpose::Reboot)?.volumes_in_use.first()?;
        Some(UnfinishedDrain::Volume(volume.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, controller: Option<&str>, phase: PodPhase) -> Pod {
        Pod {
            id: PodId { namespace: namespace.to_owned(), name: "p".to_owned(), uid: "1".to_owned() },
            phase,
            controller: controller.map(str::to_owned),
            mirror: false,
            deleted_at: None,
        }
    }

    #[test]
    fn each_kind_of_pod_has_its_treatment() {
        use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
        let protected = BTreeSet::from(["safe".to_owned()]);
        for (namespace, controller, phase, expected) in [
            ("safe", Some("ReplicaSet"), Running, Treatment::Evict),
            ("open", Some("ReplicaSet"), Running, Treatment::EvictOrDelete),
            ("safe", None, Failed, Treatment::Evict),
            ("safe", Some("DaemonSet"), Running, Treatment::Stay),
            ("open", Some("Job"), Running, Treatment::AwaitJob),
            ("open", Some("Job"), Unknown, Treatment::AwaitJob),
            ("safe", Some("Job"), Pending, Treatment::Evict),
            ("open", Some("Job"), Succeeded, Treatment::EvictOrDelete),
            ("safe", Some("Job"), Failed, Treatment::Evict),
        ] {
            let pod = pod(namespace, controller, phase);
            assert_eq!(
                treatment_of(&pod, &protected, DrainPurpose::Repair),
                expected,
                "{controller:?} {phase:?} in {namespace}"
            );
        }
        let mirror = Pod { mirror: true, ..pod("open", Some("Node"), Running) };
        assert_eq!(treatment_of(&mirror, &protected, DrainPurpose::Repair), Treatment::Stay);
        for (phase, expected) in [
            (Pending, Treatment::Stay),
            (Succeeded, Treatment::Stay),
            (Failed, Treatment::Stay),
            (Running, Treatment::AwaitJob),
        ] {
            let pod = pod("open", Some("Job"), phase);
            assert_eq!(
                treatment_of(&pod, &protected, DrainPurpose::Reboot),
                expected,
                "{phase:?} before a reboot"
            );
        }
    }

    #[test]
    fn node_is_drained_when_only_daemon_pods_are_left() {
        let stays = pod("a", Some("DaemonSet"), PodPhase::Running);
        let left = |pods: &[Pod]| unfinished_drain(pods, None, DrainPurpose::Repair);
        assert_eq!(left(std::slice::from_ref(&stays)), None);
        let ending = Pod {
            deleted_at: Some(time::OffsetDateTime::UNIX_EPOCH),
            ..pod("a", Some("Job"), PodPhase::Running)
        };
        assert_eq!(running_job(std::slice::from_ref(&ending)), None, "a deleted pod already ends");
        let ending = left(&[stays.clone(), ending]).unwrap();
        assert_eq!(ending.to_string(), "the pod a/p has not ended");
        let job = pod("b", Some("Job"), PodPhase::Running);
        assert_eq!(left(&[stays.clone(), job]).unwrap().to_string(), "the pod b/p of a job runs");
        let node = KubeNode { volumes_in_use: vec!["kubernetes.io/csi/v".to_owned()], ..KubeNode::default() };
        let volume =
            unfinished_drain(std::slice::from_ref(&stays), Some(&node), DrainPurpose::Reboot).unwrap();
        assert_eq!(volume.to_string(), "the volume kubernetes.io/csi/v is in use");
        assert_eq!(unfinished_drain(&[stays], Some(&node), DrainPurpose::Repair), None);
    }

    #[test]
    fn the_first_running_job_of_a_node_is_awaited() {
        let named = |name: &str, controller, phase| {
            let mut pod = pod("a", Some(controller), phase);
            name.clone_into(&mut pod.id.name);
            pod
        };
        let pods = [
            named("replica", "ReplicaSet", PodPhase::Running),
            named("ended", "Job", PodPhase::Succeeded),
            named("first", "Job", PodPhase::Running),
            named("second", "Job", PodPhase::Running),
        ];
        assert_eq!(running_job(&pods).map(|id| &*id.name), Some("first"));
        assert_eq!(running_job(&pods[..2]), None);
    }
}
