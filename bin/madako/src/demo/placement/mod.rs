//! Placement in the demo: clusters whose metrics wander, and applications that go where they fit best.
//!
//! For: seeing bindings and moves, and why. All of it goes the way that anybody would take: resources are created, and
//! clusters go offline and come back, by requests to the service's own API; the metrics come from a simulated Prometheus
//! over HTTP. The demo is what an observer of clusters will be: it says whether they are online.
//!
//! Guarantees: what metrics do depends on the seed and the time alone; which cluster goes offline also on what is where.
//! An API that does not answer, because its actor was just killed, is asked again.

mod api;
mod landscape;
mod outages;
mod scene;
pub(crate) mod tell;

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::{SimulatedPrometheus, Wandering};
use madako_http::placement::Authorization;
use madako_protocol::feed::Task;
use madako_supervisor::config::Placement;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

pub(crate) use api::Api;
pub(crate) use landscape::{Guest, Landscape, Place};

/// How long an application stays at least (60 s by default): moves are to be seen while one watches.
pub(crate) const RESCHEDULE_AFTER: Duration = Duration::from_secs(15);
/// Time between rounds of metrics (15 s by default).
pub(crate) const METRICS_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two looks at what is stored.
const LOOK: Duration = Duration::from_millis(500);
/// Lines that wait to be told: outages come a minute apart.
const UNTOLD: usize = 16;
/// Who everybody is. Krake's clients take the name for the namespace where none is given.
pub(crate) const USER: &str = "system:admin";

/// How the demo's service does placement: everybody on loopback may do everything, and time is short.
pub(crate) fn settings() -> Placement {
    let mut placement = Placement::default();
    placement.api.settings.authorization = Authorization::AlwaysAllow;
    placement.api.authentication.fixed = Some(USER.to_owned());
    placement.scheduler.reschedule_after = RESCHEDULE_AFTER;
    placement.metrics.interval = METRICS_INTERVAL;
    placement
}

/// The metrics that wander.
pub(crate) fn metrics() -> Vec<Wandering> {
    scene::metrics()
}

/// What goes on, as long as this is there.
pub(crate) struct Placing {
    seen: watch::Receiver<Arc<Landscape>>,
    told: mpsc::Receiver<String>,
    _tasks: [Task; 2],
}

impl Placing {
    /// Creates everything, asking for metrics at `prometheus_url`, and lets it go on from there.
    ///
    /// # Errors
    /// The API refused something, or does not answer.
    pub(crate) async fn start(
        api: Api,
        prometheus: SimulatedPrometheus,
        prometheus_url: &str,
        seed: u64,
    ) -> anyhow::Result<Self> {
        scene::install(&api, prometheus_url).await?;
        let api = Arc::new(api);
        let (show, seen) = watch::channel(Arc::default());
        let (say, told) = mpsc::channel(UNTOLD);
        let look = Task::start(look(Arc::clone(&api), prometheus, show));
        let outages = Task::start(outages::run(api, seed, say));
        Ok(Self { seen, told, _tasks: [look, outages] })
    }

    /// What was seen last.
    pub(crate) fn landscape(&self) -> Arc<Landscape> {
        Arc::clone(&self.seen.borrow())
    }

    /// What the demo does to clusters. May be cancelled without losing anything.
    pub(crate) async fn told(&mut self) -> String {
        match self.told.recv().await {
            Some(told) => told,
            // Nothing more will come.
            None => std::future::pending().await,
        }
    }
}

/// Looks at what is stored, again and again.
async fn look(api: Arc<Api>, prometheus: SimulatedPrometheus, show: watch::Sender<Arc<Landscape>>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let seen =
            async { Ok::<_, api::ApiError>((api.list("clusters").await?, api.list("applications").await?)) };
        match seen.await {
            Ok((clusters, applications)) => {
                let landscape = Landscape::of(&clusters, &applications, &prometheus.answered());
                show.send_replace(Arc::new(landscape));
            }
            // The demo may have killed who answers: what was seen last stays.
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "placement cannot be looked at");
            }
        }
    }
}
