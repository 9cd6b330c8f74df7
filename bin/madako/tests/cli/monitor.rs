//! Test of `make monitor` without make: `scripts/monitor` runs the demo with a Prometheus beside it, and leaves nothing
//! behind.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::program::{PATIENCE, free_port};
use crate::service::stage::{eventually, page};

const MADAKO: &str = env!("CARGO_BIN_EXE_madako");

/// A file of the repository.
fn ours(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// True if a Prometheus is installed. CI must have it.
fn prometheus_is_installed() -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).any(|place| place.join("prometheus").is_file());
    if !found {
        assert!(
            std::env::var_os("CI").is_none(),
            "prometheus is not installed, and CI must not skip this test"
        );
        println!("skipped: prometheus is not installed");
    }
    found
}

/// The process group of the script, as a terminal has it; ended with the test, also when it fails.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // Usually they have ended already.
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// Every alert of `grafana/rules`.
fn alerts() -> BTreeSet<String> {
    let files = std::fs::read_dir(ours("grafana/rules")).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap());
    let names = |text: String| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        names.map(str::to_owned).collect()
    };
    texts.flat_map(names).collect()
}

/// Prometheus' answer on a path; `None` until there is one.
async fn asked(prometheus: SocketAddr, path: &str) -> Option<Value> {
    let (status, body) = page(prometheus, path).await.ok()?;
    (status == 200).then(|| serde_json::from_str(&body).unwrap())
}

/// The alerts that were evaluated without an error.
fn evaluated_alerts(rules: &Value) -> BTreeSet<String> {
    let groups = rules["data"]["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let evaluated = rules.filter(|rule| rule["type"] == "alerting" && rule["health"] == "ok");
    evaluated.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
}

fn demo(http: SocketAddr) -> Pid {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut demos = pids.filter(|pid: &i32| {
        // A process may end meanwhile.
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words[0] == MADAKO.as_bytes() && words.contains(&http.to_string().as_bytes())
    });
    demos.next().and_then(Pid::from_raw).expect("the demo runs")
}

/// Runs the script until Prometheus has evaluated every alert and scraped the demo; then ends it and checks that
/// nothing is left.
async fn stands_beside_the_demo_and_goes_with_it(end: impl FnOnce(&Group, Pid)) {
    if !prometheus_is_installed() {
        return;
    }
    let [prometheus, http] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
    let temporary = tempfile::tempdir().unwrap();
    let script = Command::new(ours("scripts/monitor"))
        .args([MADAKO, "--for", "5m", "--http", &http.to_string(), "--etcd", "127.0.0.1:0"])
        .env("PROMETHEUS", prometheus.to_string())
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let id = script.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw).unwrap();
    let group = Group(id);
    // Its output is read all the time, so that it never blocks.
    let ended = tokio::spawn(script.wait_with_output());

    let all = alerts();
    assert!(all.len() > 20, "{all:?}");
    eventually("Prometheus evaluates every alert", async || {
        (evaluated_alerts(&asked(prometheus, "/api/v1/rules").await?) == all).then_some(())
    })
    .await;
    eventually("Prometheus has an answer of the demo", async || {
        let targets = asked(prometheus, "/api/v1/targets").await?;
        let [target] = targets["data"]["activeTargets"].as_array()?.as_slice() else { return None };
        (target["health"] == "up" && target["scrapeUrl"] == format!("http://{http}/metrics")).then_some(())
    })
    .await;

    end(&group, demo(http));
    let output = timeout(PATIENCE, ended).await.expect("it ends").unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{errors}");
    assert!(out.lines().last().is_some_and(|last| last.contains("0 violations of invariants")), "{out}");
    assert!(errors.contains(&format!("monitor: alerts:   http://{prometheus}/alerts\n")), "{errors}");
    assert_eq!(test_kill_process_group(group.0), Err(Errno::SRCH), "no process of it is left");
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn demo_runs_a_prometheus_with_every_alert_and_stops_it() {
    stands_beside_the_demo_and_goes_with_it(|_, demo| kill_process(demo, Signal::INT).unwrap()).await;
}

/// Ctrl-C reaches all processes of a terminal.
#[tokio::test]
async fn ctrl_c_ends_the_demo_and_the_prometheus_beside_it() {
    stands_beside_the_demo_and_goes_with_it(|group, _| kill_process_group(group.0, Signal::INT).unwrap())
        .await;
}
