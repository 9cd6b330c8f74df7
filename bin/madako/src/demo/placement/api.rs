//! Requests to the API of placement, as any client sends them.

use std::sync::Arc;

use bytes::Bytes;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpTransport};
use serde_json::Value;

use super::USER;
use crate::limits::{DEMO_DEADLINE, MAX_DEMO_ANSWER, MAX_TOLD};

/// Why a request did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// No whole answer.
    #[error("the placement API did not answer {path}")]
    Http {
        /// What was asked for.
        path: String,
        /// Why.
        source: HttpError,
    },
    /// It said no.
    #[error("the placement API refused {path}: status {status}: {said}")]
    Refused {
        /// What was asked for.
        path: String,
        /// The status.
        status: u16,
        /// The beginning of its words.
        said: String,
    },
    /// The answer is something else.
    #[error("the placement API's answer to {path} is malformed: {why}")]
    Malformed {
        /// What was asked for.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// The API at an address.
pub(crate) struct Api {
    transport: Arc<dyn HttpTransport>,
    /// Scheme, host and port.
    url: String,
}

impl Api {
    /// The API there.
    pub(crate) fn new(transport: Arc<dyn HttpTransport>, url: String) -> Self {
        Self { transport, url }
    }

    /// Creates a resource of everybody's.
    pub(super) async fn create_global(&self, plural: &str, body: &Value) -> Result<(), ApiError> {
        self.send(HttpMethod::Post, format!("/core/{plural}"), Some(body)).await.map(drop)
    }

    /// Creates a cluster or an application.
    pub(super) async fn create(&self, plural: &str, body: &Value) -> Result<(), ApiError> {
        self.send(HttpMethod::Post, path(plural), Some(body)).await.map(drop)
    }

    /// All clusters or applications.
    pub(super) async fn list(&self, plural: &str) -> Result<Vec<Value>, ApiError> {
        let path = path(plural);
        let mut answer = self.send(HttpMethod::Get, path.clone(), None).await?;
        match answer["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Err(ApiError::Malformed { path, why: "it has no list of items".to_owned() }),
        }
    }

    /// Says in which state a cluster is.
    pub(super) async fn set_state(&self, cluster: &str, state: &str) -> Result<(), ApiError> {
        let path = format!("{}/{cluster}", path("clusters"));
        let mut body = self.send(HttpMethod::Get, path.clone(), None).await?;
        body["status"]["state"] = state.into();
        self.send(HttpMethod::Put, format!("{path}/status"), Some(&body)).await.map(drop)
    }

    async fn send(&self, method: HttpMethod, path: String, body: Option<&Value>) -> Result<Value, ApiError> {
        let request = HttpRequest {
            method,
            url: format!("{}{path}", self.url),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            max_response_bytes: MAX_DEMO_ANSWER,
            deadline: DEMO_DEADLINE,
        };
        let answer = match self.transport.send(request).await {
            Ok(answer) => answer,
            Err(source) => return Err(ApiError::Http { path, source }),
        };
        if !(200..300).contains(&answer.status) {
            let said = String::from_utf8_lossy(&answer.body).chars().take(MAX_TOLD).collect();
            return Err(ApiError::Refused { path, status: answer.status, said });
        }
        serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Malformed { path, why: error.to_string() })
    }
}

fn path(plural: &str) -> String {
    format!("/kubernetes/namespaces/{USER}/{plural}")
}
