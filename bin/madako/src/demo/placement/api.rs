//! Sends the demo's requests to the placement API, as any client does.

use std::sync::Arc;

use bytes::Bytes;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpTransport};
use serde_json::Value;

use super::USER;
use crate::limits::{DEMO_DEADLINE, MAX_DEMO_ANSWER, MAX_SERVER_TEXT};

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// No complete answer.
    #[error("the placement API did not answer {request}")]
    Http { request: String, source: HttpError },
    #[error("the placement API refused {request}: status {status}: {message}")]
    Refused {
        /// Method and URL.
        request: String,
        status: u16,
        /// The beginning of the answer's text.
        message: String,
    },
    /// The answer has another form.
    #[error("the placement API's answer to {request} is malformed: {why}")]
    Malformed { request: String, why: String },
}

pub(crate) struct DemoApi {
    transport: Arc<dyn HttpTransport>,
    /// Scheme, host and port.
    url: String,
}

impl DemoApi {
    pub(crate) fn new(transport: Arc<dyn HttpTransport>, url: String) -> Self {
        Self { transport, url }
    }

    pub(super) async fn create_global(&self, plural: &str, body: &Value) -> Result<(), ApiError> {
        self.send(HttpMethod::Post, format!("/core/{plural}"), Some(body)).await.map(drop)
    }

    /// Creates a namespaced cluster or application.
    pub(super) async fn create(&self, plural: &str, body: &Value) -> Result<(), ApiError> {
        self.send(HttpMethod::Post, collection_path(plural), Some(body)).await.map(drop)
    }

    /// All clusters or applications.
    pub(super) async fn list(&self, plural: &str) -> Result<Vec<Value>, ApiError> {
        let path = collection_path(plural);
        let mut answer = self.send(HttpMethod::Get, path.clone(), None).await?;
        match answer["items"].take() {
            Value::Array(items) => Ok(items),
            _ => {
                let request = self.describe(HttpMethod::Get, &path);
                Err(ApiError::Malformed { request, why: "it has no list of items".to_owned() })
            }
        }
    }

    pub(super) async fn set_state(&self, cluster: &str, state: &str) -> Result<(), ApiError> {
        let path = format!("{}/{cluster}", collection_path("clusters"));
        let mut body = self.send(HttpMethod::Get, path.clone(), None).await?;
        body["status"]["state"] = state.into();
        self.send(HttpMethod::Put, format!("{path}/status"), Some(&body)).await.map(drop)
    }

    fn describe(&self, method: HttpMethod, path: &str) -> String {
        format!("{} {}{path}", method.name(), self.url)
    }

    async fn send(&self, method: HttpMethod, path: String, body: Option<&Value>) -> Result<Value, ApiError> {
        let described = self.describe(method, &path);
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
            Err(source) => return Err(ApiError::Http { request: described, source }),
        };
        if !(200..300).contains(&answer.status) {
            let message = String::from_utf8_lossy(&answer.body).chars().take(MAX_SERVER_TEXT).collect();
            return Err(ApiError::Refused { request: described, status: answer.status, message });
        }
        serde_json::from_slice(&answer.body)
            .map_err(|error| ApiError::Malformed { request: described, why: error.to_string() })
    }
}

fn collection_path(plural: &str) -> String {
    format!("/kubernetes/namespaces/{USER}/{plural}")
}
