//! Runs programs of the host for a test lab, each to its end.
//!
//! Guarantees: a program ends within its time limit or is killed; every failure is an error with the program's own words.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::limits::{MAX_MACHINES, MAX_TOLD};

/// Debian's programs: a host may have others of the same name in `/usr/local`, such as another docker client.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The reason why the lab or a command failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The host lacks something; the text says what and how to get it.
    #[error("this host cannot run a lab of test machines: {0}")]
    Unavailable(String),
    /// More machines than [`MAX_MACHINES`], or none.
    #[error("a lab has 1 to {MAX_MACHINES} test machines, not {0}")]
    Machines(usize),
    #[error("{what}: cannot start a program of the host, or use one of its files")]
    Start { what: String, source: io::Error },
    #[error("{what}: the command did not end within {within:?}; its last output: {said}")]
    Late { what: String, within: Duration, said: String },
    #[error("{what} failed: {said}")]
    Failed { what: String, said: String },
}

/// Runs a command; returns its standard output. `what` is for messages.
pub(crate) async fn run(what: &str, command: &mut Command, within: Duration) -> Result<String, LabError> {
    command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = || what.to_owned();
    let start = |source| LabError::Start { what: what(), source };
    let child = command.spawn().map_err(start)?;
    let late = |_| LabError::Late { what: what(), within, said: "killed".to_owned() };
    let output = timeout(within, child.wait_with_output()).await.map_err(late)?.map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(LabError::Failed { what: what(), said: format!("{}: {}", output.status, shorten_output(&said)) })
}

/// The end of a text, at most [`MAX_TOLD`] bytes.
pub(crate) fn shorten_output(text: &[u8]) -> String {
    let from = text.len().saturating_sub(MAX_TOLD);
    String::from_utf8_lossy(text.get(from..).unwrap_or_default()).trim().to_owned()
}
