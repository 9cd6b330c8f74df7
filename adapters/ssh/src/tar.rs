//! A writer of tar archives (POSIX ustar) with regular files only, for the program `write_files`.

use madako_protocol::node::{FileContent, NodeFile};

use crate::limits::MAX_NAME;

const BLOCK: usize = 512;
/// User and group of the files: those of etcd's image.
const OWNER: u32 = 10_000;

/// The reason why no archive can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TarError {
    #[error("cannot write the file {path} to the node: it is not below the directory {directory}")]
    Outside { path: String, directory: String },
    #[error(
        "cannot write the file {path} to the node: expected a path without empty parts, `.` and `..`, of at most {MAX_NAME} bytes"
    )]
    Path { path: String },
}

/// Writes an archive. The entries are named by their paths without the first slash.
pub(crate) fn write_archive(directory: &str, files: &[NodeFile]) -> Result<Vec<u8>, TarError> {
    let mut tar = Vec::new();
    for file in files {
        let name = entry_name(directory, &file.path)?;
        let (mode, content) = match &file.content {
            FileContent::Public(text) => (0o644, text.as_str()),
            FileContent::Private(secret) => (0o600, secret.reveal()),
        };
        tar.extend_from_slice(&file_header(name, mode, content.len()));
        tar.extend_from_slice(content.as_bytes());
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }
    tar.resize(tar.len() + 2 * BLOCK, 0);
    Ok(tar)
}

fn entry_name<'a>(directory: &str, path: &'a str) -> Result<&'a str, TarError> {
    let below = path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'));
    if below.is_none() {
        return Err(TarError::Outside { path: path.to_owned(), directory: directory.to_owned() });
    }
    let name = path.strip_prefix('/').unwrap_or_default();
    let is_plain = name.split('/').all(|part| !matches!(part, "" | "." | "..")) && !name.contains('\0');
    if !is_plain || name.len() > MAX_NAME {
        return Err(TarError::Path { path: path.to_owned() });
    }
    Ok(name)
}

fn file_header(name: &str, mode: u32, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, format!("{OWNER:07o}").as_bytes());
    put(116, format!("{OWNER:07o}").as_bytes());
    put(124, format!("{size:011o}").as_bytes());
    // A fixed time of modification (the epoch) makes equal files equal archives.
    put(136, b"00000000000");
    put(156, b"0");
    put(257, b"ustar\0");
    put(263, b"00");
    // The checksum counts its own field as spaces.
    put(148, b"        ");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use madako_protocol::secret::Secret;

    use super::*;

    fn file(path: &str, content: FileContent) -> NodeFile {
        NodeFile { path: path.to_owned(), content }
    }

    #[test]
    fn tar_lists_and_extracts_the_files() {
        let long = "0123456789".repeat(150);
        let files = [
            file("/etc/etcd/pki/server.crt", FileContent::Public(long.clone())),
            file("/etc/etcd/pki/server.key", FileContent::Private(Secret::new("secret\n".to_owned()))),
            file("/etc/etcd/pki/empty", FileContent::Public(String::new())),
        ];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("files.tar");
        std::fs::write(&path, write_archive("/etc/etcd/pki", &files).unwrap()).unwrap();
        let run = |words: &[&str]| {
            let tar = Command::new("tar").args(words).arg(&path).env("TZ", "UTC").output().unwrap();
            assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
            String::from_utf8(tar.stdout).unwrap()
        };
        let listed = run(&["--numeric-owner", "--full-time", "-tvf"]);
        assert_eq!(
            listed,
            "-rw-r--r-- 10000/10000    1500 1970-01-01 00:00:00 etc/etcd/pki/server.crt\n\
             -rw------- 10000/10000       7 1970-01-01 00:00:00 etc/etcd/pki/server.key\n\
             -rw-r--r-- 10000/10000       0 1970-01-01 00:00:00 etc/etcd/pki/empty\n"
        );
        assert_eq!(run(&["-xOf"]), format!("{long}secret\n"));
    }

    #[test]
    fn a_path_that_leaves_its_directory_is_refused() {
        for path in
            ["/etc/other", "/etc/etcdx/a", "/etc/etcd", "/etc/etcd/../a", "/etc/etcd//a", "/etc/etcd/"]
        {
            write_archive("/etc/etcd", &[file(path, FileContent::Public(String::new()))]).unwrap_err();
        }
        let long = format!("/etc/etcd/{}", "a".repeat(100));
        write_archive("/etc/etcd", &[file(&long, FileContent::Public(String::new()))]).unwrap_err();
    }
}
