//! Conversion from Kubernetes' types to those of the port, and checks of names before they become part of a path.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use madako_domain::kubernetes::{Pod, PodId};
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
