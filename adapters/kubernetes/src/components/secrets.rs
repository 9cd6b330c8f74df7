//! Requests to one API server that let it encrypt Secrets anew. No content of a Secret is read, but the message of an error may
//! show a part of one: the port withholds it, after it has told whether another API server may answer better.
//!
//! An API server that is asked for a change without a difference writes the object nonetheless if the stored one is encrypted
//! with another key than its first one.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::api::{GetParams, ListParams, Patch, PatchParams, Request, Resource};
use madako_domain::objects::SecretVersion;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::Permit;
use serde::Deserialize;
use serde_json::json;

use crate::api::{ApiServer, FIELD_MANAGER};
use crate::exchange::{self, Call, RequestDeadline};
use crate::limits::{CHANGE_TRIES, MAX_SECRETS, SECRETS_DEADLINE};
use crate::{answer, convert};

/// The name of the list in errors.
pub(super) const ALL: &str = "Secrets";

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
    /// An API server writes `null` for an empty list.
    items: Option<Vec<Item>>,
}

/// An object without its content.
#[derive(Deserialize)]
struct Item {
    metadata: ObjectMeta,
}

impl Item {
    fn into_version(self) -> Option<SecretVersion> {
        let ObjectMeta { namespace, name, resource_version, .. } = self.metadata;
        let (namespace, name) = (namespace?, name?);
        // Both become parts of a path.
        let is_usable = convert::is_name(&namespace) && convert::is_name(&name);
        is_usable.then_some(SecretVersion { namespace, name, resource_version: resource_version? })
    }
}

/// All Secrets, page by page.
pub(super) async fn list_secrets(server: &ApiServer) -> Result<Vec<SecretVersion>, KubernetesError> {
    let call = Call { name: "secrets", what: ALL };
    let malformed = |why: &str| answer::malformed_answer(call.what, why);
    let until = RequestDeadline::after(SECRETS_DEADLINE);
    let request = Request::new(Secret::url_path(&(), None));
    let mut params = ListParams::default().limit(server.limits.page);
    let mut all = Vec::new();
    loop {
        let text = exchange::send_request(&server.client, call, request.list_metadata(&params), until).await;
        let page: Page = exchange::parse(call, &text?)?;
        let items = page.items.unwrap_or_default();
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        // Empty pages with a continue token could go on until the deadline.
        if next.is_some() && items.is_empty() {
            return Err(malformed("an empty page with more to follow"));
        }
        let versions: Option<Vec<SecretVersion>> = items.into_iter().map(Item::into_version).collect();
        all.extend(versions.ok_or_else(|| malformed("a Secret without a name or a version"))?);
        if all.len() > MAX_SECRETS {
            return Err(malformed(&format!("more than {MAX_SECRETS} objects")));
        }
        match next {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Writes a Secret as it is, against the version that was read.
pub(super) async fn rewrite_secret(
    server: &ApiServer,
    permit: &Permit,
    secret: &SecretVersion,
) -> Result<(), KubernetesError> {
    let what = secret.to_string();
    let call = Call { name: "rewrite-secret", what: &what };
    let request = Request::new(Secret::url_path(&(), Some(&secret.namespace)));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let mut version = secret.resource_version.clone();
    let mut tries = 1;
    loop {
        let until = server.begin(permit)?;
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}}));
        let change = request.patch_metadata(&secret.name, &params, &patch);
        match exchange::send_request(&server.client, call, change, until).await {
            Ok(_) | Err(KubernetesError::NotFound { .. }) => return Ok(()),
            Err(KubernetesError::Refused { status: 409, .. }) if tries < CHANGE_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        let read = request.get_metadata(&secret.name, &GetParams::default());
        let text = match exchange::send_request(&server.client, call, read, until).await {
            Ok(text) => text,
            Err(KubernetesError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let found: Item = exchange::parse(call, &text)?;
        version = found.metadata.resource_version.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::exchange::tests::client;

    #[tokio::test]
    async fn a_webhook_that_fails_for_a_secret_is_called_by_one_api_server() {
        let failed = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
            "reason": "InternalError", "message": "Internal error occurred: failed calling webhook: timeout"}"#;
        let server = ApiServer::with_client(client(500, failed));
        let permit = Permit::give(1, Instant::now() + Duration::from_secs(60));
        let [namespace, name, resource_version] = ["a", "s", "1"].map(str::to_owned);
        let secret = SecretVersion { namespace, name, resource_version };
        let error = rewrite_secret(&server, &permit, &secret).await.unwrap_err();
        assert!(!answer::is_of_server(&error), "{error}");
    }
}
