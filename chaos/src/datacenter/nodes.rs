//! What an API server of Kubernetes would answer who asks for its nodes: each machine is one, ready while it is healthy, and has no
//! taints.
//!
//! Does not: know pods or take writes. Who drains nodes needs more than this.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use madako_datacenter_sim::SimulatedRegistry;
use madako_messages::machine::{Machine, MachineState};
use serde_json::{Value, json};

/// The list, on its own.
pub(super) fn router(registry: SimulatedRegistry) -> Router {
    Router::new().route("/api/v1/nodes", get(list)).with_state(registry)
}

/// All of them in one page, however many were asked for: an API server may do so.
async fn list(State(registry): State<SimulatedRegistry>) -> Json<Value> {
    let items: Vec<Value> = registry.machines().iter().filter_map(node).collect();
    Json(json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// Kubelets are started under their machine's first address.
fn node(machine: &Machine) -> Option<Value> {
    let ready = if machine.status.state == MachineState::Healthy { "True" } else { "Unknown" };
    Some(json!({
        "metadata": {"name": machine.address()?},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
}
