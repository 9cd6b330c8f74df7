//! The API of placement: Krake's paths, verbs, bodies, status codes and watch streams, over the port to placement's
//! resources ([`Objects`]).
//!
//! For: `krakectl` and Krake's controllers, unmodified, and everybody else who speaks HTTP.
//!
//! Guarantees:
//! - a read, and an authorization, that starts after a write was answered sees it: each request first waits until
//!   the view shows the store as it is ([`Objects::fresh`]), once;
//! - a watch begins at the store's revision at that time, before its headers go out, misses nothing, and breaks off
//!   rather than leaving anything out;
//! - a resource is written only over the version that the request was judged by; `ETag` and `If-Match` let clients
//!   do so too;
//! - refusals come in Krake's order: authentication 401, authorization 403, JSON 415, schema 422, existence 404,
//!   precondition 412, state 400 or 409; each is an RFC 7807 problem, and names every wrong field;
//! - bodies, waiting and the number of streams are bounded ([`Settings`], [`BLOCKING`]).
//!
//! Assumes: the listener puts the verified certificate of a client ([`ClientCertificate`]) among the extensions of
//! its requests, and gives requests that wait the time of [`patience`].
//!
//! Does not: decide where anything is placed, collect garbage, or encrypt (the store does).

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
pub use problem::{Problem, Title};
pub use tokens::{Keycloak, Keystone};
pub use uid::Uids;
pub use wait::Closing;
pub(crate) use watch::describe_metrics;

pub use crate::limits::{BLOCKING, STREAMS};

const _: () =
    assert!(crate::Limits::PLACEMENT.connections >= 2 * STREAMS, "others are served beside all streams");

/// Whether and how rights are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    /// By roles.
    Rbac,
    /// Everybody may do everything.
    AlwaysAllow,
    /// Nobody may do anything.
    AlwaysDeny,
}

/// How the API behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The version that `/` shows.
    pub version: String,
    /// Address of the documentation of problems; empty for none.
    pub problem_base_url: String,
    /// The origin whose pages may use the API; `*` for all.
    pub cors_origin: String,
    /// Whether who is not authenticated is [`ANONYMOUS`] rather than refused.
    pub allow_anonymous: bool,
    /// Who may do what.
    pub authorization: Authorization,
    /// How often a write that met another one is tried again.
    pub retry_transactions: u32,
    /// Size of a request's body, in bytes.
    pub body_bytes: usize,
    /// Watches and waiting answers at a time; more are refused.
    pub streams: usize,
}

impl Settings {
    /// Krake's defaults; 1 MiB is what its server takes.
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

/// What the API is made of.
pub struct PlacementApi {
    /// The resources.
    pub objects: Arc<dyn Objects>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Identities of new resources.
    pub uids: Uids,
    /// Who explains decisions; `None`: this instance decides nothing.
    pub explainer: Option<Arc<dyn Explainer>>,
    /// Who finds out who asks, in this order.
    pub authenticators: Vec<Arc<dyn Authenticator>>,
    /// How it behaves.
    pub settings: Settings,
}

/// The API: everything that other routers leave.
pub fn router(api: PlacementApi) -> Router {
    Router::new().fallback(service::answer).with_state(Arc::new(service::Service::new(api)))
}

/// How much longer than others the answer to a request may take, because it waits for something.
#[must_use]
pub fn patience(uri: &Uri) -> Duration {
    match query::Query::read(uri.query()).get("blocking") {
        None | Some("False") => Duration::ZERO,
        Some(_) => BLOCKING,
    }
}

/// The answer to a request that took too long.
pub(crate) fn too_late() -> Response {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "503: no answer in time").response("")
}
