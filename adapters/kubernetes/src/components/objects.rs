//! The objects of Kubernetes: the port [`Objects`].

use std::sync::Arc;

use async_trait::async_trait;
use http::Request as HttpRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, Request, Resource};
use madako_domain::objects::{
    Annotations, FoundObject, Manifest, NodeChange, NodeObject, ObjectName, SecretVersion,
};
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::objects::Objects;
use madako_protocol::permit::Permit;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kinds::{collection_path, encode_name};
use super::{NodeComponents, limit_write, secrets, unusable_answer};
use crate::api::{ApiServer, FIELD_MANAGER};
use crate::convert;
use crate::exchange::{self, Call, RequestDeadline};
use crate::{READ_DEADLINE, answer};

/// CKE's field manager: an object has the same owner, whichever of both applied it last.
const APPLY_MANAGER: &str = "cke";

#[derive(Deserialize)]
struct ObjectWithAnnotations {
    metadata: ObjectMetadata,
}

#[derive(Deserialize)]
struct ObjectMetadata {
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Deserialize)]
struct ServerVersion {
    major: String,
    minor: String,
}

/// The error without the API server's message, if that may show a part of a Secret.
fn withhold_message(object: &ObjectName, error: KubernetesError) -> KubernetesError {
    if object.key.kind == "Secret" { withhold_message_of_secret(error) } else { error }
}

/// The error about a Secret, without the API server's message.
fn withhold_message_of_secret(error: KubernetesError) -> KubernetesError {
    match error {
        KubernetesError::Refused { what, status, .. } => {
            let why = "its message is withheld, because it may show a part of the Secret".to_owned();
            KubernetesError::Refused { what, status, why }
        }
        error => error,
    }
}

fn to_found_object<T>(answer: Result<Option<T>, KubernetesError>) -> FoundObject<T> {
    match answer {
        Ok(Some(content)) => FoundObject::Exists(content),
        Ok(None) => FoundObject::KindUnknown,
        Err(KubernetesError::NotFound { .. }) => FoundObject::Missing,
        Err(error) => FoundObject::Unread(error.to_string()),
    }
}

impl NodeComponents {
    /// Sends a request about an object to the path of its kind. `None`: the API server does not know the kind.
    async fn send_object_request<R, F>(
        &self,
        object: &ObjectName,
        servers: &[String],
        send: impl Fn(Arc<ApiServer>, String) -> F,
    ) -> Result<Option<R>, KubernetesError>
    where
        F: Future<Output = Result<R, KubernetesError>>,
    {
        let what = object.key.to_string();
        let session = self.open_session(&what).await?;
        let (session, send) = (&session, &send);
        let answer = self.ask_any_server(&what, servers, |server| async move {
            match collection_path(session, &server, object).await? {
                Some(path) => send(server, path).await.map(Some),
                None => Ok(None),
            }
        });
        answer.await.map_err(|error| withhold_message(object, error))
    }

    async fn send_apply(
        &self,
        permit: Option<&Permit>,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<Value, KubernetesError> {
        let object = manifest.name();
        let what = object.key.to_string();
        let call = Call { name: if permit.is_some() { "apply" } else { "apply-dry-run" }, what: &what };
        let params = PatchParams {
            field_manager: Some(APPLY_MANAGER.to_owned()),
            force: true,
            dry_run: permit.is_none(),
            ..PatchParams::default()
        };
        let (params, name) = (&params, encode_name(&object.key.name));
        let name = &name;
        let applied = self.send_object_request(object, servers, |server, path| async move {
            let until = match permit {
                Some(permit) => server.begin(permit)?,
                None => RequestDeadline::after(server.limits.write_deadline),
            };
            let request = Request::new(path).patch(name, params, &Patch::Apply(manifest.content()));
            let text = exchange::send_request(&server.client, call, request, until).await?;
            exchange::parse(call, &text)
        });
        let unknown = || KubernetesError::Refused {
            what: what.clone(),
            status: 404,
            why: format!("it does not know the kind {} of {}", object.key.kind, object.api_version),
        };
        limit_write(&what, applied).await?.ok_or_else(unknown)
    }
}

/// The content of an object that the service compares or shows.
fn remove_managed_fields(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

#[async_trait]
impl Objects for NodeComponents {
    async fn read_server_version(&self, address: &str) -> Result<String, KubernetesError> {
        let what = format!("version of the API server {address}");
        let call = Call { name: "version", what: &what };
        let server = self.connect_server(&what, address).await?;
        let until = RequestDeadline::after(server.limits.read_deadline);
        let request = HttpRequest::get("/version").body(Vec::new());
        let request = request.map_err(|_| unusable_answer(call.what, "the request cannot be built"))?;
        let text = exchange::send_request(&server.client, call, Ok(request), until).await?;
        let version: ServerVersion = exchange::parse(call, &text)?;
        Ok(format!("{}.{}", version.major, version.minor))
    }

    async fn read_node_objects(&self, servers: &[String]) -> Result<Vec<NodeObject>, KubernetesError> {
        let call = Call { name: "nodes", what: "Node objects" };
        let ask = |server: Arc<ApiServer>| async move {
            let until = RequestDeadline::after(READ_DEADLINE);
            let nodes = server.watched_nodes(call, until).await?;
            let converted = nodes.iter().map(|node| node.to_object()).collect::<Result<_, _>>();
            converted.map_err(|why| answer::malformed_answer(call.what, why))
        };
        self.ask_any_server(call.what, servers, ask).await
    }

    async fn read_annotations(&self, servers: &[String], object: &ObjectName) -> FoundObject<Annotations> {
        let what = object.key.to_string();
        let call = Call { name: "annotations", what: &what };
        let name = &encode_name(&object.key.name);
        let ask = self.send_object_request(object, servers, |server, path| async move {
            let until = RequestDeadline::after(server.limits.read_deadline);
            let request = Request::new(path).get_metadata(name, &GetParams::default());
            let text = exchange::send_request(&server.client, call, request, until).await?;
            exchange::parse::<ObjectWithAnnotations>(call, &text).map(|named| named.metadata.annotations)
        });
        to_found_object(ask.await)
    }

    async fn read_object(&self, servers: &[String], object: &ObjectName) -> FoundObject<Value> {
        let what = object.key.to_string();
        let call = Call { name: "object", what: &what };
        let name = &encode_name(&object.key.name);
        let ask = self.send_object_request(object, servers, |server, path| async move {
            let until = RequestDeadline::after(server.limits.read_deadline);
            let request = Request::new(path).get(name, &GetParams::default());
            let text = exchange::send_request(&server.client, call, request, until).await?;
            exchange::parse(call, &text).map(remove_managed_fields)
        });
        to_found_object(ask.await)
    }

    async fn apply_object(
        &self,
        permit: &Permit,
        servers: &[String],
        manifest: &Manifest,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        self.send_apply(Some(permit), servers, manifest).await.map(drop)
    }

    async fn dry_run_apply(&self, servers: &[String], manifest: &Manifest) -> Result<Value, KubernetesError> {
        self.send_apply(None, servers, manifest).await.map(remove_managed_fields)
    }

    async fn change_node(
        &self,
        permit: &Permit,
        servers: &[String],
        change: &NodeChange,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let mut patch = json!({"metadata": {
            "resourceVersion": change.resource_version,
            "labels": change.labels,
            "annotations": change.annotations,
        }});
        if let Some(taints) = &change.taints {
            patch["spec"] = json!({"taints": taints});
        }
        let patch = &patch;
        let what = format!("Node object {}", change.name);
        let call = Call { name: "change-node", what: &what };
        let send = |server: Arc<ApiServer>| async move {
            patch_node(&server, permit, call, &change.name, patch).await
        };
        limit_write(&what, self.ask_any_server(&what, servers, send)).await
    }

    async fn remove_node(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let what = format!("removal of Node object {node}");
        let call = Call { name: "remove-node", what: &what };
        let cordon = &json!({"spec": {"unschedulable": true}});
        let send = |server: Arc<ApiServer>| async move {
            patch_node(&server, permit, call, node, cordon).await?;
            let until = server.begin(permit)?;
            let request = Request::new(Node::url_path(&(), None)).delete(node, &DeleteParams::default());
            server.send_node_change(call, request, until).await.map(drop)
        };
        match limit_write(&what, self.ask_any_server(&what, servers, send)).await {
            Err(KubernetesError::NotFound { .. }) => Ok(()),
            removed => removed,
        }
    }

    async fn list_secrets(&self, servers: &[String]) -> Result<Vec<SecretVersion>, KubernetesError> {
        let ask = |server: Arc<ApiServer>| async move { secrets::list_secrets(&server).await };
        self.ask_any_server(secrets::ALL, servers, ask).await.map_err(withhold_message_of_secret)
    }

    async fn rewrite_secret(
        &self,
        permit: &Permit,
        servers: &[String],
        secret: &SecretVersion,
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let send =
            |server: Arc<ApiServer>| async move { secrets::rewrite_secret(&server, permit, secret).await };
        let what = secret.to_string();
        let rewritten = limit_write(&what, self.ask_any_server(&what, servers, send)).await;
        rewritten.map_err(withhold_message_of_secret)
    }
}

async fn patch_node(
    server: &ApiServer,
    permit: &Permit,
    call: Call<'_>,
    node: &str,
    patch: &Value,
) -> Result<(), KubernetesError> {
    let until = server.begin(permit)?;
    if !convert::is_name(node) {
        return Err(KubernetesError::NotFound { what: call.what.to_owned() });
    }
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let request = Request::new(Node::url_path(&(), None)).patch(node, &params, &Patch::Merge(patch));
    server.send_node_change(call, request, until).await.map(drop)
}
