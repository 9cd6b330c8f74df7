//! Test of a restore of etcd after the loss of two of three members: messages, refusals, and the data that remain.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use serde_json::Value;
use tokio::time::Instant;

use crate::fleet::{Answer, Fleet};
use crate::kills::{Kills, Records, clusters};
use crate::writer::Writes;
use crate::{eventually, measured};

/// The machines that are lost.
const LOST: [usize; 2] = [1, 2];
/// Writes of the client before and after the snapshot.
const WRITES: usize = 5;
/// Paths of snapshots on the first machine.
const SNAPSHOT: &str = "/var/snapshots/etcd.backup";
const DAMAGED: &str = "/var/snapshots/damaged.backup";
/// Data of etcd on the first machine.
const VOLUME: &str = "/var/lib/docker/volumes/etcd-cke/_data";

/// Three members, with a snapshot of their etcd on the first machine.
struct Saved {
    fleet: Fleet,
    /// Revision of the snapshot.
    revision: i64,
    /// The writes of a client before and after the snapshot.
    writes: Writes,
}

impl Saved {
    /// `None`: the test is skipped.
    async fn new() -> Option<Self> {
        let fleet = Fleet::start(3).await?;
        fleet.set_cluster(&[0, 1, 2], &[]).await;
        fleet.settled(&[0, 1, 2]).await;
        // A client gets its certificate while the service runs.
        fleet.etcdctl_as("kube-apiserver", &["get", "/registry/"]).await.unwrap();
        let (revision, writes) = fleet
            .while_writing(async {
                let written = async |least: usize| {
                    eventually("a client writes", async || {
                        (fleet.written().await.len() >= least).then_some(())
                    })
                    .await;
                };
                written(WRITES).await;
                let revision = save_snapshot(&fleet).await;
                let before = fleet.written().await.len();
                written(before + WRITES).await;
                revision
            })
            .await;
        Some(Self { fleet, revision, writes })
    }

    /// Asks for a restore on the first machine.
    async fn ask(&self, path: &str, more: &[&str]) -> Answer {
        let node = self.fleet.address(0);
        let words = ["etcd", "restore", "--node", &node, "--path", path, "--confirm", "lab"];
        self.fleet.madako(&[&words[..], more].concat()).await
    }

    /// Ends two of three machines, and waits until the service says so.
    async fn lose_majority(&self) {
        for machine in LOST {
            self.fleet.machine(machine).power_off().await.unwrap();
        }
        let (targets, why) = self.fleet.held("etcd-remove-member", "quorum").await;
        let lost = LOST.map(|machine| self.fleet.address(machine));
        assert_eq!(targets, lost);
        let said = self.fleet.madako(&["ops"]).await.unwrap();
        assert!(said.contains(&why) && said.contains("Nodes    1 of 3 reachable"), "{said}");
    }

    /// True if a restore began, and the leader has deleted its request.
    async fn is_restored(&self) -> bool {
        let keys = ["get", "--prefix", "--keys-only", "/cke/madako/etcd/restore"];
        self.fleet.store(&keys).await.is_ok_and(|keys| keys.trim() == "/cke/madako/etcd/restored")
    }

    /// Starts the lost machines with their former data, and waits until they are members anew.
    async fn bring_back(&self) {
        for machine in LOST {
            self.fleet.machine(machine).power_on().await.unwrap();
        }
        self.fleet.settled(&[0, 1, 2]).await;
    }

    /// The restored cluster has what the snapshot has, three members, and the former data of the first one.
    async fn ends_well(&self) {
        let fleet = &self.fleet;
        assert_eq!(clusters(fleet, &[0, 1, 2]).await.len(), 1);
        fleet.has_only_up_to(self.revision, &self.writes).await;
        let put = fleet.etcdctl_as("kube-apiserver", &["put", "/registry/later", "value"]).await;
        assert_eq!(put.unwrap().trim(), "OK", "the users of the snapshot remain");
        let restored = ["get", "--print-value-only", "/cke/madako/etcd/restored"];
        let restored: Value = serde_json::from_str(&fleet.store(&restored).await.unwrap()).unwrap();
        assert_eq!(restored["stale"], serde_json::json!([]), "{restored}");
        let kept = fleet.machine(0).sh(&format!("ls -d {VOLUME}/before-restore-*/member")).await.unwrap();
        assert_eq!(kept.lines().count(), 1, "the former data stay: {kept}");
        fleet.shows_no_key(&[0, 1, 2], Vec::new()).await;
    }
}

/// Saves a snapshot, proves it, and copies it to the first machine, once whole and once with another byte in its middle.
/// Returns its revision.
async fn save_snapshot(fleet: &Fleet) -> i64 {
    let shown =
        fleet.madako(&["etcd", "local-backup", "--dir", "backups", "--prove", "-o", "json"]).await.unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["proved"], true, "{shown}");
    let file: PathBuf = fleet.service.path(shown["backup"].as_str().unwrap());
    let damage = format!(
        "mkdir -p /var/snapshots && cat >{SNAPSHOT} && cp {SNAPSHOT} {DAMAGED} && python3 -c '
with open(\"{DAMAGED}\", \"r+b\") as file:
    middle = file.seek(0, 2) // 2
    file.seek(middle)
    byte = file.read(1)[0]
    file.seek(middle)
    file.write(bytes([byte ^ 255]))'"
    );
    let mut copy = fleet.machine(0).command("sh").unwrap();
    copy.args(["-c", &damage]).stdin(File::open(file).unwrap());
    assert!(copy.status().await.unwrap().success());
    shown["revision"].as_i64().unwrap()
}

/// Start of etcd's container on the first machine, and the directories of its data.
async fn touched(fleet: &Fleet) -> String {
    let look = format!("docker inspect --format='{{{{.Id}}}} {{{{.State.StartedAt}}}}' etcd && ls {VOLUME}");
    fleet.machine(0).sh(&look).await.unwrap()
}

#[tokio::test]
#[ignore = "minutes: the waits for a silent etcd take most of the time (make test-long)"]
async fn etcd_without_a_majority_is_restored_from_a_proved_snapshot_alone() {
    let Some(saved) = Saved::new().await else { return };
    let fleet = &saved.fleet;
    let untouched = touched(fleet).await;
    saved.ask(SNAPSHOT, &[]).await.unwrap();
    let (_, why) = fleet.held("etcd-restore", "restore-refused").await;
    assert!(why.contains("a majority of the members of etcd answers"), "{why}");

    saved.lose_majority().await;
    let shown = saved.ask(SNAPSHOT, &["--dry-run"]).await.unwrap();
    let snapshot = format!("Snapshot  revision {}, ", saved.revision);
    assert!(shown.starts_with(&snapshot) && shown.contains("its checksum is right"), "{shown}");
    let lost = shown.split("at least ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(lost.parse::<usize>().unwrap() >= WRITES, "the writes after the snapshot are lost: {shown}");
    assert!(shown.contains(&format!("{}: it does not answer", fleet.address(1))), "{shown}");
    let refused = saved.ask(DAMAGED, &["--dry-run"]).await.unwrap_err();
    assert!(refused.contains("Snapshot  unusable: ") && refused.contains("sha256"), "{refused}");

    saved.ask(DAMAGED, &[]).await.unwrap();
    let damaged = async || {
        let (_, why) = fleet.held("etcd-restore", "restore-refused").await;
        why.contains("sha256").then_some(())
    };
    eventually("the damaged snapshot is refused", damaged).await;
    assert_eq!(touched(fleet).await, untouched, "nothing was touched");

    let mut records = Records::follow(fleet);
    let began = Instant::now();
    saved.ask(SNAPSHOT, &[]).await.unwrap();
    records.announced("etcd-restore", "use-snapshot").await;
    fleet.service.kill().await.unwrap();
    fleet.serve().await;
    eventually("etcd is restored", async || saved.is_restored().await.then_some(())).await;
    measured("a restore with a killed leader, from its request until its end", began.elapsed());
    fleet.has_only_up_to(saved.revision, &saved.writes).await;
    saved.bring_back().await;
    measured("the same until the lost machines are members anew", began.elapsed());
    saved.ends_well().await;
}

/// Commands before the start of the restored member. A kill after it leaves a successor that finds the restore complete.
const RESTORE: [(&str, &str); 7] = [
    ("image-pull", ""),
    ("stage-snapshot", ""),
    ("confirm-etcd-loss", ""),
    ("stop-etcd-members", ""),
    ("use-snapshot", ""),
    ("prepare-etcd-certificates", ""),
    ("make-files", ""),
];

#[tokio::test]
#[ignore = "minutes: each kill costs a part of a restore (make test-long)"]
async fn a_leader_killed_at_each_command_of_a_restore_has_a_successor_that_ends_it() {
    let Some(saved) = Saved::new().await else { return };
    saved.lose_majority().await;
    let mut kills = Kills::default();
    let begin = saved.ask(SNAPSHOT, &[]);
    kills.until(&saved.fleet, begin, async || saved.is_restored().await).await.unwrap();
    kills.print();
    assert!(kills.commands("etcd-restore").is_superset(&BTreeSet::from(RESTORE)), "{kills:?}");
    saved.bring_back().await;
    saved.ends_well().await;
}
