//! Sends one bounded request to the API server, and counts and times it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A client of kube that notes an answer with status 429, which asks for fewer requests.
#[derive(Clone)]
pub(crate) struct ServerClient {
    client: Client,
    was_refused: Arc<AtomicBool>,
}

impl ServerClient {
    /// True if an answer since the last call had status 429, other than for a disruption budget.
    pub(crate) fn take_refused(&self) -> bool {
        self.was_refused.swap(false, Ordering::Relaxed)
    }

    fn note_answer(&self, error: Option<&KubernetesError>) {
        if matches!(error, Some(KubernetesError::Refused { status: 429, .. })) {
            self.was_refused.store(true, Ordering::Relaxed);
        }
    }
}

/// kube's client on a stack of this crate. kube's own stack logs each failed request as an error, although only the
/// caller can evaluate it, and reads answers of any length.
///
/// Without a base, each request has its whole URL, and the client reaches any server.
pub(crate) fn create_client(
    access: &ApiServerAccess,
    max_answer_bytes: usize,
    has_base: bool,
) -> Result<ServerClient, kube::Error> {
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
    let client = Client::new(service, config.default_namespace.clone());
    Ok(ServerClient { client, was_refused: Arc::default() })
}

#[derive(Debug)]
pub(crate) struct FailedExchange {
    pub(crate) error: KubernetesError,
    /// Set if the API server says that a disruption budget forbids the request.
    pub(crate) budget: Option<EvictionOutcome>,
}

/// Sends a request and reads the whole answer.
pub(crate) async fn send_with_eviction_outcome(
    server: &ServerClient,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<String, FailedExchange> {
    let plain = |error| FailedExchange { error, budget: None };
    // Names and selectors were checked, so this error is unexpected.
    let request =
        request.map_err(|_| plain(answer::unavailable_server(call.what, "the request cannot be built")))?;
    let asking = telemetry::RunningRequest::new(call.name);
    let result = match timeout_at(until.at, server.client.request_text(request)).await {
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
    let failed = result.as_ref().err();
    server.note_answer(failed.filter(|failed| failed.budget.is_none()).map(|failed| &failed.error));
    asking.ended(failed.map(|failed| (&failed.error, failed.budget.is_some())));
    result
}

/// Opens an answer without an end. The request is counted and timed when the answer begins.
pub(crate) async fn open_stream(
    server: &ServerClient,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<Body, KubernetesError> {
    let request =
        request.map_err(|_| answer::unavailable_server(call.what, "the request cannot be built"))?;
    let asking = telemetry::RunningRequest::new(call.name);
    let opening = async {
        let response = server.client.send(request.map(Body::from)).await;
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
    let failed = opened.as_ref().err();
    server.note_answer(failed);
    asking.ended(failed.map(|error| (error, false)));
    opened
}

/// Like [`send_with_eviction_outcome`], for requests to which no disruption budget applies.
pub(crate) async fn send_request(
    server: &ServerClient,
    call: Call<'_>,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: RequestDeadline,
) -> Result<String, KubernetesError> {
    send_with_eviction_outcome(server, call, request, until).await.map_err(|failed| failed.error)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A client of a server that gives each request this answer.
    pub(crate) fn client(status: u16, body: &'static str) -> ServerClient {
        let answer = move |_: Request<Body>| async move {
            let response = Response::builder().status(status).body(Body::from(body.as_bytes().to_vec()));
            Ok::<_, Infallible>(response.expect("a status and a body make an answer"))
        };
        ServerClient {
            client: Client::new(tower::service_fn(answer), "default"),
            was_refused: Arc::default(),
        }
    }

    #[tokio::test]
    async fn a_client_notes_answers_that_ask_for_fewer_requests_but_not_those_of_a_budget() {
        let budget = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "code": 429,
            "details": {"causes": [{"reason": "DisruptionBudget", "message": "b"}]}}"#;
        for (status, body, is_noted) in [(200, "{}", false), (429, "slow down", true), (429, budget, false)] {
            let client = client(status, body);
            let call = Call { name: "list", what: "x" };
            let until = RequestDeadline::after(CONNECT_TIMEOUT);
            let request = Request::get("/api/v1/pods")
                .body(Vec::new())
                .map_err(kube::core::request::Error::BuildRequest);
            let answer = send_with_eviction_outcome(&client, call, request, until).await;
            assert_eq!(answer.is_ok(), status == 200, "{status} {body}");
            assert_eq!([client.take_refused(), client.take_refused()], [is_noted, false], "{status} {body}");
        }
        let client = client(429, "slow down");
        let (call, until) = (Call { name: "watch", what: "x" }, RequestDeadline::after(CONNECT_TIMEOUT));
        let request =
            Request::get("/api/v1/nodes").body(Vec::new()).map_err(kube::core::request::Error::BuildRequest);
        assert!(open_stream(&client, call, request, until).await.is_err());
        assert!(client.take_refused(), "a watch");
    }
}
