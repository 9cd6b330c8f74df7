//! Authenticates users by tokens of OpenStack's Keystone and of Keycloak: the issuer of a token names its user.
//!
//! The token is in `Authorization`, bare as Krake's clients send it, or after `Bearer`. Every request asks the issuer
//! again, so a revoked token is invalid at once. Tokens are never logged.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use serde::Deserialize;
use tokio::time::Instant;

use super::auth::Authenticator;
use super::problem::{Problem, ProblemTitle};
use crate::limits::{MAX_TOKEN_ANSWER, TOKEN_DEADLINE};
use crate::telemetry;

pub struct Keystone {
    pub transport: Arc<dyn HttpTransport>,
    /// Base URL, such as `http://localhost:5000/v3`.
    pub endpoint: String,
}

pub struct Keycloak {
    pub transport: Arc<dyn HttpTransport>,
    /// Base URL, such as `http://localhost:9080`.
    pub endpoint: String,
    pub realm: String,
}

#[derive(Deserialize)]
struct KeystoneAnswer {
    token: KeystoneToken,
}

#[derive(Deserialize)]
struct KeystoneToken {
    user: KeystoneUser,
}

#[derive(Deserialize)]
struct KeystoneUser {
    name: String,
}

#[derive(Deserialize)]
struct KeycloakAnswer {
    preferred_username: String,
}

#[async_trait]
impl Authenticator for Keystone {
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem> {
        let Some(token) = bearer_token(request)? else { return Ok(None) };
        let sent = HttpRequest {
            method: HttpMethod::Get,
            url: format!("{}/auth/tokens", self.endpoint.trim_end_matches('/')),
            headers: ["x-auth-token", "x-subject-token"]
                .map(|name| (name.to_owned(), token.to_owned()))
                .into(),
            body: Bytes::new(),
            max_response_bytes: MAX_TOKEN_ANSWER,
            deadline: TOKEN_DEADLINE,
        };
        let answer =
            ask_token_service(&*self.transport, sent, "Keystone", ProblemTitle::InvalidKeystoneToken).await?;
        user_name(
            "Keystone",
            serde_json::from_slice(&answer.body).map(|it: KeystoneAnswer| it.token.user.name),
        )
    }
}

#[async_trait]
impl Authenticator for Keycloak {
    async fn authenticate(&self, request: &Parts) -> Result<Option<String>, Problem> {
        let Some(token) = bearer_token(request)? else { return Ok(None) };
        let (endpoint, realm) = (self.endpoint.trim_end_matches('/'), encode_text(&self.realm));
        let sent = HttpRequest {
            method: HttpMethod::Post,
            url: format!("{endpoint}/auth/realms/{realm}/protocol/openid-connect/userinfo"),
            headers: vec![("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned())],
            body: format!("access_token={}", encode_text(token)).into(),
            max_response_bytes: MAX_TOKEN_ANSWER,
            deadline: TOKEN_DEADLINE,
        };
        let answer =
            ask_token_service(&*self.transport, sent, "Keycloak", ProblemTitle::InvalidKeycloakToken).await?;
        user_name(
            "Keycloak",
            serde_json::from_slice(&answer.body).map(|it: KeycloakAnswer| it.preferred_username),
        )
    }
}

fn bearer_token(request: &Parts) -> Result<Option<&str>, Problem> {
    let Some(value) = request.headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Problem::unauthenticated())?.trim();
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    let bare = if scheme.eq_ignore_ascii_case("bearer") { token.trim_start() } else { text };
    Ok((!bare.is_empty()).then_some(bare))
}

async fn ask_token_service(
    transport: &dyn HttpTransport,
    request: HttpRequest,
    service: &str,
    title: ProblemTitle,
) -> Result<HttpResponse, Problem> {
    let began = Instant::now();
    let answer = transport.send(request).await;
    telemetry::madako_authentication_request_seconds(service.to_lowercase()).record(began.elapsed());
    telemetry::madako_authentication_requests_total(service.to_lowercase(), outcome_label(&answer))
        .increment(1);
    let answer = answer.map_err(|error| {
        tracing::warn!(%error, "{service} does not answer a request about a token");
        unusable_answer(service, "does not answer")
    })?;
    match StatusCode::from_u16(answer.status) {
        Ok(StatusCode::OK) => Ok(answer),
        // A failure of the issuer does not make the token invalid.
        Ok(status) if status.is_server_error() => {
            tracing::warn!(%status, "{service} answers a request about a token with an error");
            Err(unusable_answer(service, "failed"))
        }
        status => {
            let reason = status.ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
            let detail = format!("Invalid {service} token (HTTP {} {reason})", answer.status);
            Err(Problem::with_title(StatusCode::UNAUTHORIZED, title, detail))
        }
    }
}

fn outcome_label(answer: &Result<HttpResponse, HttpError>) -> &'static str {
    match answer.as_ref().map(|answer| answer.status) {
        Ok(200) => "ok",
        Ok(500..) => "failed",
        Ok(_) => "refused",
        Err(_) => "unreachable",
    }
}

fn user_name(service: &str, name: Result<String, serde_json::Error>) -> Result<Option<String>, Problem> {
    match name {
        Ok(name) if !name.is_empty() => Ok(Some(name)),
        // The error is left out, because it may quote the answer.
        _ => {
            tracing::warn!("{service} accepts a token but names no user");
            Err(unusable_answer(service, "names no user"))
        }
    }
}

fn unusable_answer(service: &str, why: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("503: {service} {why}"))
}

fn encode_text(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::body::to_bytes;
    use axum::http::Request;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// Returns the same answer to all requests, and records them.
    struct Service {
        answer: Option<(u16, &'static str)>,
        sent: Mutex<Vec<HttpRequest>>,
    }

    #[async_trait]
    impl HttpTransport for Service {
        async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let (url, deadline) = (request.url.clone(), request.deadline);
            self.sent.lock().unwrap().push(request);
            let (status, body) = self.answer.ok_or(HttpError::Deadline { url, deadline })?;
            Ok(HttpResponse { status, headers: vec![], body: Bytes::from_static(body.as_bytes()) })
        }
    }

    fn service(answer: Option<(u16, &'static str)>) -> Arc<Service> {
        Arc::new(Service { answer, sent: Mutex::default() })
    }

    fn request(authorization: Option<&'static str>) -> Parts {
        let mut request = Request::new(());
        if let Some(value) = authorization {
            request.headers_mut().insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        request.into_parts().0
    }

    fn both(service: &Arc<Service>) -> [Box<dyn Authenticator>; 2] {
        let transport = Arc::clone(service) as Arc<dyn HttpTransport>;
        let keystone = Keystone { transport: Arc::clone(&transport), endpoint: "http://keystone/v3/".into() };
        let (endpoint, realm) = ("http://keycloak".into(), "my realm".into());
        [Box::new(keystone), Box::new(Keycloak { transport, endpoint, realm })]
    }

    #[tokio::test]
    async fn token_service_names_the_user_of_a_token() {
        let answer = r#"{"token": {"user": {"name": "alice", "id": "1"}}, "preferred_username": "bob"}"#;
        for sent in ["t0ken+/=", "Bearer t0ken+/=", "bearer  t0ken+/="] {
            let service = service(Some((200, answer)));
            let [keystone, keycloak] = both(&service);
            assert_eq!(keystone.authenticate(&request(Some(sent))).await, Ok(Some("alice".into())));
            assert_eq!(keycloak.authenticate(&request(Some(sent))).await, Ok(Some("bob".into())));
            let requested = service.sent.lock().unwrap();
            assert_eq!(requested[0].url, "http://keystone/v3/auth/tokens");
            assert_eq!(requested[0].method, HttpMethod::Get);
            let header = |name: &str| (name.to_owned(), "t0ken+/=".to_owned());
            assert_eq!(requested[0].headers, [header("x-auth-token"), header("x-subject-token")]);
            let path = "http://keycloak/auth/realms/my%20realm/protocol/openid-connect/userinfo";
            assert_eq!(requested[1].url, path);
            assert_eq!(requested[1].method, HttpMethod::Post);
            assert_eq!(requested[1].body, "access_token=t0ken%2B%2F%3D");
        }
    }

    #[test]
    fn each_outcome_has_its_name() {
        let deadline = || HttpError::Deadline { url: String::new(), deadline: TOKEN_DEADLINE };
        let status = |status| HttpResponse { status, headers: vec![], body: Bytes::new() };
        let answers = [Ok(status(200)), Ok(status(404)), Ok(status(302)), Ok(status(503)), Err(deadline())];
        let names = answers.each_ref().map(outcome_label);
        assert_eq!(names, ["ok", "refused", "refused", "failed", "unreachable"]);
    }

    #[tokio::test]
    async fn token_service_is_not_asked_without_a_token() {
        let service = service(None);
        for authenticator in both(&service) {
            for header in [None, Some(""), Some("Bearer ")] {
                assert_eq!(authenticator.authenticate(&request(header)).await, Ok(None), "{header:?}");
            }
        }
        assert!(service.sent.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_refused_token_or_a_failing_token_service_gives_no_user() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        let _counted = metrics::set_default_local_recorder(&recorder);
        for (answer, status, said) in [
            (
                Some((404, "secret")),
                401,
                ["Invalid Keystone token (HTTP 404 Not Found)", "INVALID_KEYSTONE_TOKEN"],
            ),
            (
                Some((401, "")),
                401,
                ["Invalid Keystone token (HTTP 401 Unauthorized)", "INVALID_KEYSTONE_TOKEN"],
            ),
            (Some((500, "")), 503, ["503: Keystone failed", ""]),
            (None, 503, ["503: Keystone does not answer", ""]),
            (Some((200, "{\"token\": {}}")), 503, ["503: Keystone names no user", ""]),
            (Some((200, "secret")), 503, ["503: Keystone names no user", ""]),
        ] {
            let [keystone, keycloak] = both(&service(answer));
            let problem = keystone.authenticate(&request(Some("t0ken"))).await.unwrap_err();
            assert_eq!(problem.status().as_u16(), status);
            let body = to_bytes(problem.to_response("").into_body(), usize::MAX).await.unwrap();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert!(said.iter().all(|said| text.contains(said)), "{text}");
            assert!(!text.contains("secret") && !text.contains("t0ken"), "{text}");
            let problem = keycloak.authenticate(&request(Some("t0ken"))).await.unwrap_err();
            assert_eq!(problem.status().as_u16(), status);
        }
        let shown = shown.render();
        for service in ["keystone", "keycloak"] {
            for (outcome, count) in [("refused", 2), ("failed", 1), ("unreachable", 1), ("ok", 2)] {
                let sample = format!(
                    "madako_authentication_requests_total{{service=\"{service}\",outcome=\"{outcome}\"}} {count}\n"
                );
                assert!(shown.contains(&sample), "{sample}{shown}");
            }
            let sample = format!("madako_authentication_request_seconds_count{{service=\"{service}\"}} 6\n");
            assert!(shown.contains(&sample), "{sample}{shown}");
        }
    }
}
