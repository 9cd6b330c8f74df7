//! Creates clusters for applications (`auto_cluster_create`), and deletes unused ones.
//!
//! Guarantees: a drawn name is free in its namespace. A cluster is deleted only after it was online, and after a
//! whole `deletion_retention` in which no application was bound to it, ran on it or waited for it.

use std::collections::BTreeSet;

use madako_domain::placement::binding::bind_cluster;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{
    Application, CloudConstraints, Cluster, ClusterCloudConstraints, ClusterSpec, ClusterState, ClusterStatus,
};
use madako_domain::placement::metadata::{Metadata, ResourceRef};
use madako_json::krake::free::JsonObject;
use madako_json::krake::reader::UnreadFields;
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::draw::SeededDraw;
use crate::snapshot::Snapshot;

/// Names run from `cluster-1000` to `cluster-9999`, as in Krake.
const NAMES: std::ops::RangeInclusive<usize> = 1_000..=9_999;

/// An unused name; `None`: all are taken.
pub(crate) fn draw_free_name(
    taken: impl Fn(&ObjectKey) -> bool,
    namespace: Option<&str>,
    draw: &mut SeededDraw,
) -> Option<ObjectKey> {
    let size = NAMES.count();
    let first = draw.number_below(size);
    (0..size)
        .map(|step| NAMES.start() + (first + step) % size)
        .map(|number| ObjectKey::new(Kind::Cluster, namespace, format!("cluster-{number}")))
        .find(|key| !taken(key))
}

/// A cluster for an application, bound to the best cloud for it.
pub(crate) fn cluster_for_application(
    key: &ObjectKey,
    application: &Application,
    cloud: &ObjectKey,
    tosca: &JsonObject,
    now: OffsetDateTime,
    draw: &mut SeededDraw,
) -> Cluster {
    let wants = &application.spec.constraints.cluster;
    let mut metadata =
        Metadata::new(key.name.clone(), key.namespace.as_deref(), draw.next_uuid(), Timestamp::new(now));
    metadata.inherit_labels = true;
    let constraints = ClusterCloudConstraints {
        cloud: CloudConstraints {
            labels: wants.labels.clone(),
            metrics: wants.metrics.clone(),
            rest: UnreadFields::default(),
        },
        rest: UnreadFields::default(),
    };
    let spec = ClusterSpec {
        kubeconfig: Default::default(),
        tosca: tosca.clone(),
        custom_resources: Vec::new(),
        constraints,
        metrics: Vec::new(),
        inherit_metrics: true,
        backoff: 1,
        backoff_delay: 1,
        backoff_limit: -1,
        auto_generated: true,
        rest: UnreadFields::default(),
    };
    let mut cluster =
        Cluster { metadata, spec, status: ClusterStatus::default(), rest: UnreadFields::default() };
    bind_cluster(&mut cluster, ResourceRef::from_key(cloud), now);
    cluster
}

/// Clusters that an application is bound to, runs on or waits for.
pub(crate) fn created_in_use(snapshot: &Snapshot) -> BTreeSet<ObjectKey> {
    let mut used = BTreeSet::new();
    for resource in snapshot.of::<Application>() {
        let status = &resource.value.status;
        used.extend(status.scheduled_to.as_ref().and_then(ResourceRef::key));
        used.extend(status.running_on.as_ref().and_then(ResourceRef::key));
        let namespace = resource.stored.key.namespace.as_deref();
        let waits = status.auto_cluster_create_started.as_deref();
        used.extend(waits.map(|name| ObjectKey::new(Kind::Cluster, namespace, name)));
    }
    used
}

pub(crate) fn is_up(state: ClusterState) -> bool {
    // A cluster with failing metrics is online.
    matches!(state, ClusterState::Online | ClusterState::FailingMetrics)
}
