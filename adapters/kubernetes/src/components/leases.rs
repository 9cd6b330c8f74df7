//! Requests to one API server about leases and boot taints.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Taint as KubeTaint};
use kube::api::{GetParams, Patch, PatchParams, Request, Resource};
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::Permit;
use serde_json::json;

use crate::api::{ApiServer, FIELD_MANAGER};
use crate::exchange::{self, Call, RequestDeadline};
use crate::limits::CHANGE_TRIES;

const NAMESPACE: &str = "kube-system";

/// The holder of a component's lease.
pub(super) async fn lease_holder(
    server: &ApiServer,
    component: Component,
) -> Result<Option<String>, KubernetesError> {
    let what = format!("lease of {component}");
    let call = Call { name: "lease", what: &what };
    let until = RequestDeadline::after(server.limits.read_deadline);
    let request = Request::new(Lease::url_path(&(), Some(NAMESPACE)));
    match exchange::send_request(
        &server.client,
        call,
        request.get(component.name(), &GetParams::default()),
        until,
    )
    .await
    {
        Ok(text) => {
            let lease: Lease = exchange::parse(call, &text)?;
            Ok(lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()))
        }
        Err(KubernetesError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds taints to a node, against the version that was read.
pub(super) async fn add_taints(
    server: &ApiServer,
    permit: &Permit,
    node: &str,
    wanted: &[Taint],
) -> Result<(), KubernetesError> {
    let what = format!("taints of node {node}");
    let call = Call { name: "taint", what: &what };
    let mut tries = 1;
    loop {
        let until = server.begin(permit)?;
        let request = Request::new(Node::url_path(&(), None));
        let read = request.get(node, &GetParams::default());
        // A server that does not answer leaves time for the next one.
        let read_until = RequestDeadline::after(server.limits.read_deadline);
        let text = match exchange::send_request(&server.client, call, read, read_until).await {
            Ok(text) => text,
            Err(KubernetesError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let found: Node = exchange::parse(call, &text)?;
        let version = found.metadata.resource_version.unwrap_or_default();
        let present = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let Some(taints) = merge_taints(present, wanted) else { return Ok(()) };
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let change = request.patch(node, &params, &Patch::Merge(patch));
        match server.send_node_change(call, change, until).await {
            Ok(_) | Err(KubernetesError::NotFound { .. }) => return Ok(()),
            Err(KubernetesError::Refused { status: 409, .. }) if tries < CHANGE_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The taints with the wanted ones; `None` if they are all there.
fn merge_taints(present: Vec<KubeTaint>, wanted: &[Taint]) -> Option<Vec<KubeTaint>> {
    let mut taints = present.clone();
    for taint in wanted {
        let value = Some(taint.value.clone()).filter(|value| !value.is_empty());
        match taints.iter_mut().find(|known| known.key == taint.key && known.effect == taint.effect) {
            Some(known) => {
                if known.value.clone().unwrap_or_default() != taint.value {
                    known.value = value;
                }
            }
            None => taints.push(KubeTaint {
                key: taint.key.clone(),
                value,
                effect: taint.effect.clone(),
                time_added: None,
            }),
        }
    }
    (taints != present).then_some(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        let (key, value, effect) = (key.to_owned(), value.to_owned(), effect.to_owned());
        Taint { key, value, effect, ..Taint::default() }
    }

    fn texts(taints: &[KubeTaint]) -> Vec<String> {
        let text =
            |it: &KubeTaint| format!("{}={}:{}", it.key, it.value.clone().unwrap_or_default(), it.effect);
        taints.iter().map(text).collect()
    }

    #[test]
    fn taints_are_added_and_those_of_the_same_key_and_effect_get_the_value() {
        let first = merge_taints(Vec::new(), &[taint("a", "", "NoSchedule"), taint("a", "1", "NoExecute")]);
        let first = first.unwrap();
        assert_eq!(texts(&first), ["a=:NoSchedule", "a=1:NoExecute"]);
        assert_eq!(merge_taints(first.clone(), &[taint("a", "1", "NoExecute")]), None, "nothing to write");
        let changed =
            merge_taints(first, &[taint("a", "2", "NoExecute"), taint("b", "", "NoSchedule")]).unwrap();
        assert_eq!(texts(&changed), ["a=:NoSchedule", "a=2:NoExecute", "b=:NoSchedule"]);
    }
}
