//! The port that makes backups of the cluster's etcd on this host, and proves them.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use madako_domain::backup::{Difference, EtcdContents};
use madako_json::named;
use time::OffsetDateTime;

use crate::etcd::EtcdError;
use crate::permit::{Permit, PermitEnded};

/// A written backup. Its checksum was right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Name of the file in its directory.
    pub name: String,
    /// Time of the snapshot.
    pub at: OffsetDateTime,
    /// Size of the file in bytes.
    pub size: u64,
    /// Revisions of the cluster before and after the snapshot.
    pub revisions: (i64, i64),
}

/// The reason why there is no backup, or why it is not proved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum BackupError {
    /// The permit had expired; the effect did not begin.
    #[error(transparent)]
    Permit(#[from] PermitEnded),
    /// The cluster's etcd failed.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The host refused an access to a file.
    #[error("cannot {what} {}: {why}", path.display())]
    File {
        /// The access as a verb, such as `read`.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The message of the system.
        why: String,
    },
    /// Another process makes or proves a backup in this directory.
    #[error("another process uses the backup directory {}: wait until it ends, or name another directory", directory.display())]
    Busy {
        /// Directory of the backups on this host.
        directory: PathBuf,
    },
    /// The snapshot arrived damaged. There is no backup.
    #[error("the snapshot of etcd is damaged: {why}; no backup was written, take another one")]
    Damaged {
        /// The part of the snapshot that is damaged.
        why: String,
    },
    /// The programs of etcd on this host cannot restore the backup.
    #[error("cannot prove a backup with the program {program} of this host: {why}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// The fault, and the remedy.
        why: String,
    },
    /// etcd could not be restored from the backup.
    #[error("cannot restore etcd from the backup {name}: {why}")]
    NotRestored {
        /// Name of the file of the backup in its directory.
        name: String,
        /// The messages of etcd.
        why: String,
    },
    /// The cluster compacted the revision of the snapshot during the proof: the two cannot be compared.
    #[error(
        "the cluster compacted revision {revision} of the snapshot before the proof ended: {name} is neither proved nor \
         refuted; prove another backup"
    )]
    Compacted {
        /// Name of the file of the backup in its directory.
        name: String,
        /// Revision of the snapshot.
        revision: i64,
    },
    /// The restored etcd differs from the cluster.
    #[error(
        "the backup {name} is not a copy of the cluster's etcd: {difference}; its file was renamed to {renamed}"
    )]
    Refuted {
        /// Name of the file of the backup in its directory.
        name: String,
        /// Present name of its file.
        renamed: String,
        /// The first difference that was found.
        difference: Difference,
    },
}

named!(BackupError);

/// A source of permits, for effects that follow each other for longer than one permit lasts.
#[async_trait]
pub trait PermitSource: Send + Sync {
    /// A permit for the next effect.
    ///
    /// # Errors
    /// The epoch is over.
    async fn permit(&self) -> Result<Permit, PermitEnded>;
}

/// The port to backups. `addresses` are the nodes with members of etcd; `directory` is on this host.
///
/// Dropping a future ends all processes that it started. Files that it leaves are removed by the next call.
#[async_trait]
pub trait EtcdBackups: Send + Sync + 'static {
    /// Writes a snapshot of the cluster's etcd into the directory, which is created if it does not exist.
    ///
    /// # Errors
    /// See [`BackupError`]. The directory has no new backup.
    async fn take(
        &self,
        permit: &Permit,
        addresses: &[String],
        directory: &Path,
        at: OffsetDateTime,
    ) -> Result<Backup, BackupError>;

    /// Restores an etcd from a backup, and compares it with the cluster. Returns the contents of both.
    ///
    /// # Errors
    /// See [`BackupError`]. A refuted backup has another name afterwards; any other backup stays as it is.
    async fn prove(
        &self,
        permits: &dyn PermitSource,
        addresses: &[String],
        directory: &Path,
        backup: &Backup,
    ) -> Result<EtcdContents, BackupError>;

    /// Removes the oldest backups beyond the number to keep, but not the one with the name `spared`. Returns the removed
    /// names.
    ///
    /// # Errors
    /// See [`BackupError`]. Some backups may have been removed.
    async fn remove_older_backups(
        &self,
        permit: &Permit,
        directory: &Path,
        keep: usize,
        spared: Option<&str>,
    ) -> Result<Vec<String>, BackupError>;
}
