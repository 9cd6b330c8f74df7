//! `write_files`: writes the files of a tar archive from standard input below a directory.
//!
//! Guarantees:
//! - The whole archive is read and checked before the first file is written (see `tar`).
//! - A file is old or new, also after a crash: it is written under a temporary name, synced and renamed, and its
//!   directory is synced.
//! - No path leaves the directory: symbolic links below it are not followed.
//! - A private file is never readable for others: the temporary file has mode 0600 until it has its owner.
//!
//! An entry of mode 0600 keeps that mode; every other file gets `--mode`. As root the tool gives a file the owner of its
//! entry, unless that is root. CKE's tool ignores both.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::flags::{Failure, Flags};
use crate::limits::MAX_ARCHIVE;
use crate::tar::{Entry, TEMPORARY, parse_entries};

pub(crate) const HELP: &str = "Writes the files of a tar archive from standard input below a directory.

Usage: write_files [--mode MODE] DIR

  DIR          directory of the files; the tool creates missing directories with mode 755
  --mode MODE  permission bits of the files, in octal digits (default 644); entries of mode 600 keep it

Example: tar c ca.crt server.crt | write_files --mode=640 /mnt/etc/etcd/pki
";

/// Permission bits of files; CKE's default.
const MODE: u32 = 0o644;
/// Permission bits of an entry for its owner alone.
const PRIVATE: u32 = 0o600;
/// Permission bits of directories; CKE's.
const DIRECTORY_MODE: u32 = 0o755;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let flags = Flags::read(arguments, &["mode"])?;
    let mode = flags.file_mode(MODE)?;
    let [directory] = flags.words[..] else {
        return Err(Failure::Usage(format!(
            "expected one directory on the command line, got {}",
            flags.words.len()
        )));
    };
    let archive = read_input(io::stdin().lock()).context("cannot read the archive from standard input")?;
    let files = parse_entries(&archive).context("the archive is invalid, so no file was written")?;
    Ok(write_all_files(directory, &files, mode)?)
}

/// The whole input, within its limit.
fn read_input(input: impl Read) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    let length = input.take(MAX_ARCHIVE + 1).read_to_end(&mut archive)?;
    ensure!(length as u64 <= MAX_ARCHIVE, "the archive has more than {MAX_ARCHIVE} bytes");
    Ok(archive)
}

fn write_all_files(directory: &str, files: &[Entry<'_>], mode: u32) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create the directory {directory}"))?;
    // The directory itself may be a symbolic link.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(directory, flags, Mode::empty())
        .with_context(|| format!("cannot open the directory {directory}"))?;
    for file in files {
        let path =
            || format!("cannot write {directory}/{}", [&file.parents[..], &[file.name]].concat().join("/"));
        let parent = open_parent(&root, &file.parents).with_context(path)?;
        replace(&parent, file, mode).with_context(path)?;
    }
    Ok(())
}

/// The directory of a file. Missing directories are created and made durable.
fn open_parent(root: &OwnedFd, names: &[&str]) -> Result<OwnedFd> {
    let mut directory = root.try_clone()?;
    for name in names {
        match rustix::fs::mkdirat(&directory, *name, Mode::from_raw_mode(DIRECTORY_MODE)) {
            Ok(()) => rustix::fs::fsync(&directory)?,
            // A file system that is mounted read-only reports that, also for an existing directory.
            Err(Errno::EXIST | Errno::ROFS) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot open the directory {name:?}")),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        directory = rustix::fs::openat(&directory, *name, flags, Mode::empty())
            .with_context(|| format!("{name:?} is not a directory that can be opened"))?;
    }
    Ok(directory)
}

/// Replaces a file atomically.
fn replace(directory: &OwnedFd, file: &Entry<'_>, mode: u32) -> Result<()> {
    let temporary = format!("{}{TEMPORARY}", file.name);
    remove_file(directory, &temporary)
        .with_context(|| format!("cannot remove the temporary file {temporary:?} of an earlier run"))?;
    let written = write_new_file(directory, &temporary, file, mode)
        .and_then(|()| Ok(rustix::fs::renameat(directory, &temporary, directory, file.name)?));
    if let Err(error) = written {
        // The first error counts. The next run removes the file, too.
        let _ = remove_file(directory, &temporary);
        return Err(error);
    }
    Ok(rustix::fs::fsync(directory)?)
}

/// Writes a new file and makes it durable.
fn write_new_file(directory: &OwnedFd, name: &str, file: &Entry<'_>, mode: u32) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(PRIVATE))?;
    let mut opened = File::from(opened);
    opened.write_all(file.content)?;
    let (user, group) = file.owner;
    if user != 0 && rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&opened, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
    }
    let mode = if file.mode == PRIVATE { PRIVATE } else { mode };
    rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode))?;
    Ok(opened.sync_all()?)
}

fn remove_file(directory: &OwnedFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
