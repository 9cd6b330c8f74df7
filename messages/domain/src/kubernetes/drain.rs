//! The treatment of each pod during a drain, as CKE does it (its `op/reboot_decide.go`, `docs/repair.md`).
//!
//! Pods of DaemonSets return wherever they are ended, and only the node can end mirrors of static pods: both stay.
//! The drain waits for running jobs. All other pods are evicted; if the eviction is refused, they are deleted unless
//! their namespace is protected.

use std::collections::BTreeSet;
use std::fmt;

use crate::canary::{Canary, is_planted};
use crate::kubernetes::{Pod, PodId, PodPhase};

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

/// The treatment of a pod on a node that is being drained.
#[must_use]
pub fn treatment_of(pod: &Pod, protected: &BTreeSet<String>) -> Treatment {
    if pod.mirror || pod.controller.as_deref() == Some("DaemonSet") {
        return Treatment::Stay;
    }
    let ends_by_itself =
        matches!(pod.phase, PodPhase::Running | PodPhase::Unknown) && pod.deleted_at.is_none();
    if pod.controller.as_deref() == Some("Job") && ends_by_itself {
        return Treatment::AwaitJob;
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
}

/// The report of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainNews {
    /// The drain waits for the reason in the text.
    Waits(String),
    /// Only pods that stay are left.
    Done,
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
        }
    }
}

/// The first running job on a node.
#[must_use]
pub fn running_job(pods: &[Pod]) -> Option<&PodId> {
    let none = BTreeSet::new();
    pods.iter().find(|pod| treatment_of(pod, &none) == Treatment::AwaitJob).map(|pod| &pod.id)
}

/// The pod that the drain waits for; `None` when only pods that stay are left.
#[must_use]
pub fn unfinished_drain(pods: &[Pod]) -> Option<UnfinishedDrain> {
    let none = BTreeSet::new();
    pods.iter().find_map(|pod| match treatment_of(pod, &none) {
        Treatment::Stay => None,
        Treatment::AwaitJob => Some(UnfinishedDrain::Job(pod.id.clone())),
        Treatment::Evict | Treatment::EvictOrDelete => Some(UnfinishedDrain::Pod(pod.id.clone())),
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
            assert_eq!(treatment_of(&pod, &protected), expected, "{controller:?} {phase:?} in {namespace}");
        }
        let mirror = Pod { mirror: true, ..pod("open", Some("Node"), Running) };
        assert_eq!(treatment_of(&mirror, &protected), Treatment::Stay);
    }

    #[test]
    fn node_is_drained_when_only_daemon_pods_are_left() {
        let stays = pod("a", Some("DaemonSet"), PodPhase::Running);
        assert_eq!(unfinished_drain(std::slice::from_ref(&stays)), None);
        let ending = Pod {
            deleted_at: Some(time::OffsetDateTime::UNIX_EPOCH),
            ..pod("a", Some("Job"), PodPhase::Running)
        };
        assert_eq!(running_job(std::slice::from_ref(&ending)), None, "it was told to end");
        let left = unfinished_drain(&[stays.clone(), ending]).unwrap();
        assert_eq!(left.to_string(), "the pod a/p has not ended");
        let job = pod("b", Some("Job"), PodPhase::Running);
        assert_eq!(unfinished_drain(&[stays, job]).unwrap().to_string(), "the pod b/p of a job runs");
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
