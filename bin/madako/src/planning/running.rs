//! Reads the inputs of `madako plan` from the running system: its etcd and its registry, once each.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::keys;
use madako_domain::state::ClusterState;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::Registry;
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;

use super::files::note_left_out;
use super::{InputArgs, Inputs};
use crate::access;
use crate::cli::Global;
use crate::failure::Failure;
use crate::output::print_note;
use crate::running_settings::{Origin, effective_setting};

/// Reads the store at one revision and asks the registry.
pub(super) async fn gather_from_system(args: &InputArgs, global: &Global) -> Result<Inputs, Failure> {
    let store = access::open_store(global)?;
    let snapshot = store.list("").await?;
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    for key in [
        keys::SABAKAN_TEMPLATE,
        keys::CONSTRAINTS,
        keys::CLUSTER,
        keys::CLUSTER_REVISION,
        keys::SABAKAN_VARIABLES,
        keys::SABAKAN_URL,
    ] {
        if let Some(why) = state.fault_of(key) {
            return Err(Failure::failed(format_args!("the stored value of {key} cannot be used: {why}")));
        }
    }
    let wait = effective_setting(args.retire_wait, &state, |settings| settings.retire_wait)
        .map_err(Failure::failed)?;
    let missing = |what: &str, command: &str| {
        Failure::failed(format_args!(
            "no {what} is stored (madako sabakan {command} stores one), so there is no plan"
        ))
    };
    let template = state.template.as_ref().ok_or_else(|| missing("template", "set-template"))?;
    let url = state.url.as_ref().ok_or_else(|| missing("URL of the registry", "set-url"))?;
    let constraints = state.constraints.as_ref().map(|stored| (*stored.value).clone()).unwrap_or_default();
    if wait.origin != Origin::Flag {
        let (seconds, origin) = (wait.value.as_secs_f64(), wait.origin);
        print_note(format_args!("retired machines leave after {seconds} s, {origin}"));
    }
    if state.disabled {
        print_note("the integration with sabakan is off: the service does not plan now");
    }
    if let Some(guard) = state.guard.as_ref().filter(|guard| !guard.value.vanished.is_empty()) {
        print_note(format_args!(
            "the removal guard holds back the removal of {} nodes: the service does not plan it yet (see \
             madako sabakan confirm-removal)",
            guard.value.vanished.len()
        ));
    }

    let transport = ReqwestTransport::for_url(&url.value).map_err(|error| Failure::Failed(error.into()))?;
    let registry = SabakanRegistry::new(Arc::new(transport));
    let variables = state.variables.as_ref().map(|variables| &*variables.value);
    let fetched =
        registry.machines(&url.value, variables).await.map_err(|error| Failure::Failed(error.into()))?;
    note_left_out(&fetched.left_out_serials());
    Ok(Inputs {
        template: (*template.value).clone(),
        constraints,
        machines: fetched.machines,
        current: state.cluster.as_ref().map(|cluster| (*cluster.value).clone()),
        // The service reads the taints of Node objects from the API server; this command does not.
        node_taints: BTreeMap::new(),
        under_repair: state.repair.machines_under_way().map(str::to_owned).collect(),
        template_changed: state.has_changed_template(),
        retire_wait: wait.value,
    })
}
