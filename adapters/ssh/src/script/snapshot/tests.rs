//! Tests that run the scripts of a restore in a real shell, on a directory, with a fake `etcdctl` that copies files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::tests::fake_docker::FakeDocker;
use super::*;
use crate::script::Script;

/// Copies the snapshot into the data directory, unless it is damaged.
const ETCDCTL: &str = r#"#!/bin/sh
[ "$1 $2" = 'snapshot restore' ] || exit 9
for word; do case $before in --data-dir) dir=$word;; esac; before=$word; done
grep -q damaged "$3" && { echo 'expected sha256' >&2; exit 1; }
mkdir -p "$dir/member" && cp "$3" "$dir/member/db"
"#;

/// A directory that stands for the container's root: it has the volume of etcd and a snapshot.
struct ContainerRoot(tempfile::TempDir);

impl ContainerRoot {
    fn new(snapshot: &str) -> Self {
        let inside = Self(tempfile::tempdir().unwrap());
        fs::create_dir(inside.data()).unwrap();
        fs::write(inside.path("snapshot"), snapshot).unwrap();
        fs::create_dir(inside.path("bin")).unwrap();
        let etcdctl = inside.path("bin/etcdctl");
        fs::write(&etcdctl, ETCDCTL).unwrap();
        fs::set_permissions(&etcdctl, fs::Permissions::from_mode(0o755)).unwrap();
        inside
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// Runs a script with the id 7. Returns its exit code and its standard error.
    fn run(&self, script: &str) -> (i32, String) {
        let own = |path: &Path| path.to_str().unwrap().to_owned();
        let script = script.replace(DATA, &own(&self.data())).replace(SNAPSHOT, &own(&self.path("snapshot")));
        let path = format!("{}:/usr/bin:/bin", own(&self.path("bin")));
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script, "sh", "7", "10.0.0.1", "https://10.0.0.1:2380"]).env("PATH", path);
        let output = shell.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    fn write_data(&self, text: &str) {
        fs::create_dir_all(self.data().join("member")).unwrap();
        fs::write(self.data().join("member/db"), text).unwrap();
    }

    /// Content of the database below a directory of the volume.
    fn database(&self, directory: &str) -> Option<String> {
        fs::read_to_string(self.data().join(directory).join("db")).ok()
    }

    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_restore_keeps_the_former_data_and_may_run_twice() {
    for former in [Some("former"), None] {
        let inside = ContainerRoot::new("restored");
        if let Some(former) = former {
            inside.write_data(former);
        }
        for _ in 0..2 {
            assert_eq!(inside.run(&stage_script()), (0, String::new()));
            assert_eq!(inside.database("member").as_deref(), former, "the data stay");
            assert_eq!(inside.database("restored-7/member").as_deref(), Some("restored"));
        }
        for _ in 0..2 {
            assert_eq!(inside.run(&swap_directories_script()), (0, String::new()));
            assert_eq!(inside.database("member").as_deref(), Some("restored"));
            assert_eq!(inside.database("before-restore-7/member").as_deref(), former);
        }
        // The restored member has other data meanwhile: the restore is not repeated.
        inside.write_data("later");
        assert_eq!(inside.run(&stage_script()), (0, String::new()));
        assert_eq!(inside.run(&swap_directories_script()), (0, String::new()));
        assert_eq!(inside.database("member").as_deref(), Some("later"));
        assert_eq!(inside.entries(), ["before-restore-7", "member"]);
    }
}

#[test]
fn an_interrupted_exchange_goes_on() {
    let inside = ContainerRoot::new("restored");
    inside.write_data("former");
    inside.run(&stage_script());
    // The former data were moved, and the restored ones were not.
    fs::create_dir(inside.data().join("before-restore-7")).unwrap();
    fs::rename(inside.data().join("member"), inside.data().join("before-restore-7/member")).unwrap();
    assert_eq!(inside.run(&stage_script()), (0, String::new()));
    assert_eq!(inside.run(&swap_directories_script()), (0, String::new()));
    assert_eq!(inside.database("member").as_deref(), Some("restored"));
    assert_eq!(inside.database("before-restore-7/member").as_deref(), Some("former"));
}

#[test]
fn an_exchange_loses_no_data_that_it_does_not_expect() {
    let inside = ContainerRoot::new("restored");
    inside.write_data("former");
    assert_eq!(inside.run(&swap_directories_script()).0, 1, "there is no restored snapshot");
    inside.run(&stage_script());
    fs::create_dir_all(inside.data().join("before-restore-7/member")).unwrap();
    let (code, said) = inside.run(&swap_directories_script());
    assert!(code == 1 && said.contains("has both member and before-restore-7/member"), "{said}");
    assert_eq!(inside.database("member").as_deref(), Some("former"));
}

#[test]
fn a_damaged_snapshot_and_parts_of_former_restores_leave_nothing() {
    let inside = ContainerRoot::new("damaged");
    inside.write_data("former");
    for part in ["restoring-6", "restored-6", "restoring-7"] {
        fs::create_dir(inside.data().join(part)).unwrap();
    }
    let (code, said) = inside.run(&stage_script());
    assert_eq!(code, i32::try_from(BAD_SNAPSHOT).unwrap());
    assert!(said.contains("expected sha256"), "{said}");
    assert_eq!(inside.entries(), ["member"]);
}

fn restore() -> SnapshotRestore {
    SnapshotRestore {
        image: "etcd:1".to_owned(),
        volume: "etcd-cke".to_owned(),
        path: "/a b/it's".to_owned(),
        id: "7".to_owned(),
        name: "10.0.0.1".to_owned(),
        peer_url: "https://10.0.0.1:2380".to_owned(),
    }
}

/// The outcome of the first step if docker ends so.
fn staged(docker: &str) -> (i32, String) {
    let fake = FakeDocker::new();
    fake.program("docker", &format!("[ \"$1\" = run ] || exit 0\n{docker}"));
    let outcome = fake.run(&Script::from(stage_snapshot(&restore())));
    (outcome.code.unwrap(), outcome.stderr)
}

#[test]
fn failures_of_a_snapshot_differ_from_those_of_the_engine() {
    let bad = i32::try_from(BAD_SNAPSHOT).unwrap();
    assert_eq!(staged("exit 0").0, 0);
    let missing =
        "echo 'invalid mount config for type \"bind\": bind source path does not exist: /x' >&2; exit 125";
    let (code, said) = staged(missing);
    assert!(code == bad && said.ends_with("there is no file /a b/it's\n"), "{said}");
    let (code, said) = staged("echo 'exec: \"sh\": not found' >&2; exit 127");
    assert!(code == bad && said.contains("has no shell"), "{said}");
    assert_eq!(
        staged(&format!("echo 'expected sha256' >&2; exit {bad}")),
        (bad, "expected sha256\n".to_owned())
    );
    let (code, said) = staged("echo 'Cannot connect to the Docker daemon' >&2; exit 125");
    assert!(code == 125 && said.starts_with("Cannot connect"), "{said}");
}

#[test]
fn each_step_runs_as_one_container_with_every_word_as_given() {
    let fake = FakeDocker::new();
    fake.run(&Script::from(stage_snapshot(&restore())));
    fake.run(&Script::from(swap(&restore())));
    let [first, stage, second, swap] = &fake.changes()[..] else { panic!("{:?}", fake.changes()) };
    assert_eq!((first, second), (&words("container rm --force madako-etcd-restore"), first));
    for words in [stage, swap] {
        assert!(words.contains(&"--name=madako-etcd-restore".to_owned()));
        assert!(words.contains(&"--mount=type=volume,src=etcd-cke,dst=/var/lib/etcd".to_owned()));
    }
    assert!(stage.contains(&"--mount=type=bind,src=/a b/it's,dst=/snapshot.db,readonly".to_owned()));
    assert_eq!(stage[stage.len() - 4..], ["sh", "7", "10.0.0.1", "https://10.0.0.1:2380"]);
    assert_eq!(swap[swap.len() - 2..], ["sh", "7"]);
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn data_are_not_exchanged_while_etcd_runs() {
    let fake = FakeDocker::new();
    fake.container("etcd", true, "");
    let outcome = fake.run(&Script::from(swap(&restore())));
    assert!(outcome.code == Some(1) && outcome.stderr.starts_with("etcd runs"), "{outcome:?}");
    assert_eq!(fake.changes(), Vec::<Vec<String>>::new());
}

#[test]
fn the_status_of_a_snapshot_is_parsed() {
    let described = r#"{"hash":1918566322,"revision":6,"totalKey":9,"totalSize":20480}"#;
    let content = read_description(&format!("FILE 1767225600 20512\n{described}\n")).unwrap();
    let modified = OffsetDateTime::from_unix_timestamp(1_767_225_600).unwrap();
    assert_eq!(content, SnapshotContent { revision: 6, keys: 9, bytes: 20512, modified });
    for answer in ["", "FILE 1\n", "FILE 1 2\n", "FILE x 2\n{}\n", "FILE 1 2\n{}\n", described] {
        read_description(answer).unwrap_err();
    }
}
