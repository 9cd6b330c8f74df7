//! `madako store`: the file of the embedded store, and snapshots of every store.

mod snapshot;

use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use madako_embedded_etcd::{OpenError, Snapshot, restore, verify};
use rustix::process::geteuid;
use serde_json::json;

use crate::cli::Global;
use crate::failure::Failure;
use crate::host;
use crate::output::{OutputArgs, Table, print_text, show_value};

/// Verifies, saves and restores the store.
///
/// No service may use the given file. `snapshot` without a file saves the store of a running service.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Verifies the checksums of every page and every record; writes nothing.
    ///
    /// A snapshot is verified by its checksum.
    ///
    /// Exit codes: 0: the file is good; 1: it is damaged, and the reason is printed, or it cannot be read.
    #[command(after_help = "Example:\n  madako store verify /var/lib/madako")]
    Verify {
        /// The store's directory, its file, or a snapshot
        path: PathBuf,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Saves a snapshot, as `etcdctl snapshot save` does.
    ///
    /// Without PATH the command saves the store that the configuration file names: that of a running service, or an
    /// etcd. The snapshot has keys, values, revisions, history and leases. The command verifies the written file before
    /// it gives the file its name.
    #[command(
        after_help = "Examples:\n  madako store snapshot --to backup.db\n  madako store snapshot /var/lib/madako --to backup.db"
    )]
    Snapshot {
        /// Directory of a store that no service has open, or its file
        path: Option<PathBuf>,
        /// File of the snapshot
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// Replaces an existing file
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Creates the file of a store from a snapshot.
    ///
    /// SNAPSHOT is a file from `madako store snapshot` or `etcdctl snapshot save`, of an embedded store or of an etcd.
    /// Keys, values, revisions, history and leases are those of the snapshot. Restart clients that saw later revisions.
    #[command(
        after_help = "Examples:\n  madako store restore backup.db --to /var/lib/madako\n  madako store restore backup.db --to /var/lib/madako --force"
    )]
    Restore {
        /// File of the snapshot
        snapshot: PathBuf,
        /// Directory of the store
        #[arg(long, value_name = "DIRECTORY")]
        to: PathBuf,
        /// Replaces an existing file, and keeps it under another name
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Snapshot { path, to, force, output } => {
            snapshot::run(path.as_deref(), snapshot::Target { to, force }, output, global).await
        }
        Command::Verify { path, output } if snapshot::is_snapshot(&path) => {
            snapshot::verify_snapshot(&path, output)
        }
        Command::Verify { path, output } => {
            let verified = verify(&path).map_err(|error| Failure::Failed(error.into()))?;
            let end = if verified.was_closed { "closed" } else { "not closed: its process was killed" };
            let Some(format) = output.output else {
                return print_text(&format!(
                    "{} is whole: revision {}, {} bytes, {end}\n",
                    verified.file.display(),
                    verified.revision,
                    verified.bytes
                ));
            };
            let value = json!({
                "file": verified.file,
                "bytes": verified.bytes,
                "revision": verified.revision,
                "compacted": verified.compacted,
                "closed": verified.was_closed,
            });
            show_value(format, &value, |_| {
                let mut table = Table::new(["FILE", "BYTES", "REVISION", "COMPACTED", "END"]);
                table.add_row([
                    verified.file.display().to_string(),
                    verified.bytes.to_string(),
                    verified.revision.to_string(),
                    verified.compacted.to_string(),
                    end.to_owned(),
                ]);
                table.to_text()
            })
        }
        Command::Restore { snapshot: path, to, force, output } => {
            let shown = path.display();
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read the snapshot {shown}"));
            let bytes = bytes.map_err(Failure::BadInput)?;
            let snapshot = Snapshot::read(&bytes)
                .map_err(|error| Failure::bad_input(format_args!("{shown} cannot be restored: {error}")))?;
            let (revision, changes) = (snapshot.revision(), snapshot.count_changes());
            let seed = host::draw_seed().map_err(Failure::Failed)?;
            let kept = restore(snapshot, &to, force, seed).map_err(|error| match error {
                OpenError::Exists { .. } => Failure::BadInput(error.into()),
                other => Failure::Failed(other.into()),
            })?;
            keep_owner(&to)?;
            let Some(format) = output.output else {
                let kept = kept
                    .map_or_else(String::new, |kept| format!("; the previous file is {}", kept.display()));
                return print_text(&format!("{} has the store at revision {revision}{kept}\n", to.display()));
            };
            let value = json!({ "directory": to, "revision": revision, "changes": changes, "kept": kept });
            show_value(format, &value, |_| {
                let mut table = Table::new(["DIRECTORY", "REVISION", "CHANGES", "KEPT"]);
                let kept = kept.as_ref().map_or_else(|| "-".to_owned(), |kept| kept.display().to_string());
                table.add_row([to.display().to_string(), revision.to_string(), changes.to_string(), kept]);
                table.to_text()
            })
        }
    }
}

/// Gives the files of a directory to its owner: root restores a store, and the service runs as another user.
fn keep_owner(directory: &Path) -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let give = || -> std::io::Result<()> {
        let owner = directory.metadata()?;
        for file in directory.read_dir()? {
            lchown(file?.path(), Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(())
    };
    let given = give().with_context(|| {
        format!("cannot give the files of {} to the owner of the directory (chown)", directory.display())
    });
    given.map_err(Failure::Failed)
}
