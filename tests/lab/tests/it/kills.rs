//! Tests of SIGKILL of the leader while a command is recorded as running: the next leader reaches the same end.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use madako_lab::STORE;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::fleet::{Fleet, client_url};
use crate::{PATIENCE, eventually, eventually_within};

/// Time for the rest of the work after the last kill, such as two API servers with 70 s each for their requests.
const REST: Duration = Duration::from_secs(600);

/// Names of an operation and of its command, and the command's target if it is the same in each run.
type Place = (String, String, String);

/// The records of operations as they change, from a watch.
pub(crate) struct Records {
    lines: Lines<BufReader<ChildStdout>>,
    /// The revision of the newest version that `next` returned; 0 before the first one.
    revision: u64,
    _watch: Child,
}

impl Records {
    /// Follows the records from now on. The store need not listen yet.
    pub(crate) fn follow(fleet: &Fleet) -> Self {
        Self::follow_after(fleet, 0)
    }

    /// Follows the records from the first version after `revision`; 0 means from now on.
    fn follow_after(fleet: &Fleet, revision: u64) -> Self {
        let (host, port) = STORE.split_once(':').unwrap();
        let since = if revision == 0 { String::new() } else { format!("--rev={}", revision + 1) };
        // etcdctl itself would wait a second before its second attempt to connect.
        let script = format!(
            "until (exec 3<>/dev/tcp/{host}/{port}) 2>/dev/null; do sleep 0.02; done\n\
             ETCDCTL_API=3 exec /usr/bin/etcdctl --endpoints=http://{STORE} watch --prefix /cke/records/ -w fields {since}"
        );
        let mut command = fleet.lab().command("/bin/bash");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut watch = command.spawn().unwrap();
        let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        Self { lines, revision, _watch: watch }
    }

    /// The next version of a record.
    async fn next(&mut self) -> Value {
        loop {
            let line = self.lines.next_line().await.unwrap().expect("the watch goes on");
            match line.split_once(" : ") {
                Some(("\"ModRevision\"", revision)) => self.revision = revision.parse().unwrap(),
                // etcdctl quotes the text; a deleted record has none.
                Some(("\"Value\"", quoted)) if quoted != "\"\"" => {
                    let text: String = serde_json::from_str(quoted).unwrap();
                    return serde_json::from_str(&text).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Waits until a record announces this command.
    pub(crate) async fn announced(&mut self, operation: &str, command: &str) {
        let find = async {
            loop {
                let record = self.next().await;
                if record["operation"] == operation && record["command"]["name"] == command {
                    return;
                }
            }
        };
        let found = timeout(PATIENCE, find).await;
        found.unwrap_or_else(|_| panic!("within {PATIENCE:?}: {operation} announces {command}"));
    }
}

fn place(record: &Value) -> Place {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let command = &record["command"];
    let target = match command["name"].as_str() {
        // The three volumes and containers of an operation are different places; ids and endpoints are not.
        Some("volume-create" | "volume-remove" | "run-container" | "stop-container") => {
            text(&command["target"])
        }
        _ => String::new(),
    };
    (text(&record["operation"]), text(&command["name"]), target)
}

/// Kills of the leader, at most one at each place.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    /// The place of each announced command that a kill followed, with the end of its record.
    found: BTreeMap<Place, String>,
}

impl Kills {
    /// Lets the service work from `begin` until `is_done`, and kills it at each new place. The result of `begin`.
    ///
    /// The first kill comes after the end of `begin`: a command that begins the work loses its answer otherwise.
    pub(crate) async fn until<T>(
        &mut self,
        fleet: &Fleet,
        begin: impl Future<Output = T>,
        is_done: impl AsyncFn() -> bool,
    ) -> T {
        let mut records = Records::follow(fleet);
        let begun = begin.await;
        loop {
            let met = {
                let done = eventually_within(REST, "the end", async || is_done().await.then_some(()));
                tokio::select! {
                    biased;
                    met = self.new_place(&mut records) => Some(met),
                    () = done => None,
                }
            };
            let Some((id, place)) = met else { return begun };
            fleet.service.kill().await.unwrap();
            // The successor may announce its first command before a new watch begins.
            records = Records::follow_after(fleet, records.revision);
            fleet.service.serve().unwrap();
            let key = format!("/cke/records/{:016x}", id.parse::<u64>().unwrap());
            let ended = async || {
                let text = fleet.store(&["get", "--print-value-only", &key]).await.ok()?;
                let record: Value = serde_json::from_str(&text).ok()?;
                // The last command may end before the kill.
                let is_ended = record["status"] == "cancelled" || record["status"] == "completed";
                is_ended.then(|| format!("{} at {}", record["status"], record["command"]))
            };
            let ended = eventually("the record has an end", ended).await;
            self.found.insert(place, ended);
        }
    }

    /// The first announced command at a place without a kill: the id of its record, and the place.
    async fn new_place(&self, records: &mut Records) -> (String, Place) {
        loop {
            let record = records.next().await;
            let place = place(&record);
            if record["status"] == "running" && !self.found.contains_key(&place) {
                return (record["id"].as_str().unwrap().to_owned(), place);
            }
        }
    }

    /// Commands of an operation at which the leader was killed.
    pub(crate) fn commands(&self, operation: &str) -> BTreeSet<(&str, &str)> {
        let found = self.found.keys().filter(|(name, ..)| name == operation);
        found.map(|(_, command, target)| (command.as_str(), target.as_str())).collect()
    }

    #[allow(clippy::print_stdout, reason = "the output of a test")]
    pub(crate) fn print(&self) {
        for ((operation, command, target), end) in &self.found {
            println!("killed at {operation}: {command} {target}; its record: {end}");
        }
    }
}

/// Cluster ids of the members: one, unless a member formed a cluster of its own.
pub(crate) async fn clusters(fleet: &Fleet, members: &[usize]) -> BTreeSet<u64> {
    let mut clusters = BTreeSet::new();
    for member in members {
        let at = client_url(&fleet.address(*member));
        let list = fleet.etcdctl_at(&at, "root", &["member", "list", "-w", "json"]).await.unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["members"].as_array().unwrap().len(), members.len(), "{list}");
        clusters.insert(list["header"]["cluster_id"].as_u64().unwrap());
    }
    clusters
}

const BOOTSTRAP: [(&str, &str); 8] = [
    ("image-pull", ""),
    ("prepare-etcd-certificates", ""),
    ("make-files", ""),
    ("volume-create", "etcd-cke"),
    ("run-container", "etcd"),
    ("wait-etcd-sync", ""),
    ("setup-etcd-auth", ""),
    ("volume-create", "etcd-added-member"),
];

#[tokio::test]
#[ignore = "minutes: each kill costs a part of a bootstrap (make test-long)"]
async fn a_leader_killed_at_each_command_of_a_bootstrap_has_a_successor_that_ends_it() {
    let Some(fleet) = Fleet::start(3).await else { return };
    let mut kills = Kills::default();
    let begin = fleet.set_cluster(&[0, 1, 2], &[]);
    kills.until(&fleet, begin, async || fleet.is_settled(&[0, 1, 2]).await).await;
    kills.print();
    assert_eq!(kills.commands("etcd-bootstrap"), BTreeSet::from(BOOTSTRAP));
    assert_eq!(clusters(&fleet, &[0, 1, 2]).await.len(), 1);
    let put = fleet.etcdctl_as("kube-apiserver", &["put", "/registry/a", "b"]).await;
    assert_eq!(put.unwrap().trim(), "OK");
    let history = fleet.history().await;
    let bootstraps = history.iter().filter(|record| record["operation"] == "etcd-bootstrap");
    assert_eq!(bootstraps.filter(|record| record["status"] == "completed").count(), 1);
    fleet.shows_no_key(&[0, 1, 2], Vec::new()).await;
}

const ADD: [(&str, &str); 11] = [
    ("image-pull", ""),
    ("stop-container", "etcd"),
    ("volume-remove", "etcd-added-member"),
    ("volume-remove", "etcd-cke"),
    ("volume-create", "etcd-cke"),
    ("prepare-etcd-certificates", ""),
    ("make-files", ""),
    ("add-etcd-member", ""),
    ("promote-etcd-member", ""),
    ("wait-etcd-sync", ""),
    ("volume-create", "etcd-added-member"),
];
const DESTROY: [(&str, &str); 5] = [
    ("volume-remove", "etcd-added-member"),
    ("remove-etcd-member", ""),
    ("kill-containers", ""),
    ("volume-remove", "etcd-cke"),
    ("wait-etcd-sync", ""),
];
/// Replacements after which each command had a kill: a kill at one of the last four commands of an addition, or after the
/// removal of a destruction, leaves the rest to another operation.
const REPLACEMENTS: usize = 12;

#[tokio::test]
#[ignore = "minutes: each kill costs a part of a replacement (make test-long)"]
async fn a_leader_killed_at_each_command_of_a_replacement_loses_no_write() {
    let Some(fleet) = Fleet::start(4).await else { return };
    fleet.set_cluster(&[0, 1, 2], &[3]).await;
    fleet.settled(&[0, 1, 2]).await;
    // A client gets its certificate while the service runs.
    fleet.etcdctl_as("kube-apiserver", &["get", "/registry/"]).await.unwrap();
    let mut kills = Kills::default();
    let is_complete = |kills: &Kills| {
        kills.commands("etcd-add-member") == BTreeSet::from(ADD)
            && kills.commands("etcd-destroy-member") == BTreeSet::from(DESTROY)
            && kills.commands("etcd-remove-member").len() == 1
    };
    let ((), writes) = fleet
        .while_writing(async {
            let (mut old, mut new) = (2, 3);
            for number in 0..REPLACEMENTS {
                let members = [0, 1, new];
                // The old machine becomes a worker, or leaves the cluster.
                let workers: &[usize] = if number % 3 == 2 { &[] } else { &[old] };
                let begin = fleet.set_cluster(&members, workers);
                kills.until(&fleet, begin, async || fleet.is_settled(&members).await).await;
                assert_eq!(clusters(&fleet, &members).await.len(), 1);
                std::mem::swap(&mut old, &mut new);
                if is_complete(&kills) {
                    break;
                }
            }
        })
        .await;
    kills.print();
    assert!(is_complete(&kills), "{kills:?}");
    fleet.has(&writes).await;
    fleet.shows_no_key(&[0, 1], Vec::new()).await;
}
