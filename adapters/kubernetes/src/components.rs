//! The components of Kubernetes on the nodes: the port [`Components`].
//!
//! Each API server is asked at its own address, with a client certificate of the group `system:masters`, which is issued
//! once a day. The other components answer at their health endpoints.

mod kinds;
mod leases;
mod objects;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::authority::Authority;
use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::deprecated_api::DeprecatedApi;
use madako_protocol::authorities::{Authorities, CertificateRequest, IssuedCertificate, Usage};
use madako_protocol::components::Components;
use madako_protocol::kubernetes::{Kubernetes as _, KubernetesError};
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::Instant;

use self::kinds::KnownKinds;
use crate::access::ApiServerAccess;
use crate::api::{ApiServer, ConnectError, Limits};
use crate::exchange::{self, Call, RequestDeadline, ServerClient};
use crate::limits::{
    CERTIFICATE, CERTIFICATE_AGE, CHECK_DEADLINE, MAX_CHECK_BYTES, MAX_METRICS_BYTES, METRICS_DEADLINE,
    RENEWAL_PAUSE, WRITE_DEADLINE,
};
use crate::node_watch::WatchedNodes;
use crate::{answer, convert};

/// CKE's user and group for its own requests.
const USER: &str = "admin";
const GROUP: &str = "system:masters";

/// Components with certificates of a cluster's authorities. A kubeconfig may name the API server for the rest.
pub struct NodeComponents {
    authorities: Arc<dyn Authorities>,
    ports: Ports,
    /// Answers in place of all API servers of the control plane, except about their own state.
    fixed: Option<Arc<ApiServer>>,
    /// Outlives each certificate.
    nodes: Arc<WatchedNodes>,
    present: tokio::sync::Mutex<Option<CurrentSession>>,
}

/// The port of each component's health endpoint.
type Ports = fn(Component) -> u16;

struct CurrentSession {
    session: Arc<AuthenticatedConnections>,
    /// The time of the next certificate.
    renew_at: Instant,
}

/// Connections that share a client certificate.
struct AuthenticatedConnections {
    port: u16,
    trusted: String,
    issued: IssuedCertificate,
    made: Instant,
    /// Reaches any server, for health checks.
    checks: ServerClient,
    servers: Mutex<BTreeMap<String, Arc<ApiServer>>>,
    /// Kinds by group and version, as discovery reported them.
    kinds: Mutex<KnownKinds>,
    nodes: Arc<WatchedNodes>,
}

fn unusable_answer(what: &str, why: impl ToString) -> KubernetesError {
    answer::unavailable_server(what, &why.to_string())
}

impl NodeComponents {
    /// `seed` is that of the jitter of a watch's back-off.
    #[must_use]
    pub fn new(authorities: Arc<dyn Authorities>, seed: u64) -> Self {
        Self::with_ports(authorities, Component::health_port, seed)
    }

    /// Components at other ports than CKE's.
    #[must_use]
    pub fn with_ports(authorities: Arc<dyn Authorities>, ports: fn(Component) -> u16, seed: u64) -> Self {
        let nodes = Arc::new(WatchedNodes::new(seed));
        Self { authorities, ports, fixed: None, nodes, present: tokio::sync::Mutex::new(None) }
    }

    /// Lets one API server, with credentials of its own, answer in place of those of the control plane. Health checks, versions
    /// and measurements still ask each API server.
    ///
    /// # Errors
    /// The client cannot be created.
    pub fn with_server(mut self, access: &ApiServerAccess) -> Result<Self, ConnectError> {
        let server = ApiServer::with_nodes(access, Limits::default(), Arc::clone(&self.nodes))?;
        self.fixed = Some(Arc::new(server));
        Ok(self)
    }

    /// The session whose certificate is not about to end. Without an answer of the authorities, a certificate stays in use
    /// until its end.
    async fn open_session(&self, what: &str) -> Result<Arc<AuthenticatedConnections>, KubernetesError> {
        let mut present = self.present.lock().await;
        let now = Instant::now();
        if let Some(present) = present.as_ref().filter(|present| now < present.renew_at) {
            return Ok(Arc::clone(&present.session));
        }
        match self.create_session(what).await {
            Ok(session) => {
                let session = Arc::new(session);
                *present =
                    Some(CurrentSession { session: Arc::clone(&session), renew_at: now + CERTIFICATE_AGE });
                Ok(session)
            }
            Err(error) => {
                let valid = present
                    .as_mut()
                    .filter(|present| present.session.made.elapsed() + CHECK_DEADLINE < CERTIFICATE);
                let Some(present) = valid else { return Err(error) };
                present.renew_at = Instant::now() + RENEWAL_PAUSE;
                Ok(Arc::clone(&present.session))
            }
        }
    }

    async fn create_session(&self, what: &str) -> Result<AuthenticatedConnections, KubernetesError> {
        let made = Instant::now();
        let trusted = self.authorities.certificate(Authority::Kubernetes).await;
        let trusted = trusted.map_err(|error| unusable_answer(what, error))?;
        let request = CertificateRequest {
            authority: Authority::Kubernetes,
            common_name: USER.to_owned(),
            organization: GROUP.to_owned(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            usage: Usage::Client,
            validity: CERTIFICATE,
        };
        let issued = self.authorities.issue(&request).await.map_err(|error| unusable_answer(what, error))?;
        let port = (self.ports)(Component::ApiServer);
        let access =
            node_access("localhost", port, &trusted, &issued).map_err(|why| unusable_answer(what, why))?;
        let checks = exchange::create_client(&access, MAX_CHECK_BYTES, false);
        let checks = checks.map_err(|_| unusable_answer(what, "the client cannot be created"))?;
        Ok(AuthenticatedConnections {
            port,
            trusted,
            issued,
            made,
            checks,
            servers: Mutex::default(),
            kinds: Mutex::default(),
            nodes: Arc::clone(&self.nodes),
        })
    }

    /// The client of the API server on a node.
    pub(crate) async fn connect_server(
        &self,
        what: &str,
        address: &str,
    ) -> Result<Arc<ApiServer>, KubernetesError> {
        self.open_session(what).await?.connect_server(what, address)
    }

    /// Asks API servers one after the other until one answers. A refusal is an answer, unless the server refuses for a state of its
    /// own.
    async fn ask_any_server<R, F>(
        &self,
        what: &str,
        servers: &[String],
        ask: impl Fn(Arc<ApiServer>) -> F,
    ) -> Result<R, KubernetesError>
    where
        F: Future<Output = Result<R, KubernetesError>>,
    {
        if let Some(server) = &self.fixed {
            return ask(Arc::clone(server)).await;
        }
        let session = self.open_session(what).await?;
        let mut failed = unusable_answer(what, "no API server is known");
        for address in servers {
            match ask(session.connect_server(what, address)?).await {
                Err(error) if answer::is_of_server(&error) => failed = error,
                answered => return answered,
            }
        }
        Err(failed)
    }
}

/// Ends a request that may take [`WRITE_DEADLINE`] at all API servers together: a webhook that does not answer at one does not
/// answer at the next one.
async fn limit_write<R>(
    what: &str,
    sent: impl Future<Output = Result<R, KubernetesError>>,
) -> Result<R, KubernetesError> {
    match tokio::time::timeout(WRITE_DEADLINE, sent).await {
        Ok(answered) => answered,
        Err(_) => Err(unusable_answer(what, format!("no API server answered within {WRITE_DEADLINE:?}"))),
    }
}

fn node_access(
    address: &str,
    port: u16,
    trusted: &str,
    issued: &IssuedCertificate,
) -> Result<ApiServerAccess, &'static str> {
    let url = format!("https://{address}:{port}");
    ApiServerAccess::with_certificate(&url, trusted, &issued.certificate, issued.private_key.reveal())
}

impl AuthenticatedConnections {
    fn connect_server(&self, what: &str, address: &str) -> Result<Arc<ApiServer>, KubernetesError> {
        // No code panics while it holds the lock, and the map is consistent at any moment.
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(address) {
            return Ok(Arc::clone(server));
        }
        let access = node_access(address, self.port, &self.trusted, &self.issued)
            .map_err(|why| unusable_answer(what, why))?;
        // A server that does not answer costs its successor little time.
        let limits = Limits { read_deadline: CHECK_DEADLINE, ..Limits::default() };
        let server = ApiServer::with_nodes(&access, limits, Arc::clone(&self.nodes));
        let server = Arc::new(server.map_err(|error| unusable_answer(what, error))?);
        servers.insert(address.to_owned(), Arc::clone(&server));
        Ok(server)
    }
}

/// The paths of a health check. An API server that is ready also reads from etcd.
fn health_paths(component: Component) -> &'static [&'static str] {
    match component {
        Component::ApiServer => &[READY, NAMESPACES],
        _ => &["healthz"],
    }
}

/// A small list that is read from etcd.
const NAMESPACES: &str = "api/v1/namespaces?limit=1";

/// An API server without this answer is starting or ending.
const READY: &str = "readyz";

#[async_trait]
impl Components for NodeComponents {
    async fn check(&self, component: Component, address: &str) -> Result<(), KubernetesError> {
        let what = format!("health of {component} on {address}");
        let session = self.open_session(&what).await?;
        let call = Call { name: "health", what: &what };
        let until = RequestDeadline::after(CHECK_DEADLINE);
        let scheme = if component.serves_tls() { "https" } else { "http" };
        let port = (self.ports)(component);
        for path in health_paths(component) {
            let request = http::Request::get(format!("{scheme}://{address}:{port}/{path}")).body(Vec::new());
            let request = request.map_err(|_| unusable_answer(&what, "its address is not part of a URL"))?;
            let text = exchange::send_request(&session.checks, call, Ok(request), until).await?;
            if path.ends_with('z') && text.trim() != "ok" {
                return Err(answer::malformed_answer(&what, "it is not `ok`"));
            }
        }
        Ok(())
    }

    async fn time_list(&self, address: &str) -> Result<Duration, KubernetesError> {
        let what = format!("list of namespaces at {address}");
        // A session may be made first, which shows nothing about the server.
        let session = self.open_session(&what).await?;
        let call = Call { name: "list", what: &what };
        let (began, until) = (Instant::now(), RequestDeadline::after(CHECK_DEADLINE));
        let request = http::Request::get(format!("https://{address}:{}/{NAMESPACES}", session.port));
        let request = request
            .body(Vec::new())
            .map_err(|_| unusable_answer(&what, "its address is not part of a URL"))?;
        match exchange::send_request(&session.checks, call, Ok(request), until).await {
            Err(KubernetesError::Unavailable { .. }) if began.elapsed() >= CHECK_DEADLINE => {}
            answered => drop(answered?),
        }
        let fixed = self.fixed.as_ref().is_some_and(|server| server.client.take_refused());
        if session.connect_server(&what, address)?.client.take_refused() || fixed {
            let why = "it refused another request since the last list".to_owned();
            return Err(KubernetesError::Refused { what, status: 429, why });
        }
        Ok(began.elapsed())
    }

    async fn deprecated_apis(&self, address: &str) -> Result<BTreeSet<DeprecatedApi>, KubernetesError> {
        let what = format!("metrics of the API server on {address}");
        let session = self.open_session(&what).await?;
        let access = node_access(address, session.port, &session.trusted, &session.issued)
            .map_err(|why| unusable_answer(&what, why))?;
        // Other requests have much smaller answers.
        let client = exchange::create_client(&access, MAX_METRICS_BYTES, true)
            .map_err(|_| unusable_answer(&what, "the client cannot be created"))?;
        let call = Call { name: "metrics", what: &what };
        let request = http::Request::get("/metrics").body(Vec::new());
        let request = request.map_err(|_| unusable_answer(&what, "its path is not part of a URL"))?;
        let until = RequestDeadline::after(METRICS_DEADLINE);
        let text = exchange::send_request(&client, call, Ok(request), until).await?;
        Ok(DeprecatedApi::read_metrics(&text))
    }

    async fn leader(
        &self,
        component: Component,
        servers: &[String],
    ) -> Result<Option<String>, KubernetesError> {
        let what = format!("lease of {component}");
        self.ask_any_server(
            &what,
            servers,
            |server| async move { leases::lease_holder(&server, component).await },
        )
        .await
    }

    async fn restarted_containers(
        &self,
        servers: &[String],
        node: &str,
        since: OffsetDateTime,
    ) -> Result<Vec<String>, KubernetesError> {
        let what = format!("restarted containers on node {node}");
        let ask = |server: Arc<ApiServer>| async move {
            let pods = server.cached_pods(node).await?;
            Ok(pods.iter().flat_map(|pod| convert::restarted_containers(pod, since)).collect())
        };
        self.ask_any_server(&what, servers, ask).await
    }

    async fn read_taints(
        &self,
        servers: &[String],
        node: &str,
    ) -> Result<Option<Vec<Taint>>, KubernetesError> {
        let what = format!("taints of node {node}");
        let ask =
            |server: Arc<ApiServer>| async move { Ok(server.node(node).await?.map(|found| found.taints)) };
        self.ask_any_server(&what, servers, ask).await
    }

    async fn add_taints(
        &self,
        permit: &Permit,
        servers: &[String],
        node: &str,
        taints: &[Taint],
    ) -> Result<(), KubernetesError> {
        permit.check(Instant::now())?;
        let what = format!("taints of node {node}");
        if !convert::is_name(node) {
            return Err(KubernetesError::NotFound { what });
        }
        let add =
            |server: Arc<ApiServer>| async move { leases::add_taints(&server, permit, node, taints).await };
        limit_write(&what, self.ask_any_server(&what, servers, add)).await
    }
}
