//! The port [`EtcdBackups`] on the simulated etcd. The contents of a backup are the number of the last write.
//!
//! Does not: have disks that fill up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use madako_domain::backup::{
    EtcdContents, backup_name, compare, name_of_refuted_backup, select_surplus_backups,
};
use madako_protocol::backup::{Backup, BackupError, EtcdBackups, PermitSource};
use madako_protocol::etcd::EtcdError;
use madako_protocol::permit::Permit;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::SimulatedNodes;
use super::world::World;

/// Duration of a snapshot, and of a restore with its comparison.
const SNAPSHOT: Duration = Duration::from_secs(2);
const PROOF: Duration = Duration::from_secs(8);
/// Bytes of a simulated backup.
const SIZE: u64 = 20_512;

#[derive(Debug, Default)]
struct Files {
    /// The last write in each backup, by the name of its file.
    written: BTreeMap<String, u64>,
    proved: BTreeSet<String>,
    taken: usize,
    spoils: bool,
    /// Begins of snapshots and proofs.
    moments: Vec<Instant>,
}

/// Backups of the simulated etcd. Clones share them.
#[derive(Debug, Clone)]
pub struct SimulatedBackups {
    nodes: SimulatedNodes,
    files: Arc<Mutex<Files>>,
}

impl SimulatedBackups {
    /// No backups of the etcd on these nodes.
    #[must_use]
    pub fn new(nodes: &SimulatedNodes) -> Self {
        Self { nodes: nodes.clone(), files: Arc::default() }
    }

    /// From now on, or no longer, each new backup lacks the last write.
    pub fn set_spoiling(&self, spoils: bool) {
        self.lock_files().spoils = spoils;
    }

    /// Number of snapshots that were begun.
    #[must_use]
    pub fn count_taken(&self) -> usize {
        self.lock_files().taken
    }

    /// The times at which snapshots and proofs began.
    #[must_use]
    pub fn backup_times(&self) -> Vec<Instant> {
        self.lock_files().moments.clone()
    }

    /// True if the backup of this name was compared with the cluster, and is equal.
    #[must_use]
    pub fn is_proved(&self, name: &str) -> bool {
        self.lock_files().proved.contains(name)
    }

    fn lock_files(&self) -> MutexGuard<'_, Files> {
        // No code panics while it holds the lock.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last write of a healthy cluster.
    fn count_writes(&self, what: &'static str, addresses: &[String]) -> Result<u64, EtcdError> {
        let writes = self.nodes.with_world(|world: &mut World| world.count_writes(addresses));
        writes.ok_or_else(|| EtcdError::Unavailable { what, why: "no majority".to_owned() })
    }
}

fn contents_after_writes(writes: u64) -> EtcdContents {
    let revision = i64::try_from(writes).unwrap_or(i64::MAX);
    EtcdContents { revision, keys: writes, hash: format!("{writes:064x}") }
}

#[async_trait]
impl EtcdBackups for SimulatedBackups {
    async fn take(
        &self,
        permit: &Permit,
        addresses: &[String],
        _: &Path,
        at: OffsetDateTime,
    ) -> Result<Backup, BackupError> {
        permit.check(Instant::now())?;
        {
            let mut files = self.lock_files();
            files.taken += 1;
            files.moments.push(Instant::now());
        }
        let before = self.count_writes("snapshot", addresses)?;
        sleep(SNAPSHOT).await;
        let after = self.count_writes("snapshot", addresses)?;
        let name = backup_name(at);
        let mut files = self.lock_files();
        let written = if files.spoils { before.saturating_sub(1) } else { before };
        files.written.insert(name.clone(), written);
        Ok(Backup {
            name,
            at,
            size: SIZE,
            revisions: (contents_after_writes(before).revision, contents_after_writes(after).revision),
        })
    }

    async fn prove(
        &self,
        permits: &dyn PermitSource,
        addresses: &[String],
        _: &Path,
        backup: &Backup,
    ) -> Result<EtcdContents, BackupError> {
        permits.permit().await?.check(Instant::now())?;
        self.lock_files().moments.push(Instant::now());
        sleep(PROOF).await;
        self.count_writes("proof", addresses)?;
        let mut files = self.lock_files();
        let restored = files.written.get(&backup.name).copied().map(contents_after_writes);
        let restored = restored.ok_or_else(|| BackupError::NotRestored {
            name: backup.name.clone(),
            why: "there is no such file".to_owned(),
        })?;
        // The simulated cluster keeps all revisions: its contents at one are known.
        match compare(backup.revisions, &restored, &restored) {
            Ok(()) => {
                files.proved.insert(backup.name.clone());
                Ok(restored)
            }
            Err(difference) => {
                files.written.remove(&backup.name);
                let renamed = name_of_refuted_backup(&backup.name);
                Err(BackupError::Refuted { name: backup.name.clone(), renamed, difference })
            }
        }
    }

    async fn remove_older_backups(
        &self,
        permit: &Permit,
        _: &Path,
        keep: usize,
        spared: Option<&str>,
    ) -> Result<Vec<String>, BackupError> {
        permit.check(Instant::now())?;
        let mut files = self.lock_files();
        let names: Vec<String> = files.written.keys().cloned().collect();
        let removed = select_surplus_backups(&names, keep, spared);
        files.written.retain(|name, _| !removed.contains(name));
        Ok(removed)
    }
}
