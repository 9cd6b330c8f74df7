//! Answers of the simulated Vault, by the path of the request.

use std::time::Duration;

use bytes::Bytes;
use madako_protocol::ports::{HttpMethod, HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{ROOT_TOKEN, SimulatedVault, State, VaultRequest};

/// Identifier of the role of CKE.
const ROLE_ID: &str = "simulated-role";

/// A status code with a body; `None` has no body.
pub(super) type Answer = (u16, Option<Value>);

pub(super) fn error_answer(status: u16, messages: &[&str]) -> Answer {
    (status, Some(json!({ "errors": messages })))
}

pub(super) fn data_answer(data: Value) -> Answer {
    (200, Some(json!({ "data": data, "auth": null, "warnings": null })))
}

/// A request of which the method is a read, a write or a removal.
pub(super) struct ReceivedRequest {
    pub(super) method: HttpMethod,
    /// Path below `/v1/`.
    pub(super) path: String,
    pub(super) body: Map<String, Value>,
    token: Option<String>,
}

impl ReceivedRequest {
    fn new(request: &HttpRequest) -> Option<Self> {
        let (_, rest) = request.url.split_once("/v1/")?;
        let path = rest.split('?').next().unwrap_or_default().to_owned();
        let token = request.headers.iter().find(|(name, _)| name == "x-vault-token");
        let body = match &request.body[..] {
            [] => Map::new(),
            body => serde_json::from_slice(body).ok()?,
        };
        Some(Self { method: request.method, path, body, token: token.map(|(_, token)| token.clone()) })
    }

    pub(super) fn text_field(&self, name: &str) -> &str {
        self.body.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn is_read(&self) -> bool {
        self.method == HttpMethod::Get
    }
}

impl SimulatedVault {
    pub(super) async fn answer_http(&self, request: HttpRequest) -> HttpResponse {
        let method: &str = request.method.into();
        let received = ReceivedRequest::new(&request);
        let what = format!("{method} {}", received.as_ref().map_or("?", |received| received.path.as_str()));
        let (status, body) = match &received {
            None => error_answer(400, &["error parsing JSON"]),
            Some(received) => self.answer_request(received).await,
        };
        let mut state = self.lock();
        let token = received.and_then(|received| received.token);
        let ended = token.is_some_and(|token| state.has_ended(&token));
        state.requests.push(VaultRequest { what, status, ended });
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        HttpResponse { status, headers, body: Bytes::from(body) }
    }

    async fn answer_request(&self, received: &ReceivedRequest) -> Answer {
        let early = self.lock().answer_without_token(received);
        if let Some(answer) = early {
            return answer;
        }
        if let Some(answer) = self.answer_engine(received).await {
            return answer;
        }
        self.lock().answer_operator(received)
    }
}

impl State {
    fn has_ended(&self, token: &str) -> bool {
        let end = self.tokens.get(token).copied().flatten();
        end.is_some_and(|end| Instant::now() >= end)
    }

    /// The answer to a request that needs no token, or whose token permits nothing.
    fn answer_without_token(&mut self, received: &ReceivedRequest) -> Option<Answer> {
        if received.path == "sys/health" {
            let status = if self.sealed { 503 } else { 200 };
            return Some((status, Some(json!({ "initialized": true, "sealed": self.sealed }))));
        }
        if received.path == "sys/unseal" {
            self.sealed = false;
            return Some((200, Some(json!({ "sealed": false }))));
        }
        if self.sealed {
            return Some(error_answer(503, &["Vault is sealed"]));
        }
        if received.path == "auth/approle/login" {
            let is_known = received.text_field("role_id") == ROLE_ID
                && self.role_secrets.contains(received.text_field("secret_id"));
            return Some(match self.period.filter(|_| is_known) {
                Some(period) => self.new_token(Some(period)),
                None => error_answer(400, &["invalid role or secret ID"]),
            });
        }
        if let Some(user) = received.path.strip_prefix("auth/userpass/login/") {
            let is_known =
                self.users.get(user).is_some_and(|password| *password == received.text_field("password"));
            return Some(if is_known {
                self.new_token(None)
            } else {
                error_answer(400, &["invalid username or password"])
            });
        }
        let token = received.token.as_deref().unwrap_or_default();
        if token == ROOT_TOKEN {
            return None;
        }
        let is_live = self.tokens.contains_key(token) && !self.has_ended(token);
        // Tokens of users have no end here, and the policy of an operator.
        let is_operator = matches!(self.tokens.get(token), Some(None));
        let may =
            is_operator || received.path.starts_with("cke/") || received.path == "auth/token/renew-self";
        (!is_live || !may).then(|| error_answer(403, &["permission denied"]))
    }

    /// A new token; without a period it has no end.
    fn new_token(&mut self, period: Option<Duration>) -> Answer {
        self.issued_tokens += 1;
        let token = format!("simulated-token-{}", self.issued_tokens);
        self.tokens.insert(token.clone(), period.map(|period| Instant::now() + period));
        token_answer(&token, period)
    }

    /// The answer to an operator, or to the holder of a token about it.
    fn answer_operator(&mut self, received: &ReceivedRequest) -> Answer {
        let path = received.path.as_str();
        match path {
            "sys/seal" => {
                self.sealed = true;
                (204, None)
            }
            "auth/token/renew-self" => {
                let token = received.token.clone().unwrap_or_default();
                if let (Some(period), Some(end)) = (self.period, self.tokens.get_mut(&token)) {
                    *end = Some(Instant::now() + period);
                }
                token_answer(&token, self.period)
            }
            "sys/leases/revoke-prefix/auth/approle" => {
                self.tokens.retain(|_, end| end.is_none());
                (204, None)
            }
            "sys/mounts" => {
                let mounted =
                    self.mounts.iter().map(|(path, kind)| (format!("{path}/"), json!({ "type": kind })));
                data_answer(Value::Object(mounted.collect()))
            }
            "sys/policies/acl/cke" => (204, None),
            "auth/approle/role/cke" => {
                let seconds = match received.text_field("period") {
                    "1h" => 3600,
                    text => text.trim_end_matches('s').parse().unwrap_or(3600),
                };
                self.period = Some(Duration::from_secs(seconds));
                (204, None)
            }
            "auth/approle/role/cke/role-id" => data_answer(json!({ "role_id": ROLE_ID })),
            "auth/approle/role/cke/secret-id" => {
                let secret = format!("simulated-secret-{}", self.role_secrets.len());
                self.role_secrets.insert(secret.clone());
                data_answer(json!({ "secret_id": secret }))
            }
            _ => match (path.strip_prefix("sys/mounts/"), path.strip_prefix("auth/userpass/users/")) {
                (Some(mount), _) if self.mounts.contains_key(mount) => {
                    error_answer(400, &[&format!("path is already in use at {mount}/")])
                }
                (Some(mount), _) => {
                    self.mounts.insert(mount.to_owned(), received.text_field("type").to_owned());
                    (204, None)
                }
                (_, Some(user)) => {
                    self.users.insert(user.to_owned(), received.text_field("password").to_owned());
                    (204, None)
                }
                _ => missing_mount_answer(path),
            },
        }
    }
}

fn token_answer(token: &str, period: Option<Duration>) -> Answer {
    let lease = period.map_or(0, |period| period.as_secs());
    let auth = json!({ "client_token": token, "lease_duration": lease, "renewable": period.is_some() });
    (200, Some(json!({ "data": null, "auth": auth, "warnings": null })))
}

pub(super) fn missing_mount_answer(path: &str) -> Answer {
    error_answer(404, &[&format!("no handler for route {path:?}. route entry not found.")])
}
