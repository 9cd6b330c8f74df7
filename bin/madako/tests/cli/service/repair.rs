//! Tests of whole repairs: entries of an operator, commands that are real processes, and a leader that is killed in the
//! middle.

use std::path::Path;

use serde_json::Value;

use super::etcd::RealEtcd;
use super::keys::Keys;
use super::procedure::Procedure;
use super::site::leader_after;
use super::stage::{Serve, eventually};
use crate::program::{CLUSTER, Files, madako};

/// The machine under repair: a worker.
pub(crate) const ADDRESS: &str = "10.0.0.2";
/// Key of its entry.
const ENTRY: &str = "repairs/data/0000000000000000";

/// An etcd with a cluster whose repair commands are these shell scripts; each has the directory in `$D`.
struct Workshop {
    _etcd: RealEtcd,
    keys: Keys,
    files: Files,
    config: String,
}

impl Workshop {
    /// `None`: etcd is not installed.
    async fn open(reset: &str) -> Option<Self> {
        Self::watching(reset, 3600).await
    }

    /// [`Self::open`] with this duration of the watch after the repair command.
    async fn watching(reset: &str, watch_seconds: u32) -> Option<Self> {
        let etcd = RealEtcd::start(&[]).await?;
        let files = Files::new();
        let config = files.write("config.yml", etcd.settings());
        let success = Some("echo celebrate \"$1\" >> \"$D/done\"");
        let procedure = Procedure { machine_types: &["bmc"], reset, success, watch_seconds };
        let repair = procedure.written(&files);
        let cluster = files.write("cluster.yml", format!("{CLUSTER}repair: {repair}\n"));
        let keys = Keys::at(&etcd.endpoint(), None);
        let workshop = Self { _etcd: etcd, keys, files, config };
        workshop.run(&["cluster", "set", &cluster]).await;
        Some(workshop)
    }

    async fn run(&self, args: &[&str]) -> String {
        madako(&[&["--config", self.config.as_str()], args].concat()).await.calm()
    }

    async fn serve(&self) -> Serve {
        Serve::start(&self.config, "2s", "200ms").await
    }

    async fn value(&self, key: &str) -> Option<Value> {
        Some(serde_json::from_slice(self.keys.get(key).await?.value()).unwrap())
    }

    async fn until_entry(&self, field: &str, value: &str) {
        eventually(&format!("the entry's {field} is {value}"), async || {
            self.value(ENTRY).await.filter(|entry| entry[field] == value).map(drop)
        })
        .await;
    }

    /// The lines of a file that scripts write.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.files.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// True if a process runs; a zombie does not.
pub(crate) fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[tokio::test]
async fn machine_is_repaired_by_its_commands_and_the_history_shows_it() {
    let reset = "echo reset \"$1\" >> \"$D/done\"; echo it is on again; : > \"$D/healthy-$1\"";
    let Some(workshop) = Workshop::open(reset).await else { return };
    let service = workshop.serve().await;
    leader_after(&[&service], 0).await;
    assert_eq!(workshop.run(&["repair-queue", "add", "unreachable", "bmc", ADDRESS]).await, "");
    workshop.until_entry("status", "succeeded").await;
    assert_eq!(workshop.lines("done"), [format!("reset {ADDRESS}"), format!("celebrate {ADDRESS}")]);
    assert_eq!(workshop.keys.records().await, ["repair-execute completed", "repair-finish completed"]);
    let first = workshop.value("records/0000000000000001").await.unwrap();
    let info = first["info"].as_str().unwrap();
    assert!(info.starts_with("exit code 0 after ") && info.ends_with("; output: it is on again"), "{info}");
    let history = workshop.run(&["history"]).await;
    for operation in ["repair-execute", "repair-finish"] {
        assert!(history.contains(operation), "{history}");
    }

    // It stays until its deletion.
    workshop.run(&["repair-queue", "delete-finished"]).await;
    eventually("the entry is gone", async || workshop.keys.get(ENTRY).await.is_none().then_some(())).await;
    assert_eq!(workshop.keys.records().await.last().unwrap(), "repair-dequeue completed");
}

/// Severity and reason of each log line about a failed step.
fn failed_steps(service: &Serve) -> Vec<(String, String)> {
    let lines = service.log();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let failed = lines.filter(|line| line["message"] == "a step of a repair failed");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    failed.map(|line| (text(&line["severity"]), text(&line["what"]))).collect()
}

#[tokio::test]
async fn failed_repair_is_in_the_history_and_logged_as_a_warning() {
    // A command that fails; and one without effect on the machine's health, with no step left.
    for (reset, operation, outcome, why) in [
        ("echo no power; exit 3", "repair-execute", "failed", "no power"),
        ("true", "repair-finish", "the repair failed", "failed: "),
    ] {
        let Some(workshop) = Workshop::watching(reset, 1).await else { return };
        let service = workshop.serve().await;
        leader_after(&[&service], 0).await;
        workshop.run(&["repair-queue", "add", "unreachable", "bmc", ADDRESS]).await;
        workshop.until_entry("status", "failed").await;
        let table = workshop.run(&["history", "-o", "table"]).await;
        let line = table.lines().find(|line| line.contains(operation)).unwrap();
        assert!(line.contains(outcome) && line.contains(why), "{table}");
        let failed = eventually("it is logged", async || {
            Some(failed_steps(&service)).filter(|failed| !failed.is_empty())
        })
        .await;
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].0, "warning", "{failed:?}");
    }
}

#[tokio::test]
async fn a_command_whose_leader_is_killed_ends_with_all_that_it_started_and_is_not_repeated() {
    // Three processes, one of them in a session of its own.
    let reset = "echo reset \"$1\" >> \"$D/done\"; trap '' TERM HUP; setsid sleep 3600 & one=$!; sleep 3600 & two=$!; \
                 printf '%s\\n' $$ $one $two > \"$D/pids.new\"; mv \"$D/pids.new\" \"$D/pids\"; wait";
    let Some(workshop) = Workshop::open(reset).await else { return };
    let mut services = vec![workshop.serve().await, workshop.serve().await];
    let (leader, first) = leader_after(&services.iter().collect::<Vec<_>>(), 0).await;
    workshop.run(&["repair-queue", "add", "unreachable", "bmc", ADDRESS]).await;
    let pids =
        eventually("the command runs", async || Some(workshop.lines("pids")).filter(|pids| pids.len() == 3))
            .await;
    assert!(pids.iter().all(|pid| runs(pid)), "{pids:?}");
    assert_eq!(workshop.keys.records().await, ["repair-execute running"]);
    workshop.until_entry("step_status", "watching").await;

    services.remove(leader).kill().await;
    eventually("its processes are gone", async || pids.iter().all(|pid| !runs(pid)).then_some(())).await;
    leader_after(&[&services[0]], first).await;
    let cancelled = eventually("its record ends", async || {
        workshop.value("records/0000000000000001").await.filter(|record| record["status"] != "running")
    })
    .await;
    assert_eq!(cancelled["status"], "cancelled");
    assert!(cancelled["error"].as_str().unwrap().starts_with("outcome unknown"), "{cancelled}");

    // The new leader checks the machine's health once an interval, and does not repeat the command.
    services[0].until_grown("madako_repair_health_checks_total", &["outcome=\"unhealthy\""], 3.0).await;
    assert_eq!(workshop.lines("done"), [format!("reset {ADDRESS}")]);
    workshop.files.write(&format!("healthy-{ADDRESS}"), "");
    workshop.until_entry("status", "succeeded").await;
    assert_eq!(workshop.lines("done"), [format!("reset {ADDRESS}"), format!("celebrate {ADDRESS}")]);
    assert_eq!(workshop.keys.records().await, ["repair-execute cancelled", "repair-finish completed"]);
}
