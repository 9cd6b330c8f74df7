//! Backups of the cluster's etcd: their schedule, their names, and the last one that counts.
//!
//! A backup is a snapshot in a file. A backup is *proved* if an etcd that was restored from the file has the contents of
//! the running cluster at the snapshot's revision.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

pub use crate::limits::{BACKUP_EVERY, BACKUPS_KEPT};

/// CKE's directory for backups.
pub const BACKUP_DIRECTORY: &str = "/var/cke/etcd-backups";
/// Backups that CKE keeps.
pub const DEFAULT_KEPT: usize = 10;

/// Beginning and end of a backup's name (CKE's).
const PREFIX: &str = "etcd-";
const SUFFIX: &str = ".backup";
/// End of the name of a backup whose proof failed, in place of [`SUFFIX`]: neither a rotation nor an operator takes it
/// for a backup.
const REFUTED_SUFFIX: &str = ".refuted";

/// The schedule and the directory of the leader's backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSchedule {
    /// Time between the beginnings of two backups.
    pub every: Duration,
    /// Directory on the leader's host.
    pub dir: String,
    /// Number of backups to keep there.
    pub keep: usize,
    /// True if each backup is proved.
    pub prove: bool,
}

/// The contents of an etcd at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdContents {
    /// Revision at which the contents were read.
    pub revision: i64,
    /// Number of keys of every prefix, at that revision.
    pub keys: u64,
    /// SHA-256 of all keys, values, revisions, versions and leases, in hexadecimal digits.
    pub hash: String,
}

/// The last backup that counts (`madako/etcd/backup`): the last proved one, or the last one if none is to be proved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRecord {
    /// Time of the snapshot.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Name of the host with the file.
    pub host: String,
    /// Path of the file.
    pub file: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// The revision of the snapshot; without a proof, a revision that the snapshot reaches at least.
    pub revision: i64,
    /// Number of keys, if proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    /// Hash of the contents, if proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// End of the proof, if proved.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    pub proved_at: Option<OffsetDateTime>,
}

impl BackupRecord {
    /// True if the backup counts; with `prove`, only a proved backup does.
    #[must_use]
    pub fn counts_as_backup(&self, prove: bool) -> bool {
        self.proved_at.is_some() || !prove
    }
}

/// A difference between a restored backup and the running cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// The restored revision is none that the cluster had while the snapshot was taken.
    Revision {
        /// The revision of the restored etcd.
        restored: i64,
        /// The revision of the cluster before the snapshot.
        before: i64,
        /// The revision of the cluster after the snapshot.
        after: i64,
    },
    /// The number of keys differs.
    Keys {
        /// Keys of the restored etcd.
        restored: u64,
        /// Keys of the cluster.
        running: u64,
        /// The revision at which both were read.
        revision: i64,
    },
    /// The number of keys is equal, and the contents differ.
    Hash {
        /// The revision at which both were read.
        revision: i64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revision { restored, before, after } => write!(
                f,
                "it restores revision {restored}, and the cluster had revisions {before} to {after} during the snapshot"
            ),
            Self::Keys { restored, running, revision } => {
                write!(
                    f,
                    "it restores {restored} keys, and the cluster has {running} keys at revision {revision}"
                )
            }
            Self::Hash { revision } => {
                write!(f, "it restores other keys or values than the cluster has at revision {revision}")
            }
        }
    }
}

/// Compares the contents of a restored etcd with those of the cluster at the same revision. `before` and `after` are the
/// revisions of the cluster around the snapshot.
///
/// # Errors
/// The first difference.
pub fn compare(
    (before, after): (i64, i64),
    running: &EtcdContents,
    restored: &EtcdContents,
) -> Result<(), Difference> {
    let revision = restored.revision;
    if !(before..=after).contains(&revision) || running.revision != revision {
        return Err(Difference::Revision { restored: revision, before, after });
    }
    if running.keys != restored.keys {
        return Err(Difference::Keys { restored: restored.keys, running: running.keys, revision });
    }
    if running.hash != restored.hash {
        return Err(Difference::Hash { revision });
    }
    Ok(())
}

/// The name of a backup of this time (CKE's form, UTC).
#[must_use]
pub fn backup_name(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    let (date, time) = (at.date(), at.time());
    format!(
        "{PREFIX}{:04}{:02}{:02}-{:02}{:02}{:02}{SUFFIX}",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// The name that a backup gets when its proof finds a difference.
#[must_use]
pub fn name_of_refuted_backup(backup: &str) -> String {
    format!("{}{REFUTED_SUFFIX}", backup.strip_suffix(SUFFIX).unwrap_or(backup))
}

/// The oldest of these names beyond the number to keep, as CKE chooses them: names of backups order by their time.
/// `spared` stays in any case. Refuted backups are chosen apart, with the same number.
#[must_use]
pub fn select_surplus_backups(names: &[String], keep: usize, spared: Option<&str>) -> Vec<String> {
    let mut chosen = Vec::new();
    for suffix in [SUFFIX, REFUTED_SUFFIX] {
        let is_meant = |name: &&String| name.starts_with(PREFIX) && name.ends_with(suffix);
        let mut meant: Vec<&String> = names.iter().filter(is_meant).collect();
        meant.sort();
        meant.truncate(meant.len().saturating_sub(keep));
        chosen.extend(meant.into_iter().filter(|name| Some(name.as_str()) != spared).cloned());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(revision: i64, keys: u64, hash: &str) -> EtcdContents {
        EtcdContents { revision, keys, hash: hash.to_owned() }
    }

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    #[test]
    fn names_are_ckes_in_utc() {
        let offset = time::UtcOffset::from_hms(9, 0, 0).unwrap();
        let time = at(1_700_000_003).to_offset(offset);
        assert_eq!(backup_name(time), "etcd-20231114-221323.backup");
        assert_eq!(name_of_refuted_backup("etcd-20231114-221323.backup"), "etcd-20231114-221323.refuted");
    }

    #[test]
    fn every_difference_is_found_and_named() {
        let running = contents(7, 3, "a");
        assert_eq!(compare((5, 9), &running, &running), Ok(()));
        assert_eq!(compare((7, 7), &running, &running), Ok(()));
        for (window, restored, expected) in [
            ((8, 9), contents(7, 3, "a"), Difference::Revision { restored: 7, before: 8, after: 9 }),
            ((5, 6), contents(7, 3, "a"), Difference::Revision { restored: 7, before: 5, after: 6 }),
            ((5, 9), contents(6, 3, "a"), Difference::Revision { restored: 6, before: 5, after: 9 }),
            ((5, 9), contents(7, 2, "a"), Difference::Keys { restored: 2, running: 3, revision: 7 }),
            ((5, 9), contents(7, 3, "b"), Difference::Hash { revision: 7 }),
        ] {
            assert_eq!(compare(window, &running, &restored), Err(expected));
        }
    }

    #[test]
    fn the_oldest_backups_are_surplus_and_other_files_are_not() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = names(&[
            "etcd-20240103-000000.backup",
            "etcd-20240101-000000.backup",
            "etcd-20240102-000000.backup",
            "etcd-20230101-000000.refuted",
            "notes.backup",
            ".madako.lock",
            "etcd-20200101-000000.backup.part",
        ]);
        for (keep, spared, expected) in [
            (3, None, &[][..]),
            (2, None, &["etcd-20240101-000000.backup"][..]),
            (1, None, &["etcd-20240101-000000.backup", "etcd-20240102-000000.backup"][..]),
            (1, Some("etcd-20240101-000000.backup"), &["etcd-20240102-000000.backup"][..]),
        ] {
            assert_eq!(select_surplus_backups(&all, keep, spared), names(expected), "{keep} {spared:?}");
        }
        assert_eq!(select_surplus_backups(&all, 0, None).len(), 4, "a refuted backup is chosen apart");
    }

    #[test]
    fn a_record_is_stored_without_the_fields_of_a_proof_that_was_not_made() {
        let mut record = BackupRecord {
            at: at(1_700_000_003),
            host: "boot-0".to_owned(),
            file: "/var/cke/etcd-backups/etcd-20231114-221323.backup".to_owned(),
            size: 20_512,
            revision: 7,
            keys: None,
            hash: None,
            proved_at: None,
        };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"at":"2023-11-14T22:13:23Z","host":"boot-0","file":"/var/cke/etcd-backups/etcd-20231114-221323.backup","size":20512,"revision":7}"#
        );
        assert_eq!(serde_json::from_str::<BackupRecord>(&text).unwrap(), record);
        assert!(record.counts_as_backup(false) && !record.counts_as_backup(true));
        (record.keys, record.hash, record.proved_at) =
            (Some(3), Some("ab".to_owned()), Some(at(1_700_000_013)));
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.ends_with(r#""keys":3,"hash":"ab","proved_at":"2023-11-14T22:13:33Z"}"#), "{text}");
        assert_eq!(serde_json::from_str::<BackupRecord>(&text).unwrap(), record);
        assert!(record.counts_as_backup(false) && record.counts_as_backup(true));
    }
}
