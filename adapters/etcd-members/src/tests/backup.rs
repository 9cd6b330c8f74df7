//! Tests of backups of a real etcd cluster, and of their proof with the etcd programs on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, CompactionOptions, PutOptions};
use madako_domain::backup::{Difference, backup_name};
use madako_protocol::backup::{Backup, BackupError, EtcdBackups as _, PermitSource};
use madako_protocol::etcd::EtcdCluster as _;
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::{Permit, PermitEnded};
use ring::digest::{SHA256, digest};
use time::OffsetDateTime;
use tokio::process::Command;

use super::fleet::{Alone, Fleet, addresses, permit};
use crate::BackupsOnHost;
use crate::backup::{BackupStep, snapshot};

/// Processes of this test, which end when their future is dropped.
#[derive(Default)]
struct Processes {
    /// A file that is restored in place of any other.
    restores: Mutex<Option<PathBuf>>,
    /// The `PATH` of the programs.
    path: Option<&'static str>,
    /// The programs that were run, without their arguments.
    run: Mutex<Vec<String>>,
}

#[async_trait]
impl Host for Processes {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        permit.check(tokio::time::Instant::now())?;
        let mut words = command.words;
        for word in &mut words {
            match (self.restores.lock().unwrap().as_ref(), self.path) {
                (Some(other), _) if word.ends_with(".backup") => *word = other.display().to_string(),
                (_, Some(path)) if word.starts_with("PATH=") => *word = format!("PATH={path}"),
                _ => {}
            }
        }
        let program =
            words.iter().skip(1).find(|word| !word.contains('=') && !word.starts_with('-')).unwrap();
        self.run.lock().unwrap().push(program.clone());
        let ended =
            Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).kill_on_drop(true).output();
        let ended = tokio::time::timeout(command.deadline, ended).await.unwrap().unwrap();
        Ok(HostOutcome {
            end: HostEnd::Exited { code: ended.status.code().unwrap() },
            stdout: String::from_utf8(ended.stdout).unwrap(),
            stderr: String::from_utf8(ended.stderr).unwrap(),
            cut: false,
            took: Duration::ZERO,
        })
    }
}

struct Always;

#[async_trait]
impl PermitSource for Always {
    async fn permit(&self) -> Result<Permit, PermitEnded> {
        Ok(permit())
    }
}

/// Backups of a fleet in a directory of their own.
struct Place {
    fleet: Fleet,
    host: Arc<Processes>,
    backups: BackupsOnHost,
    directory: tempfile::TempDir,
    asked: Vec<String>,
}

impl Place {
    async fn new(host: Processes) -> Option<Self> {
        let fleet = Fleet::start().await?;
        let host = Arc::new(host);
        let backups = BackupsOnHost::new(Arc::clone(&fleet.etcd), Arc::clone(&host) as Arc<dyn Host>);
        let directory = tempfile::tempdir().unwrap();
        Some(Self { fleet, host, backups, directory, asked: addresses(&[1, 2, 3]) })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    async fn take(&self, seconds: i64) -> Backup {
        self.backups.take(&permit(), &self.asked, self.path(), at(seconds)).await.unwrap()
    }

    async fn prove(&self, backup: &Backup) -> Result<madako_domain::backup::EtcdContents, BackupError> {
        self.backups.prove(&Always, &self.asked, self.path(), backup).await
    }

    /// The names of all files, in order.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    async fn root(&self) -> Client {
        self.fleet.client("127.0.0.1", "root").await
    }
}

fn at(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_700_000_000 + seconds).unwrap()
}

const LOCK: &str = ".madako.lock";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_proved_by_an_etcd_that_was_restored_from_it() {
    let Some(place) = Place::new(Processes::default()).await else { return };
    place.fleet.etcd.set_up_auth(&permit(), &place.asked).await.unwrap();
    let mut root = place.root().await;
    let lease = root.lease_grant(1, None).await.unwrap().id();
    root.put("/registry/events/e", "1", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    for number in 0..200 {
        root.put(format!("/registry/pods/p{number:03}"), vec![b'x'; 20_000], None).await.unwrap();
    }
    root.delete("/registry/pods/p007", None).await.unwrap();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let backups = place.backups.clone().with_progress({
        let steps = Arc::clone(&steps);
        move |step| steps.lock().unwrap().push(step)
    });
    let backup = backups.take(&permit(), &place.asked, place.path(), at(0)).await.unwrap();
    let file = place.path().join(&backup.name);
    assert_eq!(backup.name, backup_name(at(0)));
    assert_eq!(fs::metadata(&file).unwrap().len(), backup.size);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // The cluster goes on between the snapshot and its proof.
    root.put("/registry/pods/p008", "2", None).await.unwrap();
    root.delete("/registry/pods/p009", None).await.unwrap();
    let contents = backups.prove(&Always, &place.asked, place.path(), &backup).await.unwrap();
    assert_eq!(contents.keys, 200, "the event and 199 pods");
    assert_eq!((contents.revision, contents.hash.len()), (backup.revisions.0, 64));
    assert_eq!(place.names(), [LOCK.to_owned(), backup.name.clone()], "the scratch directory is gone");
    assert_eq!(*place.host.run.lock().unwrap(), ["etcd", "etcdctl", "etcdctl", "etcdctl", "etcd"]);
    let steps = steps.lock().unwrap().clone();
    let whole = BackupStep::Written { bytes: backup.size, of: backup.size };
    assert!(
        steps.contains(&whole) && steps.contains(&BackupStep::Compared { keys: 200, of: 200 }),
        "{steps:?}"
    );

    let refused = place.backups.take(&permit(), &place.asked, place.path(), at(0)).await.unwrap_err();
    assert!(refused.to_string().contains("it exists already"), "{refused}");
    for seconds in 1..4 {
        place.take(seconds).await;
    }
    let removed =
        place.backups.remove_older_backups(&permit(), place.path(), 2, Some(&backup.name)).await.unwrap();
    assert_eq!(removed, [backup_name(at(1))]);
    assert_eq!(place.names()[1..], [0, 2, 3].map(|seconds| backup_name(at(seconds))));
}

/// Puts or, without a value, deletes keys in this order.
async fn write(client: &mut Client, writes: &[(&str, Option<&str>)]) {
    for (key, value) in writes {
        match value {
            Some(value) => drop(client.put(*key, *value, None).await.unwrap()),
            None => drop(client.delete(*key, None).await.unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_data_with_a_missing_or_changed_key_refute_a_backup() {
    let Some(place) = Place::new(Processes::default()).await else { return };
    let mut cluster = place.root().await;
    write(&mut cluster, &[("a", Some("1")), ("b", Some("2")), ("c", Some("3"))]).await;
    for (seconds, spoiled, difference) in [
        (
            0,
            &[("a", Some("1")), ("b", Some("2")), ("b", None)][..],
            Difference::Keys { restored: 1, running: 3, revision: 4 },
        ),
        (1, &[("a", Some("1")), ("b", Some("X")), ("c", Some("3"))][..], Difference::Hash { revision: 4 }),
        (2, &[("b", Some("2")), ("a", Some("1")), ("c", Some("3"))][..], Difference::Hash { revision: 4 }),
        (3, &[("a", Some("1"))][..], Difference::Revision { restored: 2, before: 4, after: 4 }),
    ] {
        let mut alone = Alone::start().await;
        write(&mut alone.client, spoiled).await;
        let other = place.path().join("other");
        snapshot::write_snapshot(&alone.client, &other, &|_| ()).await.unwrap();
        let backup = place.take(seconds).await;
        *place.host.restores.lock().unwrap() = Some(other.clone());
        let refuted = place.prove(&backup).await.unwrap_err();
        let BackupError::Refuted { renamed, difference: found, .. } = &refuted else { panic!("{refuted}") };
        assert_eq!(*found, difference, "{refuted}");
        fs::remove_file(other).unwrap();
        let names = place.names();
        assert!(names.contains(renamed) && !names.contains(&backup.name), "{names:?}");
        assert_eq!(names.len(), 2 + usize::try_from(seconds).unwrap(), "nothing else stays: {names:?}");
    }
    *place.host.restores.lock().unwrap() = None;
    let backup = place.take(9).await;
    assert_eq!(place.prove(&backup).await.unwrap().keys, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compaction_before_the_proof_is_reported_and_the_backup_stays() {
    let Some(place) = Place::new(Processes::default()).await else { return };
    let mut cluster = place.root().await;
    write(&mut cluster, &[("a", Some("1"))]).await;
    let backup = place.take(0).await;
    write(&mut cluster, &[("a", Some("2")), ("a", Some("3"))]).await;
    cluster.compact(4, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let untold = place.prove(&backup).await.unwrap_err();
    assert_eq!(untold, BackupError::Compacted { name: backup.name.clone(), revision: 2 });
    assert!(untold.to_string().contains("neither proved nor refuted"), "{untold}");
    assert_eq!(place.names(), [LOCK.to_owned(), backup.name.clone()]);

    // The next backup is proved, even if the newest revision was a deletion that was compacted.
    write(&mut cluster, &[("b", Some("1")), ("b", None)]).await;
    cluster.compact(6, Some(CompactionOptions::new().with_physical())).await.unwrap();
    let next = place.take(1).await;
    let proved = place.prove(&next).await.unwrap();
    assert_eq!((proved.keys, proved.revision), (1, 6));

    // A file with a right checksum and no data of etcd.
    let mut garbage = vec![7_u8; 512 * 40];
    let checksum = digest(&SHA256, &garbage);
    garbage.extend_from_slice(checksum.as_ref());
    fs::write(place.path().join(&backup.name), garbage).unwrap();
    let refused = place.prove(&backup).await.unwrap_err();
    assert!(matches!(refused, BackupError::NotRestored { .. }), "{refused}");
    assert_eq!(place.names(), [LOCK.to_owned(), backup.name, next.name]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_etcd_makes_backups_and_names_the_programs_for_a_proof() {
    let Some(place) = Place::new(Processes { path: Some("/nonexistent"), ..Processes::default() }).await
    else {
        return;
    };
    let backup = place.take(0).await;
    let refused = place.prove(&backup).await.unwrap_err();
    assert!(matches!(refused, BackupError::Program { program: "etcd", .. }), "{refused:?}");
    assert!(refused.to_string().contains("no such program on PATH: install etcd"), "{refused}");
    assert_eq!(place.names(), [LOCK.to_owned(), backup.name]);
}

/// Prints the time of a proof of 100 MB, for docs/BENCHMARKS.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, on a quiet host"]
#[expect(clippy::disallowed_methods, reason = "a measurement takes real time")]
async fn a_proof_of_100_megabytes() {
    let Some(place) = Place::new(Processes::default()).await else { return };
    let mut cluster = place.root().await;
    for transaction in 0..250 {
        let puts: Vec<_> = (0..100)
            .map(|number| {
                let key = format!("/registry/pods/{transaction:03}-{number:03}");
                etcd_client::TxnOp::put(key, vec![u8::try_from(number).unwrap(); 4000], None)
            })
            .collect();
        cluster.txn(etcd_client::Txn::new().and_then(puts)).await.unwrap();
    }
    let began = std::time::Instant::now();
    let backup = place.take(0).await;
    let taken = began.elapsed();
    let began = std::time::Instant::now();
    let contents = place.prove(&backup).await.unwrap();
    println!(
        "{} bytes, {} keys: taken in {taken:?}, proved in {:?}",
        backup.size,
        contents.keys,
        began.elapsed()
    );
    assert_eq!(contents.keys, 25_000);
}
