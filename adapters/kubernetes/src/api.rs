//! Implements the port `Kubernetes` with requests to the API server.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod as KubePod};
use k8s_openapi::api::policy::v1::Eviction as EvictionRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions as Must};
use k8s_openapi::{List, ListableResource};
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request, Resource,
};
use madako_domain::kubernetes::{
    ANNOTATION_CORDONED_BEFORE, ANNOTATION_REBOOT, EvictionOutcome, KubeNode, Pod, PodId,
};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::permit::Permit;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::access::ApiServerAccess;
use crate::exchange::{self, Call, RequestDeadline, ServerClient};
use crate::limits::MAX_SELECTOR;
use crate::node_parts::NodeParts;
use crate::node_watch::{ListedNodes, WatchedNodes};
use crate::{
    MAX_ANSWER_BYTES, MAX_DAEMON_SETS, MAX_NAMESPACES, MAX_NODES, MAX_PODS, NODE_AGE, PAGE, READ_DEADLINE,
    WRITE_DEADLINE, answer, convert,
};

pub(crate) const FIELD_MANAGER: &str = "madako";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for all pages of a list.
    pub read_deadline: Duration,
    pub write_deadline: Duration,
    pub max_answer_bytes: usize,
    pub page: u32,
    /// Age up to which kept nodes are an answer; zero: each read of the nodes is a list.
    pub node_age: Duration,
    /// Seed of the jitter of a watch's back-off.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read_deadline: READ_DEADLINE,
            write_deadline: WRITE_DEADLINE,
            max_answer_bytes: MAX_ANSWER_BYTES,
            page: PAGE,
            node_age: NODE_AGE,
            seed: 0,
        }
    }
}

/// The client could not be created. No request was sent.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the client of the API server {server}")]
pub struct ConnectError {
    server: String,
    #[source]
    source: Box<kube::Error>,
}

pub struct ApiServer {
    pub(crate) client: ServerClient,
    server: String,
    pub(crate) limits: Limits,
    nodes: Arc<WatchedNodes>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("server", &self.server)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Creates a client without sending a request. Needs a tokio runtime.
    pub fn new(access: &ApiServerAccess, limits: Limits) -> Result<Self, ConnectError> {
        Self::with_nodes(access, limits, Arc::new(WatchedNodes::new(limits.seed)))
    }

    /// As [`Self::new`], with the nodes that the API servers of the same cluster share.
    pub(crate) fn with_nodes(
        access: &ApiServerAccess,
        limits: Limits,
        nodes: Arc<WatchedNodes>,
    ) -> Result<Self, ConnectError> {
        let server = access.server().to_owned();
        match exchange::create_client(access, limits.max_answer_bytes, true) {
            Ok(client) => Ok(Self { client, server, limits, nodes }),
            Err(source) => Err(ConnectError { server, source: Box::new(source) }),
        }
    }

    /// The same client with other limits, apart from that of an answer's size.
    pub(crate) fn with_limits(&self, limits: Limits) -> Self {
        let (client, server) = (self.client.clone(), self.server.clone());
        Self { client, server, limits, nodes: Arc::clone(&self.nodes) }
    }

    /// An API server whose answers a client of a test gives.
    #[cfg(test)]
    pub(crate) fn with_client(client: ServerClient) -> Self {
        let nodes = Arc::new(WatchedNodes::new(1));
        Self { client, server: "https://server.invalid".to_owned(), limits: Limits::default(), nodes }
    }

    /// All objects of a kind that a selector matches, page by page.
    async fn list<T>(
        &self,
        call: Call<'_>,
        chosen: ListParams,
        most: usize,
    ) -> Result<Vec<T>, KubernetesError>
    where
        T: ListableResource + DeserializeOwned + Resource<DynamicType = ()>,
    {
        let until = RequestDeadline::after(self.limits.read_deadline);
        let request = Request::new(T::url_path(&(), None));
        self.list_with_version(call, (request, chosen), most, until).await.map(|(all, _)| all)
    }

    /// As [`Self::list`], with the resource version of the list.
    async fn list_with_version<T>(
        &self,
        call: Call<'_>,
        (request, chosen): (Request, ListParams),
        most: usize,
        until: RequestDeadline,
    ) -> Result<(Vec<T>, Option<String>), KubernetesError>
    where
        T: ListableResource + DeserializeOwned,
    {
        let mut params = chosen.limit(self.limits.page);
        let mut all = Vec::new();
        loop {
            let text = exchange::send_request(&self.client, call, request.list(&params), until).await?;
            let page: List<T> = exchange::parse(call, &text)?;
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            // Empty pages with a continue token could go on until the deadline.
            if next.is_some() && page.items.is_empty() {
                return Err(answer::malformed_answer(call.what, "an empty page with more to follow"));
            }
            all.extend(page.items);
            if all.len() > most {
                return Err(answer::malformed_answer(call.what, &format!("more than {most} objects")));
            }
            match next {
                Some(token) => params = params.continue_token(&token),
                None => return Ok((all, page.metadata.resource_version)),
            }
        }
    }

    /// All nodes: the kept ones while the server is heard, else those of a list, from which a watch begins.
    pub(crate) async fn watched_nodes(
        &self,
        call: Call<'_>,
        until: RequestDeadline,
    ) -> Result<Vec<Arc<NodeParts>>, KubernetesError> {
        if let Some(kept) = self.nodes.fresh(self.limits.node_age) {
            return Ok(kept);
        }
        let writes = self.nodes.writes();
        let all = (Request::new(Node::url_path(&(), None)), ListParams::default());
        let (listed, version) = self.list_with_version::<NodeParts>(call, all, MAX_NODES, until).await?;
        let nodes: Vec<Arc<NodeParts>> = listed.into_iter().map(Arc::new).collect();
        self.nodes
            .note_list(&ListedNodes { nodes: &nodes, version: version.as_deref(), writes }, &self.client);
        Ok(nodes)
    }

    /// Sends a change of a node, after which the kept nodes are old.
    pub(crate) async fn send_node_change(
        &self,
        call: Call<'_>,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
        until: RequestDeadline,
    ) -> Result<String, KubernetesError> {
        // Before, too: a list that begins meanwhile may lack the change.
        self.nodes.note_write();
        let answer = exchange::send_request(&self.client, call, request, until).await;
        self.nodes.note_write();
        answer
    }

    /// Deadline of a write: no request may start after the permit ended, however long the connection takes.
    pub(crate) fn begin(&self, permit: &Permit) -> Result<RequestDeadline, KubernetesError> {
        let now = Instant::now();
        permit.check(now)?;
        let until = RequestDeadline::after(self.limits.write_deadline);
        if until.at <= permit.expires_at() {
            return Ok(until);
        }
        // The error of a timed-out call names the time that it really had.
        Ok(RequestDeadline {
            at: permit.expires_at(),
            within: permit.expires_at().saturating_duration_since(now),
        })
    }

    async fn patch_node(
        &self,
        permit: &Permit,
        name: &'static str,
        node: &str,
        patch: serde_json::Value,
    ) -> Result<(), KubernetesError> {
        let what = format!("{name} of node {node}");
        let call = Call { name, what: &what };
        let until = self.begin(permit)?;
        if !convert::is_name(node) {
            return Err(KubernetesError::NotFound { what });
        }
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = Request::new(Node::url_path(&(), None)).patch(node, &params, &Patch::Strategic(patch));
        self.send_node_change(call, request, until).await.map(|_| ())
    }

    pub(crate) async fn listed_pods(&self, node: &str) -> Result<Vec<KubePod>, KubernetesError> {
        let what = format!("pods on node {node}");
        if !convert::is_name(node) {
            return Err(KubernetesError::NotFound { what });
        }
        let chosen = ListParams::default().fields(&format!("spec.nodeName={node}"));
        self.list(Call { name: "pods", what: &what }, chosen, MAX_PODS).await
    }

    /// The pods on a node that have not ended, as the watch cache of the API server has them. It finds them by an index, so that the
    /// time does not grow with the cluster, as it does where etcd answers. The newest changes may be missing for a moment.
    pub(crate) async fn cached_pods(&self, node: &str) -> Result<Vec<KubePod>, KubernetesError> {
        let what = format!("running pods on node {node}");
        if !convert::is_name(node) {
            return Err(KubernetesError::NotFound { what });
        }
        let call = Call { name: "pods", what: &what };
        // An API server answers a list with a limit from etcd.
        let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let chosen = ListParams::default().match_any().fields(&fields);
        let request = Request::new(KubePod::url_path(&(), None)).list(&chosen);
        let until = RequestDeadline::after(READ_DEADLINE);
        let text = exchange::send_request(&self.client, call, request, until).await?;
        let all: List<KubePod> = exchange::parse(call, &text)?;
        if all.metadata.continue_.is_some_and(|token| !token.is_empty()) || all.items.len() > MAX_PODS {
            return Err(answer::malformed_answer(&what, &format!("more than {MAX_PODS} objects")));
        }
        Ok(all.items)
    }

    /// True if a pod is gone, or another pod has its name now.
    async fn is_gone(&self, pod: &PodId, until: RequestDeadline) -> Result<bool, KubernetesError> {
        let what = format!("pod {}/{}", pod.namespace, pod.name);
        let call = Call { name: "pod", what: &what };
        let request = Request::new(KubePod::url_path(&(), Some(&pod.namespace)));
        match exchange::send_request(&self.client, call, request.get(&pod.name, &GetParams::default()), until)
            .await
        {
            Ok(text) => {
                let found: KubePod = exchange::parse(call, &text)?;
                Ok(found.metadata.uid.as_deref() != Some(pod.uid.as_str()))
            }
            Err(KubernetesError::NotFound { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Classifies a refused write to a pod; `Ok(())` if the pod is gone.
    async fn classify_refused_write(
        &self,
        error: KubernetesError,
        pod: &PodId,
        until: RequestDeadline,
    ) -> Result<(), KubernetesError> {
        let gone = match &error {
            KubernetesError::NotFound { .. } => true,
            // Either the uid differs, or another client changed the pod at the same moment.
            KubernetesError::Refused { status: 409, .. } => self.is_gone(pod, until).await?,
            _ => false,
        };
        if gone { Ok(()) } else { Err(error) }
    }
}

/// Checks a pod's names before they become parts of a path.
fn check_pod(what: &str, pod: &PodId) -> Result<(), KubernetesError> {
    if convert::is_name(&pod.namespace) && convert::is_name(&pod.name) && !pod.uid.is_empty() {
        Ok(())
    } else {
        Err(answer::malformed_answer(what, "the name is not valid for a pod"))
    }
}

#[async_trait]
impl Kubernetes for ApiServer {
    async fn nodes(&self) -> Result<Vec<KubeNode>, KubernetesError> {
        let call = Call { name: "nodes", what: "nodes" };
        let nodes = self.watched_nodes(call, RequestDeadline::after(self.limits.read_deadline)).await?;
        let nodes: Result<Vec<KubeNode>, _> = nodes.iter().map(|node| node.to_node()).collect();
        nodes.map_err(|why| answer::malformed_answer(call.what, why))
    }

    async fn node(&self, name: &str) -> Result<Option<KubeNode>, KubernetesError> {
        let what = format!("node {name}");
        let call = Call { name: "node", what: &what };
        if !convert::is_name(name) {
            return Ok(None);
        }
        let until = RequestDeadline::after(self.limits.read_deadline);
        let request = Request::new(Node::url_path(&(), None)).get(name, &GetParams::default());
        match exchange::send_request(&self.client, call, request, until).await {
            Ok(text) => {
                let node = exchange::parse::<NodeParts>(call, &text)?.to_node();
                node.map(Some).map_err(|why| answer::malformed_answer(&what, why))
            }
            Err(KubernetesError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn namespaces(&self, selector: &str) -> Result<BTreeSet<String>, KubernetesError> {
        let call = Call { name: "namespaces", what: "namespaces" };
        if selector.len() > MAX_SELECTOR {
            return Err(KubernetesError::Refused {
                what: call.what.to_owned(),
                status: 400,
                why: format!("the selector is longer than {MAX_SELECTOR} bytes"),
            });
        }
        let mut chosen = ListParams::default();
        if !selector.is_empty() {
            chosen = chosen.labels(selector);
        }
        let namespaces: Vec<Namespace> = self.list(call, chosen, MAX_NAMESPACES).await?;
        let names =
            namespaces.into_iter().map(|namespace| namespace.metadata.name.filter(|name| !name.is_empty()));
        names
            .collect::<Option<_>>()
            .ok_or_else(|| answer::malformed_answer(call.what, "a namespace without a name"))
    }

    async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, KubernetesError> {
        let pods = self.listed_pods(node).await?;
        let pods: Result<Vec<Pod>, _> = pods.into_iter().map(|pod| convert::convert_pod(pod, node)).collect();
        pods.map_err(|why| answer::malformed_answer(&format!("pods on node {node}"), why))
    }

    async fn on_delete_pods(&self, node: &str) -> Result<Vec<PodId>, KubernetesError> {
        let call = Call { name: "daemonsets", what: "daemonsets" };
        let sets: Vec<DaemonSet> = self.list(call, ListParams::default(), MAX_DAEMON_SETS).await?;
        let sets: BTreeSet<String> = sets.into_iter().filter_map(convert::on_delete).collect();
        if sets.is_empty() {
            return Ok(Vec::new());
        }
        let mut pods = self.listed_pods(node).await?;
        pods.retain(|pod| convert::controller_uid(pod).is_some_and(|uid| sets.contains(uid)));
        let pods: Result<Vec<PodId>, _> =
            pods.into_iter().map(|pod| convert::convert_pod(pod, node).map(|pod| pod.id)).collect();
        pods.map_err(|why| answer::malformed_answer(&format!("pods on node {node}"), why))
    }

    async fn cordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let found = self.node(node).await?;
        let mut patch = json!({
            "metadata": {"annotations": {ANNOTATION_REBOOT: "true"}},
            "spec": {"unschedulable": true},
        });
        match found {
            Some(found) if found.is_cordoned_by_another() => {
                patch["metadata"]["annotations"][ANNOTATION_CORDONED_BEFORE] = json!("true");
            }
            // Another client, such as CKE, took the earlier cordon back.
            Some(found) if !found.unschedulable && found.was_cordoned_before() => {
                patch["metadata"]["annotations"][ANNOTATION_CORDONED_BEFORE] = json!(null);
            }
            _ => {}
        }
        self.patch_node(permit, "cordon", node, patch).await
    }

    async fn uncordon(&self, permit: &Permit, node: &str) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let found = self.node(node).await?;
        // `null` removes a field, so that a repetition changes nothing.
        let mut patch = json!({
            "metadata": {"annotations": {ANNOTATION_REBOOT: null, ANNOTATION_CORDONED_BEFORE: null}},
        });
        // A repetition finds no annotation, and leaves the cordon of another client.
        if found.is_some_and(|found| found.is_cordoned_by_us() && !found.was_cordoned_before()) {
            patch["spec"] = json!({"unschedulable": null});
        }
        self.patch_node(permit, "uncordon", node, patch).await
    }

    async fn evict(
        &self,
        permit: &Permit,
        pod: &PodId,
        dry_run: bool,
    ) -> Result<EvictionOutcome, KubernetesError> {
        let name = if dry_run { "dry-run" } else { "evict" };
        let what = format!("eviction of pod {}/{}", pod.namespace, pod.name);
        let call = Call { name, what: &what };
        let until = self.begin(permit)?;
        check_pod(&what, pod)?;
        let body = EvictionRequest {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                dry_run: dry_run.then(|| vec!["All".to_owned()]),
                preconditions: Some(Must { uid: Some(pod.uid.clone()), ..Must::default() }),
                ..DeleteOptions::default()
            }),
        };
        let body = serde_json::to_vec(&body)
            .map_err(|_| answer::malformed_answer(&what, "the request cannot be encoded as JSON"))?;
        let request = Request::new(KubePod::url_path(&(), Some(&pod.namespace)));
        let request = request.create_subresource("eviction", &pod.name, &PostParams::default(), body);
        match exchange::send_with_eviction_outcome(&self.client, call, request, until).await {
            Ok(_) => Ok(EvictionOutcome::Accepted),
            Err(exchange::FailedExchange { budget: Some(refused), .. }) => Ok(refused),
            Err(exchange::FailedExchange { error, .. }) => {
                self.classify_refused_write(error, pod, until).await.map(|()| EvictionOutcome::Gone)
            }
        }
    }

    async fn delete(&self, permit: &Permit, pod: &PodId) -> Result<(), KubernetesError> {
        let what = format!("deletion of pod {}/{}", pod.namespace, pod.name);
        let call = Call { name: "delete", what: &what };
        let until = self.begin(permit)?;
        check_pod(&what, pod)?;
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let request = Request::new(KubePod::url_path(&(), Some(&pod.namespace))).delete(&pod.name, &params);
        match exchange::send_request(&self.client, call, request, until).await {
            Ok(_) => Ok(()),
            Err(error) => self.classify_refused_write(error, pod, until).await,
        }
    }
}
