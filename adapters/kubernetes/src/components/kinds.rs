//! Discovery of kinds, one group and version at a time: a group that fails costs only its own kinds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::PoisonError;

use http::Request;
use madako_domain::objects::ObjectName;
use madako_protocol::kubernetes::KubernetesError;
use serde::Deserialize;
use tokio::time::Instant;

use super::{AuthenticatedConnections, unusable_answer};
use crate::api::ApiServer;
use crate::convert::is_name;
use crate::exchange::{self, Call, RequestDeadline};
use crate::limits::{ABSENCE_AGE, KINDS_AGE, MAX_GROUPS};

/// Kinds by group and version, with the time of the answer.
#[derive(Debug, Default)]
pub(super) struct KnownKinds(BTreeMap<String, (Instant, BTreeMap<String, ResourceKind>)>);

/// The place of a kind's objects.
#[derive(Debug, Clone)]
struct ResourceKind {
    plural: String,
    is_namespaced: bool,
}

#[derive(Deserialize)]
struct ApiResourceList {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    /// Plural, or a plural with a subresource after a `/`.
    name: String,
    kind: String,
    namespaced: bool,
}

impl KnownKinds {
    /// The outer `None`: discovery must be asked. The inner one: it does not know the kind.
    fn find(&self, object: &ObjectName) -> Option<Option<ResourceKind>> {
        let (at, kinds) = self.0.get(&object.api_version)?;
        let kind = kinds.get(&object.key.kind).cloned();
        let age = if kind.is_some() { KINDS_AGE } else { ABSENCE_AGE };
        (at.elapsed() < age).then_some(kind)
    }
}

/// The path of the objects beside an object, such as `/apis/apps/v1/namespaces/a/deployments`. `None`: the API server does
/// not know the kind.
pub(super) async fn collection_path(
    session: &AuthenticatedConnections,
    server: &ApiServer,
    object: &ObjectName,
) -> Result<Option<String>, KubernetesError> {
    let what = format!("kinds of {}", object.api_version);
    let Some(base) = group_path(&object.api_version) else { return Ok(None) };
    // No code panics while it holds the lock, and the map is consistent at any moment.
    let known = session.kinds.lock().unwrap_or_else(PoisonError::into_inner).find(object);
    let kind = match known {
        Some(kind) => kind,
        None => {
            let kinds = discover_kinds(server, &what, &base).await?;
            let mut known = session.kinds.lock().unwrap_or_else(PoisonError::into_inner);
            if known.0.len() >= MAX_GROUPS {
                known.0.clear();
            }
            let kind = kinds.get(&object.key.kind).cloned();
            known.0.insert(object.api_version.clone(), (Instant::now(), kinds));
            kind
        }
    };
    let Some(ResourceKind { plural, is_namespaced }) = kind else { return Ok(None) };
    match (&object.key.namespace, is_namespaced) {
        (Some(namespace), true) => Ok(Some(format!("{base}/namespaces/{namespace}/{plural}"))),
        (None, true) => Err(unusable_answer(&object.key.to_string(), "its metadata.namespace is missing")),
        (_, false) => Ok(Some(format!("{base}/{plural}"))),
    }
}

async fn discover_kinds(
    server: &ApiServer,
    what: &str,
    base: &str,
) -> Result<BTreeMap<String, ResourceKind>, KubernetesError> {
    let call = Call { name: "kinds", what };
    let until = RequestDeadline::after(server.limits.read_deadline);
    let request = Request::get(base).body(Vec::new());
    let request = request.map_err(|_| unusable_answer(what, "its name is not part of a URL"))?;
    let list: ApiResourceList = match exchange::send_request(&server.client, call, Ok(request), until).await {
        Ok(text) => exchange::parse(call, &text)?,
        Err(KubernetesError::NotFound { .. } | KubernetesError::Refused { status: 404, .. }) => {
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(error),
    };
    let whole = list.resources.into_iter().filter(|resource| is_name(&resource.name));
    let kind = |resource: ApiResource| {
        (resource.kind, ResourceKind { plural: resource.name, is_namespaced: resource.namespaced })
    };
    Ok(whole.map(kind).collect())
}

/// The path of a group and version; `None` if no API server can have it.
fn group_path(api_version: &str) -> Option<String> {
    match api_version.split_once('/') {
        None => is_name(api_version).then(|| format!("/api/{api_version}")),
        Some((group, version)) => {
            (is_name(group) && is_name(version)).then(|| format!("/apis/{group}/{version}"))
        }
    }
}

/// The name of an object as a part of a path.
pub(super) fn encode_name(name: &str) -> String {
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // A String takes any text.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_group_versions_have_no_discovery_path() {
        assert_eq!(group_path("v1").as_deref(), Some("/api/v1"));
        assert_eq!(group_path("rbac.authorization.k8s.io/v1").unwrap(), "/apis/rbac.authorization.k8s.io/v1");
        for wrong in ["", "a/b/c", "../v1", "v1?a", "a/", "/v1"] {
            assert_eq!(group_path(wrong), None, "{wrong}");
        }
        assert_eq!(encode_name("system:cluster-dns"), "system:cluster-dns");
        assert_eq!(encode_name("a?b#ü"), "a%3Fb%23%C3%BC");
    }
}
