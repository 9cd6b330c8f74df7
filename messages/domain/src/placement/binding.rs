//! The changes that a binding makes in the bound resource (Krake's `binding` subresources). The API uses them for
//! requests, the scheduler for its decisions.
//!
//! Guarantees: the resource depends on its new target and no longer on the previous one, unless it still runs there.
//! Deleting a cluster then does not delete an application that is bound elsewhere (Krake keeps former
//! owners). A bound application can be deployed: `kube_controller_triggered` is not before `modified`, even if
//! another clock wrote that time.
//!
//! Does not: check that the target fits, or change what a failed attempt left in the status.

use time::OffsetDateTime;

use super::kubernetes::{Application, Cluster};
use super::metadata::{Metadata, ResourceRef};
use super::openstack::MagnumCluster;
use madako_json::krake::timestamp::Timestamp;

/// Binds an application to a cluster.
pub fn bind_application(application: &mut Application, cluster: ResourceRef, now: OffsetDateTime) {
    let Application { metadata, status, .. } = application;
    own_reference(metadata, &cluster, status.scheduled_to.as_ref(), status.running_on.as_ref());
    status.scheduled = Some(Timestamp::new(now));
    status.scheduled_to = Some(cluster);
    trigger_update(application, now);
}

/// Marks an application as scheduled in its current form, so that it can be deployed
/// (`status.kube_controller_triggered`).
pub fn trigger_update(application: &mut Application, now: OffsetDateTime) {
    let now = Timestamp::new(now);
    let modified = &application.metadata.modified;
    let triggered = if *modified > now { Timestamp::new(modified.instant()) } else { now };
    application.status.kube_controller_triggered = Some(triggered);
}

/// Binds a cluster to a cloud.
pub fn bind_cluster(cluster: &mut Cluster, cloud: ResourceRef, now: OffsetDateTime) {
    let Cluster { metadata, status, .. } = cluster;
    own_reference(metadata, &cloud, status.scheduled_to.as_ref(), status.running_on.as_ref());
    status.scheduled = Some(Timestamp::new(now));
    status.scheduled_to = Some(cloud);
}

/// Binds a Magnum cluster to a project, with the template of that project to create it from.
pub fn bind_magnum_cluster(cluster: &mut MagnumCluster, project: ResourceRef, template: String) {
    let MagnumCluster { metadata, status, .. } = cluster;
    own_reference(metadata, &project, status.project.as_ref(), None);
    status.project = Some(project);
    status.template = Some(template);
}

/// True if two references name the same resource.
#[must_use]
pub fn is_same_resource(one: &ResourceRef, other: &ResourceRef) -> bool {
    (&one.api, &one.kind, &one.namespace, &one.name)
        == (&other.api, &other.kind, &other.namespace, &other.name)
}

fn own_reference(
    metadata: &mut Metadata,
    new: &ResourceRef,
    former: Option<&ResourceRef>,
    runs_on: Option<&ResourceRef>,
) {
    if let Some(former) = former
        && !is_same_resource(former, new)
        && !runs_on.is_some_and(|runs_on| is_same_resource(runs_on, former))
    {
        metadata.owners.retain(|owner| !is_same_resource(owner, former));
    }
    if !metadata.owners.iter().any(|owner| is_same_resource(owner, new)) {
        metadata.owners.push(new.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::kind::{Kind, ObjectKey};
    use madako_json::krake::document::from_stored;

    fn cluster(name: &str) -> ResourceRef {
        ResourceRef::from_key(&ObjectKey::new(Kind::Cluster, Some("n"), name))
    }

    fn application() -> Application {
        from_stored(
            "Application",
            r#"{"api": "kubernetes", "kind": "Application",
                "metadata": {"name": "a", "namespace": "n", "uid": "u", "created": "2026-01-01T00:00:00+00:00",
                    "modified": "2026-01-01T00:00:00+00:00"},
                "spec": {"manifest": []}}"#,
        )
        .unwrap()
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap()
    }

    fn owners(application: &Application) -> Vec<&str> {
        application.metadata.owners.iter().map(|owner| owner.name.as_str()).collect()
    }

    #[test]
    fn binding_is_stored_in_the_status_and_in_the_owners() {
        let mut application = application();
        bind_application(&mut application, cluster("one"), at(0));
        assert_eq!(application.status.scheduled_to, Some(cluster("one")));
        assert_eq!(application.status.scheduled, Some(Timestamp::new(at(0))));
        assert_eq!(application.status.kube_controller_triggered, Some(Timestamp::new(at(0))));
        assert_eq!(owners(&application), ["one"]);
        bind_application(&mut application, cluster("one"), at(1));
        assert_eq!(owners(&application), ["one"]);
    }

    #[test]
    fn a_move_takes_the_former_cluster_from_the_owners_unless_the_application_runs_there() {
        let mut application = application();
        bind_application(&mut application, cluster("one"), at(0));
        bind_application(&mut application, cluster("two"), at(1));
        assert_eq!(owners(&application), ["two"]);
        application.status.running_on = Some(cluster("two"));
        bind_application(&mut application, cluster("three"), at(2));
        assert_eq!(owners(&application), ["two", "three"]);
    }

    #[test]
    fn binding_keeps_other_owners_of_an_application() {
        let mut application = application();
        let other = ResourceRef::from_key(&ObjectKey::new(Kind::Application, Some("n"), "other"));
        application.metadata.owners.push(other);
        bind_application(&mut application, cluster("one"), at(0));
        bind_application(&mut application, cluster("two"), at(1));
        assert_eq!(owners(&application), ["other", "two"]);
    }

    #[test]
    fn an_update_from_a_clock_that_is_ahead_is_triggered_once_and_for_all() {
        let mut application = application();
        application.metadata.modified = Timestamp::new(at(50));
        bind_application(&mut application, cluster("one"), at(0));
        assert!(application.status.kube_controller_triggered.unwrap() >= application.metadata.modified);
    }
}
