//! Tests of commands on the host as real processes: exit status, outputs, and leftover processes.
//!
//! Every command has a mark in its environment, which its descendants inherit. The tests search `/proc` for the mark to
//! find leftover processes. Needs `sh`, coreutils and `setsid`.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod edges;
mod ends;
mod killed;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use madako_host::CommandsOnHost;
use madako_protocol::host::{Host as _, HostCommand, HostError, HostOutcome};
use madako_protocol::permit::Permit;
use tempfile::TempDir;
use tokio::time::Instant;

/// The program that is watcher and caller.
const TRIAL: &str = env!("CARGO_BIN_EXE_madako-host-trial");

/// Longer than any test takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Time limit for reaching an expected state.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory for the files and marks of one command.
struct Trial {
    directory: TempDir,
}

impl Trial {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn mark(&self) -> String {
        format!("TRIAL={}", self.directory.path().display())
    }

    /// Words of a script that can name files below `$TRIAL`.
    fn words(&self, script: &str) -> Vec<String> {
        ["env", &self.mark(), "sh", "-c", script].map(str::to_owned).to_vec()
    }

    async fn run(&self, script: &str, deadline: Duration) -> Result<HostOutcome, HostError> {
        run(self.words(script), deadline).await
    }

    /// The service in its own process.
    fn service(&self, script: &str, deadline: Duration, silence: Duration) -> Command {
        let mut service = Command::new(TRIAL);
        service.arg("run").args([deadline, silence].map(|time| time.as_millis().to_string()));
        service.args(self.words(script)).stdout(Stdio::piped());
        service
    }

    fn processes(&self) -> usize {
        let mark = self.mark();
        let ids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        ids.filter(|process| has_variable(process, &mark)).count()
    }

    async fn nothing_is_left(&self) {
        until("nothing of the command runs", || self.processes() == 0).await;
    }

    async fn file_is_there(&self, name: &str) {
        let path = self.path(name);
        until("the file is there", || path.exists()).await;
    }
}

fn has_variable(process: &Path, variable: &str) -> bool {
    // An ending process has no environment.
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
}

async fn run(words: Vec<String>, deadline: Duration) -> Result<HostOutcome, HostError> {
    CommandsOnHost::with_watcher(TRIAL, LONG).run(&permit(), HostCommand { words, deadline }).await
}

fn permit() -> Permit {
    Permit::give(7, Instant::now() + LONG)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn id(child: &Child) -> rustix::process::Pid {
    rustix::process::Pid::from_child(child)
}
