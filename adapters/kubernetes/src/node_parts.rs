//! The parts of a Node object that the service reads. The others, most of all its images and the owners of its fields, are most of
//! its size.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::{ListableResource, Resource};
use madako_domain::cluster::Taint;
use madako_domain::kubernetes::KubeNode;
use madako_domain::objects::NodeObject;
use madako_domain::skew::KubernetesVersion;
use serde::Deserialize;

use crate::convert;

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct NodeParts {
    #[serde(default)]
    pub(crate) metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<Time>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Spec {
    taints: Option<Vec<core::Taint>>,
    unschedulable: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    conditions: Option<Vec<Condition>>,
    volumes_in_use: Option<Vec<String>>,
    node_info: Option<NodeInfo>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    kubelet_version: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    last_heartbeat_time: Option<Time>,
}

/// A list of nodes is read as a list of these parts.
impl Resource for NodeParts {
    const API_VERSION: &'static str = core::Node::API_VERSION;
    const GROUP: &'static str = core::Node::GROUP;
    const KIND: &'static str = core::Node::KIND;
    const VERSION: &'static str = core::Node::VERSION;
    const URL_PATH_SEGMENT: &'static str = core::Node::URL_PATH_SEGMENT;
    type Scope = <core::Node as Resource>::Scope;
}

impl ListableResource for NodeParts {
    const LIST_KIND: &'static str = core::Node::LIST_KIND;
}

impl NodeParts {
    fn ready_condition(&self) -> Option<&Condition> {
        let conditions = self.status.as_ref().and_then(|status| status.conditions.as_deref());
        conditions?.iter().find(|condition| condition.r#type == "Ready")
    }

    /// The status of the condition `Ready`; `None`: it is neither true nor false.
    fn ready(&self) -> Option<bool> {
        match self.ready_condition()?.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }

    /// The version of a kubelet that reports.
    fn kubelet_version(&self) -> Option<KubernetesVersion> {
        self.ready()?;
        self.status.as_ref()?.node_info.as_ref()?.kubelet_version.as_ref()?.parse().ok()
    }

    fn taints(&self) -> Vec<Taint> {
        let taints = self.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        taints.unwrap_or_default().iter().map(convert_taint).collect()
    }

    /// A node; the error names the missing field.
    pub(crate) fn to_node(&self) -> Result<KubeNode, &'static str> {
        let name = self.metadata.name.clone().filter(|name| !name.is_empty());
        let status = self.status.as_ref();
        Ok(KubeNode {
            name: name.ok_or("a node without a name")?,
            unschedulable: self.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
            annotations: self.metadata.annotations.clone().unwrap_or_default(),
            taints: self.taints(),
            ready: self.ready(),
            volumes_in_use: status.and_then(|status| status.volumes_in_use.clone()).unwrap_or_default(),
        })
    }

    /// A Node object with the parts that the service keeps; the error names the missing field.
    pub(crate) fn to_object(&self) -> Result<NodeObject, &'static str> {
        let metadata = &self.metadata;
        let version = metadata.resource_version.clone();
        let reported_at = self.ready_condition().and_then(|ready| ready.last_heartbeat_time.clone());
        Ok(NodeObject {
            name: metadata.name.clone().ok_or("a node has no metadata.name")?,
            resource_version: version.ok_or("a node has no metadata.resourceVersion")?,
            labels: metadata.labels.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone().unwrap_or_default(),
            taints: self.taints(),
            is_ready: self.ready() == Some(true),
            reported_at: reported_at.and_then(|at| convert::to_time(at).ok()),
            kubelet_version: self.kubelet_version(),
            is_deleted: metadata.deletion_timestamp.is_some(),
        })
    }
}

fn convert_taint(taint: &core::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
        time_added: taint.time_added.as_ref().map(|Time(at)| at.to_string()),
        ..Taint::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn a_node_has_the_time_of_the_last_report_of_its_kubelet() {
        let node = |conditions: serde_json::Value| {
            let metadata = json!({"name": "a", "resourceVersion": "1"});
            let parts = json!({"metadata": metadata, "status": {"conditions": conditions}});
            let node = serde_json::from_value::<NodeParts>(parts).unwrap().to_object().unwrap();
            (node.is_ready, node.reported_at)
        };
        let at = "2026-01-02T03:04:05Z";
        let of = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": at});
        let reported = OffsetDateTime::from_unix_timestamp(1_767_323_045).ok();
        assert_eq!(node(json!([of("DiskPressure", "False"), of("Ready", "True")])), (true, reported));
        assert_eq!(node(json!([of("Ready", "Unknown")])), (false, reported));
        assert_eq!(node(json!([of("DiskPressure", "False")])), (false, None), "another condition");
        assert_eq!(node(json!([{"type": "Ready", "status": "True"}])), (true, None));
    }

    #[test]
    fn a_node_has_the_version_of_its_kubelet_while_that_reports() {
        let version = |ready: &str, info: serde_json::Value| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let parts = json!({
                "metadata": {"name": "a", "resourceVersion": "1"},
                "status": {"conditions": conditions, "nodeInfo": info},
            });
            let node = serde_json::from_value::<NodeParts>(parts).unwrap().to_object().unwrap();
            node.kubelet_version.map(|version| version.to_string())
        };
        let info = json!({"kubeletVersion": "v1.34.4", "osImage": "x"});
        assert_eq!(version("True", info.clone()).as_deref(), Some("1.34.4"));
        assert_eq!(
            version("False", info.clone()).as_deref(),
            Some("1.34.4"),
            "it reports that it is not ready"
        );
        assert_eq!(version("Unknown", info), None, "it does not report");
        assert_eq!(version("True", json!({"kubeletVersion": "dev"})), None);
        assert_eq!(version("True", json!({})), None);
        assert_eq!(version("True", json!(null)), None);
    }
}
