//! `madako store snapshot`: writes a temporary file, reads it again, and only then renames it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use madako_embedded_etcd::{Snapshot, save_snapshot};
use madako_store::SaveError;
use serde_json::json;

use crate::access;
use crate::cli::Global;
use crate::failure::Failure;
use crate::output::{OutputArgs, Table, print_text, show_value};

/// Bytes by which a snapshot is recognized: a page's header and a magic number are fewer.
const BEGIN: u64 = 64;

pub(super) struct Target {
    pub(super) to: PathBuf,
    /// True if an existing file is replaced.
    pub(super) force: bool,
}

/// Saves the store file at a path, or the configured store.
pub(super) async fn run(
    path: Option<&Path>,
    target: Target,
    output: OutputArgs,
    global: &Global,
) -> Result<(), Failure> {
    let Target { to, force } = target;
    let shown = to.display();
    if !force && to.exists() {
        return Err(Failure::bad_input(format_args!(
            "{shown} exists already: name another file, or replace it with --force"
        )));
    }
    // An invalid configuration is reported before anything is written.
    let running = match path {
        Some(_) => None,
        None => Some(access::open_store(global)?),
    };
    let part = PathBuf::from(format!("{shown}.part"));
    let writing = || format!("cannot write {}", part.display());
    let mut file = BufWriter::new(create_part_file(&part).with_context(writing).map_err(Failure::Failed)?);
    let saved = match (path, &running) {
        (Some(path), _) => {
            let saved = save_snapshot(path, |bytes| file.write_all(bytes)).await;
            saved.map(drop).map_err(|error| Failure::Failed(error.into()))
        }
        (None, Some(store)) => {
            let saved = store.save(|bytes| file.write_all(bytes)).await;
            saved.map_err(|error| match error {
                SaveError::Store(error) => error.into(),
                error @ SaveError::Write(_) => Failure::Failed(error.into()),
            })
        }
        (None, None) => unreachable!("one of the two is there"),
    };
    let done = saved.and_then(|()| {
        let synced =
            file.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
        synced.with_context(writing).map_err(Failure::Failed)?;
        verify_and_rename(&part, &to)
    });
    let (snapshot, bytes) = match done {
        Ok(done) => done,
        Err(failure) => {
            // The temporary file is useless; the failure is reported even if its removal fails.
            let _ = fs::remove_file(&part);
            return Err(failure);
        }
    };
    show_snapshot(&to, &snapshot, bytes, output)
}

/// Verifies a snapshot, without a store.
pub(super) fn verify_snapshot(path: &Path, output: OutputArgs) -> Result<(), Failure> {
    let shown = path.display();
    let bytes = fs::read(path)
        .with_context(|| format!("cannot read the snapshot {shown}"))
        .map_err(Failure::Failed)?;
    let snapshot = Snapshot::read(&bytes).map_err(|error| {
        Failure::failed(format_args!(
            "the snapshot {shown} is damaged: {error}; madako store snapshot saves another one"
        ))
    })?;
    show_snapshot(path, &snapshot, bytes.len(), output)
}

/// True if the file is a snapshot. A file that cannot be read is none: its verification reports the error.
pub(super) fn is_snapshot(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGIN).read_to_end(&mut begin));
    read.is_ok() && Snapshot::is_begun_by(&begin)
}

fn show_snapshot(path: &Path, snapshot: &Snapshot, bytes: usize, output: OutputArgs) -> Result<(), Failure> {
    let (shown, revision, changes) = (path.display(), snapshot.revision(), snapshot.count_changes());
    let Some(format) = output.output else {
        return print_text(&format!(
            "{shown} has the store at revision {revision}: {changes} changes, {bytes} bytes\n"
        ));
    };
    let value = json!({ "snapshot": path, "revision": revision, "changes": changes, "bytes": bytes });
    show_value(format, &value, |_| {
        let mut table = Table::new(["SNAPSHOT", "REVISION", "CHANGES", "BYTES"]);
        table.add_row([shown.to_string(), revision.to_string(), changes.to_string(), bytes.to_string()]);
        table.to_text()
    })
}

/// Creates the file with restricted access, since it contains secrets.
fn create_part_file(part: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(part)
}

/// Reads a written snapshot and renames it. Returns its size in bytes, too.
fn verify_and_rename(part: &Path, to: &Path) -> Result<(Snapshot, usize), Failure> {
    let bytes = fs::read(part)
        .with_context(|| format!("cannot read the written snapshot {} to verify it", part.display()));
    let bytes = bytes.map_err(Failure::Failed)?;
    let snapshot = Snapshot::read(&bytes).map_err(|error| {
        Failure::failed(format_args!(
            "the written snapshot {} is damaged: {error}; write it again",
            part.display()
        ))
    })?;
    let named = fs::rename(part, to).and_then(|()| {
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all())
    });
    named
        .with_context(|| format!("cannot rename the snapshot to {}", to.display()))
        .map_err(Failure::Failed)?;
    Ok((snapshot, bytes.len()))
}
