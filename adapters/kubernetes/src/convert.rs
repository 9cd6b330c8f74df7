//! Conversion from Kubernetes' types to those of the port, and checks of names before they become part of a path.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use madako_domain::cluster::Taint;
use madako_domain::kubernetes::{KubeNode, Pod, PodId};
use madako_domain::objects::NodeObject;
use time::OffsetDateTime;

use crate::limits::{MAX_NAME, STEADY};

/// Annotation of a pod that mirrors a static one.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// True if Kubernetes allows the name. Such a name needs no escaping in a path or a selector.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().copied().is_some_and(plain)
        && bytes.last().copied().is_some_and(plain)
        && bytes.iter().all(|c| plain(*c) || matches!(c, b'-' | b'.'))
        && !name.contains("..")
}

/// A node; the error names the missing field.
pub(crate) fn convert_node(node: core::Node) -> Result<KubeNode, &'static str> {
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let taints = spec.taints.unwrap_or_default();
    Ok(KubeNode {
        name: node.metadata.name.filter(|name| !name.is_empty()).ok_or("a node without a name")?,
        unschedulable: spec.unschedulable.unwrap_or(false),
        annotations: node.metadata.annotations.unwrap_or_default(),
        taints: taints.into_iter().map(convert_taint).collect(),
        ready: ready.and_then(|condition| match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }),
        volumes_in_use: status.volumes_in_use.unwrap_or_default(),
    })
}

/// A node without the parts that the service does not read, such as images and addresses.
pub(crate) fn trim_node(node: core::Node) -> core::Node {
    let (metadata, spec, status) =
        (node.metadata, node.spec.unwrap_or_default(), node.status.unwrap_or_default());
    let conditions = status.conditions.map(|mut conditions| {
        conditions.retain(|condition| condition.type_ == "Ready");
        conditions
    });
    core::Node {
        metadata: ObjectMeta {
            name: metadata.name,
            resource_version: metadata.resource_version,
            labels: metadata.labels,
            annotations: metadata.annotations,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        },
        spec: Some(core::NodeSpec {
            taints: spec.taints,
            unschedulable: spec.unschedulable,
            ..core::NodeSpec::default()
        }),
        status: Some(core::NodeStatus {
            conditions,
            volumes_in_use: status.volumes_in_use,
            ..core::NodeStatus::default()
        }),
    }
}

/// A Node object with the parts that the service keeps; the error names the missing field.
pub(crate) fn convert_node_object(node: core::Node) -> Result<NodeObject, &'static str> {
    let metadata = node.metadata;
    let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
    Ok(NodeObject {
        name: metadata.name.ok_or("a node has no metadata.name")?,
        resource_version: metadata.resource_version.ok_or("a node has no metadata.resourceVersion")?,
        labels: metadata.labels.unwrap_or_default(),
        annotations: metadata.annotations.unwrap_or_default(),
        taints: node
            .spec
            .and_then(|spec| spec.taints)
            .unwrap_or_default()
            .into_iter()
            .map(convert_taint)
            .collect(),
        is_ready: conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True"),
        is_deleted: metadata.deletion_timestamp.is_some(),
    })
}

fn convert_taint(taint: core::Taint) -> Taint {
    Taint {
        key: taint.key,
        value: taint.value.unwrap_or_default(),
        effect: taint.effect,
        time_added: taint.time_added.map(|Time(at)| at.to_string()),
        ..Taint::default()
    }
}

/// Uid of a DaemonSet whose pods are replaced only when another program deletes them.
pub(crate) fn on_delete(daemon_set: apps::DaemonSet) -> Option<String> {
    let strategy = daemon_set.spec?.update_strategy?.type_?;
    daemon_set.metadata.uid.filter(|uid| strategy == "OnDelete" && !uid.is_empty())
}

pub(crate) fn controller_uid(pod: &core::Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// The containers of a pod that run again after an end at or after a time, and ran for [`STEADY`] before that end. Times have whole
/// seconds.
pub(crate) fn restarted_containers(pod: &core::Pod, since: OffsetDateTime) -> Vec<String> {
    let metadata = &pod.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let is_restarted = |status: &&core::ContainerStatus| {
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let times = last.and_then(|last| Some((last.started_at.as_ref()?, last.finished_at.as_ref()?)));
        times.is_some_and(|(Time(began), Time(ended))| {
            ended.as_second() >= since.unix_timestamp()
                && ended.as_second() - began.as_second() >= STEADY.as_secs().cast_signed()
        })
    };
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter(is_restarted).map(|status| format!("{namespace}/{name}/{}", status.name)).collect()
}

/// A pod of a node; the error names the invalid field.
pub(crate) fn convert_pod(pod: core::Pod, node: &str) -> Result<Pod, &'static str> {
    // A pod of another node in the answer must not be drained.
    if pod.spec.and_then(|spec| spec.node_name).as_deref() != Some(node) {
        return Err("a pod of another node");
    }
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    let metadata = pod.metadata;
    let id = PodId {
        namespace: some(metadata.namespace).ok_or("a pod without a namespace")?,
        name: some(metadata.name).ok_or("a pod without a name")?,
        uid: some(metadata.uid).ok_or("a pod without a uid")?,
    };
    let owners = metadata.owner_references.unwrap_or_default();
    let deleted_at = deletion_time(metadata.deletion_timestamp, metadata.deletion_grace_period_seconds)?;
    Ok(Pod {
        id,
        phase: pod.status.and_then(|status| status.phase?.parse().ok()).unwrap_or_default(),
        controller: owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.kind),
        mirror: metadata.annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)),
        deleted_at,
    })
}

/// The time at which the deletion of a pod was requested: the deletion timestamp is the end of the grace period.
pub(crate) fn deletion_time(
    timestamp: Option<Time>,
    grace: Option<i64>,
) -> Result<Option<OffsetDateTime>, &'static str> {
    let Some(Time(at)) = timestamp else { return Ok(None) };
    let at = OffsetDateTime::from_unix_timestamp(at.as_second().saturating_sub(grace.unwrap_or_default()));
    at.map(Some).map_err(|_| "a pod with an impossible time of deletion")
}

pub(crate) fn to_time(Time(at): Time) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp(at.as_second())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A container whose last run had these times, in minutes of an hour.
    fn container(name: &str, times: Option<(u8, u8)>) -> Value {
        let at = |minute: u8| format!("2026-01-01T10:{minute:02}:00Z");
        let ended = times
            .map(|(began, ended)| json!({"exitCode": 0, "startedAt": at(began), "finishedAt": at(ended)}));
        json!({
            "name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 1,
            "state": {"running": {"startedAt": at(59)}}, "lastState": {"terminated": ended},
        })
    }

    #[test]
    fn only_steady_containers_that_ended_after_the_time_count_as_restarted() {
        let statuses = [
            container("steady", Some((1, 30))),
            container("ended-before", Some((1, 29))),
            container("ends-by-itself", Some((25, 31))),
            container("first-run", None),
        ];
        let pod =
            json!({"metadata": {"namespace": "a", "name": "p"}, "status": {"containerStatuses": statuses}});
        let pod: core::Pod = serde_json::from_value(pod).unwrap();
        let since = OffsetDateTime::from_unix_timestamp(1_767_263_400).unwrap();
        assert_eq!(restarted_containers(&pod, since), ["a/p/steady"]);
        assert_eq!(restarted_containers(&core::Pod::default(), since), Vec::<String>::new());
    }
}
