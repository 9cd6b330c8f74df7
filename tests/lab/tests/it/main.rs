//! Tests on labs of real machines on this host, and of the labs themselves.
//!
//! Where the host cannot have a lab, a test fails if `CI` is set; otherwise it prints that it is skipped.

#![allow(clippy::unwrap_used, reason = "tests: clippy.toml's exceptions do not reach their helpers")]

mod adoption;
mod clients;
mod components;
mod contract;
mod faults;
mod fleet;
mod kills;
mod kubernetes;
mod kubernetes_contract;
mod kubernetes_faults;
mod kubernetes_kills;
mod machines;
mod named_node;
mod nodes;
mod operations;
mod power;
mod renewal;
mod restore;
mod rolls;
mod secrets;
mod takeover;
mod traces;
mod upgrades;
mod writer;

use std::time::Duration;

use tokio::time::{sleep, timeout};

/// Long enough for two new members of etcd on a host with twenty times the load that it has cores, where each command of
/// docker takes ten seconds.
const PATIENCE: Duration = Duration::from_secs(300);
/// Polling interval of an expected state.
const GLANCE: Duration = Duration::from_millis(50);

/// Polls until `look` returns a value.
async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, look).await
}

async fn eventually_within<T>(limit: Duration, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    found_within(limit, look).await.unwrap_or_else(|| panic!("within {limit:?}: {what}"))
}

async fn found_within<T>(limit: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            sleep(GLANCE).await;
        }
    };
    timeout(limit, looking).await.ok()
}

/// Prints a measurement, with the load of the host.
#[allow(clippy::print_stdout, reason = "the output of a test")]
fn measured(what: &str, took: Duration) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!("{:.2} s (load {load}): {what}", took.as_secs_f64());
}
