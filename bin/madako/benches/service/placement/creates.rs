//! Measures the creations of applications a second, beside etcd's own puts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use etcd_client::Client;
use tokio::task::spawn_local;
use tokio::time::Instant;

use super::http::{Connection, build_request};
use super::load::{LoadResult, part_of_core, run_in_own_thread};
use super::resources::{application_json, applications_path};
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::processes::core_time;
use crate::table::{Table, Times};

const CLIENTS: usize = 20;
const CREATES: usize = 14_000;
/// Requests before the measurement: they open connections and allocate memory.
const WARM_UP: usize = 2_000;
/// Minimum creates a second.
const AIM: f64 = 3_500.0;

struct RequestRate {
    wall: Duration,
    times: Times,
}

impl RequestRate {
    fn a_second(&self) -> f64 {
        CREATES as f64 / self.wall.as_secs_f64()
    }
}

pub(super) async fn measure_all_creates(table: &mut Table) -> anyhow::Result<()> {
    for (on, rbac, controllers) in [
        (StoreKind::Etcd, false, false),
        (StoreKind::Etcd, true, false),
        (StoreKind::Etcd, false, true),
        (StoreKind::Embedded, false, false),
    ] {
        let stage = PlacementFixture::start(Settings { on, rbac, controllers }).await?;
        if on == StoreKind::Etcd && !rbac && !controllers {
            let endpoint = stage.endpoint.clone();
            let puts = run_in_own_thread(move || measure_puts(endpoint)).await?;
            add_row(table, "puts of such values, etcd alone".to_owned(), None, &puts, String::new());
        }
        if controllers {
            // Each application is bound as well, with one more write.
            stage.create_metrics_and_clusters(40).await?;
            stage.set_online(40).await?;
        }
        let before = cpu_time(&stage)?;
        let address = stage.address;
        let created = stage.explain(run_in_own_thread(move || measure_creates(address)).await)?;
        let rights = if rbac { ", with role lookups" } else { "" };
        let deciding = if controllers { ", while each application is bound" } else { "" };
        let name = format!("creating applications, {}{rights}{deciding}", on.name());
        let aim = (on == StoreKind::Etcd && !controllers).then_some(AIM);
        add_row(table, name, aim, &created, time_per_request(before, cpu_time(&stage)?, WARM_UP + CREATES));
    }
    Ok(())
}

/// CPU time of the service and of etcd.
fn cpu_time(stage: &PlacementFixture) -> anyhow::Result<(Duration, Duration)> {
    let etcd = stage.etcd.as_ref().map(|etcd| core_time(etcd.pid)).transpose()?;
    Ok((core_time(stage.madako.pid)?, etcd.unwrap_or_default()))
}

/// CPU time for one request.
fn time_per_request(before: (Duration, Duration), after: (Duration, Duration), requests: usize) -> String {
    let each = |before: Duration, after: Duration| {
        format!("{:.0} us", (after - before).as_secs_f64() * 1e6 / requests as f64)
    };
    let etcd = if after.1.is_zero() { String::new() } else { format!(", etcd {}", each(before.1, after.1)) };
    format!("; of a core each: madako {}{etcd}", each(before.0, after.0))
}

fn add_row(table: &mut Table, name: String, aim: Option<f64>, done: &LoadResult<RequestRate>, took: String) {
    let LoadResult { value: rate, core } = done;
    let generator = part_of_core(*core, rate.wall);
    let reached = aim.map(|aim| rate.a_second() >= aim);
    table.add_row(
        format!("{name}, {CLIENTS} clients"),
        aim.map_or_else(|| "-".to_owned(), |aim| format!("{aim} /s")),
        format!("{:.0} /s, {}; generator: {generator}{took}", rate.a_second(), rate.times.p99_and_maximum()),
        reached,
    );
}

async fn measure_creates(address: std::net::SocketAddr) -> anyhow::Result<RequestRate> {
    let path = applications_path();
    let body = |name: String| build_request("POST", &path, &application_json(&name).to_string());
    let requests: Vec<_> =
        (0..WARM_UP + CREATES).map(|number| body(format!("application-{number}"))).collect();
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(Connection::open(address).await?);
    }
    run_clients(connections, requests, async |connection: &mut Connection, request: &Vec<u8>| {
        connection.expect(request).await.map(drop)
    })
    .await
}

async fn measure_puts(endpoint: String) -> anyhow::Result<RequestRate> {
    let value = application_json("application").to_string();
    // A stored application also has the fields that clients omit.
    let value = format!("{value}{}", " ".repeat(1_700_usize.saturating_sub(value.len())));
    let requests: Vec<_> = (0..WARM_UP + CREATES).map(|number| format!("/bench/{number:08}")).collect();
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(Client::connect([&endpoint], None).await.context("etcd does not answer")?);
    }
    run_clients(connections, requests, async move |client: &mut Client, key: &String| {
        client.put(key.as_str(), value.as_str(), None).await?;
        Ok(())
    })
    .await
}

/// Each client sends its next request after the answer.
async fn run_clients<C: 'static, R: 'static>(
    connections: Vec<C>,
    requests: Vec<R>,
    ask: impl AsyncFn(&mut C, &R) -> anyhow::Result<()> + Clone + 'static,
) -> anyhow::Result<RequestRate> {
    let (requests, next) = (Rc::new(requests), Rc::new(Cell::new(0)));
    let began = Rc::new(Cell::new(Instant::now()));
    let clients: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            let (requests, next, began) = (Rc::clone(&requests), Rc::clone(&next), Rc::clone(&began));
            let ask = ask.clone();
            spawn_local(async move {
                let mut times = Vec::new();
                loop {
                    let number = next.get();
                    let Some(request) = requests.get(number) else { return anyhow::Ok(times) };
                    next.set(number + 1);
                    if number == WARM_UP {
                        began.set(Instant::now());
                    }
                    let sent_at = Instant::now();
                    ask(&mut connection, request).await?;
                    if number >= WARM_UP {
                        times.push(sent_at.elapsed());
                    }
                }
            })
        })
        .collect();
    let mut times = Vec::with_capacity(CREATES);
    for client in clients {
        times.extend(client.await.context("a client panicked")??);
    }
    Ok(RequestRate { wall: began.get().elapsed(), times: times.into_iter().collect() })
}
