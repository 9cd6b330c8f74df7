//! Benchmarks of the service: time and memory that it promises, measured on processes of the built program.
//!
//! `cargo bench --workspace --bench service` prints one table; words after `--` choose the parts (`changes`,
//! `handover`, `crash`, `losses`, `actors`, `size`, `nodes`, `watched`, `placement`, `rest`, `commands`). Stores are a real
//! etcd (the installed one) and the embedded one, files are in cargo's directory for temporary files, and machines come
//! from a simulated registry in this process, which shares the cores with all others.
//!
//! A watch of the store takes the times, as another program would observe them: a time ends when the change has arrived
//! here. The verdict uses the worst of all samples, not the median.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its table")]

mod actors;
mod changes;
mod crash;
mod handover;
mod losses;
mod nodes;
mod placement;
mod processes;
mod registry;
mod scene;
mod size;
mod table;
mod watched;
mod witness;

use anyhow::Context as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::table::Table;

/// Seed of random pauses.
const SEED: u64 = 7;

const PARTS: [&str; 11] = [
    "changes",
    "handover",
    "crash",
    "losses",
    "actors",
    "size",
    "nodes",
    "watched",
    "placement",
    "rest",
    "commands",
];

fn main() -> anyhow::Result<()> {
    // Cargo passes --bench to every benchmark.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for word in &wanted {
        anyhow::ensure!(PARTS.contains(&word.as_str()), "no such part: {word}; there are {PARTS:?}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut table = Table::default();
    let load = load_average();
    for part in PARTS {
        if !wanted.is_empty() && !wanted.iter().any(|word| word == part) {
            continue;
        }
        eprintln!("{part} ...");
        let chance = ChaCha8Rng::seed_from_u64(SEED);
        let measured = runtime.block_on(async {
            match part {
                "changes" => changes::measure_changes(chance, &mut table).await,
                "handover" => handover::measure_handover(chance, &mut table).await,
                "crash" => crash::measure_crash(chance, &mut table).await,
                "losses" => losses::measure_losses(chance, &mut table).await,
                "actors" => actors::measure_actors(&mut table).await,
                "nodes" => nodes::measure_nodes(&mut table).await,
                "watched" => watched::measure_watched_nodes(&mut table).await,
                "placement" => placement::measure_placement(&mut table).await,
                "rest" => placement::at_rest::measure_at_rest(&mut table).await,
                "commands" => placement::commands::measure(&mut table).await,
                _ => size::measure_size(&mut table).await,
            }
        });
        // The results so far are still of use.
        if let Err(error) = measured.with_context(|| format!("{part} could not be measured")) {
            println!("{table}");
            return Err(error);
        }
    }
    println!(
        "{table}\nLoad of the machine in the last minute: {load} before, {} at the end.",
        self::load_average()
    );
    Ok(())
}

/// Load average of the last minute: other processes make times longer.
fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}
