//! `madako etcd local-backup`: a snapshot of the cluster's etcd on this host, and its proof.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use madako_console::Progress;
use madako_domain::backup::{BACKUP_DIRECTORY, BACKUPS_KEPT, DEFAULT_KEPT, EtcdContents};
use madako_etcd_members::{BackupStep, BackupsOnHost};
use madako_host::CommandsOnHost;
use madako_protocol::backup::{Backup, BackupError, EtcdBackups as _, PermitSource};
use madako_protocol::permit::{Permit, PermitEnded};
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use serde_json::json;

use super::members::{command_permit, open_members};
use crate::cli::{Global, whole_number};
use crate::failure::Failure;
use crate::limits::COMMAND_SILENCE;
use crate::output::{OutputArgs, PROGRAM, Table, print_note, print_text, show_value};
use crate::signals;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the backups
    #[arg(long, value_name = "DIRECTORY", default_value = BACKUP_DIRECTORY)]
    dir: PathBuf,
    /// Number of backups to keep
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_KEPT, value_parser = parse_kept)]
    max_backups: usize,
    /// Prove the backup: restore an etcd from it on this host, and compare it with the cluster
    #[arg(long)]
    prove: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_kept(text: &str) -> Result<usize, String> {
    let number = whole_number(text, BACKUPS_KEPT)?;
    usize::try_from(number).map_err(|error| error.to_string())
}

/// The operator who runs the command permits each step of it.
struct Operator;

#[async_trait]
impl PermitSource for Operator {
    async fn permit(&self) -> Result<Permit, PermitEnded> {
        Ok(command_permit())
    }
}

/// Takes a backup, and ends its processes and files at a signal, too.
pub(super) async fn run(args: Args, global: &Global) -> Result<(), Failure> {
    tokio::select! {
        biased;
        () = signals::wait_for_stop() => Err(Failure::failed("a signal ended the command: an unfinished backup or proof was given up")),
        done = back_up(&args, global) => done,
    }
}

async fn back_up(args: &Args, global: &Global) -> Result<(), Failure> {
    let (etcd, addresses) = open_members(global).await?;
    let backups = BackupsOnHost::new(Arc::new(etcd), Arc::new(CommandsOnHost::new(COMMAND_SILENCE)));
    let backups = match io::stderr().is_terminal() {
        true => backups.with_progress(progress_printer()),
        false => backups,
    };
    let says = |line: String| if args.output.output.is_none() { print_text(&line) } else { Ok(()) };
    let backup = backups.take(&command_permit(), &addresses, &args.dir, SystemClock.now()).await?;
    says(format!("created backup {}\n", backup.name))?;
    let mut contents = None;
    if args.prove {
        let proved = backups.prove(&Operator, &addresses, &args.dir, &backup).await?;
        says(format!(
            "proved backup {}: {} keys at revision {}\n",
            backup.name, proved.keys, proved.revision
        ))?;
        contents = Some(proved);
    }
    let removed = backups
        .remove_older_backups(&command_permit(), &args.dir, args.max_backups, Some(&backup.name))
        .await?;
    for name in &removed {
        says(format!("removed {name}\n"))?;
    }
    backup_output(args, &backup, contents.as_ref(), &removed)
}

fn backup_output(
    args: &Args,
    backup: &Backup,
    contents: Option<&EtcdContents>,
    removed: &[String],
) -> Result<(), Failure> {
    let Some(format) = args.output.output else { return Ok(()) };
    let value = json!({
        "backup": args.dir.join(&backup.name),
        "bytes": backup.size,
        "proved": contents.is_some(),
        "revision": contents.map_or(backup.revisions.0, |contents| contents.revision),
        "keys": contents.map(|contents| contents.keys),
        "hash": contents.map(|contents| &contents.hash),
        "removed": removed,
    });
    show_value(format, &value, |value| {
        let mut table = Table::new(["BACKUP", "BYTES", "PROVED", "REVISION", "KEYS"]);
        let text = |name: &str| match &value[name] {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => String::new(),
            other => other.to_string(),
        };
        table.add_row(["backup", "bytes", "proved", "revision", "keys"].map(text));
        table.to_text()
    })
}

/// Shows a bar for the bytes of the snapshot and one for the compared keys, and names each other step.
fn progress_printer() -> impl Fn(BackupStep) + Send + Sync {
    let bar = Mutex::new(None::<(std::mem::Discriminant<BackupStep>, Progress)>);
    move |step| {
        // No code panics while it holds the lock.
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = std::mem::discriminant(&step);
        let (what, unit, done, of) = match step {
            BackupStep::Written { bytes, of } => ("snapshot", "KiB", bytes >> 10, of >> 10),
            BackupStep::Compared { keys, of } => ("comparing", "keys", keys, of),
            BackupStep::Verifying | BackupStep::Restoring | BackupStep::Starting => {
                *bar = None;
                print_note(match step {
                    BackupStep::Verifying => "verifying the checksum",
                    BackupStep::Restoring => "restoring an etcd from the backup",
                    _ => "starting the restored etcd",
                });
                return;
            }
        };
        let (_, shown) = match bar.take() {
            Some(shown) if shown.0 == kind => bar.insert(shown),
            _ => bar.insert((kind, Progress::start(PROGRAM, what, unit))),
        };
        shown.advance(done, Some(of));
        if done >= of {
            // The next message gets a line of its own.
            *bar = None;
        }
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        Self::Failed(error.into())
    }
}
