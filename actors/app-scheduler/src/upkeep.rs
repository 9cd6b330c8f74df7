//! State changes of clusters, clouds and projects because of their metrics.
//!
//! Guarantees: only ONLINE becomes FAILING_METRICS, and only FAILING_METRICS returns to ONLINE, with its reasons
//! cleared. Metrics that were never fetched change nothing.

use madako_domain::placement::infrastructure::CloudState;
use madako_domain::placement::kubernetes::ClusterState;
use madako_domain::placement::metadata::Reason;
use madako_domain::placement::object_value::Object;
use madako_domain::placement::openstack::ProjectState;
use madako_json::krake::entries::Entries;

use crate::draft::{DraftedChanges, WriteKind};
use crate::target::{MetricsTurn, Target};

pub(crate) fn update_state(target: &Target<'_>, draft: &mut DraftedChanges) {
    let (online, failing) = reported_failures(&target.stored.object);
    let Some(turn) = target.metrics_transition(online, failing) else { return };
    let Some(object) = draft.object_mut(target.stored, WriteKind::Metrics) else { return };
    let (fails, reasons): (bool, Entries<Reason>) = match turn {
        MetricsTurn::Fails(reasons) => (true, reasons.into_iter().collect()),
        MetricsTurn::Recovers => (false, Entries::new()),
    };
    let cloud = if fails { CloudState::FailingMetrics } else { CloudState::Online };
    match object {
        Object::Cluster(cluster) => {
            cluster.status.state = if fails { ClusterState::FailingMetrics } else { ClusterState::Online };
            cluster.status.metrics_reasons = reasons;
        }
        Object::Project(project) => {
            project.status.state = if fails { ProjectState::FailingMetrics } else { ProjectState::Online };
            project.status.metrics_reasons = reasons;
        }
        Object::Cloud(resource) => {
            resource.status.state = cloud;
            resource.status.metrics_reasons = reasons;
        }
        Object::GlobalCloud(resource) => {
            resource.status.state = cloud;
            resource.status.metrics_reasons = reasons;
        }
        _ => {}
    }
}

/// The state of a place: true if it is online, and the reasons if it fails because of its metrics.
fn reported_failures(object: &Object) -> (bool, Option<&Entries<Reason>>) {
    match object {
        Object::Cluster(cluster) => {
            let state = cluster.status.state;
            let failing = (state == ClusterState::FailingMetrics).then_some(&cluster.status.metrics_reasons);
            (state == ClusterState::Online, failing)
        }
        Object::Project(project) => {
            let state = project.status.state;
            let failing = (state == ProjectState::FailingMetrics).then_some(&project.status.metrics_reasons);
            (state == ProjectState::Online, failing)
        }
        Object::Cloud(cloud) => cloud_shown(cloud.status.state, &cloud.status.metrics_reasons),
        Object::GlobalCloud(cloud) => cloud_shown(cloud.status.state, &cloud.status.metrics_reasons),
        _ => (false, None),
    }
}

fn cloud_shown(state: CloudState, reasons: &Entries<Reason>) -> (bool, Option<&Entries<Reason>>) {
    (state == CloudState::Online, (state == CloudState::FailingMetrics).then_some(reasons))
}
