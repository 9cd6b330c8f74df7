//! The API of placement: Krake's paths, verbs, bodies, status codes and watch streams, over the port to placement's
//! resources ([`Objects`]).
//!
//! For: `krakectl` and Krake's controllers, unmodified, and all other HTTP clients.
//!
//! Guarantees:
//! - A read or an authorization that starts after the answer to a write sees that write: each request first waits once
//!   until the view has reached the present state of the store ([`Objects::fresh`]).
//! - A watch begins at the store's revision at that time, before its headers are sent. It misses nothing, and breaks
//!   off if it would have to leave a change out.
//! - A resource is written only over the version that the request was checked against; `ETag` and `If-Match` offer the
//!   same to clients.
//! - Refusals follow Krake's order: authentication 401, authorization 403, JSON 415, schema 422, existence 404,
//!   precondition 412, state 400 or 409. Each is an RFC 7807 problem and names every wrong field.
//! - Bodies, waiting and the number of streams are bounded ([`Settings`], [`BLOCKING`]).
//!
//! Assumes: the listener adds the verified certificate of a client ([`ClientCertificate`]) to the extensions of its
//! requests, and extends the deadline of waiting requests by [`additional_wait`].
//!
//! Does not: make placement decisions, collect garbage, or encrypt (the store does).

mod auth;
mod change;
mod cors;
mod dependents;
mod explain;
mod list;
mod openapi;
mod problem;
mod query;
mod rbac;
mod route;
mod selector;
mod service;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tokens;
mod uid;
mod wait;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use madako_protocol::placement::explainer::Explainer;
use madako_protocol::placement::objects::Objects;
use madako_protocol::ports::Clock;

pub use auth::{ANONYMOUS, Authenticator, ByCertificate, ClientCertificate, StaticUser};
pub use problem::{Problem, ProblemTitle};
pub use tokens::{Keycloak, Keystone};
pub use uid::UidSource;
pub use wait::ServerClosing;

pub use crate::limits::{BLOCKING, STREAMS};

const _: () =
    assert!(crate::Limits::PLACEMENT.connections >= 2 * STREAMS, "others are served beside all streams");

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Authorization {
    #[strum(serialize = "RBAC")]
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub version: String,
    /// Base URL of the documentation of problems; empty for none.
    pub problem_base_url: String,
    /// Origin whose pages may use the API; `*` for all.
    pub cors_origin: String,
    /// True if an unauthenticated request has the user [`ANONYMOUS`] instead of being refused.
    pub allow_anonymous: bool,
    pub authorization: Authorization,
    /// Number of retries of a write after a conflict with a concurrent one.
    pub retry_transactions: u32,
    /// Upper bound of a request's body, in bytes.
    pub body_bytes: usize,
    /// Concurrent watches and waiting answers; further ones are refused.
    pub streams: usize,
}

impl Settings {
    /// Krake's defaults; its server accepts bodies up to 1 MiB.
    #[must_use]
    pub fn new(version: impl Into<String>) -> Self {
        Self {
            version: version.into(),
            problem_base_url: "https://rak-n-rok.readthedocs.io/projects/krake/en/latest/user/problem.html"
                .to_owned(),
            cors_origin: "*".to_owned(),
            allow_anonymous: false,
            authorization: Authorization::Rbac,
            retry_transactions: 1,
            body_bytes: 1024 * 1024,
            streams: STREAMS,
        }
    }
}

pub struct PlacementApi {
    pub objects: Arc<dyn Objects>,
    pub clock: Arc<dyn Clock>,
    pub uids: UidSource,
    /// Explains decisions; `None` if this instance makes none.
    pub explainer: Option<Arc<dyn Explainer>>,
    /// Tried in this order.
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    pub settings: Settings,
}

/// Routes of the API, for all paths that other routers do not serve.
pub fn router(api: PlacementApi) -> Router {
    Router::new().fallback(service::answer_request).with_state(Arc::new(service::Service::new(api)))
}

/// Additional time for the answer to a request that waits for a state.
#[must_use]
pub fn additional_wait(uri: &Uri) -> Duration {
    match query::Query::read(uri.query()).get("blocking") {
        None | Some("False") => Duration::ZERO,
        Some(_) => BLOCKING,
    }
}

/// The answer to a request that took too long.
pub(crate) fn deadline_response() -> Response {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "503: no answer in time").to_response("")
}
