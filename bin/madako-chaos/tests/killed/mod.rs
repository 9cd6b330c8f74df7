//! What is left of a run in namespaces that is killed: nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use super::processes::{found, parent, processes};

/// How often it is looked at.
const GLANCE: Duration = Duration::from_millis(20);
/// What a run ends with that cannot have namespaces.
const NOT_THERE: i32 = 3;

/// Waits until the run has begun; whether it could.
pub(crate) fn begun(run: &mut Child, targets: &Path) -> bool {
    let mut code = None;
    until("the run has begun", || {
        code = run.try_wait().unwrap().map(|status| status.code());
        code.is_some() || targets.is_file()
    });
    assert!(code.is_none_or(|code| code == Some(NOT_THERE)), "{code:?}");
    code.is_none()
}

/// Kills it, and waits until its processes, their namespaces and the device that leads there are gone.
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

/// The namespace that a process is in.
fn namespace(process: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Devices that lead to namespaces of a run.
fn devices(run: u32) -> Vec<PathBuf> {
    let alias = format!("madako-chaos, process {run}");
    let all = fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.path());
    // One may go while it is looked at.
    all.filter(|at| fs::read_to_string(at.join("ifalias")).is_ok_and(|said| said.trim() == alias)).collect()
}
