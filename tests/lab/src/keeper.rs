//! The process that holds a lab's namespaces open: a process that removes the lab when its standard input ends, thus
//! also when the process of the lab's owner is killed.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;

use crate::limits::{KEEPER_WITHIN, MAX_TOLD};
use crate::tool::{LabError, PATH};

/// The script of this crate.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lab.sh");
/// The script that makes images.
const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/images.sh");

/// The keeper of a lab. On drop every process of the lab ends, and nothing of the lab remains.
#[derive(Debug)]
pub(crate) struct Keeper {
    process: Child,
    /// Taken on drop: at its end the keeper removes the lab.
    held: Option<ChildStdin>,
    directory: PathBuf,
    /// Number in the host's PID namespace of the lab's first process.
    pid: String,
}

impl Keeper {
    /// Makes the namespaces.
    pub(crate) async fn open() -> Result<Self, LabError> {
        let what = || "the namespaces of a lab".to_owned();
        let start = |source| LabError::Start { what: what(), source };
        let mut process = std::process::Command::new("bash")
            .args([SCRIPT, "keep"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // An interrupt of the terminal reaches the owner alone; the keeper then removes the lab.
            .process_group(0)
            .spawn()
            .map_err(start)?;
        let held = process.stdin.take();
        let said = process.stdout.take();
        let mut keeper = Self { process, held, directory: PathBuf::new(), pid: String::new() };
        let said = said.ok_or_else(|| start(io::ErrorKind::BrokenPipe.into()))?;
        let mut said = BufReader::new(ChildStdout::from_std(said).map_err(start)?);
        let mut line = String::new();
        let late = |_| LabError::Late { what: what(), within: KEEPER_WITHIN, said: "killed".to_owned() };
        timeout(KEEPER_WITHIN, said.read_line(&mut line)).await.map_err(late)?.map_err(start)?;
        keeper.directory = PathBuf::from(line.trim_end());
        keeper.pid = match std::fs::read_to_string(keeper.directory.join("pid")) {
            Ok(pid) if keeper.directory.is_absolute() => pid.trim_end().to_owned(),
            _ => {
                let mut rest = said.take(MAX_TOLD as u64);
                timeout(KEEPER_WITHIN, rest.read_to_string(&mut line)).await.map_err(late)?.map_err(start)?;
                return Err(LabError::Failed { what: what(), said: line });
            }
        };
        Ok(keeper)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The lab's name, which its cgroups have too.
    pub(crate) fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Number of the keeper's process.
    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn pid(&self) -> &str {
        &self.pid
    }

    pub(crate) fn script(&self, verb: &str) -> Command {
        let mut command = bash(SCRIPT);
        command.arg(verb);
        command
    }

    /// A command that makes images.
    pub(crate) fn images(&self) -> Command {
        bash(IMAGES)
    }
}

fn bash(script: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(script).env("PATH", PATH).stdin(Stdio::null());
    command
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.held.take());
        // The keeper has ended by itself if it could not make the lab.
        let _ = self.process.wait();
    }
}
