//! Runs the machine's programs for networks: `ip`, `nft`, `nsenter` and `unshare`.
//!
//! Guarantees: each ends within [`WITHIN`] or is killed. At most [`MAX_OUTPUT`] bytes of its output are kept. An error
//! has the attempted action, the namespace, and the program's own words.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// Time limit of one program: they take milliseconds, on a busy machine some seconds.
pub(super) const WITHIN: Duration = Duration::from_secs(30);
/// Bytes of output: the counters of all nodes are some kilobytes.
const MAX_OUTPUT: u64 = 64 * 1024;
/// Bytes of error output in a message.
const MAX_SHOWN: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{what}: cannot run the program {program}")]
    Start {
        /// The attempted action.
        what: String,
        program: String,
        source: io::Error,
    },
    #[error("{what}: the program {program} did not end within {WITHIN:?}")]
    Late {
        /// The attempted action.
        what: String,
        program: String,
    },
    #[error("{what}: the program {program} failed and printed: {output}")]
    Failed {
        /// The attempted action.
        what: String,
        program: String,
        /// Its error output, or its exit status.
        output: String,
    },
}

#[must_use]
pub fn find_on_path(program: &str) -> Option<PathBuf> {
    let places = env::var_os("PATH")?;
    env::split_paths(&places).map(|place| place.join(program)).find(|file| Path::is_file(file))
}

/// Runs a program to its end with this input. Returns its output.
pub(super) async fn run(what: &str, words: &[&str], input: &str) -> Result<String, ToolError> {
    let program = words.join(" ");
    let (what, program) = (|| what.to_owned(), || program.clone());
    let start = |source| ToolError::Start { what: what(), program: program(), source };
    let mut child = tool_command(words).spawn().map_err(start)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that refuses its arguments does not read its input; its exit status shows the failure.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let all = async { tokio::join!(feed, read_output(stdout), read_output(stderr), child.wait()) };
    let late = |_| ToolError::Late { what: what(), program: program() };
    let ((), out, complaints, status) = timeout(WITHIN, all).await.map_err(late)?;
    let status = status.map_err(start)?;
    if status.success() {
        return Ok(out);
    }
    let output = if complaints.trim().is_empty() { status.to_string() } else { shorten_errors(&complaints) };
    Err(ToolError::Failed { what: what(), program: program(), output })
}

/// A command that ends with this process and prints English.
pub(super) fn tool_command(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.get(1..).unwrap_or_default()).env("LC_ALL", "C").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output, at most [`MAX_OUTPUT`] bytes: then the pipe is closed, which ends the program.
pub(super) async fn read_output(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut output = Vec::new();
    if let Some(from) = from {
        // Output before an error is kept.
        let _ = from.take(MAX_OUTPUT).read_to_end(&mut output).await;
    }
    String::from_utf8_lossy(&output).into_owned()
}

/// Error output on one line, at most [`MAX_SHOWN`] bytes.
pub(super) fn shorten_errors(complaints: &str) -> String {
    let lines = complaints.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ").chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn output_and_failure_of_a_tool_are_reported() {
        assert_eq!(run("an echo", &["cat"], "twice").await.unwrap(), "twice");
        let failed = run("a file", &["cat", "/nowhere/at-all"], "").await.unwrap_err().to_string();
        assert!(
            failed.starts_with("a file: the program cat /nowhere/at-all failed and printed: cat: "),
            "{failed}"
        );
        let missing = run("nothing", &["/nowhere/at-all"], "").await.unwrap_err();
        assert!(matches!(missing, ToolError::Start { .. }), "{missing}");
    }

    #[tokio::test]
    async fn tool_with_too_much_output_is_killed() {
        let failed = run("an endless text", &["cat", "/dev/zero"], "").await.unwrap_err();
        assert!(matches!(failed, ToolError::Failed { .. }), "{failed}");
    }

    #[test]
    fn problems_are_joined_into_one_line() {
        assert_eq!(shorten_errors(" Error: no\n\n  add rule\n"), "Error: no; add rule");
        assert_eq!(shorten_errors(&"x".repeat(2 * MAX_SHOWN)).len(), MAX_SHOWN);
    }
}
