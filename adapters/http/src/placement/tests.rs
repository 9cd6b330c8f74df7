//! Tests of the placement API over resources in memory, with real HTTP requests.

mod access;
mod conflict;
mod crud;
mod dependents;
mod described;
mod explain;
mod krake;
mod parts;
mod random;
mod server;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use madako_domain::placement::kind::Kind;
use madako_protocol::ports::Clock;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tower::ServiceExt as _;

use super::testing::MemoryObjects;
use super::*;

/// Far beyond any limit; paused time makes it free.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A clock that advances by a second at each read.
struct Steps(AtomicI64);

impl Clock for Steps {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + self.0.fetch_add(1, Ordering::SeqCst)).unwrap()
    }
}

struct World {
    objects: Arc<MemoryObjects>,
    router: Router,
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The answer; panics on another status.
    #[track_caller]
    fn with(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{:?}", self.body);
        self
    }

    fn wrong_fields(&self) -> Vec<String> {
        let errors = self.json()["errors"].clone();
        let errors = errors.as_array().cloned().unwrap_or_default();
        errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
    }
}

fn settings(authorization: Authorization) -> Settings {
    Settings { authorization, problem_base_url: "https://docs/problem.html".into(), ..Settings::new("1.2.3") }
}

/// All users may do everything.
fn world() -> World {
    world_with(settings(Authorization::AlwaysAllow), vec![Arc::new(StaticUser("alice".into()))])
}

fn world_with(settings: Settings, authenticators: Vec<Arc<dyn Authenticator>>) -> World {
    let objects = MemoryObjects::new();
    let router = router(PlacementApi {
        objects: Arc::clone(&objects) as Arc<dyn Objects>,
        clock: Arc::new(Steps(AtomicI64::new(0))),
        uids: UidSource::from_seed([0; 32]),
        explainer: Some(Arc::new(explain::Fake)),
        authenticators,
        settings,
    });
    World { objects, router }
}

fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path)
        .body(body.into())
        .unwrap()
}

impl World {
    async fn send(&self, request: Request<Body>) -> Answer {
        self.send_known(request, None).await
    }

    /// Sends a request, and checks the answer against the document.
    async fn send_known(&self, request: Request<Body>, sent: Option<&Value>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = Answer { status: parts.status, headers: parts.headers, body };
        described::check(method.as_str(), &path, sent, &answer);
        answer
    }

    async fn ask(&self, method: &str, path: &str) -> Answer {
        self.send(request(method, path, Body::empty())).await
    }

    async fn say(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send_known(request(method, path, body.to_string()), Some(body)).await
    }

    /// Creates an example; returns its path and the answer.
    async fn created(&self, kind: Kind, name: &str) -> (String, Value) {
        let collection = collection(kind, "testing");
        let answer = self.say("POST", &collection, &example(kind, name)).await.with(200);
        (format!("{collection}/{name}"), answer.json())
    }
}

fn collection(kind: Kind, namespace: &str) -> String {
    let (api, plural) = (kind.api().name(), kind.plural());
    if kind.namespaced() {
        format!("/{api}/namespaces/{namespace}/{plural}")
    } else {
        format!("/{api}/{plural}")
    }
}

/// Key in etcd.
fn stored(kind: Kind, name: &str) -> String {
    madako_domain::placement::kind::ObjectKey::new(kind, Some("testing"), name).etcd_key()
}

/// Body that creates a resource.
fn example(kind: Kind, name: &str) -> Value {
    let spec = match kind {
        Kind::Role => {
            return json!({"metadata": {"name": name}, "rules": [
                {"api": "core", "resources": ["roles"], "namespaces": ["testing"], "verbs": ["get", "list_all"]}
            ]});
        }
        Kind::RoleBinding => {
            return json!({"metadata": {"name": name}, "users": ["alice"], "roles": ["reader"]});
        }
        Kind::GlobalMetric | Kind::Metric => json!({
            "allowed_values": [], "min": 0, "max": "5.5",
            "provider": {"name": "prometheus", "metric": "latency"},
        }),
        Kind::GlobalMetricsProvider | Kind::MetricsProvider => json!({
            "type": "static", "static": {"metrics": {"latency": 0.5}},
        }),
        Kind::GlobalInfrastructureProvider | Kind::InfrastructureProvider => json!({
            "type": "im", "im": {"url": "http://im", "token": "secret"},
        }),
        Kind::GlobalCloud | Kind::Cloud => json!({
            "type": "openstack",
            "openstack": {
                "url": "http://keystone",
                "auth": {"type": "password", "password": {
                    "user": {"username": "u", "password": "secret"}, "project": {"name": "p"},
                }},
                "infrastructure_provider": {"name": "im"},
            },
        }),
        Kind::Application => json!({
            "manifest": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}}],
            "constraints": {"cluster": {"labels": ["location is DE"]}},
            "backoff": "2",
        }),
        Kind::Cluster => json!({
            "kubeconfig": {
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": "https://k"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            },
            "constraints": {"cloud": {}},
            "metrics": [{"name": "latency", "weight": 0.5}],
        }),
        Kind::Project => json!({
            "url": "http://keystone",
            "auth": {"type": "password", "password": {"user": {"id": "u", "password": "secret"}, "project": {"id": "p"}}},
            "template": "t",
        }),
        Kind::MagnumCluster => json!({"node_count": 3}),
    };
    json!({"api": kind.api().name(), "kind": kind.name(), "metadata": {"name": name}, "spec": spec})
}
