//! Measures the time from the creation of an application to its binding, by a watch over HTTP.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use etcd_client::{Client, Txn, TxnOp};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::http::{Connection, LineStream, build_request};
use super::resources::{NAMESPACE, application_json, applications_path, cluster_name};
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::processes::{PATIENCE, core_time};
use crate::table::{Table, Times, format_time};

const CLUSTERS: usize = 40;
const CREATED: usize = 200;
const SOON: Duration = Duration::from_secs(1);
/// Repetitions of a measurement.
const TRIES: usize = 5;
const WAITING: usize = 10_000;
/// Clusters that come online while many applications wait.
const MANY_CLUSTERS: usize = 100;
/// Minimum placements a second.
const AIM: f64 = 3_000.0;

pub(super) async fn measure_all_bindings(table: &mut Table) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        times.push(measure_creations().await?);
    }
    let times: Times = times.into_iter().collect();
    let name = format!(
        "bindings of {CREATED} created applications on {CLUSTERS} clusters, metrics defined just before, \
         embedded store: from the last create to the last binding"
    );
    table.add_times(name, SOON, &times);
    for on in [StoreKind::Embedded, StoreKind::Etcd] {
        measure_waiting(on, table).await?;
    }
    Ok(())
}

/// Five clients create applications in sequence, right after the metrics and the clusters.
async fn measure_creations() -> anyhow::Result<Duration> {
    let stage =
        PlacementFixture::start(Settings { on: StoreKind::Embedded, rbac: false, controllers: true }).await?;
    measure_bindings(&stage, CREATED).await
}

/// Creates clusters, and then applications with five clients. Returns the time from the last create until all are
/// bound.
pub(super) async fn measure_bindings(stage: &PlacementFixture, many: usize) -> anyhow::Result<Duration> {
    let bound = BoundApplications::follow(stage).await?;
    // Read concurrently: the service drops a watch that is not read.
    let bound = tokio::spawn(async move { bound.wait_until_bound(many).await });
    stage.create_metrics_and_clusters(CLUSTERS).await?;
    stage.set_online(CLUSTERS).await?;
    let path = applications_path();
    let client = async |mut connection: Connection, share: usize| {
        for number in (share..many).step_by(5) {
            let body = application_json(&format!("application-{number}")).to_string();
            connection.expect(&build_request("POST", &path, &body)).await?;
        }
        anyhow::Ok(())
    };
    let mut connections = Vec::new();
    for _ in 0..5 {
        connections.push(stage.connect().await?);
    }
    let all = connections.into_iter().enumerate().map(|(share, connection)| client(connection, share));
    futures::future::try_join_all(all).await?;
    let last = Instant::now();
    let (end, _) = stage.explain(bound.await?)?;
    Ok(end.saturating_duration_since(last))
}

/// Many applications wait; then clusters come online.
async fn measure_waiting(on: StoreKind, table: &mut Table) -> anyhow::Result<()> {
    let stage = PlacementFixture::start(Settings { on, rbac: false, controllers: true }).await?;
    stage.create_metrics_and_clusters(MANY_CLUSTERS).await?;
    let mut refused = BindingFollower::open(&stage).await?;
    let mut connection = stage.connect().await?;
    let path = applications_path();
    // A waiting application is not evaluated again before a change.
    let degraded = |line: &str| line.contains("\"state\": \"DEGRADED\"");
    let settled = tokio::spawn(async move { refused.wait_until(WAITING, degraded).await });
    for number in 0..WAITING {
        let body = application_json(&format!("application-{number}")).to_string();
        connection.expect(&build_request("POST", &path, &body)).await?;
    }
    stage.explain(settled.await?.context("not every application was found to have to wait"))?;
    // The earlier connection may have been idle for too long.
    let mut connection = stage.connect().await?;
    let bound = BoundApplications::follow(&stage).await?;
    // All clusters at once, as another writer may do.
    let mut store = Client::connect([&stage.endpoint], None).await?;
    let mut online = Vec::new();
    for number in 0..MANY_CLUSTERS {
        let path = format!("/kubernetes/namespaces/{NAMESPACE}/clusters/{}", cluster_name(number));
        let mut cluster: Value =
            serde_json::from_slice(connection.expect(&build_request("GET", &path, "")).await?)?;
        cluster["status"]["state"] = "ONLINE".into();
        let key = format!("/kubernetes/clusters/{NAMESPACE}/{}", cluster_name(number));
        online.push(TxnOp::put(key, cluster.to_string(), None));
    }
    let spent = core_time(stage.madako.pid)?;
    let began = Instant::now();
    store.txn(Txn::new().and_then(online)).await?;
    let (end, clusters) = stage.explain(bound.wait_until_bound(WAITING).await)?;
    let spent = core_time(stage.madako.pid)? - spent;
    let took = end - began;
    let rate = WAITING as f64 / took.as_secs_f64();
    table.add_row(
        format!(
            "placements a second, {WAITING} applications wait and {MANY_CLUSTERS} clusters come online, {}",
            on.name()
        ),
        format!("{AIM} /s"),
        format!(
            "{rate:.0} /s, all in {} on {clusters} clusters; of a core: madako {}",
            format_time(took),
            format_time(spent)
        ),
        Some(rate >= AIM),
    );
    Ok(())
}

/// A watch of the applications.
struct BindingFollower(LineStream);

impl BindingFollower {
    async fn open(stage: &PlacementFixture) -> anyhow::Result<Self> {
        let path = format!("{}?watch&heartbeat=0", applications_path());
        Ok(Self(stage.connect().await?.follow(&path).await?))
    }

    /// Waits until `holds` was true for this many applications; returns their last lines.
    async fn wait_until(
        &mut self,
        many: usize,
        holds: impl Fn(&str) -> bool,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let mut observed = BTreeMap::new();
        while observed.len() < many {
            let line = timeout(PATIENCE, self.0.next()).await;
            let line = line.with_context(|| format!("{} of {many} after a long wait", observed.len()))??;
            let line = std::str::from_utf8(line)?;
            if holds(line) {
                let name = text_between(line, "\"name\": \"").context("a line without a name")?;
                observed.insert(name.to_owned(), line.to_owned());
            }
        }
        Ok(observed)
    }
}

struct BoundApplications(BindingFollower);

impl BoundApplications {
    async fn follow(stage: &PlacementFixture) -> anyhow::Result<Self> {
        Ok(Self(BindingFollower::open(stage).await?))
    }

    /// Waits until this many are bound; returns the time and the number of clusters.
    async fn wait_until_bound(mut self, many: usize) -> anyhow::Result<(Instant, usize)> {
        let lines = self.0.wait_until(many, |line| line.contains("\"scheduled_to\": {")).await?;
        let end = Instant::now();
        let clusters: std::collections::BTreeSet<_> = lines
            .values()
            .filter_map(|line| text_between(line.split_once("\"scheduled_to\": {")?.1, "\"name\": \""))
            .collect();
        Ok((end, clusters.len()))
    }
}

/// The text between a mark and the next quotation mark.
fn text_between<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    Some(line.split_once(mark)?.1.split_once('"')?.0)
}
