//! Binds clusters to clouds, and Magnum clusters to projects (Krake's "Scheduling", "Cluster handler", "Magnum cluster handler").
//!
//! Guarantees: only resources that are unbound, not deleted and not failed are bound, and they are never moved.
//! Clouds of the namespace precede global ones. Missing metric values cause waiting, never a lasting failure.

use std::rc::Rc;

use madako_domain::placement::binding::{bind_cluster, bind_magnum_cluster};
use madako_domain::placement::fit::Requirements;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Cluster, ClusterState};
use madako_domain::placement::metadata::{Reason, ReasonCode, ResourceRef};
use madako_domain::placement::openstack::{MagnumCluster, MagnumClusterState, Project};
use time::OffsetDateTime;

use crate::draft::{DraftedChanges, WriteKind};
use crate::draw::SeededDraw;
use crate::scope::Scope;
use crate::snapshot::{Snapshot, TypedResource};
use crate::target::{Availability, Target};

/// Result for an unbound cluster or Magnum cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendOutcome {
    Bound {
        to: ObjectKey,
    },
    WaitsForMetric {
        /// Deadline, after which the decision ignores the metric.
        until: OffsetDateTime,
    },
    /// Only places whose metrics fail would fit.
    WaitsForMetrics,
    Failed,
}

enum BackendChoice<'a> {
    To(Rc<Target<'a>>),
    Waits(OffsetDateTime),
    Failing,
    Nowhere,
}

fn choose_backend<'a>(
    scope: &mut Scope<'a>,
    wants: &Requirements<'a>,
    seed: u64,
    uid: &str,
) -> BackendChoice<'a> {
    let class = scope.evaluate_requirements(wants);
    let until = class.waits.iter().flat_map(|at| scope.target(at).awaited_metrics().collect::<Vec<_>>());
    if let Some(until) = until.map(|(_, until)| until).max() {
        return BackendChoice::Waits(until);
    }
    if let Some((_, members)) = class.best_without(&[]) {
        let drawn = SeededDraw::new(seed, uid).number_below(members.len());
        if let Some(at) = members.get(drawn) {
            return BackendChoice::To(Rc::clone(scope.target(*at)));
        }
    }
    let lasting = Requirements { metrics: &[], ..*wants };
    let failing = scope.targets().iter().any(|target| {
        target.availability == Availability::FailingMetrics && lasting.are_met_by(&target.offer)
    });
    if failing { BackendChoice::Failing } else { BackendChoice::Nowhere }
}

/// Binds a cluster to a cloud. `None`: the cluster is not the scheduler's task.
pub(crate) fn place_cluster<'a>(
    resource: TypedResource<'a, Cluster>,
    scopes: [&mut Scope<'a>; 2],
    seed: u64,
    now: OffsetDateTime,
    draft: &mut DraftedChanges,
) -> Option<BackendOutcome> {
    let cluster = resource.value;
    if cluster.metadata.deleted.is_some()
        || !cluster.spec.kubeconfig.reveal().is_empty()
        || cluster.status.state == ClusterState::Failed
        || cluster.status.scheduled_to.is_some()
    {
        return None;
    }
    let wants = Requirements::from(cluster);
    let mut failing = false;
    for scope in scopes {
        match choose_backend(scope, &wants, seed, &cluster.metadata.uid) {
            BackendChoice::Waits(until) => return Some(BackendOutcome::WaitsForMetric { until }),
            BackendChoice::Failing => failing = true,
            BackendChoice::Nowhere => {}
            BackendChoice::To(cloud) => {
                let to = cloud.key().clone();
                if let Some(cluster) = draft.edit_resource(resource, WriteKind::Cluster) {
                    bind_cluster(cluster, ResourceRef::from_key(&to), now);
                }
                draft.add_basis(&resource.stored.key, cloud.revisions_used());
                return Some(BackendOutcome::Bound { to });
            }
        }
    }
    if failing {
        return Some(BackendOutcome::WaitsForMetrics);
    }
    if let Some(cluster) = draft.edit_resource(resource, WriteKind::Cluster) {
        cluster.status.state = ClusterState::Failed;
        cluster.status.reason = Some(Reason::new(ReasonCode::NoSuitableResource, "No matching cloud found"));
    }
    Some(BackendOutcome::Failed)
}

/// Binds a Magnum cluster to a project. `None`: the cluster is not the scheduler's task.
pub(crate) fn place_magnum_cluster<'a>(
    resource: TypedResource<'a, MagnumCluster>,
    scope: &mut Scope<'a>,
    snapshot: &'a Snapshot,
    seed: u64,
    draft: &mut DraftedChanges,
) -> Option<BackendOutcome> {
    let cluster = resource.value;
    if cluster.metadata.deleted.is_some() || cluster.status.project.is_some() {
        return None;
    }
    match choose_backend(scope, &Requirements::from(cluster), seed, &cluster.metadata.uid) {
        BackendChoice::Waits(until) => Some(BackendOutcome::WaitsForMetric { until }),
        BackendChoice::Failing => Some(BackendOutcome::WaitsForMetrics),
        BackendChoice::Nowhere => {
            if let Some(cluster) = draft.edit_resource(resource, WriteKind::Cluster) {
                cluster.status.state = MagnumClusterState::Failed;
                cluster.status.reason =
                    Some(Reason::new(ReasonCode::NoSuitableResource, "No matching OpenStack project found"));
            }
            Some(BackendOutcome::Failed)
        }
        BackendChoice::To(target) => {
            let to = target.key().clone();
            let project = snapshot.typed::<Project>(&to)?.value;
            if let Some(cluster) = draft.edit_resource(resource, WriteKind::Cluster) {
                inherit_constraints(cluster, project);
                bind_magnum_cluster(cluster, ResourceRef::from_key(&to), project.spec.template.clone());
                if cluster.status.state == MagnumClusterState::Failed {
                    // It failed for lack of a project only: its creation had not begun.
                    cluster.status.state = MagnumClusterState::Pending;
                    cluster.status.reason = None;
                }
            }
            draft.add_basis(&resource.stored.key, target.revisions_used());
            Some(BackendOutcome::Bound { to })
        }
    }
}

/// Copies labels and metrics of the project to the cluster; its own take precedence.
fn inherit_constraints(cluster: &mut MagnumCluster, project: &Project) {
    for (name, value) in project.metadata.labels.iter() {
        if cluster.metadata.labels.get(name).is_none() {
            cluster.metadata.labels.insert(name, value.clone());
        }
    }
    for metric in &project.spec.metrics {
        if !cluster.spec.metrics.iter().any(|own| own.name == metric.name) {
            cluster.spec.metrics.push(metric.clone());
        }
    }
}
