//! Revokes the session lease that a killed process of this service left in the embedded store.
//!
//! A killed process cannot release its lease. Its leader key would prevent the next process from leading for the
//! lease's whole time to live. This module ends such a lease early, and no other lease.
//!
//! Guarantees: a lease is ended only if the embedded store recorded it as a lease of its owner's own client
//! ([`EarlierLeases`]), if the owner ran on this boot of this kernel, and if no part of the owner runs any more.
//! `docs/decisions/own-lease.md` explains how this is known. In all other cases the lease expires.
//!
//! Does not: end leases of other clients of the store, of a process on another boot, of a process whose watchers were killed
//! too, or of one whose action on a node was under way.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_embedded_etcd::{EarlierLeases, LeftLease};
use madako_host::{CommandsLeft, LeftCommands};
use tokio::time::{Instant, sleep};

use crate::limits::{PREDECESSOR_GLANCE, PREDECESSOR_LOG_INTERVAL};
use crate::service::ServiceError;
use crate::telemetry::madako_predecessor_lease_seconds;

/// Directory of the notes of commands and of actions on nodes, within the store's data directory.
const NOTES: &str = "commands";
/// Identifies a boot: 36 characters that the kernel draws at its start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Mark of this process in the embedded store; `None`: the kernel gives no boot id, and nothing is noted.
pub(crate) fn own_mark() -> Option<String> {
    let boot = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(boot.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// The wait for the leases of earlier processes, which pages show. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct LeaseWait(Arc<Mutex<Option<(Duration, String)>>>);

impl LeaseWait {
    fn set(&self, wait: Option<(Duration, String)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// The wait in words; `None`: no lease of an earlier process prevents leading.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let wait = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wait.as_ref().map(|(lasts, why)| {
            let because = if why.is_empty() { String::new() } else { format!(": {why}") };
            format!(
                "the session lease of the previous process, which expires in at most {} s{because}",
                lasts.as_secs()
            )
        })
    }
}

/// Leases and commands of earlier processes.
pub(crate) struct Predecessor {
    pub(crate) wait: LeaseWait,
    left: EarlierLeases,
    leases: Vec<LeftLease>,
    commands: LeftCommands,
    notes: PathBuf,
}

impl Predecessor {
    /// Reads the remains. The caller holds the lock of the store and has not run commands yet.
    pub(crate) fn find(
        left: EarlierLeases,
        mark: Option<&str>,
        data_dir: &Path,
    ) -> Result<Self, ServiceError> {
        let notes = data_dir.join(NOTES);
        let commands = LeftCommands::list_notes(&notes)
            .map_err(|source| ServiceError::Notes { directory: notes.display().to_string(), source })?;
        let (leases, foreign): (Vec<_>, Vec<_>) =
            left.leases().iter().cloned().partition(|lease| Some(lease.owner.as_str()) == mark);
        for lease in foreign {
            log_lease_wait(&left, &lease, "its process ran on another boot or another machine");
        }
        Ok(Self { wait: LeaseWait::default(), left, leases, commands, notes })
    }

    /// Directory of this process's own command notes.
    pub(crate) fn notes(&self) -> &Path {
        &self.notes
    }

    /// Ends the leases once no part of their processes runs.
    pub(crate) async fn end(mut self) {
        let mut last_log: Option<Instant> = None;
        loop {
            let why = match self.commands.check() {
                Ok(CommandsLeft::Ended) => self.end_leases().await,
                Ok(CommandsLeft::Running(running)) => format!("{running} of its commands are being ended"),
                Ok(CommandsLeft::Unknown(unknown)) => {
                    format!(
                        "{unknown} of its commands without a watcher, or of its actions on nodes, may run on"
                    )
                }
                Err(error) => format!("notes of its commands cannot be read: {error}"),
            };
            self.leases.retain(|lease| self.left.remaining_time(lease).is_some());
            let lasts = self.leases.iter().filter_map(|lease| self.left.remaining_time(lease)).max();
            madako_predecessor_lease_seconds().set(lasts.unwrap_or_default());
            self.wait.set(lasts.map(|lasts| (lasts, why.clone())));
            if self.leases.is_empty() {
                break;
            }
            if last_log.is_none_or(|last_log| last_log.elapsed() >= PREDECESSOR_LOG_INTERVAL) {
                last_log = Some(Instant::now());
                for lease in &self.leases {
                    log_lease_wait(&self.left, lease, &why);
                }
            }
            sleep(PREDECESSOR_GLANCE).await;
        }
        if let Err(error) = self.commands.forget_unknown() {
            tracing::warn!(
                %error,
                notes = %self.notes.display(),
                "cannot delete the notes of commands of earlier processes"
            );
        }
    }

    /// Returns the reason if a remaining lease could not be ended.
    async fn end_leases(&self) -> String {
        let mut why = String::new();
        for lease in &self.leases {
            let seconds = remaining_seconds(&self.left, lease);
            let id = format!("{:x}", lease.id);
            match self.left.end(lease).await {
                Ok(()) => tracing::info!(
                    lease = id,
                    seconds,
                    "the session lease of the previous process is ended before its expiry"
                ),
                Err(error) => why = format!("the lease cannot be ended: {error}"),
            }
        }
        why
    }
}

fn remaining_seconds(left: &EarlierLeases, lease: &LeftLease) -> u64 {
    left.remaining_time(lease).unwrap_or_default().as_secs()
}

fn log_lease_wait(left: &EarlierLeases, lease: &LeftLease, why: &str) {
    tracing::warn!(
        lease = format!("{:x}", lease.id),
        seconds = remaining_seconds(left, lease),
        why,
        "the service waits for the expiry of the session lease of the previous process"
    );
}
