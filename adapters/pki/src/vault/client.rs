//! Sends one request to Vault, and reads its answer within limits.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use madako_protocol::ports::{HttpMethod, HttpRequest, HttpTransport};
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::telemetry::{self, Call};
use crate::limits::{MAX_VAULT_ANSWER, MAX_VAULT_MESSAGE, MAX_VAULT_MESSAGES, VAULT_DEADLINE};

/// Makes the transport to a server.
pub trait Transports: Send + Sync + 'static {
    /// A transport that trusts the authority `ca_cert` (PEM) alone, or the operating system's if it is empty.
    ///
    /// # Errors
    /// The fault of the certificate, in words.
    fn transport(&self, ca_cert: &str) -> Result<Arc<dyn HttpTransport>, String>;
}

/// A request without its token.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) call: Call,
    pub(crate) method: HttpMethod,
    /// Path below `/v1/`.
    pub(crate) path: String,
    /// Query of the URL; empty for none.
    pub(crate) query: &'static str,
    /// Body. It may contain secrets, and no error shows it.
    pub(crate) body: Option<RequestBody>,
}

/// The members of a JSON object; `Debug` hides them.
#[derive(Clone, Default)]
pub(crate) struct RequestBody(pub(crate) Map<String, Value>);

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl<const N: usize> From<[(&str, &str); N]> for RequestBody {
    fn from(members: [(&str, &str); N]) -> Self {
        Self(members.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }
}

impl Request {
    pub(crate) fn get(call: Call, path: impl Into<String>) -> Self {
        Self { call, method: HttpMethod::Get, path: path.into(), query: "", body: None }
    }

    pub(crate) fn put(call: Call, path: impl Into<String>, body: impl Into<RequestBody>) -> Self {
        Self { call, method: HttpMethod::Put, path: path.into(), query: "", body: Some(body.into()) }
    }

    pub(crate) fn delete(call: Call, path: impl Into<String>) -> Self {
        Self { call, method: HttpMethod::Delete, path: path.into(), query: "", body: None }
    }

    fn describe(&self) -> String {
        let method: &'static str = self.method.into();
        format!("{method} {}", self.path)
    }
}

/// An answer. `Debug` hides it: most answers contain secrets.
#[derive(Default, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    pub(crate) data: Option<Map<String, Value>>,
    #[serde(default)]
    pub(crate) auth: Option<Auth>,
    /// Absent in other answers than those of Vault itself.
    #[serde(default)]
    errors: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) warnings: Option<Vec<String>>,
}

/// The token of a login or a renewal.
#[derive(Deserialize)]
pub(crate) struct Auth {
    pub(crate) client_token: String,
    /// Seconds; 0 for a token without an end.
    pub(crate) lease_duration: u64,
    #[serde(default)]
    pub(crate) renewable: bool,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

pub(crate) struct Client {
    transport: Arc<dyn HttpTransport>,
    endpoint: Url,
    /// The endpoint without credentials.
    shown: String,
}

impl Client {
    pub(crate) fn new(transport: Arc<dyn HttpTransport>, endpoint: &str) -> Result<Self, VaultError> {
        let unusable = |why: &str| VaultError::Access { why: format!("its endpoint is {why}") };
        let endpoint = Url::parse(endpoint).map_err(|error| unusable(&error.to_string()))?;
        if !matches!(endpoint.scheme(), "http" | "https") || !endpoint.has_host() {
            return Err(unusable("endpoint: expected an http or https URL"));
        }
        let mut shown = endpoint.clone();
        // Both succeed for a URL with a host.
        let _ = (shown.set_username(""), shown.set_password(None));
        let shown = shown.as_str().trim_end_matches('/').to_owned();
        Ok(Self { transport, endpoint, shown })
    }

    /// Sends a request. A read of something that does not exist has an answer without data.
    pub(crate) async fn send(&self, request: &Request, token: Option<&Secret>) -> Result<Answer, VaultError> {
        let running = telemetry::RunningCall::new(request.call);
        let answer = self.exchange(request, token).await;
        running.record_end(answer.as_ref().err());
        answer
    }

    async fn exchange(&self, request: &Request, token: Option<&Secret>) -> Result<Answer, VaultError> {
        let (what, address) = (request.describe(), self.shown.clone());
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(request.path.split('/'));
        }
        url.set_query(Some(request.query).filter(|query| !query.is_empty()));
        let mut headers = vec![
            ("accept".to_owned(), "application/json".to_owned()),
            // Vault may be configured to refuse requests without it, against forged requests of browsers.
            ("x-vault-request".to_owned(), "true".to_owned()),
        ];
        headers.extend(token.map(|token| ("x-vault-token".to_owned(), token.reveal().to_owned())));
        let body = match &request.body {
            None => Vec::new(),
            Some(RequestBody(members)) => {
                headers.push(("content-type".to_owned(), "application/json".to_owned()));
                serde_json::to_vec(members).expect("text and numbers always have a JSON form")
            }
        };
        let sent = HttpRequest {
            method: request.method,
            url: url.into(),
            headers,
            body: Bytes::from(body),
            max_response_bytes: MAX_VAULT_ANSWER,
            deadline: VAULT_DEADLINE,
        };
        let response = match self.transport.send(sent).await {
            Ok(response) => response,
            Err(error) => return Err(VaultError::Unreachable { what, address, why: error.to_string() }),
        };
        // serde's message could quote the answer.
        let read = |body: &[u8]| match body {
            [] => Some(Answer::default()),
            body => serde_json::from_slice::<Answer>(body).ok(),
        };
        let answer = read(&response.body);
        let why = || match answer.as_ref().and_then(|answer| answer.errors.as_deref()) {
            Some(messages) if !messages.is_empty() => join_messages(messages),
            _ => "it gave no reason".to_owned(),
        };
        match response.status {
            // 202: a removal of expired certificates was started.
            200 | 202 | 204 => answer.ok_or(VaultError::Malformed {
                what,
                address,
                why: "expected an object with data, auth and warnings".to_owned(),
            }),
            404 if answer
                .as_ref()
                .is_some_and(|answer| answer.errors.as_ref().is_some_and(Vec::is_empty)) =>
            {
                Ok(Answer::default())
            }
            403 => Err(VaultError::Denied { what, address, why: why() }),
            503 | 501 => Err(VaultError::Sealed { what, address, why: why() }),
            status => Err(VaultError::Refused { what, address, status, why: why() }),
        }
    }

    pub(crate) fn missing_member_error(&self, request: &Request, member: &str) -> VaultError {
        VaultError::Malformed {
            what: request.describe(),
            address: self.shown.clone(),
            why: format!("expected the member {member}"),
        }
    }
}

/// Messages of Vault on one line.
fn join_messages(messages: &[String]) -> String {
    let shortened = messages.iter().take(MAX_VAULT_MESSAGES).map(|message| {
        let plain = message.chars().map(|c| if c.is_control() { ' ' } else { c });
        let text: String = plain.take(MAX_VAULT_MESSAGE).collect();
        text.trim().to_owned()
    });
    shortened.collect::<Vec<_>>().join("; ")
}

impl Answer {
    pub(crate) fn text_field(&self, name: &str) -> Option<&str> {
        self.data.as_ref()?.get(name)?.as_str()
    }
}
