//! `make_directories`: creates directories with their parents.
//!
//! Existing directories stay as they are. The process's umask applies to the mode, as it does for CKE's tool.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;

use anyhow::Context as _;

use crate::flags::{Failure, Flags};

pub(crate) const HELP: &str = "Creates directories and their parents.

Usage: make_directories [--mode MODE] DIR...

  DIR          absolute path of a directory
  --mode MODE  permission bits of new directories, in octal digits (default 755)

Example: make_directories --mode=700 /mnt/etc/etcd/pki
";

/// Permission bits of directories; CKE's default.
const MODE: u32 = 0o755;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let flags = Flags::read(arguments, &["mode"])?;
    let mode = flags.file_mode(MODE)?;
    if flags.words.is_empty() {
        return Err(Failure::Usage("no directory is named: give at least one absolute path".to_owned()));
    }
    if let Some(relative) = flags.words.iter().find(|directory| !directory.starts_with('/')) {
        return Err(Failure::Usage(format!("the directory {relative:?} is not an absolute path")));
    }
    for directory in flags.words {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(directory)
            .with_context(|| format!("cannot create the directory {directory}"))?;
    }
    Ok(())
}
