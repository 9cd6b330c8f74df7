//! Test that a killed run with network namespaces leaves no process and no namespace behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use super::processes::{found, parent, processes};

/// Interval of checks of an awaited state.
const GLANCE: Duration = Duration::from_millis(20);
/// Exit code of a run that cannot have namespaces.
const NOT_THERE: i32 = 3;

/// Waits until the run has begun; returns whether it could.
pub(crate) fn begun(run: &mut Child, targets: &Path) -> bool {
    let mut code = None;
    until("the run has begun", || {
        code = run.try_wait().unwrap().map(|status| status.code());
        code.is_some() || targets.is_file()
    });
    assert!(code.is_none_or(|code| code == Some(NOT_THERE)), "{code:?}");
    code.is_none()
}

/// Kills the run, and waits until its processes, their namespaces and its device are gone.
pub(crate) fn leaves_nothing(run: &mut Child, targets: &Path) {
    let own = i32::try_from(run.id()).unwrap();
    let below: Vec<i32> = processes().filter(|process| parent(*process) == own).collect();
    let namespaces: BTreeSet<PathBuf> = below.iter().filter_map(|process| namespace(*process)).collect();
    // A store, a registry and an instance.
    assert_eq!(namespaces.len(), 3, "{below:?}");
    assert!(namespace(own).is_some_and(|own| !namespaces.contains(&own)));
    assert_eq!(devices(run.id()).len(), 1);
    let targets: Value = serde_json::from_str(&fs::read_to_string(targets).unwrap()).unwrap();
    assert!(targets[0]["targets"][0].as_str().unwrap().starts_with("198.1"), "{targets}");
    run.kill().unwrap();
    run.wait().unwrap();
    until("nothing is left", || {
        devices(run.id()).is_empty()
            && !processes().any(|process| namespace(process).is_some_and(|it| namespaces.contains(&it)))
    });
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(found(what, GLANCE, || is_so().then_some(())));
}

fn namespace(process: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Devices that lead to namespaces of a run.
fn devices(run: u32) -> Vec<PathBuf> {
    let alias = format!("madako-chaos, process {run}");
    let all = fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.path());
    // A device may disappear meanwhile.
    all.filter(|at| fs::read_to_string(at.join("ifalias")).is_ok_and(|said| said.trim() == alias)).collect()
}
