//! `empty-dir`: removes everything in a directory.
//!
//! The directory itself stays, and a missing one is not an error, as for CKE's tool. Symbolic links in it are removed, not
//! followed.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::Context as _;

use crate::flags::{Failure, Flags};

pub(crate) const HELP: &str = "Removes everything in a directory.

Usage: empty-dir DIR

  DIR  absolute path of the directory, which stays; a missing one is not an error

Example: empty-dir /mnt/etc/cni/net.d
";

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let flags = Flags::read(arguments, &[])?;
    let [directory] = flags.words[..] else {
        return Err(Failure::Usage(format!(
            "expected one directory on the command line, got {}",
            flags.words.len()
        )));
    };
    if !directory.starts_with('/') {
        return Err(Failure::Usage(format!("the directory {directory:?} is not an absolute path")));
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(anyhow::Error::from(error)
                .context(format!("cannot read the directory {directory}"))
                .into());
        }
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read the directory {directory}"))?;
        let path = entry.path();
        remove(&path, entry.file_type())
            .with_context(|| format!("cannot remove the directory entry {}", path.display()))?;
    }
    Ok(())
}

fn remove(path: &Path, kind: io::Result<fs::FileType>) -> io::Result<()> {
    let removed = if kind?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
