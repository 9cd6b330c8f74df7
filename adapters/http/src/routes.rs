//! The pages `/health`, `/version` and `/metrics`, with the bodies, status codes and content types of CKE.
//!
//! As in CKE, other paths are "not found", in JSON. Unlike CKE, which supports only GET and answers "not found" to
//! other methods, a page answers HEAD as GET without a body, and other methods with 405 and the allowed ones.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

use crate::limits::REQUEST_ID_MAX_BYTES;
use crate::recorder::MetricsScope;

/// Header by which cybozu-go's programs trace a request; errors repeat it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-cybozu-request-id");
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// True if the instance is healthy: it can read its store, and the actors of its epoch have not exceeded their
    /// restart limit.
    async fn healthy(&self) -> bool;

    /// The temporary reason why this healthy instance does not lead, in words.
    fn waits_for(&self) -> Option<String> {
        None
    }

    fn version(&self) -> String;

    /// Metrics in the text format of Prometheus; see [`metrics_text`](crate::metrics_text).
    fn metrics(&self, scope: MetricsScope) -> String;

    /// The state of operations on nodes as JSON, or the reason for which this instance has none.
    ///
    /// # Errors
    /// This instance runs no operations on nodes, or has not collected their states yet.
    fn operations(&self) -> Result<String, &'static str>;

    /// The states of the nodes as JSON, by address.
    ///
    /// # Errors
    /// As with [`Self::operations`].
    fn nodes(&self) -> Result<String, &'static str>;

    /// The next action for each entry of the reboot queue, and its obstacle, as JSON.
    ///
    /// # Errors
    /// This instance does not lead, or has not decided on the queue yet.
    fn reboots(&self) -> Result<String, &'static str>;
}

#[derive(Serialize)]
struct Health {
    health: &'static str,
    /// Not among CKE's fields: present only during a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
}

#[derive(Serialize)]
struct Version {
    version: String,
}

/// Fields in alphabetical order, as Go encodes a map.
#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    status: u16,
}

#[derive(Clone)]
struct Pages {
    service: Arc<dyn Service>,
    health_deadline: Duration,
}

/// The pages of an instance. A health check that exceeds `health_deadline` (the `timeout` of CKE's configuration)
/// counts as unhealthy.
pub fn router(service: Arc<dyn Service>, health_deadline: Duration) -> Router {
    open_pages()
        .route("/", get(serve_overview))
        .fallback(serve_not_found)
        .method_not_allowed_fallback(serve_method_not_allowed)
        .with_state(Pages { service, health_deadline })
}

/// The same pages, without authentication, before another router, which answers `/` and all other paths.
pub fn router_before(rest: Router, service: Arc<dyn Service>, health_deadline: Duration) -> Router {
    open_pages()
        .fallback_service(rest)
        .method_not_allowed_fallback(serve_method_not_allowed)
        .with_state(Pages { service, health_deadline })
}

fn open_pages() -> Router<Pages> {
    Router::new()
        .route("/health", get(serve_health))
        .route("/version", get(serve_version))
        .route("/metrics", get(metrics))
        .route("/ops", get(serve_operations))
        .route("/nodes", get(serve_nodes))
        .route("/reboots", get(serve_reboots))
}

async fn serve_overview() -> Response {
    Html(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Madako</title></head>\n",
        "<body><h1>Madako</h1><ul>\n",
        "<li><a href=\"/health\">/health</a>: whether this instance is healthy</li>\n",
        "<li><a href=\"/version\">/version</a>: its version</li>\n",
        "<li><a href=\"/metrics\">/metrics</a>: metrics for Prometheus</li>\n",
        "<li><a href=\"/ops\">/ops</a>: operations on nodes, on the leader</li>\n",
        "<li><a href=\"/nodes\">/nodes</a>: the state of each node, on the leader</li>\n",
        "<li><a href=\"/reboots\">/reboots</a>: the entries of the reboot queue, on the leader</li>\n",
        "</ul></body></html>\n",
    ))
    .into_response()
}

async fn serve_health(State(pages): State<Pages>) -> Response {
    match tokio::time::timeout(pages.health_deadline, pages.service.healthy()).await {
        Ok(true) => {
            let waits_for = pages.service.waits_for();
            json_response(StatusCode::OK, &Health { health: "healthy", waits_for })
        }
        Ok(false) | Err(_) => {
            let health = Health { health: "unhealthy", waits_for: None };
            json_response(StatusCode::INTERNAL_SERVER_ERROR, &health)
        }
    }
}

async fn serve_version(State(pages): State<Pages>) -> Response {
    json_response(StatusCode::OK, &Version { version: pages.service.version() })
}

/// Part of a query that leaves the metrics with series for each machine out. Other queries change nothing, as in CKE.
const WITHOUT_MACHINES: &str = "machines=false";

async fn metrics(State(pages): State<Pages>, uri: Uri) -> Response {
    let mut query = uri.query().unwrap_or_default().split('&');
    let scope = match query.any(|part| part == WITHOUT_MACHINES) {
        true => MetricsScope::WithoutMachines,
        false => MetricsScope::All,
    };
    ([(header::CONTENT_TYPE, METRICS_TYPE)], pages.service.metrics(scope)).into_response()
}

async fn serve_operations(State(pages): State<Pages>) -> Response {
    page_response(pages.service.operations())
}

async fn serve_nodes(State(pages): State<Pages>) -> Response {
    page_response(pages.service.nodes())
}

async fn serve_reboots(State(pages): State<Pages>) -> Response {
    page_response(pages.service.reboots())
}

fn page_response(page: Result<String, &'static str>) -> Response {
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, "application/json")], page).into_response(),
        Err(why) => problem_response(StatusCode::NOT_FOUND, why, None),
    }
}

async fn serve_not_found(request: Request) -> Response {
    problem_response(
        StatusCode::NOT_FOUND,
        "requested resource is not found",
        request.headers().get(REQUEST_ID),
    )
}

async fn serve_method_not_allowed(request: Request) -> Response {
    problem_response(
        StatusCode::METHOD_NOT_ALLOWED,
        "method is not allowed",
        request.headers().get(REQUEST_ID),
    )
}

/// An error in CKE's format.
pub(crate) fn problem_response(
    status: StatusCode,
    error: &str,
    request_id: Option<&HeaderValue>,
) -> Response {
    let request_id = request_id.and_then(|id| id.to_str().ok()).filter(|id| id.len() <= REQUEST_ID_MAX_BYTES);
    json_response(status, &Problem { error, request_id, status: status.as_u16() })
}

/// JSON with a trailing newline, as Go's encoder writes it.
fn json_response<T: Serialize>(status: StatusCode, body: &T) -> Response {
    let text = serde_json::to_string(body).expect("structures of texts and numbers are JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], text + "\n").into_response()
}
