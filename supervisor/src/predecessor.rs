//! The session lease that a killed process of this service left in the embedded store, and its end.
//!
//! A process that is killed cannot give its lease back. Its leader key would keep the next process from leading for the
//! lease's whole time to live. This ends such a lease earlier, and no other one.
//!
//! Guarantees: a lease is ended only if the embedded store noted it as one of its owner's own client ([`Left`]), if the owner ran
//! on this boot of this kernel, and if nothing of the owner runs any more. Why that is known is in
//! `docs/decisions/own-lease.md`. In every other case the lease ends by itself, as it would without this.
//!
//! Does not: end leases of other clients of the store, of a process on another boot, or of one whose watchers were killed too.

use std::path::{Path, PathBuf};

use madako_embedded_etcd::{Left, LeftLease};
use madako_host::{CommandsLeft, LeftCommands};
use tokio::time::{Instant, sleep};

use crate::limits::{PREDECESSOR_GLANCE, PREDECESSOR_SAID_EVERY};
use crate::service::ServiceError;

/// Directory of the notes of commands, within that of the store's file.
const NOTES: &str = "commands";
/// Tells boots apart, and so kernels: 36 characters that the kernel draws when it starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The mark of this process in the embedded store; `None` where the kernel does not tell: then nothing is noted.
pub(crate) fn own_mark() -> Option<String> {
    let boot = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(boot.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// What earlier processes left.
pub(crate) struct Predecessor {
    left: Left,
    leases: Vec<LeftLease>,
    commands: LeftCommands,
    notes: PathBuf,
}

impl Predecessor {
    /// Looks for what is left. Must be called while this process holds the lock of the store, and before it runs commands.
    pub(crate) fn find(left: Left, mark: Option<&str>, data_dir: &Path) -> Result<Self, ServiceError> {
        let notes = data_dir.join(NOTES);
        let commands = LeftCommands::find(&notes)
            .map_err(|source| ServiceError::Notes { directory: notes.display().to_string(), source })?;
        let (leases, foreign): (Vec<_>, Vec<_>) =
            left.leases().iter().cloned().partition(|lease| Some(lease.owner.as_str()) == mark);
        for lease in foreign {
            say_it_lasts(&left, &lease, "its process ran on another boot or another machine");
        }
        Ok(Self { left, leases, commands, notes })
    }

    /// Where this process keeps notes of its own commands.
    pub(crate) fn notes(&self) -> &Path {
        &self.notes
    }

    /// Ends the leases, once nothing of their processes runs.
    pub(crate) async fn end(mut self) {
        let mut said: Option<Instant> = None;
        loop {
            let why = match self.commands.look() {
                Ok(CommandsLeft::Ended) => self.end_leases().await,
                Ok(CommandsLeft::Running(running)) => format!("{running} of its commands are being ended"),
                Ok(CommandsLeft::Unknown(unknown)) => format!(
                    "watchers of {unknown} of its commands were killed too, and processes of these may run on"
                ),
                Err(error) => format!("notes of its commands cannot be read: {error}"),
            };
            self.leases.retain(|lease| self.left.remaining(lease).is_some());
            if self.leases.is_empty() {
                break;
            }
            if said.is_none_or(|said| said.elapsed() >= PREDECESSOR_SAID_EVERY) {
                said = Some(Instant::now());
                for lease in &self.leases {
                    say_it_lasts(&self.left, lease, &why);
                }
            }
            sleep(PREDECESSOR_GLANCE).await;
        }
        if let Err(error) = self.commands.forget_unknown() {
            tracing::warn!(%error, notes = %self.notes.display(), "notes of commands of earlier processes stay");
        }
    }

    /// Returns why a lease that is still there could not be ended.
    async fn end_leases(&self) -> String {
        let mut why = String::new();
        for lease in &self.leases {
            let seconds = seconds(&self.left, lease);
            let id = format!("{:x}", lease.id);
            match self.left.end(lease).await {
                Ok(()) => tracing::info!(
                    lease = id,
                    seconds,
                    "ended the session lease of the process before this one, so many seconds before its time"
                ),
                Err(error) => why = format!("ending it failed: {error}"),
            }
        }
        why
    }
}

fn seconds(left: &Left, lease: &LeftLease) -> u64 {
    left.remaining(lease).unwrap_or_default().as_secs()
}

fn say_it_lasts(left: &Left, lease: &LeftLease, why: &str) {
    tracing::warn!(
        lease = format!("{:x}", lease.id),
        seconds = seconds(left, lease),
        why,
        "waits for the session lease of the process before this one, which ends by itself in so many seconds"
    );
}
