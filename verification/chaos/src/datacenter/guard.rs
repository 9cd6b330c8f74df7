//! An HTTP proxy in front of the simulated registry that records every request other than a search.

use std::sync::Arc;

use async_graphql_parser::parse_query;
use async_graphql_parser::types::OperationType;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use madako_datacenter_sim::GRAPHQL_PATH;
use madako_judges::{RegistryQuestion, registry};
use serde_json::Value;

use super::journal::LineContent;
use super::tap::AnswerTap;

/// Name of the service's query.
const SEARCH_OF_THE_SERVICE: &str = "ckeSearch";
/// Bytes of a request: a search has less than two kilobytes.
const MAX_REQUEST: usize = 1 << 20;

pub(super) fn guard_router(registry: Router, tap: &Arc<AnswerTap>) -> Router {
    registry.layer(from_fn_with_state(Arc::clone(tap), record_and_forward))
}

async fn record_and_forward(State(tap): State<Arc<AnswerTap>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let body = match to_bytes(body, MAX_REQUEST).await {
        Ok(body) => body,
        // The body was cut off or is far too long: nothing is done for it.
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    // The API servers keep their own record of changes.
    let ours = !head.uri.path().starts_with("/instances/");
    if ours && !is_read_only(&head.method, head.uri.path(), &body) {
        let text = String::from_utf8_lossy(&body);
        let changes = LineContent::Changes { request: format!("{} {} {text}", head.method, head.uri.path()) };
        if let Err(error) = tap.journal.write(changes) {
            // A change that cannot be recorded must not happen.
            tracing::error!(error = &error as &dyn std::error::Error, "cannot write the journal");
            return (StatusCode::INTERNAL_SERVER_ERROR, "cannot write the journal").into_response();
        }
    }
    let question = (head.uri.path() == GRAPHQL_PATH).then(|| question_of_query(&body)).flatten();
    let mut response = next.run(Request::from_parts(head, Body::from(body))).await;
    if let Some(question) = question {
        response.extensions_mut().insert(question);
    }
    response
}

/// The question of the service's query; `None`: a search of another client.
fn question_of_query(body: &[u8]) -> Option<RegistryQuestion> {
    let call: Value = serde_json::from_slice(body).ok()?;
    call["query"].as_str()?.contains(SEARCH_OF_THE_SERVICE).then(|| registry::question_of_request(&call))
}

/// True if a request changes nothing: sabakan accepts no mutation by GET.
fn is_read_only(method: &Method, path: &str, body: &[u8]) -> bool {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => true,
        Method::POST if path == GRAPHQL_PATH => is_search(body),
        _ => false,
    }
}

/// True if each operation of a document is a query.
fn is_search(body: &[u8]) -> bool {
    let call: Value = serde_json::from_slice(body).unwrap_or_default();
    let document = call["query"].as_str().and_then(|text| parse_query(text).ok());
    document.is_some_and(|document| {
        document.operations.iter().all(|(_, operation)| operation.node.ty == OperationType::Query)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use madako_datacenter_sim::{Datacenter, DatacenterConfig, SimulatedRegistry};
    use madako_protocol::ports::Clock;
    use serde_json::json;
    use time::OffsetDateTime;
    use tokio::net::TcpListener;

    use super::*;
    use crate::check::Verdicts;
    use crate::check::registry::{REGISTRY, judge_registry_requests, registry_requests};
    use crate::datacenter::journal::{Journal, read_journal};
    use crate::web::{self, WebRequest};

    struct FixedClock;

    impl Clock for FixedClock {
        fn now(&self) -> OffsetDateTime {
            OffsetDateTime::UNIX_EPOCH
        }
    }

    const MUTATION: &str = "mutation { setMachineState(serial: \"x\", state: RETIRING) { state } }";

    #[tokio::test]
    async fn requests_to_the_registry_beyond_a_search_are_found() {
        let files = tempfile::tempdir().unwrap();
        let journal = files.path().join("journal.jsonl");
        let config = DatacenterConfig::new(1, OffsetDateTime::UNIX_EPOCH, 2, &[("compute", 6)]);
        let registry = SimulatedRegistry::new(Datacenter::new(config).unwrap(), Arc::new(FixedClock));
        let tap = Arc::new(AnswerTap::new(Journal::open(&journal, Arc::new(FixedClock)).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let server = guard_router(registry.router(), &tap);
        tokio::spawn(async move { axum::serve(listener, server).await });
        let search = json!({"query": "# all\nquery all { searchMachines(having: null, notHaving: null) { spec { serial } } }"});
        let mutation = json!({ "query": MUTATION });
        let retire = json!("2026-01-01T00:00:00Z");
        for (method, path, body, changes) in [
            (Method::POST, GRAPHQL_PATH, &search, 0),
            (Method::GET, "/health", &Value::Null, 0),
            (Method::PATCH, "/instances/1/api/v1/nodes/a", &Value::Null, 0),
            (Method::POST, GRAPHQL_PATH, &mutation, 1),
            (Method::PUT, "/api/v1/retire-date/x", &retire, 2),
            (Method::DELETE, "/api/v1/machines/x", &Value::Null, 3),
        ] {
            let answer =
                web::send_request(at, WebRequest::send(&method, path, body, Duration::from_secs(30)))
                    .await
                    .unwrap();
            if path == GRAPHQL_PATH {
                assert_eq!(answer.status, StatusCode::OK, "it is answered as before");
            }
            let mut verdicts = Verdicts::default();
            judge_registry_requests(&registry_requests(&read_journal(&journal).unwrap()), &mut verdicts);
            assert_eq!(verdicts.verdict_of(REGISTRY).broken, changes, "{method} {path}");
        }
    }
}
