//! Backups of etcd in a directory of this host, and their proof with the programs of etcd on this host.
//!
//! ```text
//! take:  a member in sync ── snapshot ──> .NAME.part ── fsync, checksum ──> NAME
//! prove: NAME ── etcdctl snapshot restore ──> .madako-proof ── etcd ──┐
//!        a member in sync, at the revision of the backup ─────────────┴── number of keys and hash are equal
//! ```
//!
//! Guarantees:
//! - A file has the name of a backup only after it was synced and its checksum, which etcd appends, was right.
//! - A backup is proved only if an etcd that was restored from its file has the revision, the number of keys and the
//!   hash of the cluster. Both are read in pages of bounded size.
//! - The restored etcd listens on loopback, and takes only certificates of an authority that lives as long as the proof:
//!   the data of the cluster have no other readers. It ends with the proof, whatever the end (see `madako_host`).
//! - The scratch directory goes with each proof, even if its future is dropped. The next call in the directory removes
//!   what a killed process left. A lock keeps two processes apart.
//! - Files and directories are readable by their owner alone: a backup has the secrets of Kubernetes.
//!
//! Assumes: `etcd` and `etcdctl` 3.4 or 3.5 on `PATH` for proofs, with as much free space as the backup has.
//!
//! Does not: know whether a backup counts, or when the next one is due.

mod contents;
mod directory;
mod programs;
mod scratch;
pub(crate) mod snapshot;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::Client;
use madako_domain::backup::{
    EtcdContents, backup_name, compare, name_of_refuted_backup, select_surplus_backups,
};
use madako_protocol::backup::{Backup, BackupError, EtcdBackups, PermitSource};
use madako_protocol::etcd::EtcdError;
use madako_protocol::host::Host;
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::Instant;

use self::contents::{ReadFailure, present_revision, read_contents};
use self::directory::Directory;
use self::scratch::Scratch;
use crate::failure::Failure;
use crate::members::EtcdMembers;

const TAKE: &str = "snapshot of etcd";
const PROVE: &str = "read of all keys of etcd";

/// A step of a backup, for a display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupStep {
    /// Bytes of the snapshot so far, and those that etcd announces.
    Written {
        bytes: u64,
        of: u64,
    },
    /// The file is read again.
    Verifying,
    Restoring,
    Starting,
    /// Keys that were read of the cluster so far, and its number of keys.
    Compared {
        keys: u64,
        of: u64,
    },
}

/// Receives the steps. Must be quick and never block.
type Progress = Arc<dyn Fn(BackupStep) + Send + Sync>;

/// Backups of the cluster's etcd on this host.
#[derive(Clone)]
pub struct BackupsOnHost {
    etcd: Arc<EtcdMembers>,
    host: Arc<dyn Host>,
    progress: Progress,
}

impl BackupsOnHost {
    /// Backups of this etcd. `host` runs the programs of etcd.
    #[must_use]
    pub fn new(etcd: Arc<EtcdMembers>, host: Arc<dyn Host>) -> Self {
        Self { etcd, host, progress: Arc::new(|_| ()) }
    }

    #[must_use]
    pub fn with_progress(self, progress: impl Fn(BackupStep) + Send + Sync + 'static) -> Self {
        Self { progress: Arc::new(progress), ..self }
    }

    /// A member in sync, and the revision that it had at least.
    async fn find_member_in_sync(
        &self,
        what: &'static str,
        addresses: &[String],
    ) -> Result<(Client, i64), EtcdError> {
        self.etcd.member_in_sync(what, addresses).await
    }

    /// Compares a restored etcd with the cluster.
    async fn compare_restored(
        &self,
        addresses: &[String],
        backup: &Backup,
        scratch: &Scratch,
    ) -> Result<Comparison, BackupError> {
        let restored = scratch.client();
        let (before, after) = backup.revisions;
        let revision = scratch.restored_revision(before);
        if !(before..=after).contains(&revision) {
            let nothing = EtcdContents { revision, keys: 0, hash: String::new() };
            return Ok((compare(backup.revisions, &nothing, &nothing), nothing));
        }
        let (cluster, _) = self.find_member_in_sync(PROVE, addresses).await?;
        let reads = async {
            let shown = |keys, of| (self.progress)(BackupStep::Compared { keys, of });
            tokio::try_join!(
                async { read_contents(&cluster, revision, shown).await.map_err(|failure| (true, failure)) },
                async {
                    read_contents(restored, revision, |_, _| ()).await.map_err(|failure| (false, failure))
                },
            )
        };
        let (running, restored) =
            reads.await.map_err(|(of_cluster, failure)| match (of_cluster, failure) {
                (true, ReadFailure::Compacted) => {
                    BackupError::Compacted { name: backup.name.clone(), revision }
                }
                (true, ReadFailure::Etcd(failure)) => failure.into_error(PROVE).into(),
                (false, ReadFailure::Etcd(Failure::Refused(why) | Failure::Unavailable(why))) => {
                    BackupError::NotRestored { name: backup.name.clone(), why }
                }
                (false, ReadFailure::Compacted) => BackupError::NotRestored {
                    name: backup.name.clone(),
                    why: format!("the restored etcd has no revision {revision}"),
                },
            })?;
        Ok((compare(backup.revisions, &running, &restored), restored))
    }
}

/// True if both etcds are equal, with the contents of the restored one.
type Comparison = (Result<(), madako_domain::backup::Difference>, EtcdContents);

#[async_trait]
impl EtcdBackups for BackupsOnHost {
    async fn take(
        &self,
        permit: &Permit,
        addresses: &[String],
        directory: &Path,
        at: OffsetDateTime,
    ) -> Result<Backup, BackupError> {
        permit.check(Instant::now())?;
        let directory = Directory::open(directory).await?;
        let name = backup_name(at);
        directory.check_name_is_free(&name)?;
        let (member, before) = self.find_member_in_sync(TAKE, addresses).await?;
        let part = directory.unnamed_backup(&name);
        snapshot::write_snapshot(&member, part.path(), &*self.progress).await?;
        let after = present_revision(&member).await.map_err(|failure| failure.into_error(TAKE))?;
        (self.progress)(BackupStep::Verifying);
        let size = directory::verify_snapshot(part.path().to_owned()).await?;
        directory.rename_to(part.path(), &name).await?;
        Ok(Backup { name, at, size, revisions: (before, after) })
    }

    async fn prove(
        &self,
        permits: &dyn PermitSource,
        addresses: &[String],
        directory: &Path,
        backup: &Backup,
    ) -> Result<EtcdContents, BackupError> {
        let directory = Directory::open(directory).await?;
        let file = directory.path(&backup.name);
        programs::check_programs(&*self.host, permits, self.etcd.read_version(addresses).await).await?;
        let place = directory.make_scratch().await?;
        (self.progress)(BackupStep::Restoring);
        let proof = async {
            let revision = scratch::restore(&*self.host, permits, &file, &backup.name, place.path()).await?;
            (self.progress)(BackupStep::Starting);
            let mut running =
                scratch::start(&*self.host, permits, &backup.name, revision, place.path()).await?;
            running.run_with_restored(|scratch| self.compare_restored(addresses, backup, scratch)).await
        };
        let compared = proof.await;
        place.remove()?;
        let (equal, contents) = compared?;
        let Err(difference) = equal else { return Ok(contents) };
        let renamed = name_of_refuted_backup(&backup.name);
        directory.rename_to(&file, &renamed).await?;
        Err(BackupError::Refuted { name: backup.name.clone(), renamed, difference })
    }

    async fn remove_older_backups(
        &self,
        permit: &Permit,
        directory: &Path,
        keep: usize,
        spared: Option<&str>,
    ) -> Result<Vec<String>, BackupError> {
        permit.check(Instant::now())?;
        let directory = Directory::open(directory).await?;
        let removed = select_surplus_backups(&directory.names().await?, keep, spared);
        directory.remove(removed.clone()).await?;
        Ok(removed)
    }
}

/// An access to a file that the host refused.
fn file_error(what: &'static str, path: impl Into<PathBuf>, why: impl fmt::Display) -> BackupError {
    BackupError::File { what, path: path.into(), why: why.to_string() }
}
