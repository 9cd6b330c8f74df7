//! Measures the memory of the service, the size of the program, and the costs of a large cluster.

use std::hint::black_box;

use anyhow::Context as _;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use tokio::time::Instant;

use crate::processes::Madako;
use crate::scene::Scene;
use crate::table::{Table, Times};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 56 * MIB;
const BINARY: u64 = 38 * MIB;
/// Nodes of a large cluster, apart from the control plane.
const LARGE: usize = 5_000;
const MACHINES: u32 = 5_600;
const DECODES: usize = 15;

pub(crate) fn format_mib(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let mib = bytes as f64 / MIB as f64;
    format!("{mib:.1} MiB")
}

/// Adds the row of an instance's memory.
pub(crate) fn add_memory_row(scene: &Scene, instance: &Madako, table: &mut Table) -> anyhow::Result<()> {
    let memory = instance.read_memory()?;
    let nodes = scene.witness.cluster()?.nodes.len();
    table.add_row(
        format!("memory of `madako serve` with 1,000 machines, {nodes} nodes, embedded store"),
        format_mib(MEMORY),
        format!("{} resident, {} at most", format_mib(memory.resident), format_mib(memory.peak)),
        Some(memory.peak < MEMORY),
    );
    Ok(())
}

pub(crate) async fn measure_size(table: &mut Table) -> anyhow::Result<()> {
    let binary = std::fs::metadata(env!("CARGO_BIN_EXE_madako")).context("the program is not there")?.len();
    table.add_row(
        "size of the stripped binary",
        format_mib(BINARY),
        format_mib(binary),
        Some(binary < BINARY),
    );

    let (mut scene, instance) = Scene::with_embedded_leader(MACHINES, "60s").await?;
    let began = Instant::now();
    let installed = scene.install(LARGE).await;
    scene.explain(installed)?;
    let mut first = Times::default();
    first.add(began.elapsed());
    table.add_note(
        format!("first cluster of {LARGE} workers, embedded store: from the first stored key"),
        &first,
    );
    let stored = scene.witness.list().await?;
    let json = &stored.entries.get(keys::CLUSTER).context("there is no cluster")?.value;
    let mut times = Times::default();
    for _ in 0..DECODES {
        let began = Instant::now();
        black_box(serde_json::from_slice::<Cluster>(black_box(json))?);
        times.add(began.elapsed());
    }
    table.add_note(format!("reading the JSON of this cluster, {}", format_mib(json.len() as u64)), &times);
    let memory = instance.read_memory()?;
    let measured = format!("{} resident, {} at most", format_mib(memory.resident), format_mib(memory.peak));
    table.add_row(format!("memory with {MACHINES} machines and this cluster"), "-", measured, None);
    Ok(())
}
