//! Drains one node through the Kubernetes port, in CKE's steps: dry run, cordon, eviction, wait until the pods have
//! ended.
//!
//! Guarantees: nothing changes before the cordon, and nothing at all if a job runs or a protected pod refuses
//! eviction. A pod is identified by its uid: a pod that is recreated under the same name is another pod. A drain
//! fails only on an error; its user limits its time. An expired permit does not fail a drain: the
//! request is sent again with another permit of the same epoch, and is idempotent.
//!
//! A drained node may wait a long time for its command. Meanwhile an operator may uncordon it, or pods that tolerate
//! the cordon may arrive. The drain therefore checks the node every [`DRAIN_POLL`] while the entry is being drained.
//! It reports a change at once and drains the node again. While the API does not answer, the node does not count as
//! drained. Changes between two checks are not seen.
//!
//! A drain that an earlier leader began is checked first. If that leader cordoned the node, the dry run had passed:
//! only the remaining pods are evicted. Otherwise the drain begins anew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::invariants::Violation;
use madako_domain::kubernetes::drain::{
    DrainNews, DrainPurpose, Treatment, UnfinishedDrain, running_job, treatment_of, unfinished_drain,
};
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use tracing::{Instrument as _, info_span};

use crate::limits::DRAIN_POLL;
use crate::permits::Permits;

/// The rules that decide on each pod of a drained node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRules {
    /// The purpose, which decides on the pods of jobs and on volumes.
    pub purpose: DrainPurpose,
    /// Selector of the namespaces whose pods are evicted but never deleted, in the notation of the API; empty selects
    /// all.
    pub protected_namespaces: String,
    /// Maximum number of attempts at an eviction; at least 1.
    pub evict_attempts: u32,
    /// Pause between attempts at an eviction.
    pub evict_interval: Duration,
    /// The node is cordoned before the dry run, for programs that relax budgets when they see a cordon.
    pub cordon_first: bool,
}

/// The drain of one node.
#[derive(Clone)]
pub struct DrainOrder {
    /// Port to the API server of the drained node's cluster.
    pub kubernetes: Arc<dyn Kubernetes>,
    /// The source of permits.
    pub permits: Permits,
    /// Name of the Node object.
    pub node: String,
    /// Purpose, protected namespaces, and retries of evictions.
    pub rules: DrainRules,
    /// An earlier leader began the drain: the node may be cordoned already, and some pods evicted.
    pub resumed: bool,
    /// The time-out of the resumed drain has passed already: the drain reports the node's state and changes nothing.
    pub late: bool,
    /// Evaluates the invariants of a drain (I17, and I15 for a reboot) on the newest observations, right before the cordon.
    pub check: CordonCheck,
}

/// The invariant that a cordon of a drain would violate at present. True: the drain begins, and no earlier leader has cordoned the
/// node for it.
pub type CordonCheck = Arc<dyn Fn(bool) -> Option<Violation> + Send + Sync>;

enum NodeDrainState {
    /// No change was made yet.
    Uncordoned,
    /// This system cordoned the node, and pods to evict are left.
    Begun,
    /// This system cordoned the node, and only pods that a drain leaves in place are left.
    Done,
}

enum Stop {
    Failed(String),
}

impl From<KubernetesError> for Stop {
    fn from(error: KubernetesError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The part of invariant I16 that the node does not meet at present; `None` if the node is drained.
///
/// # Errors
///
/// The API server does not answer, or refuses.
pub async fn find_undrained(
    kubernetes: &dyn Kubernetes,
    node: &str,
    purpose: DrainPurpose,
) -> Result<Option<String>, KubernetesError> {
    Ok(check(kubernetes, node, purpose).await?.1)
}

/// The progress of a drain, and the obstacle to its end.
async fn check(
    kubernetes: &dyn Kubernetes,
    node: &str,
    purpose: DrainPurpose,
) -> Result<(NodeDrainState, Option<String>), KubernetesError> {
    let found = kubernetes.node(node).await?;
    if !found.as_ref().is_some_and(|node| node.unschedulable && node.is_cordoned_by_us()) {
        return Ok((NodeDrainState::Uncordoned, Some("the node is not cordoned".to_owned())));
    }
    let pods = kubernetes.pods_on(node).await?;
    let Some(left) = unfinished_drain(&pods, found.as_ref(), purpose) else {
        return Ok((NodeDrainState::Done, None));
    };
    Ok((NodeDrainState::Begun, Some(left.to_string())))
}

impl DrainOrder {
    /// Drains the node and keeps it drained. Calls `tell` for each pod or error that it waits for, and with each
    /// result.
    pub async fn carry_out(self, tell: impl Fn(DrainNews) + Send + Sync) {
        let Stop::Failed(why) = self.drain(&tell).await;
        tell(DrainNews::Failed(why));
    }

    /// Runs until the drain fails or its task is dropped.
    async fn drain(&self, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Stop {
        let mut found = NodeDrainState::Uncordoned;
        if self.resumed {
            found = match self.read_earlier_progress(tell).await {
                Ok(found) => found,
                Err(stop) => return stop,
            };
            if self.late && !matches!(found, NodeDrainState::Done) {
                // The user of the drain knows the remaining pods, and ends the task.
                std::future::pending::<()>().await;
            }
        }
        loop {
            if let Err(stop) = self.evict_pods(&found, tell).await {
                return stop;
            }
            tell(DrainNews::Done);
            found = self.watch_drained_node(tell).await;
        }
    }

    async fn evict_pods(
        &self,
        found: &NodeDrainState,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        if matches!(found, NodeDrainState::Done) {
            return Ok(());
        }
        let protected = self.kubernetes.namespaces(&self.rules.protected_namespaces).await?;
        let begins = matches!(found, NodeDrainState::Uncordoned);
        if self.rules.cordon_first {
            self.cordon(begins, tell).await?;
        }
        if begins {
            self.dry_run(&protected, tell).await?;
        }
        if !self.rules.cordon_first {
            self.cordon(begins, tell).await?;
        }
        let mut evicted = BTreeSet::new();
        let pods = self.kubernetes.pods_on(&self.node).await?;
        // A job may have started between the dry run and the cordon.
        if let Some(job) = running_job(&pods) {
            return Err(Stop::Failed(UnfinishedDrain::Job(job.clone()).to_string()));
        }
        self.evict_all(&pods, &protected, &mut evicted, tell).await?;
        loop {
            // An API that does not answer for a while does not fail the drain; only the time-out ends it.
            match self.read_node().await {
                Ok((node, pods)) => {
                    let Some(left) = unfinished_drain(&pods, node.as_ref(), self.rules.purpose) else {
                        return Ok(());
                    };
                    tell(self.describe_progress(&left, node.as_ref()));
                    self.evict_all(&pods, &protected, &mut evicted, tell).await?;
                }
                Err(error) => tell(DrainNews::Waits(error.to_string())),
            }
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }

    async fn cordon(&self, begins: bool, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Result<(), Stop> {
        let cordon = |permit| async move {
            match (self.check)(begins) {
                Some(violation) => Ok(Some(violation)),
                None => self.kubernetes.cordon(&permit, &self.node).await.map(|()| None),
            }
        };
        let cordoned = self.permits.run_effect(cordon, report_interruption(tell));
        match cordoned.instrument(info_span!("cordon")).await? {
            Some(violation) => Err(Stop::Failed(violation.to_string())),
            None => Ok(()),
        }
    }

    /// The pods of the node; for reboots also the node itself, which reports volumes and may be unreachable.
    async fn read_node(&self) -> Result<(Option<KubeNode>, Vec<Pod>), KubernetesError> {
        let node = match self.rules.purpose {
            DrainPurpose::Repair => None,
            DrainPurpose::Reboot => self.kubernetes.node(&self.node).await?,
        };
        Ok((node, self.kubernetes.pods_on(&self.node).await?))
    }

    fn describe_progress(&self, left: &UnfinishedDrain, node: Option<&KubeNode>) -> DrainNews {
        match (left, node) {
            (UnfinishedDrain::Pod(pod), Some(node)) if node.ready.is_none() => {
                DrainNews::Unreachable(pod.clone())
            }
            _ => DrainNews::Waits(left.to_string()),
        }
    }

    /// Polls a drained node until it has to be drained again.
    async fn watch_drained_node(&self, tell: &(impl Fn(DrainNews) + Send + Sync)) -> NodeDrainState {
        let mut told_done = true;
        loop {
            tokio::time::sleep(DRAIN_POLL).await;
            match self.check().await {
                Ok((NodeDrainState::Done, _)) if told_done => {}
                Ok((NodeDrainState::Done, _)) => {
                    tell(DrainNews::Done);
                    told_done = true;
                }
                Ok((found, waits)) => {
                    tell(DrainNews::Waits(waits.unwrap_or_default()));
                    return found;
                }
                Err(error) => {
                    tell(DrainNews::Waits(error.to_string()));
                    told_done = false;
                }
            }
        }
    }

    /// Reads the progress of the earlier leader. Retries while the API does not answer; the reconcile pass limits the
    /// time.
    async fn read_earlier_progress(
        &self,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<NodeDrainState, Stop> {
        loop {
            match self.check().await {
                Ok((found, waits)) => {
                    if let Some(waits) = waits {
                        tell(DrainNews::Waits(waits));
                    }
                    return Ok(found);
                }
                Err(KubernetesError::Unavailable { .. }) => tokio::time::sleep(DRAIN_POLL).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn check(&self) -> Result<(NodeDrainState, Option<String>), KubernetesError> {
        check(&*self.kubernetes, &self.node, self.rules.purpose).await
    }

    /// Asks for each pod whether its eviction would be allowed. Pods that are deleted when eviction is refused do not
    /// count.
    async fn dry_run(
        &self,
        protected: &BTreeSet<String>,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        let pods = self.kubernetes.pods_on(&self.node).await?;
        if let Some(job) = running_job(&pods) {
            return Err(Stop::Failed(UnfinishedDrain::Job(job.clone()).to_string()));
        }
        for pod in &pods {
            if treatment_of(pod, protected, self.rules.purpose) != Treatment::Evict
                || pod.deleted_at.is_some()
            {
                continue;
            }
            let ask = |permit| async move { self.kubernetes.evict(&permit, &pod.id, true).await };
            if let EvictionOutcome::Refused { why } =
                self.permits.run_effect(ask, report_interruption(tell)).await?
            {
                return Err(refuse_eviction(&pod.id, &why));
            }
        }
        Ok(())
    }

    async fn evict_all(
        &self,
        pods: &[Pod],
        protected: &BTreeSet<String>,
        evicted: &mut BTreeSet<String>,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        for pod in pods {
            let treatment = treatment_of(pod, protected, self.rules.purpose);
            let goes = matches!(treatment, Treatment::Evict | Treatment::EvictOrDelete);
            if !goes || pod.deleted_at.is_some() || evicted.contains(&pod.id.uid) {
                continue;
            }
            self.evict(&pod.id, treatment, tell).await?;
            evicted.insert(pod.id.uid.clone());
        }
        Ok(())
    }

    async fn evict(
        &self,
        pod: &PodId,
        treatment: Treatment,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        let mut attempts = self.rules.evict_attempts;
        loop {
            let evict = |permit| async move { self.kubernetes.evict(&permit, pod, false).await };
            let evicted = self.permits.run_effect(evict, report_interruption(tell));
            let evicted = evicted.instrument(info_span!("evict", %pod)).await?;
            let EvictionOutcome::Refused { why } = evicted else { return Ok(()) };
            if treatment == Treatment::EvictOrDelete {
                let delete = |permit| async move { self.kubernetes.delete(&permit, pod).await };
                let deleted = self.permits.run_effect(delete, report_interruption(tell));
                return Ok(deleted.instrument(info_span!("delete", %pod)).await?);
            }
            attempts = attempts.saturating_sub(1);
            if attempts == 0 {
                return Err(refuse_eviction(pod, &why));
            }
            tokio::time::sleep(self.rules.evict_interval).await;
        }
    }
}

/// Reports a request that is sent again because its permit expired.
fn report_interruption(tell: &(impl Fn(DrainNews) + Send + Sync)) -> impl Fn(&KubernetesError) + Send + Sync {
    move |error| tell(DrainNews::Waits(error.to_string()))
}

fn refuse_eviction(pod: &PodId, why: &str) -> Stop {
    Stop::Failed(format!("the pod {pod} cannot be evicted: {why}"))
}
