//! Programs of the machine that make the network: `ip`, `nft`, `nsenter` and `unshare`.
//!
//! Guarantees: each ends within [`WITHIN`] or is killed; of what it says, at most [`MAX_SAID`] bytes are kept; whoever fails
//! is told with what was tried, in which namespace, and with the program's own words.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// Time for one program: they take milliseconds, on a machine that does twenty other things some seconds.
pub(super) const WITHIN: Duration = Duration::from_secs(30);
/// Bytes of what a program says: the counters of all nodes are some kilobytes.
const MAX_SAID: u64 = 64 * 1024;
/// Bytes of its complaints that are told.
const MAX_TOLD: usize = 500;

/// Why a program of the machine did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It does not start.
    #[error("{what}: {program} cannot be run")]
    Start {
        /// What was tried.
        what: String,
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It does not end.
    #[error("{what}: {program} did not end within {WITHIN:?}")]
    Late {
        /// What was tried.
        what: String,
        /// The program.
        program: String,
    },
    /// It failed.
    #[error("{what}: {program} said: {said}")]
    Failed {
        /// What was tried.
        what: String,
        /// The program.
        program: String,
        /// Its words, or how it ended.
        said: String,
    },
}

/// Where a program is, if it is on PATH.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let places = env::var_os("PATH")?;
    env::split_paths(&places).map(|place| place.join(program)).find(|file| Path::is_file(file))
}

/// Runs a program to its end with something to read, and gives what it says.
///
/// # Errors
/// See [`ToolError`].
pub(super) async fn run(what: &str, words: &[&str], input: &str) -> Result<String, ToolError> {
    let program = words.join(" ");
    let (what, program) = (|| what.to_owned(), || program.clone());
    let start = |source| ToolError::Start { what: what(), program: program(), source };
    let mut child = command(words).spawn().map_err(start)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // Who has refused its arguments does not read; its status tells.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let all = async { tokio::join!(feed, said(stdout), said(stderr), child.wait()) };
    let late = |_| ToolError::Late { what: what(), program: program() };
    let ((), out, complaints, status) = timeout(WITHIN, all).await.map_err(late)?;
    let status = status.map_err(start)?;
    if status.success() {
        return Ok(out);
    }
    let said = if complaints.trim().is_empty() { status.to_string() } else { told(&complaints) };
    Err(ToolError::Failed { what: what(), program: program(), said })
}

/// A program that ends with this one, and speaks English.
pub(super) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default()).env("LC_ALL", "C").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What is said, at most [`MAX_SAID`] bytes: who says more is not listened to any longer, and ends.
pub(super) async fn said(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut said = Vec::new();
    if let Some(from) = from {
        // What was said before it broke is as good as it gets.
        let _ = from.take(MAX_SAID).read_to_end(&mut said).await;
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Complaints on one line, and not too many.
pub(super) fn told(complaints: &str) -> String {
    let lines = complaints.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ").chars().take(MAX_TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_program_says_and_why_it_fails_are_told() {
        assert_eq!(run("an echo", &["cat"], "twice").await.unwrap(), "twice");
        let failed = run("a file", &["cat", "/nowhere/at-all"], "").await.unwrap_err().to_string();
        assert!(failed.starts_with("a file: cat /nowhere/at-all said: cat: "), "{failed}");
        let missing = run("nothing", &["/nowhere/at-all"], "").await.unwrap_err();
        assert!(matches!(missing, ToolError::Start { .. }), "{missing}");
    }

    #[tokio::test]
    async fn who_says_too_much_is_ended() {
        let failed = run("an endless text", &["cat", "/dev/zero"], "").await.unwrap_err();
        assert!(matches!(failed, ToolError::Failed { .. }), "{failed}");
    }

    #[test]
    fn complaints_are_one_line() {
        assert_eq!(told(" Error: no\n\n  add rule\n"), "Error: no; add rule");
        assert_eq!(told(&"x".repeat(2 * MAX_TOLD)).len(), MAX_TOLD);
    }
}
