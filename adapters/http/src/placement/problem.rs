//! The errors of the placement API as problems of RFC 7807, with Krake's titles, details and media type.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use madako_domain::placement::kind::ObjectKey;
use madako_domain::store::{StoreError, StoreErrorKind};
use madako_json::input::{InputError, Problem as FieldProblem};
use madako_json::krake::json;
use madako_protocol::placement::objects::FollowerGap;
use serde::Serialize;

/// Media type of a problem in Krake's server.
pub(super) const MEDIA_TYPE: &str = "application/problem+json; charset=utf-8";

/// Krake's kinds of problems. HTTP status codes cover the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemTitle {
    NotFoundError,
    TransactionError,
    UpdateError,
    InvalidKeystoneToken,
    InvalidKeycloakToken,
    ResourceAlreadyExists,
}

impl ProblemTitle {
    /// Name in `title`, and in the URL of its documentation.
    fn code_and_title(self) -> (&'static str, &'static str) {
        match self {
            Self::NotFoundError => ("NOT_FOUND_ERROR", "not-found-error"),
            Self::TransactionError => ("TRANSACTION_ERROR", "transaction-error"),
            Self::UpdateError => ("UPDATE_ERROR", "update-error"),
            Self::InvalidKeystoneToken => ("INVALID_KEYSTONE_TOKEN", "invalid-keystone-token"),
            Self::InvalidKeycloakToken => ("INVALID_KEYCLOAK_TOKEN", "invalid-keycloak-token"),
            Self::ResourceAlreadyExists => ("RESOURCE_ALREADY_EXISTS", "resource-already-exists"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    status: StatusCode,
    title: Option<ProblemTitle>,
    detail: String,
    errors: Vec<FieldProblem>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Serialize)]
struct SerializedProblem<'a> {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'static str>,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldProblem],
}

impl Problem {
    pub fn with_title(status: StatusCode, title: ProblemTitle, detail: impl Into<String>) -> Self {
        Self { title: Some(title), ..Self::new(status, detail) }
    }

    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, title: None, detail: detail.into(), errors: Vec::new(), headers: Vec::new() }
    }

    /// A problem without further detail, in the words of Krake's server.
    pub(super) fn without_detail(status: StatusCode) -> Self {
        let detail = format!("{}: {}", status.as_u16(), status.canonical_reason().unwrap_or("Refused"));
        Self::new(status, detail)
    }

    pub(super) fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "401: No user has been authenticated.")
    }

    /// A hook without its token.
    pub(super) fn wrong_token() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "401: No token has been provided or the provided one is invalid.")
    }

    pub(super) fn resource_not_found(key: &ObjectKey) -> Self {
        let namespace = match &key.namespace {
            Some(namespace) => format!("'{namespace}'"),
            None => "None".to_owned(),
        };
        let detail = format!("'{}' '{}' does not exist in namespace {namespace}", key.kind.name(), key.name);
        Self::with_title(StatusCode::NOT_FOUND, ProblemTitle::NotFoundError, detail)
    }

    pub(super) fn already_exists(key: &ObjectKey) -> Self {
        let mut detail = format!("{} '{}' already exists", key.kind.name(), key.name);
        if let Some(namespace) = &key.namespace {
            detail += &format!(" in namespace '{namespace}'");
        }
        Self::with_title(StatusCode::CONFLICT, ProblemTitle::ResourceAlreadyExists, detail)
    }

    /// Every attempt conflicted with a concurrent write.
    pub(super) fn concurrent_write() -> Self {
        Self::with_title(
            StatusCode::CONFLICT,
            ProblemTitle::TransactionError,
            "Concurrent writes to database",
        )
    }

    /// The resource's version is not the one that the request requires.
    pub(super) fn failed_precondition(current: Option<i64>) -> Self {
        let is = match current {
            Some(current) => format!("is at \"{current}\""),
            None => "does not exist".to_owned(),
        };
        Self::new(StatusCode::PRECONDITION_FAILED, format!("412: Precondition Failed: the resource {is}"))
    }

    pub(super) fn invalid_input(error: InputError) -> Self {
        let detail = error.to_string();
        Self { errors: error.problems, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
    }

    pub(super) fn invalid_field(field: &str, got: impl Into<String>, expected: impl Into<String>) -> Self {
        let problem = FieldProblem { field: field.to_owned(), got: got.into(), expected: expected.into() };
        Self::invalid_input(InputError { subject: "the request".to_owned(), problems: vec![problem] })
    }

    pub(super) fn immutable_field(error: InputError) -> Self {
        let first = error.problems.first().map_or("", |problem| problem.field.as_str());
        let field = first.rsplit('.').next().unwrap_or_default();
        let detail = format!("Trying to update an immutable field: {field}");
        Self {
            errors: error.problems,
            ..Self::with_title(StatusCode::BAD_REQUEST, ProblemTitle::UpdateError, detail)
        }
    }

    pub(super) fn store(error: &StoreError) -> Self {
        let status = match error.kind {
            // The store refused the request's value.
            StoreErrorKind::Invalid => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        // The full reason is only logged: it names hosts and users that clients must not see.
        tracing::warn!(%error, "a request to the placement API failed in the store");
        let kind = match error.kind {
            StoreErrorKind::Unavailable => "the store does not answer",
            StoreErrorKind::Deadline => "the store did not answer in time",
            StoreErrorKind::Denied => "the store denied access",
            StoreErrorKind::Invalid => "the store refuses the request",
            StoreErrorKind::Full => "the store is full",
            StoreErrorKind::Other => "the store failed",
        };
        Self::new(status, format!("{}: {kind}", status.as_u16())).retry_later(status)
    }

    /// A resource whose stored value cannot be read. It exists, so it is neither absent nor can it be created.
    pub(super) fn unreadable_resource(key: &ObjectKey, why: &str) -> Self {
        let detail = format!(
            "409: {key} is stored, but its value cannot be read: {why}; a DELETE with `?force=True` removes \
             it"
        );
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// The store was replaced while the watch started.
    pub(super) fn replaced_cache(gap: &FollowerGap) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, format!("503: {gap}")).retry_later(status)
    }

    fn retry_later(self, status: StatusCode) -> Self {
        match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                self.with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
            }
            _ => self,
        }
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The HTTP response. `base` is the base URL of the problems' documentation; empty for none.
    pub(super) fn to_response(&self, base: &str) -> Response {
        let kind = match self.title {
            Some(title) if !base.is_empty() => format!("{base}#{}", title.code_and_title().1),
            _ => "about:blank".to_owned(),
        };
        let written = SerializedProblem {
            r#type: kind,
            title: self.title.map(|title| title.code_and_title().0),
            status: self.status.as_u16(),
            detail: &self.detail,
            errors: &self.errors,
        };
        let body = Body::from(json::to_text(&written));
        let mut response = (self.status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        for (name, value) in &self.headers {
            response.headers_mut().append(name, value.clone());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use madako_domain::placement::kind::Kind;

    use super::*;

    async fn text(problem: &Problem, base: &str) -> String {
        let body = to_bytes(problem.to_response(base).into_body(), usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_problem_is_written_as_krake_does() {
        let absent = Problem::resource_not_found(&ObjectKey::new(Kind::Application, Some("testing"), "echo"));
        assert_eq!(
            text(&absent, "https://docs/problem.html").await,
            r#"{"type": "https://docs/problem.html#not-found-error", "title": "NOT_FOUND_ERROR", "status": 404, "detail": "'Application' 'echo' does not exist in namespace 'testing'"}"#
        );
        let absent = Problem::resource_not_found(&ObjectKey::new(Kind::Role, None, "r"));
        assert_eq!(
            text(&absent, "").await,
            r#"{"type": "about:blank", "title": "NOT_FOUND_ERROR", "status": 404, "detail": "'Role' 'r' does not exist in namespace None"}"#
        );
        assert_eq!(
            text(&Problem::without_detail(StatusCode::FORBIDDEN), "https://docs").await,
            r#"{"type": "about:blank", "status": 403, "detail": "403: Forbidden"}"#
        );
        assert_eq!(
            text(&Problem::invalid_field("spec", "", "an object"), "").await,
            concat!(
                r#"{"type": "about:blank", "status": 422, "detail": "the request is not valid; spec: expected an object", "#,
                r#""errors": [{"field": "spec", "got": "", "expected": "an object"}]}"#
            )
        );
    }
}
