//! Judges the placement resources in the store: I11 with the predicate that the leader uses, and I12 when nothing
//! changes any more.
//!
//! Assumes: `stored` has the resources before the evaluated revision.
//!
//! Does not: know which values of metrics a decision was based on. The world passes the values.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use madako_domain::invariants::{BindingEvidence, Id, PlacementChange, Violation, check_allowed_bindings};
use madako_domain::placement::fit::{AnyCloud, ComparedMetrics, Offer, UnmetConstraint, unmet_requirements};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metadata::{CASCADE_DELETION, ResourceRef};
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved};
use madako_domain::placement::object_value::{Object, Resource as _};
use madako_domain::placement::objects::Stored;
use madako_domain::store::{Condition, Write};
use time::OffsetDateTime;

pub type Resources = BTreeMap<ObjectKey, Arc<Stored>>;

pub type MetricStates = BTreeMap<MetricKey, MetricState>;

/// A resource from the value of its key; `None`: the value is none.
#[must_use]
pub fn read_resource(key: &ObjectKey, value: &[u8], created: i64, revision: i64) -> Option<Arc<Stored>> {
    Some(Arc::new(Stored {
        key: key.clone(),
        create_revision: created,
        mod_revision: revision,
        object: Object::from_stored(key.kind, std::str::from_utf8(value).ok()?).ok()?,
        wire: Bytes::copy_from_slice(value),
    }))
}

#[must_use]
pub fn read_bound_cluster(stored: &Stored) -> Option<ObjectKey> {
    Application::from_object(&stored.object)?.status.scheduled_to.as_ref().and_then(ResourceRef::key)
}

fn cloud_of(cluster: &Cluster, stored: &Resources) -> Option<Arc<Stored>> {
    let key = cluster.status.scheduled_to.as_ref().and_then(ResourceRef::key)?;
    stored.get(&key).cloned()
}

/// Reasons against an application on a cluster; `None`: the resource is not a cluster.
#[must_use]
pub fn violations_against(
    application: &Application,
    cluster: &Stored,
    values: &MetricStates,
    stored: &Resources,
) -> Option<Vec<UnmetConstraint>> {
    let cluster = Cluster::from_object(&cluster.object)?;
    let cloud = cloud_of(cluster, stored);
    let cloud = cloud.as_ref().and_then(|cloud| AnyCloud::from_object(&cloud.object));
    Some(unmet_requirements(
        application,
        cluster,
        &Offer::from_cluster(cluster, cloud, values, ComparedMetrics::Value),
    ))
}

/// Evaluates I11 of a revision that writes an application; `target` is the cluster that it is newly bound to.
///
/// # Panics
/// `stored` is not the state before the revision.
#[must_use]
pub fn find_misbound(
    (revision, after): (i64, &Arc<Stored>),
    target: Option<&Arc<Stored>>,
    values: MetricStates,
    stored: &Resources,
) -> Vec<Violation> {
    let before = stored.get(&after.key);
    let evidence = target.zip(before).map(|(target, before)| BindingEvidence {
        application: Arc::clone(before),
        cluster: Arc::clone(target),
        cloud: Cluster::from_object(&target.object).and_then(|cluster| cloud_of(cluster, stored)),
        metrics: Some(Arc::new(MetricsObserved {
            revision,
            at: OffsetDateTime::UNIX_EPOCH,
            metrics: values,
        })),
        compared: ComparedMetrics::Value,
    });
    let key = after.key.etcd_key();
    let found = check_allowed_bindings(&PlacementChange {
        conditions: &[Condition::Unchanged {
            key: key.clone(),
            revision: before.map_or(0, |before| before.mod_revision),
        }],
        writes: &[Write::Put { key, value: after.wire.clone(), lease: 0 }],
        evidence: evidence.as_slice(),
        stored: &|key| stored.get(key).cloned(),
    });
    assert!(found.changed.is_empty(), "the evidence is the stored state: {:?}", found.changed);
    found.violations
}

/// Evaluates a calm state: applications that fit on a cluster are bound, and where they fit if they can move; deleted resources are gone
/// unless a finalizer of a client holds them.
#[must_use]
pub fn find_unsettled(stored: &Resources, values: &MetricStates) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut record_violation = |what: String| found.push(Violation { invariant: Id::I12, what });
    for resource in stored.values() {
        let metadata = resource.object.metadata();
        if metadata.deleted.is_some() {
            if metadata.finalizers.iter().all(|finalizer| finalizer == CASCADE_DELETION) {
                record_violation(format!("{} was deleted, and is there at the end", resource.key));
            }
            continue;
        }
        let Some(application) = Application::from_object(&resource.object) else { continue };
        let fits = |cluster: &&Arc<Stored>| {
            violations_against(application, cluster, values, stored).is_some_and(|against| against.is_empty())
        };
        let fitting: Vec<&ObjectKey> = stored.values().filter(fits).map(|cluster| &cluster.key).collect();
        let to = read_bound_cluster(resource);
        let stays = to.as_ref().is_some_and(|to| {
            let cluster = stored.get(to).and_then(|cluster| Cluster::from_object(&cluster.object));
            cluster.is_some_and(|cluster| cluster.status.state == ClusterState::FailingMetrics)
                || !application.spec.constraints.migration
        });
        if !fitting.is_empty() && !stays && !to.as_ref().is_some_and(|to| fitting.contains(&to)) {
            let to = to.map_or_else(|| "nothing".to_owned(), |to| to.to_string());
            let fits = fitting.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            record_violation(format!(
                "{} is bound to {to} at the end, though it fits on {fits}",
                resource.key
            ));
        }
    }
    found
}
