//! Serves the paths of the Kubernetes API that the service uses, on the simulated Kubernetes.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use madako_domain::kubernetes::{ANNOTATION_REBOOT, EvictionOutcome, KubeNode, Pod, PodId};
use madako_domain::machine::Machine;
use madako_judges::KubernetesRequest;
use serde_json::Value;

use super::objects::{self, Failure};
use super::watch::NodeHistory;
use super::{ApiServer, Change, ChangeOutcome, base_path_of_instance, find_pod};
use crate::datacenter::journal::JournalError;

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        // A change that is not recorded must not be acknowledged.
        tracing::error!(error = &error as &dyn std::error::Error, "cannot write the journal");
        Self::internal_error(error.to_string())
    }
}

impl ApiServer {
    /// The API of each instance, below its own path.
    pub(crate) fn make_router(&self) -> Router {
        let api = Router::new()
            .route("/api/v1/nodes", get(list_nodes))
            .route("/api/v1/nodes/{name}", get(get_node).patch(patch_node))
            .route("/api/v1/namespaces", get(list_namespaces))
            .route("/api/v1/pods", get(list_pods))
            .route("/api/v1/namespaces/{namespace}/pods/{name}", get(get_pod).delete(delete))
            .route("/api/v1/namespaces/{namespace}/pods/{name}/eviction", post(evict))
            .with_state(self.clone());
        Router::new().nest(&base_path_of_instance("{instance}"), api)
    }
}

type Parameters = Query<BTreeMap<String, String>>;
type Answer = Result<Response, Failure>;

/// Lists or watches nodes.
async fn list_nodes(State(server): State<ApiServer>, Query(parameters): Parameters) -> Answer {
    if parameters.get("watch").is_some_and(|watch| watch == "true") {
        return server.watch_nodes(parameters.get("resourceVersion").map_or("", String::as_str));
    }
    Ok(Json(server.with_history(|history| history.list())).into_response())
}

async fn get_node(
    State(server): State<ApiServer>,
    Path((_, node)): Path<(u32, String)>,
) -> Result<Json<Value>, Failure> {
    let list = server.with_history(|history| history.list());
    let found =
        list["items"].as_array().and_then(|all| all.iter().find(|it| it["metadata"]["name"] == *node));
    found.cloned().map(Json).ok_or_else(|| Failure::not_found(&format!("nodes {node:?}")))
}

/// Changes the cordon of a node; no other field of a node can change.
async fn patch_node(
    State(server): State<ApiServer>,
    Path((instance, node)): Path<(u32, String)>,
    Json(change): Json<Value>,
) -> Answer {
    let annotation = &change["metadata"]["annotations"][ANNOTATION_REBOOT];
    let action = match (&change["spec"]["unschedulable"], annotation.as_str()) {
        (Value::Bool(true), Some("true")) => KubernetesRequest::Cordon,
        (Value::Null, None) => KubernetesRequest::Uncordon,
        _ => {
            return Err(Failure::bad_request(format!(
                "the patch of the node neither cordons nor uncordons it: {change}"
            )));
        }
    };
    let missing = Failure::not_found(&format!("nodes {node:?}"));
    match server.change(instance, &Change { action, node, pod: None })? {
        ChangeOutcome::Done => Ok(objects::success_response(StatusCode::OK)),
        ChangeOutcome::Refused(why) => Err(Failure::internal_error(why)),
        ChangeOutcome::NotThere => Err(missing),
    }
}

async fn list_namespaces(
    State(server): State<ApiServer>,
    Query(parameters): Parameters,
) -> Result<Json<Value>, Failure> {
    let selector = parameters.get("labelSelector").map_or("", String::as_str);
    let chosen =
        server.read_cluster(|cluster| cluster.matching_namespaces(selector)).map_err(Failure::bad_request)?;
    Ok(objects::list_object("Namespace", chosen.iter().map(|name| objects::namespace_json(name)).collect()))
}

/// Lists the pods of one node, the only selection that the service uses.
async fn list_pods(
    State(server): State<ApiServer>,
    Query(parameters): Parameters,
) -> Result<Json<Value>, Failure> {
    let selector = parameters.get("fieldSelector").map_or("", String::as_str);
    let node = selector.strip_prefix("spec.nodeName=");
    let node = node.ok_or_else(|| {
        Failure::bad_request(format!("fieldSelector: got {selector:?}, expected spec.nodeName=NODE"))
    })?;
    let pods = server.read_cluster(|cluster| cluster.pods_on(node));
    Ok(objects::list_object("Pod", pods.iter().map(|pod| objects::pod_json(pod, node)).collect()))
}

type NamedObject = Path<(u32, String, String)>;

async fn get_pod(
    State(server): State<ApiServer>,
    Path((_, namespace, name)): NamedObject,
) -> Result<Json<Value>, Failure> {
    let (node, pod) = server.find_pod(&namespace, &name)?;
    Ok(Json(objects::pod_json(&pod, &node)))
}

async fn evict(
    State(server): State<ApiServer>,
    Path((instance, namespace, name)): NamedObject,
    Json(body): Json<Value>,
) -> Answer {
    let options = &body["deleteOptions"];
    let (node, pod) = server.find_wanted_pod(&namespace, &name, options)?;
    let came = if options["dryRun"].is_null() {
        server.change(
            instance,
            &Change { action: KubernetesRequest::Evict, node, pod: Some(pod.to_string()) },
        )?
    } else {
        match server.read_cluster(|cluster| cluster.evict(&pod, true)) {
            Ok(EvictionOutcome::Accepted) => ChangeOutcome::Done,
            Ok(EvictionOutcome::Gone) => ChangeOutcome::NotThere,
            Ok(EvictionOutcome::Refused { why }) | Err(why) => ChangeOutcome::Refused(why),
        }
    };
    match came {
        ChangeOutcome::Done => Ok(objects::success_response(StatusCode::CREATED)),
        ChangeOutcome::Refused(why) => Err(Failure::blocked_by_budget(why)),
        ChangeOutcome::NotThere => Err(Failure::not_found(&format!("pods {pod}"))),
    }
}

async fn delete(
    State(server): State<ApiServer>,
    Path((instance, namespace, name)): NamedObject,
    Json(options): Json<Value>,
) -> Answer {
    let (node, pod) = server.find_wanted_pod(&namespace, &name, &options)?;
    match server
        .change(instance, &Change { action: KubernetesRequest::Delete, node, pod: Some(pod.to_string()) })?
    {
        ChangeOutcome::Done => Ok(objects::success_response(StatusCode::OK)),
        ChangeOutcome::Refused(why) => Err(Failure::internal_error(why)),
        ChangeOutcome::NotThere => Err(Failure::not_found(&format!("pods {pod}"))),
    }
}

impl ApiServer {
    /// Acts on the history of the nodes, up to the present ones.
    pub(super) fn with_history<R>(&self, act: impl FnOnce(&NodeHistory) -> R) -> R {
        // No panic happens under the lock. It is taken first, so that versions follow the order of changes.
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let machines = self.registry.list_machines();
        let named: BTreeMap<&str, &Machine> =
            machines.iter().filter_map(|machine| Some((machine.address()?, machine))).collect();
        let nodes = self.read_cluster(|cluster| cluster.nodes());
        let node = |node: &KubeNode| objects::node_json(node, named.get(node.name.as_str()).copied());
        history.note(nodes.iter().map(node).collect());
        act(&history)
    }

    /// A pod and its node; the node is empty if the pod is pending.
    fn find_pod(&self, namespace: &str, name: &str) -> Result<(String, Pod), Failure> {
        let name = format!("{namespace}/{name}");
        let found = self.read_cluster(|cluster| find_pod(cluster, &name));
        let (node, pod) = found.ok_or_else(|| Failure::not_found(&format!("pods {name}")))?;
        Ok((node.unwrap_or_default(), pod))
    }

    /// [`Self::find_pod`], with the preconditions of the request.
    fn find_wanted_pod(
        &self,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<(String, PodId), Failure> {
        let (node, pod) = self.find_pod(namespace, name)?;
        match options["preconditions"]["uid"].as_str() {
            Some(uid) if uid != pod.id.uid => Err(Failure::write_conflict(format!(
                "the uid in the precondition ({uid}) is not {}",
                pod.id.uid
            ))),
            _ => Ok((node, pod.id)),
        }
    }
}
