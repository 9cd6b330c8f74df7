//! Makes one backup of etcd: takes the snapshot, proves it by a restore, commits its record, and removes older backups.

use std::path::Path;

use madako_domain::backup::{BackupRecord, EtcdContents};
use madako_domain::canary::{Canary, is_planted};
use madako_effects::Permits;
use madako_protocol::actors::{BackupEnd, BackupFailure, Mutation};
use madako_protocol::backup::{Backup, BackupError};
use madako_protocol::leader::commit;
use time::OffsetDateTime;

use super::BackupsArguments;

pub(crate) struct BackupAttempt {
    pub(crate) given: BackupsArguments,
    pub(crate) permits: Permits,
    /// Addresses of the nodes with members of etcd.
    pub(crate) addresses: Vec<String>,
    pub(crate) at: OffsetDateTime,
    /// The present record, and the mod revision of its key; 0 if there is none.
    pub(crate) last: Option<BackupRecord>,
    pub(crate) revision: i64,
}

/// Makes a backup that counts, and removes older ones.
pub(crate) async fn make_backup(attempt: &BackupAttempt) -> BackupEnd {
    let outcome = attempt.record_backup().await;
    // The record that counts now names a file that must stay.
    let counted = match &outcome {
        Ok((record, _)) => Some(&record.file),
        Err(_) => attempt.last.as_ref().map(|last| &last.file),
    };
    let spared = counted.and_then(|file| Path::new(file).file_name()?.to_str());
    let permit = attempt.permits.get().await;
    let schedule = &attempt.given.schedule;
    let removed = attempt
        .given
        .backups
        .remove_older_backups(&permit, Path::new(&schedule.dir), schedule.keep, spared)
        .await;
    BackupEnd { outcome, removed }
}

impl BackupAttempt {
    /// Makes a backup and its record. Returns the revision of the record, too.
    async fn record_backup(&self) -> Result<(BackupRecord, i64), BackupFailure> {
        let BackupsArguments { schedule, backups, epoch, leader, .. } = &self.given;
        let directory = Path::new(&schedule.dir);
        let permit = self.permits.get().await;
        let backup = backups.take(&permit, &self.addresses, directory, self.at).await?;
        let contents = if schedule.prove { Some(self.prove_backup(directory, &backup).await?) } else { None };
        let record = self.record(directory, backup, contents);
        let mutation = Mutation::EtcdBackup { record: record.clone(), revision: self.revision };
        let committed = commit(leader, *epoch, mutation).await?;
        Ok((record, committed.revision))
    }

    async fn prove_backup(&self, directory: &Path, backup: &Backup) -> Result<EtcdContents, BackupError> {
        if is_planted(Canary::BackupUnproved) {
            let (revision, _) = backup.revisions;
            return Ok(EtcdContents { revision, keys: 0, hash: String::new() });
        }
        self.given.backups.prove(&self.permits, &self.addresses, directory, backup).await
    }

    fn record(&self, directory: &Path, backup: Backup, contents: Option<EtcdContents>) -> BackupRecord {
        BackupRecord {
            at: backup.at,
            host: self.given.host.clone(),
            file: directory.join(&backup.name).display().to_string(),
            size: backup.size,
            revision: contents.as_ref().map_or(backup.revisions.0, |contents| contents.revision),
            keys: contents.as_ref().map(|contents| contents.keys),
            proved_at: contents.as_ref().map(|_| self.given.clock.now()),
            hash: contents.map(|contents| contents.hash),
        }
    }
}
