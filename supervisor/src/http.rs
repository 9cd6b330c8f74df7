//! The HTTP actors of every instance, leader or not: health, version and metrics, and placement's API, on the same or a
//! separate port.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use madako_http::tls::{Tls, TlsPeer};
use madako_http::{
    BindError, Limits, MetricsScope, Router, bind_listener, ignore_client_certificate, router, router_before,
    serve,
};
use madako_operation_runner::page::{Mode, OpsPage};
use madako_protocol::feed::Task;
use madako_protocol::store::Store;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::instance::InstanceView;
pub use crate::predecessor::LeaseWait;
use crate::telemetry::is_of_a_leader;
use crate::tree::ChildSpec;

/// Id in the tree of the server of the pages.
pub const HTTP: &str = "http";
/// Id in the tree of the server of placement's API on a separate port.
pub const PLACEMENT_API: &str = "placement-api";

/// An empty prefix: reading it shows that the store answers.
const NOTHING: &str = "madako/health";

pub type MetricsText = Arc<dyn Fn(MetricsScope) -> String + Send + Sync>;

#[derive(Clone)]
pub struct HttpSettings {
    pub store: Arc<dyn Store>,
    /// A slower read of the store counts as unhealthy (CKE: the `timeout` of its configuration).
    pub timeout: Duration,
    pub metrics: MetricsText,
    pub version: &'static str,
    /// The wait for the lease of a killed process; without an embedded store there is none.
    pub lease_wait: LeaseWait,
    /// True if `operations.mode` is not off.
    pub operates: bool,
}

/// A listener that is bound before the tree starts, so that a taken address fails the start. A restart binds the same
/// address again.
#[derive(Clone)]
pub struct BoundListener {
    address: SocketAddr,
    first: Arc<Mutex<Option<TcpListener>>>,
}

impl BoundListener {
    /// Binds an address; `:PORT` means every address, as in Go.
    ///
    /// # Errors
    /// The address is taken, or is none of this machine's.
    pub async fn new(address: &str) -> Result<Self, BindError> {
        let listener = bind_listener(address).await?;
        let bound =
            listener.local_addr().map_err(|source| BindError { address: address.to_owned(), source })?;
        Ok(Self { address: bound, first: Arc::new(Mutex::new(Some(listener))) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    async fn take_or_rebind(&self) -> Result<TcpListener, BindError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(listener) => Ok(listener),
            None => bind_listener(&self.address.to_string()).await,
        }
    }
}

#[derive(Clone)]
pub struct ServedRouter {
    pub bound: BoundListener,
    pub router: Router,
    pub limits: Limits,
    /// `None`: plain HTTP.
    pub tls: Option<Tls>,
}

/// The pages of an instance, followed by the API if it shares the port.
pub fn page_routes(settings: HttpSettings, view: &InstanceView, api: Option<Router>) -> Router {
    let health_deadline = settings.timeout;
    let pages = Arc::new(HttpPages { settings, view: view.clone() }) as Arc<dyn madako_http::Service>;
    match api {
        Some(api) => router_before(api, pages, health_deadline),
        None => router(pages, health_deadline),
    }
}

/// A child that serves until its instance stops.
#[must_use]
pub fn http_child(instance: &str, id: &'static str, served: ServedRouter, view: &InstanceView) -> ChildSpec {
    let closing = view.closing.clone();
    ChildSpec::for_actor(instance, id, move || (Http, (served.clone(), closing.clone())))
}

struct Http;

/// The server's task, and its shutdown signal.
struct RunningServer {
    shutdown: watch::Sender<bool>,
    /// Set when the instance stops: the server shuts down.
    stopped: watch::Receiver<bool>,
    done: Option<tokio::sync::oneshot::Receiver<()>>,
    _task: Task,
}

#[derive(Debug)]
struct ServerEnded;

impl Actor for Http {
    type Msg = ServerEnded;
    type State = RunningServer;
    type Arguments = (ServedRouter, watch::Receiver<bool>);

    async fn pre_start(
        &self,
        myself: ActorRef<ServerEnded>,
        (ServedRouter { bound, router, limits, tls }, mut closing): (ServedRouter, watch::Receiver<bool>),
    ) -> Result<RunningServer, ActorProcessingErr> {
        let listener = bound.take_or_rebind().await?;
        let (shutdown, mut shutdown_requested) = watch::channel(false);
        let stopped = closing.clone();
        let (ended, done) = tokio::sync::oneshot::channel();
        let task = Task::start(async move {
            let stop = async move {
                let closed = async {
                    // An instance that was dropped without a stop keeps running.
                    if closing.wait_for(|closing| *closing).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    biased;
                    () = closed => {}
                    // An error means that the actor is gone.
                    _ = shutdown_requested.wait_for(|shutdown_requested| *shutdown_requested) => {}
                }
            };
            match tls {
                None => serve(listener, router, limits, ignore_client_certificate, stop).await,
                Some(tls) => {
                    let identify = |peer: &TlsPeer| peer.certificate().cloned();
                    serve(tls.wrap_listener(listener), router, limits, identify, stop).await
                }
            };
            // The waiter may have given up, and a stopping actor accepts no messages.
            let _ = ended.send(());
            let _ = myself.cast(ServerEnded);
        });
        Ok(RunningServer { shutdown, stopped, done: Some(done), _task: task })
    }

    async fn handle(
        &self,
        _: ActorRef<ServerEnded>,
        ServerEnded: ServerEnded,
        serving: &mut RunningServer,
    ) -> Result<(), ActorProcessingErr> {
        if *serving.stopped.borrow() {
            return Ok(());
        }
        Err("the HTTP server ended".into())
    }

    async fn post_stop(
        &self,
        _: ActorRef<ServerEnded>,
        serving: &mut RunningServer,
    ) -> Result<(), ActorProcessingErr> {
        serving.shutdown.send_replace(true);
        if let Some(done) = serving.done.take() {
            // The server's drain time bounds this; an error means that it has ended already.
            let _ = done.await;
        }
        Ok(())
    }
}

struct HttpPages {
    settings: HttpSettings,
    view: InstanceView,
}

#[async_trait]
impl madako_http::Service for HttpPages {
    async fn healthy(&self) -> bool {
        if *self.view.melted.borrow() {
            return false;
        }
        match self.settings.store.list(NOTHING).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "the page /health answers that the service is unhealthy: etcd did not answer a list");
                false
            }
        }
    }

    fn waits_for(&self) -> Option<String> {
        self.settings.lease_wait.describe()
    }

    fn version(&self) -> String {
        self.settings.version.to_owned()
    }

    fn metrics(&self, scope: MetricsScope) -> String {
        let text = (self.settings.metrics)(scope);
        let leads = self.view.reign.borrow().is_some();
        let disabled = self.view.state.newest().is_some_and(|state| state.disabled);
        current_metrics(&text, leads, disabled)
    }

    fn operations(&self) -> Result<String, &'static str> {
        render("/ops", &*self.current_page()?)
    }

    fn nodes(&self) -> Result<String, &'static str> {
        render("/nodes", &*self.current_page()?.stories)
    }

    fn reboots(&self) -> Result<String, &'static str> {
        let epoch = self.view.reign.borrow().as_ref().map(|epoch| epoch.number);
        let epoch = epoch.ok_or("this instance does not lead")?;
        // A page of an earlier epoch is outdated.
        match self.view.reboots.newest().filter(|page| page.epoch == epoch) {
            Some(page) => render("/reboots", &*page),
            None => Err("this leader has not decided on the reboot queue yet"),
        }
    }
}

impl HttpPages {
    /// The page of the operation runner. A former leader has none.
    fn current_page(&self) -> Result<Arc<OpsPage>, &'static str> {
        let leads = self.view.reign.borrow().is_some();
        match self.view.operations.newest() {
            Some(page) if page.mode == Mode::Observe || leads => Ok(page),
            _ if !self.settings.operates => {
                Err("operations.mode is off, so that this instance connects to no node")
            }
            Some(_) => Err("this instance does not lead"),
            None if !leads => Err("this instance does not lead"),
            None if self.view.state.newest().is_none_or(|state| state.cluster.is_none()) => {
                Err("no cluster is stored, so that there is no node")
            }
            None => Err("the states of the nodes have not been collected yet"),
        }
    }
}

fn render(name: &str, page: &impl serde::Serialize) -> Result<String, &'static str> {
    match serde_json::to_string(page) {
        Ok(text) => Ok(text),
        Err(error) => {
            tracing::error!(%error, "cannot render the page {name}");
            Err("the page cannot be written as JSON; the log has the reason")
        }
    }
}

/// Removes outdated metrics: after the loss of leadership, the last values of a leader must not appear as current. CKE shows all its metrics except `leader` only while it leads, and those of the sabakan
/// integration only while that is enabled.
fn current_metrics(text: &str, leads: bool, disabled: bool) -> String {
    let kept = |line: &&str| {
        let name = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
        let name = name.split([' ', '{']).next().unwrap_or(name);
        if name.starts_with("cke_") && !name.starts_with("cke_leader") {
            return leads && !(disabled && name.starts_with("cke_sabakan_"));
        }
        leads || !is_of_a_leader(name)
    };
    let mut text: String = text.lines().filter(kept).collect::<Vec<_>>().join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outdated_metrics_are_not_shown() {
        let leader = "# HELP cke_leader 1 while it leads\n# TYPE cke_leader gauge\ncke_leader 0\n\n";
        let phase = "cke_operation_phase{phase=\"completed\"} 1\n";
        let workers = "# HELP cke_sabakan_workers Workers\n# TYPE cke_sabakan_workers gauge\n\
                       cke_sabakan_workers{role=\"cs\"} 3\n";
        let observed = "# TYPE madako_observation_machines gauge\nmadako_observation_machines 3\n";
        let ours = "madako_leader 0\nmadako_plans_total{action=\"none\"} 7\n";
        let text = format!("{leader}{phase}{workers}{observed}{ours}");
        assert_eq!(current_metrics(&text, true, false), text);
        assert_eq!(current_metrics(&text, true, true), format!("{leader}{phase}{observed}{ours}"));
        assert_eq!(current_metrics(&text, false, false), format!("{leader}{ours}"));
    }
}
