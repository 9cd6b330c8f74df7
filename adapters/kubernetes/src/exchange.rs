//! Sends one bounded request to the API server, and counts and times it.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::Limited;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Client;
use kube::client::{Body, ConfigExt};
use madako_domain::kubernetes::EvictionOutcome;
use madako_protocol::kubernetes::KubernetesError;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};
use tower::{BoxError, ServiceBuilder};

use crate::access::ApiServerAccess;
use crate::limits::{IDLE_TIMEOUT, MAX_IDLE};
use crate::{CONNECT_TIMEOUT, answer, telemetry};

#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadline {
    pub(crate) at: Instant,
    /// Duration that the error of a timeout names.
    pub(crate) within: Duration,
}

impl RequestDeadline {
    pub(crate) fn after(within: Duration) -> Self {
        Self { at: Instant::now() + within, within }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    /// Label in metrics.
    pub(crate) name: &'static str,
    /// Name in errors, with the object.
    pub(crate) what: &'a str,
}

/// kube's client on a stack of this crate. kube's own stack logs each failed request as an error, although only the
/// caller can evaluate it, and reads answers of any length.
///
/// Without a base, each request has its whole URL, and the client reaches any server.
pub(crate) fn create_client(
    access: &ApiServerAccess,
    max_answer_bytes: usize,
    has_base: bool,
) -> Result<Client, kube::Error> {
    let config = access.config();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let client: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector);
    let service = ServiceBuilder::new()
        .map_response(move |response: Response<_>| response.map(|body| Limited::new(body, max_answer_bytes)))
        .option_layer(has_base.then(|| config.base_uri_layer()))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(Client::new(service, config.default_namespace.clone()))
}

#[derive(Debug)]
pub(crate) struct FailedExchange {
    pub(crate) error: KubernetesError,
    /// Set if the API server says that a disruption budget forbids the request.
    pub(crate) budget: Option<EvictionOutcome>,
}

/// Sends a request and reads the whole answer.
pub(crate) async fn send_with_eviction_outcome(
    client: &Client,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<String, FailedExchange> {
    let plain = |error| FailedExchange { error, budget: None };
    // Names and selectors were checked, so this error is unexpected.
    let request =
        request.map_err(|_| plain(answer::unavailable_server(call.what, "the request cannot be built")))?;
    let asking = telemetry::RunningRequest::new(call.name);
    let result = match timeout_at(until.at, client.request_text(request)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => {
            let budget = answer::forbidden_by_budget(&error);
            Err(FailedExchange { error: answer::to_kubernetes_error(call.what, error), budget })
        }
        Err(_) => {
            let why = format!("no complete answer within {:?}", until.within);
            Err(plain(answer::unavailable_server(call.what, &why)))
        }
    };
    asking.ended(result.as_ref().err().map(|failed| (&failed.error, failed.budget.is_some())));
    result
}

/// Opens an answer without an end. The request is counted and timed when the answer begins.
pub(crate) async fn open_stream(
    client: &Client,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<Body, KubernetesError> {
    let request =
        request.map_err(|_| answer::unavailable_server(call.what, "the request cannot be built"))?;
    let asking = telemetry::RunningRequest::new(call.name);
    let opening = async {
        let response = client.send(request.map(Body::from)).await;
        let response = response.map_err(|error| answer::to_kubernetes_error(call.what, error))?;
        let status = response.status();
        if status.is_success() {
            Ok(response.into_body())
        } else {
            Err(answer::refused_stream(call.what, status.as_u16()))
        }
    };
    let opened = timeout_at(until.at, opening).await.unwrap_or_else(|_| {
        Err(answer::unavailable_server(call.what, &format!("no answer within {:?}", until.within)))
    });
    asking.ended(opened.as_ref().err().map(|error| (error, false)));
    opened
}

/// Like [`send_with_eviction_outcome`], for requests to which no disruption budget applies.
pub(crate) async fn send_request(
    client: &Client,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<String, KubernetesError> {
    send_with_eviction_outcome(client, call, request, until).await.map_err(|failed| failed.error)
}

pub(crate) fn parse<T: DeserializeOwned>(call: Call<'_>, text: &str) -> Result<T, KubernetesError> {
    let mut input = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut input).map_err(|error| {
        // The location, not the value: pods contain secrets.
        let place = error.inner();
        let why = format!(
            "unexpected content at {} (line {}, column {})",
            error.path(),
            place.line(),
            place.column()
        );
        answer::malformed_answer(call.what, &why)
    })
}
