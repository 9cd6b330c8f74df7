//! `/health` and `/version`, as etcd 3.4 answers them on its client port.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};

use crate::services::{ETCD_CLUSTER_VERSION, ETCD_VERSION};
use crate::store::Store;

pub(crate) fn add_health_routes(router: Router, store: Arc<Store>) -> Router {
    router.route("/health", get(answer_health).with_state(store)).route("/version", get(answer_version))
}

/// Healthy: no alarm is active and the store has not failed.
async fn answer_health(State(store): State<Arc<Store>>) -> Response {
    let healthy = store.lock_state().alarms == 0 && store.failure.reason().is_none();
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    if healthy {
        (plain, r#"{"health":"true"}"#).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, plain, "{\"health\":\"false\"}\n").into_response()
    }
}

async fn answer_version() -> Response {
    let body = format!(r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{ETCD_CLUSTER_VERSION}"}}"#);
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
