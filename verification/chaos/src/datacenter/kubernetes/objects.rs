//! Kubernetes' objects as JSON, with the fields that draining reads.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use madako_domain::kubernetes::{KubeNode, Pod};
use madako_domain::machine::{Machine, MachineState};
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use super::GRACE;

/// All objects in one page, whatever the requested limit: an API server may do so.
pub(super) fn list_object(kind: &str, items: Vec<Value>) -> Json<Value> {
    Json(json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// The node is ready while its machine is healthy.
pub(super) fn node_json(node: &KubeNode, machine: Option<&Machine>) -> Value {
    let is_healthy = machine.is_some_and(|machine| machine.status.state == MachineState::Healthy);
    let ready = if is_healthy { "True" } else { "Unknown" };
    json!({
        "metadata": {"name": node.name, "annotations": node.annotations},
        "spec": {"unschedulable": node.unschedulable},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "volumesInUse": node.volumes_in_use,
        },
    })
}

pub(super) fn namespace_json(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

pub(super) fn pod_json(pod: &Pod, node: &str) -> Value {
    let owners = pod.controller.iter().map(|kind| {
        json!({"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "owner", "controller": true})
    });
    let mut metadata = json!({
        "namespace": pod.id.namespace,
        "name": pod.id.name,
        "uid": pod.id.uid,
        "ownerReferences": owners.collect::<Vec<_>>(),
    });
    // The deletion timestamp is the end of the grace period.
    if let Some(until) = pod.deleted_at.and_then(|at| (at + GRACE).format(&Rfc3339).ok()) {
        metadata["deletionTimestamp"] = until.into();
        metadata["deletionGracePeriodSeconds"] = GRACE.as_secs().into();
    }
    json!({
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": pod.phase.name()},
    })
}

/// The answer to a successful change.
pub(super) fn success_response(status: StatusCode) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    (status, Json(body)).into_response()
}

pub(super) struct Failure {
    status: StatusCode,
    reason: &'static str,
    why: String,
    /// `reason` in the details' cause.
    cause: Option<&'static str>,
}

impl Failure {
    pub(super) fn not_found(what: &str) -> Self {
        let why = format!("{what} not found");
        Self { status: StatusCode::NOT_FOUND, reason: "NotFound", why, cause: None }
    }

    pub(super) fn write_conflict(why: String) -> Self {
        Self { status: StatusCode::CONFLICT, reason: "Conflict", why, cause: None }
    }

    /// A watch cannot begin at a version.
    pub(super) fn gone(version: &str) -> Self {
        let why = format!("too old resource version: {version}");
        Self { status: StatusCode::GONE, reason: "Expired", why, cause: None }
    }

    pub(super) fn bad_request(why: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason: "BadRequest", why, cause: None }
    }

    pub(super) fn internal_error(why: String) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", why, cause: None }
    }

    /// A disruption budget forbids the eviction for now.
    pub(super) fn blocked_by_budget(why: String) -> Self {
        let cause = Some("DisruptionBudget");
        Self { status: StatusCode::TOO_MANY_REQUESTS, reason: "TooManyRequests", why, cause }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self { status, reason, why, cause } = self;
        let causes: Vec<Value> = cause.iter().map(|cause| json!({"reason": cause, "message": why})).collect();
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": why, "reason": reason, "details": {"causes": causes}, "code": status.as_u16(),
        });
        (status, Json(body)).into_response()
    }
}
