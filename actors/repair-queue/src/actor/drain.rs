//! Draining of one node over the port, as CKE does it: dry run, cordon, eviction, and the wait for the end of the pods.
//!
//! Guarantees: before the cordon nothing is changed, and nothing at all when a job runs or a protected pod may not go; a pod
//! is judged by its uid, so that one which came back under the same name is another. It ends by itself only when it cannot be
//! done; how long it may take is the brain's to say. That a permit ends before an answer came does not end it: what was asked for
//! is asked for again with another permit of the same epoch, as a node or a pod that it was done to already is left as it is.
//!
//! A node that is drained may wait for long until its command's turn comes, and somebody may uncordon it meanwhile, or pods
//! come that tolerate the cordon. So it is looked at again every [`DRAIN_POLL`] for as long as the entry is being drained. What came
//! is told at once, and drained like the first; while the API does not answer, the node does not count as drained. Between
//! two looks nothing is known: what comes then is not seen.
//!
//! One that an earlier leader began is looked at first. If that leader cordoned the node, its dry run was done: what is left of
//! the pods is evicted, and nothing is done when nothing is left. If it did not come to that, the drain begins anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use madako_domain::kubernetes::drain::{
    DrainNews, Treatment, Unfinished, running_job, treatment, unfinished,
};
use madako_domain::kubernetes::{Eviction, KubeNode, Pod, PodId};
use madako_domain::repair::config::RepairConfig;
use madako_effects::Permits;
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use tracing::{Instrument as _, info_span};

use crate::limits::DRAIN_POLL;

/// What a drain needs to know.
pub(super) struct Order {
    pub(super) kubernetes: Arc<dyn Kubernetes>,
    pub(super) permits: Permits,
    pub(super) node: String,
    pub(super) config: Arc<RepairConfig>,
    /// Whether the drain was begun by an earlier leader: it may have cordoned the node already, and evicted some of its pods.
    pub(super) resumed: bool,
    /// Whether its time was over before that: it is looked at, and nothing is changed.
    pub(super) late: bool,
}

/// How far a drain is.
enum Found {
    /// Nothing was changed yet.
    Uncordoned,
    /// The node is cordoned by us, and pods are left.
    Begun,
    /// The node is cordoned by us, and only what stays is left.
    Done,
}

/// Why a drain ended early.
enum Stop {
    Failed(String),
}

impl From<KubernetesError> for Stop {
    fn from(error: KubernetesError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Order {
    /// Drains the node, and keeps it drained; `tell` is called with each thing that it waits for, and with each end.
    pub(super) async fn carry_out(self, tell: impl Fn(DrainNews) + Send + Sync) {
        let Stop::Failed(why) = self.drain(&tell).await;
        tell(DrainNews::Failed(why));
    }

    /// Goes on until it cannot be done, or nobody wants it any more.
    async fn drain(&self, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Stop {
        let mut found = Found::Uncordoned;
        if self.resumed {
            found = match self.first_look(tell).await {
                Ok(found) => found,
                Err(stop) => return stop,
            };
            if self.late && !matches!(found, Found::Done) {
                // The brain has heard what is left, and gives it up.
                std::future::pending::<()>().await;
            }
        }
        loop {
            if let Err(stop) = self.empty(&found, tell).await {
                return stop;
            }
            tell(DrainNews::Done);
            found = self.guard(tell).await;
        }
    }

    /// Empties the node, from where it was found.
    async fn empty(&self, found: &Found, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Result<(), Stop> {
        if matches!(found, Found::Done) {
            return Ok(());
        }
        let protected = self.kubernetes.namespaces(&self.config.protected_namespaces).await?;
        if matches!(found, Found::Uncordoned) {
            self.dry_run(&protected, tell).await?;
        }
        let cordon = |permit| async move { self.kubernetes.cordon(&permit, &self.node).await };
        self.permits.effect(cordon, interrupted(tell)).instrument(info_span!("cordon")).await?;
        let mut asked = BTreeSet::new();
        let pods = self.kubernetes.pods_on(&self.node).await?;
        // One may have come between the dry run and the cordon.
        if let Some(job) = running_job(&pods) {
            return Err(Stop::Failed(Unfinished::Job(job.clone()).to_string()));
        }
        self.evict_all(&pods, &protected, &mut asked, tell).await?;
        loop {
            // That the API does not answer for a while ends nothing: the time-out does.
            match self.kubernetes.pods_on(&self.node).await {
                Ok(pods) => {
                    let Some(left) = unfinished(&pods) else { return Ok(()) };
                    tell(DrainNews::Waits(left.to_string()));
                    self.evict_all(&pods, &protected, &mut asked, tell).await?;
                }
                Err(error) => tell(DrainNews::Waits(error.to_string())),
            }
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }

    /// Looks after a node that is drained, until something is to be done again.
    async fn guard(&self, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Found {
        let mut told_done = true;
        loop {
            tokio::time::sleep(DRAIN_POLL).await;
            match self.look().await {
                Ok((Found::Done, _)) if told_done => {}
                Ok((Found::Done, _)) => {
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

    /// How far the earlier leader came. While the API does not answer that is asked again, for as long as the brain waits.
    async fn first_look(&self, tell: &(impl Fn(DrainNews) + Send + Sync)) -> Result<Found, Stop> {
        loop {
            match self.look().await {
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

    async fn look(&self) -> Result<(Found, Option<String>), KubernetesError> {
        let nodes = self.kubernetes.nodes().await?;
        let ours = |node: &KubeNode| node.name == self.node && node.unschedulable && node.is_cordoned_by_us();
        if !nodes.iter().any(ours) {
            return Ok((Found::Uncordoned, Some("the node is not cordoned".to_owned())));
        }
        let left = unfinished(&self.kubernetes.pods_on(&self.node).await?);
        let found = if left.is_some() { Found::Begun } else { Found::Done };
        Ok((found, left.map(|left| left.to_string())))
    }

    /// Whether everything could go. Pods that are deleted in the end never refuse.
    async fn dry_run(
        &self,
        protected: &BTreeSet<String>,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        let pods = self.kubernetes.pods_on(&self.node).await?;
        if let Some(job) = running_job(&pods) {
            return Err(Stop::Failed(Unfinished::Job(job.clone()).to_string()));
        }
        for pod in &pods {
            if treatment(pod, protected) != Treatment::Evict || pod.deleted_at.is_some() {
                continue;
            }
            let ask = |permit| async move { self.kubernetes.evict(&permit, &pod.id, true).await };
            if let Eviction::Refused { why } = self.permits.effect(ask, interrupted(tell)).await? {
                return Err(refused(&pod.id, &why));
            }
        }
        Ok(())
    }

    async fn evict_all(
        &self,
        pods: &[Pod],
        protected: &BTreeSet<String>,
        asked: &mut BTreeSet<String>,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        for pod in pods {
            let treatment = treatment(pod, protected);
            let goes = matches!(treatment, Treatment::Evict | Treatment::EvictOrDelete);
            if !goes || pod.deleted_at.is_some() || asked.contains(&pod.id.uid) {
                continue;
            }
            self.evict(&pod.id, treatment, tell).await?;
            asked.insert(pod.id.uid.clone());
        }
        Ok(())
    }

    async fn evict(
        &self,
        pod: &PodId,
        treatment: Treatment,
        tell: &(impl Fn(DrainNews) + Send + Sync),
    ) -> Result<(), Stop> {
        let mut attempts = self.config.evict_attempts;
        loop {
            let evict = |permit| async move { self.kubernetes.evict(&permit, pod, false).await };
            let evicted = self.permits.effect(evict, interrupted(tell));
            let evicted = evicted.instrument(info_span!("evict", %pod)).await?;
            let Eviction::Refused { why } = evicted else { return Ok(()) };
            if treatment == Treatment::EvictOrDelete {
                let delete = |permit| async move { self.kubernetes.delete(&permit, pod).await };
                let deleted = self.permits.effect(delete, interrupted(tell));
                return Ok(deleted.instrument(info_span!("delete", %pod)).await?);
            }
            attempts = attempts.saturating_sub(1);
            if attempts == 0 {
                return Err(refused(pod, &why));
            }
            tokio::time::sleep(self.config.evict_interval).await;
        }
    }
}

/// Tells what is asked for again, as its permit ended.
fn interrupted(tell: &(impl Fn(DrainNews) + Send + Sync)) -> impl Fn(&KubernetesError) + Send + Sync {
    move |error| tell(DrainNews::Waits(error.to_string()))
}

fn refused(pod: &PodId, why: &str) -> Stop {
    Stop::Failed(format!("the pod {pod} may not be evicted: {why}"))
}
