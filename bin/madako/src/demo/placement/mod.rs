//! Placement in the demo: clusters with changing metrics, and applications that move to the best cluster.
//!
//! Shows bindings and moves with their reasons. Like any client, the demo creates resources and sets clusters offline
//! and online through the service's own API; the metrics come from a simulated Prometheus over HTTP. The demo plays the
//! cluster observer: it reports whether clusters are online.
//!
//! Guarantees: metrics depend on the seed and the time alone; the choice of a cluster that goes offline also depends on
//! the bindings. A request to an API whose actor was just killed is repeated.

mod api;
pub(crate) mod decision_line;
mod landscape;
mod outages;
mod scene;

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{RandomWalkMetric, SimulatedPrometheus};
use madako_http::placement::Authorization;
use madako_protocol::feed::Task;
use madako_supervisor::config::Placement;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

pub(crate) use api::DemoApi;
pub(crate) use landscape::{BoundApplication, ClusterView, PlacementOverview};

/// Minimum time that an application stays (60 s by default): short, so that the user sees moves.
pub(crate) const RESCHEDULE_AFTER: Duration = Duration::from_secs(15);
/// Time between metrics rounds (15 s by default).
pub(crate) const METRICS_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of reads of the stored resources.
const POLL: Duration = Duration::from_millis(500);
/// Buffered lines: outages are a minute apart.
const OUTAGE_BACKLOG: usize = 16;
/// User of all requests. Krake's clients use the name as the default namespace.
pub(crate) const USER: &str = "system:admin";

/// Placement settings of the demo: every client on loopback has full access, and times are short.
pub(crate) fn placement_settings() -> Placement {
    let mut placement = Placement::default();
    placement.api.settings.authorization = Authorization::AlwaysAllow;
    placement.api.authentication.fixed = Some(USER.to_owned());
    placement.scheduler.reschedule_after = RESCHEDULE_AFTER;
    placement.metrics.interval = METRICS_INTERVAL;
    placement
}

pub(crate) fn simulated_metrics() -> Vec<RandomWalkMetric> {
    scene::simulated_metrics()
}

/// The running placement; its drop ends the tasks.
pub(crate) struct PlacementDemo {
    overview: watch::Receiver<Arc<PlacementOverview>>,
    outage_lines: mpsc::Receiver<String>,
    _tasks: [Task; 2],
}

impl PlacementDemo {
    /// Creates all resources, with metrics from `prometheus_url`, and starts the tasks.
    ///
    /// # Errors
    /// The API refused something, or does not answer.
    pub(crate) async fn start(
        api: DemoApi,
        prometheus: SimulatedPrometheus,
        prometheus_url: &str,
        seed: u64,
    ) -> anyhow::Result<Self> {
        scene::install(&api, prometheus_url).await?;
        let api = Arc::new(api);
        let (show, overview) = watch::channel(Arc::default());
        let (say, outage_lines) = mpsc::channel(OUTAGE_BACKLOG);
        let look = Task::start(poll_api(Arc::clone(&api), prometheus, show));
        let outages = Task::start(outages::run(api, seed, say));
        Ok(Self { overview, outage_lines, _tasks: [look, outages] })
    }

    pub(crate) fn current_landscape(&self) -> Arc<PlacementOverview> {
        Arc::clone(&self.overview.borrow())
    }

    /// The next line about an outage. Cancel safe.
    pub(crate) async fn next_outage_line(&mut self) -> String {
        match self.outage_lines.recv().await {
            Some(line) => line,
            // No line will follow.
            None => std::future::pending().await,
        }
    }
}

/// Reads the stored resources at an interval.
async fn poll_api(
    api: Arc<DemoApi>,
    prometheus: SimulatedPrometheus,
    show: watch::Sender<Arc<PlacementOverview>>,
) {
    let mut looks = tokio::time::interval(POLL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let overview =
            async { Ok::<_, api::ApiError>((api.list("clusters").await?, api.list("applications").await?)) };
        match overview.await {
            Ok((clusters, applications)) => {
                let landscape = PlacementOverview::from_resources(
                    &clusters,
                    &applications,
                    &prometheus.answered_values(),
                );
                show.send_replace(Arc::new(landscape));
            }
            // The demo may have killed the API's actor: the last contents stay.
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the state of placement cannot be read"
                );
            }
        }
    }
}
