//! Measures a thousand watchers of one kind of resource: their costs, and the delivery of every change.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use super::http::{Connection, build_request};
use super::load::{part_of_core, run_in_own_thread};
use super::resources::{application_json, applications_path};
use super::stage::{PlacementFixture, Settings, StoreKind};
use crate::processes::PATIENCE;
use crate::table::{Table, format_time};

const WATCHERS: usize = 1_000;
const CHANGES: usize = 300;
const MIB: u64 = 1 << 20;
const MEMORY: u64 = 100 * MIB;
/// Precedes the number of a change.
const MARK: &str = "\"change\": \"";

pub(super) async fn measure_watchers(table: &mut Table) -> anyhow::Result<()> {
    for on in [StoreKind::Etcd, StoreKind::Embedded] {
        let stage = PlacementFixture::start(Settings { on, rbac: false, controllers: false }).await?;
        let mut connection = stage.connect().await?;
        // The resource exists from the beginning, and has as many changes before the watch as during it.
        let (path, first) = (applications_path(), application_after_changes(0).to_string());
        connection.expect(&build_request("POST", &path, &first)).await?;
        make_changes(&mut connection, 1).await?;
        let before = stage.madako.read_memory()?.resident;
        let (sender, opened) = tokio::sync::oneshot::channel();
        let address = stage.address;
        let watching = tokio::spawn(run_in_own_thread(move || run_watchers(address, sender)));
        timeout(PATIENCE, opened).await.context("the watches do not open")??;
        let open = stage.madako.read_memory()?.resident;
        let began = Instant::now();
        make_changes(&mut connection, CHANGES + 1).await?;
        let changed = began.elapsed();
        let watched = stage.explain(watching.await?)?;
        let all = began.elapsed();
        let after = stage.madako.read_memory()?;
        let (grown, most) = (open.saturating_sub(before), after.peak.saturating_sub(before));
        table.add_row(
            format!("memory for {WATCHERS} watchers of one kind of resource, {}", on.name()),
            format!("{} MiB", MEMORY / MIB),
            format!(
                "{:.1} MiB when they are open, {:.1} MiB at most during {CHANGES} changes",
                grown as f64 / MIB as f64,
                most as f64 / MIB as f64
            ),
            Some(most < MEMORY),
        );
        let reported: usize = watched.value;
        table.add_row(
            format!("changes received by {WATCHERS} watchers, {}", on.name()),
            format!("{} of {}", WATCHERS * CHANGES, WATCHERS * CHANGES),
            format!(
                "{reported} of {}, in order; made in {}, received in {}; clients: {}",
                WATCHERS * CHANGES,
                format_time(changed),
                format_time(all),
                part_of_core(watched.core, all),
            ),
            Some(reported == WATCHERS * CHANGES),
        );
    }
    Ok(())
}

fn application_after_changes(change: usize) -> serde_json::Value {
    let mut application = application_json("watched");
    application["metadata"]["labels"]["change"] = format!("{change}").into();
    application
}

/// Makes the changes in sequence.
async fn make_changes(connection: &mut Connection, to: usize) -> anyhow::Result<()> {
    let path = format!("{}/watched", applications_path());
    for change in if to == 1 { 1..=1 } else { 2..=to } {
        connection
            .expect(&build_request("PUT", &path, &application_after_changes(change).to_string()))
            .await?;
    }
    Ok(())
}

/// Watches until each watcher got the last change. Returns the number of changes that all got, each the successor of
/// the one before.
async fn run_watchers(
    address: SocketAddr,
    opened: tokio::sync::oneshot::Sender<()>,
) -> anyhow::Result<usize> {
    let path = format!("{}?watch&heartbeat=0", applications_path());
    let mut streams = Vec::new();
    for _ in 0..WATCHERS {
        streams.push(Connection::open(address).await?.follow(&path).await?);
    }
    let _ = opened.send(());
    let watchers: Vec<_> = streams
        .into_iter()
        .map(|mut lines| {
            spawn_local(async move {
                for expected in 2..=CHANGES + 1 {
                    let line = timeout(PATIENCE, lines.next()).await.context("a change is missing")??;
                    let change = change_number(line).context("a line without its change")?;
                    anyhow::ensure!(
                        change == expected,
                        "the watch delivered change {change} instead of {expected}"
                    );
                }
                anyhow::Ok(CHANGES)
            })
        })
        .collect();
    let mut reported = 0;
    for watcher in watchers {
        reported += watcher.await.context("a watcher panicked")??;
    }
    Ok(reported)
}

fn change_number(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once(MARK)?;
    rest.split_once('"')?.0.parse().ok()
}

/// Time limit for one change.
const _: () = assert!(PATIENCE.as_secs() >= Duration::from_secs(10).as_secs(), "a busy machine takes longer");
