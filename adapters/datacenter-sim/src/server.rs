//! The registry over HTTP, with the paths, methods, status codes and errors of sabakan's server.

use async_graphql_parser::types::OperationType;
use async_graphql_parser::{Pos, parse_query};
use async_graphql_value::ConstValue;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::corrupt_answers;
use crate::schema::{self, Failure};
use crate::service::SimulatedRegistry;
use crate::variables::coerce_variables;

pub const GRAPHQL_PATH: &str = "/graphql";

/// Version of sabakan that the simulation was compared with.
const SABAKAN_VERSION: &str = "3.1.9";

const INVALID: &str = "GRAPHQL_VALIDATION_FAILED";

/// Body of a GraphQL request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Call {
    #[serde(default)]
    query: String,
    #[serde(default)]
    operation_name: Option<String>,
    #[serde(default)]
    variables: Option<serde_json::Map<String, Value>>,
}

/// Query string of a GraphQL request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UrlCall {
    #[serde(default)]
    query: String,
    #[serde(default)]
    operation_name: Option<String>,
    #[serde(default)]
    variables: Option<String>,
}

impl SimulatedRegistry {
    /// The HTTP service: `/graphql`, `/health`, `/version`, and 404 for all other paths.
    pub fn router(&self) -> Router {
        Router::new()
            .route(GRAPHQL_PATH, any(answer_graphql))
            .route("/health", any(async || json_line(&json!({"health": "healthy"}))))
            .route("/version", any(async || json_line(&json!({"version": SABAKAN_VERSION}))))
            .fallback(async || {
                let body = json!({"error": "requested resource is not found", "status": 404});
                (StatusCode::NOT_FOUND, json_line(&body))
            })
            .with_state(self.clone())
    }
}

async fn answer_graphql(
    State(registry): State<SimulatedRegistry>,
    method: Method,
    url: Result<Query<UrlCall>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let faults = registry.faults();
    faults.wait_for_faults().await;
    let present = faults.present_faults();
    if let Some(response) = corrupt_answers::replacement_answer(&present) {
        return response;
    }
    let (status, answer) = match method {
        Method::POST if is_json(&headers) => answer_post(&registry, &body),
        Method::GET => answer_get(&registry, url),
        Method::HEAD => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Method::OPTIONS => return ([(header::ALLOW, "OPTIONS, GET, POST")], ()).into_response(),
        _ => {
            let body = r#"{"errors":[{"message":"transport not supported"}],"data":null}"#;
            return (StatusCode::BAD_REQUEST, body).into_response();
        }
    };
    let text = serde_json::to_string(&answer).expect("an answer is made of JSON values");
    let text = corrupt_answers::corrupt_text(&present, text);
    let response =
        (status, [(header::CONTENT_TYPE, answer_type(&headers))], Body::from(text)).into_response();
    corrupt_answers::corrupt_response(&present, response)
}

/// JSON with a newline, as in sabakan's REST API.
fn json_line(value: &Value) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], format!("{value}\n"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case("application/json")
}

/// The newer media type if the client requests it.
fn answer_type(headers: &HeaderMap) -> &'static str {
    const NEWER: &str = "application/graphql-response+json";
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.contains(NEWER) { NEWER } else { "application/json" }
}

fn answer_post(registry: &SimulatedRegistry, body: &[u8]) -> (StatusCode, Answer) {
    // Parse a map first, because serde also accepts a sequence as a struct.
    let call = serde_json::from_slice::<serde_json::Map<String, Value>>(body)
        .and_then(|members| serde_json::from_value::<Call>(Value::Object(members)));
    match call {
        Ok(call) => execute(registry, call, true),
        Err(error) => refuse_request(format!("json request body could not be decoded: {error}")),
    }
}

fn answer_get(
    registry: &SimulatedRegistry,
    url: Result<Query<UrlCall>, axum::extract::rejection::QueryRejection>,
) -> (StatusCode, Answer) {
    let Query(url) = match url {
        Ok(url) => url,
        Err(error) => return refuse_request(error.to_string()),
    };
    let variables =
        match url.variables.filter(|text| !text.is_empty()).map(|text| serde_json::from_str(&text)) {
            None => None,
            Some(Ok(variables)) => Some(variables),
            Some(Err(_)) => return refuse_request("variables could not be decoded".to_owned()),
        };
    let call = Call { query: url.query, operation_name: url.operation_name, variables };
    execute(registry, call, false)
}

/// Runs an operation. A validation failure has status 422, a failure of execution 200.
fn execute(registry: &SimulatedRegistry, call: Call, may_mutate: bool) -> (StatusCode, Answer) {
    if call.query.trim().is_empty() {
        return refuse_as_unprocessable("no operation provided".to_owned(), INVALID);
    }
    let document = match parse_query(&call.query) {
        Ok(document) => document,
        Err(error) => return refuse_as_unprocessable(error.to_string(), "GRAPHQL_PARSE_FAILED"),
    };
    let chosen = call.operation_name.filter(|name| !name.is_empty());
    let operation = document.operations.iter().find(|(name, _)| match &chosen {
        Some(chosen) => name.is_some_and(|name| name == chosen),
        None => true,
    });
    let Some((_, operation)) = operation else {
        let message = format!("operation {} not found", chosen.unwrap_or_default());
        return refuse_as_unprocessable(message, INVALID);
    };
    match operation.node.ty {
        OperationType::Subscription => {
            return refuse_as_unprocessable(
                "Schema does not support operation type \"subscription\"".to_owned(),
                INVALID,
            );
        }
        OperationType::Mutation if !may_mutate => {
            let answer = Answer::from_error("GET requests only allow query operations".to_owned(), None);
            return (StatusCode::NOT_ACCEPTABLE, answer);
        }
        OperationType::Mutation | OperationType::Query => {}
    }
    let mut variables = call.variables.unwrap_or_default();
    let ran = coerce_variables(&operation.node.variable_definitions, &mut variables)
        .map_err(Failure::from)
        .and_then(|()| schema::execute(registry, &document, &operation.node, &variables));
    match ran {
        Ok(data) => (StatusCode::OK, Answer { errors: Vec::new(), data: Some(data) }),
        Err(failure) => {
            let status = match failure {
                Failure::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                Failure::Field { .. } => StatusCode::OK,
            };
            // All top-level fields are non-null, so an error leaves no data.
            (status, Answer { errors: vec![failure.into()], data: None })
        }
    }
}

fn refuse_request(message: String) -> (StatusCode, Answer) {
    (StatusCode::BAD_REQUEST, Answer::from_error(message, None))
}

fn refuse_as_unprocessable(message: String, code: &str) -> (StatusCode, Answer) {
    (StatusCode::UNPROCESSABLE_ENTITY, Answer::from_error(message, Some(json!({ "code": code }))))
}

/// An answer whose members have the order of sabakan's server.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<AnswerError>,
    data: Option<ConstValue>,
}

#[derive(Debug, Serialize)]
struct Location {
    line: usize,
    column: usize,
}

#[derive(Debug, Serialize)]
struct AnswerError {
    message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    path: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    locations: Vec<Location>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<Value>,
}

impl Answer {
    fn from_error(message: String, extensions: Option<Value>) -> Self {
        let error = AnswerError { message, path: Vec::new(), locations: Vec::new(), extensions };
        Self { errors: vec![error], data: None }
    }
}

impl From<Failure> for AnswerError {
    fn from(failure: Failure) -> Self {
        let located = |at: Option<Pos>| at.map(|at| Location { line: at.line, column: at.column });
        match failure {
            Failure::Invalid { message, at, path } => Self {
                message,
                path,
                locations: located(at).into_iter().collect(),
                extensions: Some(json!({ "code": INVALID })),
            },
            Failure::Field { message, at, key, extensions } => Self {
                message,
                path: vec![json!(key)],
                locations: located(Some(at)).into_iter().collect(),
                extensions,
            },
        }
    }
}
