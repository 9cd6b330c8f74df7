//! Measures the costs of telemetry: an idle service with telemetry and one without it, side by side.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::bindings::measure_bindings;
use super::http::{Connection, build_request};
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::processes::{core_time, free_port};
use crate::scene::Scene;
use crate::table::{Table, format_time};

/// Duration of the measurement.
const WATCHED: Duration = Duration::from_secs(300);
/// Two passes of placement and two polls, which finish the work of the start.
const SETTLING: Duration = Duration::from_secs(150);
/// Interval of Prometheus' scrapes.
const SCRAPES: Duration = Duration::from_secs(15);
const MACHINES: u32 = 1_000;
const WORKERS: usize = 900;
const APPLICATIONS: usize = 10_000;
/// Share of a core.
const AIM: f64 = 0.03;

/// A service with its registry.
struct IdleService {
    stage: PlacementFixture,
    _scene: Scene,
    /// Address of its metrics.
    http: SocketAddr,
}

impl IdleService {
    async fn start(more: &[&str]) -> anyhow::Result<Self> {
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let address = http.to_string();
        let flags = ["--http", &address, "--interval", "1m", "--session-ttl", "60s"];
        let settings = Settings { on: StoreKind::Embedded, rbac: false, controllers: true };
        let stage = PlacementFixture::serving(settings, &[&flags, more].concat()).await?;
        let mut scene = Scene::beside_etcd(&stage.endpoint, MACHINES).await?;
        let installed = scene.store_settings(WORKERS).await;
        stage.explain(installed)?;
        measure_bindings(&stage, APPLICATIONS).await?;
        Ok(Self { stage, _scene: scene, http })
    }

    fn core_time(&self) -> anyhow::Result<Duration> {
        core_time(self.stage.madako.pid)
    }

    /// Requests the metrics as Prometheus does, until an error. `size` gets the bytes of the last answer.
    async fn scrape_metrics(&self, size: &mut usize) -> anyhow::Result<()> {
        let mut ticks = interval(SCRAPES);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let question = build_request("GET", "/metrics", "");
        loop {
            ticks.tick().await;
            let mut connection = Connection::open(self.http).await?;
            *size = connection.expect(&question).await?.len();
        }
    }
}

pub(crate) async fn measure_at_rest(table: &mut Table) -> anyhow::Result<()> {
    let with = IdleService::start(&[]).await?;
    let without = IdleService::start(&["--without-telemetry", "--loglevel", "critical"]).await?;
    sleep(SETTLING).await;
    let before = (with.core_time()?, without.core_time()?);
    let began = Instant::now();
    let mut size = 0;
    tokio::select! {
        biased;
        failed = with.scrape_metrics(&mut size) => failed?,
        () = sleep(WATCHED) => {}
    }
    let took = began.elapsed();
    let (with, without) = (with.core_time()? - before.0, without.core_time()? - before.1);
    let share = (with.as_secs_f64() - without.as_secs_f64()) / took.as_secs_f64();
    table.add_row(
        format!(
            "telemetry at rest, of a core: {MACHINES} machines, {APPLICATIONS} applications, \
             embedded store, scraped every {SCRAPES:?} for {took:.0?}"
        ),
        format!("{:.0} %", 100.0 * AIM),
        format!(
            "{:.2} %: {} with telemetry, {} without; {} KiB a scrape",
            100.0 * share,
            format_time(with),
            format_time(without),
            size / 1024
        ),
        Some(share < AIM),
    );
    Ok(())
}
