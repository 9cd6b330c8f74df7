//! A client that uses a cluster without a pause and counts what fails: the program `tests/pods/counting_client`.
//!
//! Guarantees: it runs on a machine, with its network; it ends with its owner.
//!
//! Does not: judge. [`Report`] holds the counts; a test knows which failures its situation allows.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use serde::Deserialize;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::images::built_program;
use crate::limits::{JUDGE_WITHIN, MAX_TOLD};
use crate::tool::{LabError, PATH};
use crate::{Lab, Machine};

/// The parts of the cluster that a client uses.
#[derive(Debug, Clone, Copy)]
pub struct Use<'a> {
    /// A kubeconfig that may read namespaces and write config maps in `default`.
    pub kubeconfig: &'a Path,
    /// URL of the API instead of the kubeconfig's: rivers on the machine, or the service `kubernetes`.
    pub server: &'a str,
    /// URLs of pods behind services.
    pub pods: &'a [&'a str],
    /// DNS names to resolve, as NAME@SERVER.
    pub names: &'a [&'a str],
    /// Requests of each kind in a second.
    pub rate: u32,
}

#[derive(Debug)]
pub struct Client {
    name: String,
    process: Child,
    /// The client finishes at its end.
    held: ChildStdin,
}

/// The counts of a client.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Report {
    /// By the kind of request: `read`, `read on a new connection`, `write`, `watch`, `pod URL`, `dns NAME@SERVER`.
    pub kinds: BTreeMap<String, Count>,
    /// The first failures, in their order.
    pub failures: Vec<Failure>,
    /// Objects whose creation was acknowledged, and that the store lacks.
    pub lost: Vec<String>,
    /// Objects whose creation was acknowledged, and that no watch has shown.
    pub missed: Vec<String>,
    /// The reason why the client could not look for lost objects.
    #[serde(default)]
    pub error: Option<String>,
}

/// The counts of a kind of requests. For a watch, a success is an event, and a failure is a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Count {
    pub successes: u64,
    /// Failures of first attempts.
    pub failures: u64,
    /// Requests whose second attempt failed too.
    pub failed: u64,
    /// Longest time in milliseconds without a success.
    pub longest_gap_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Failure {
    /// RFC 3339.
    pub time: String,
    pub kind: String,
    /// 1 or 2.
    pub attempt: u32,
    pub error: String,
}

impl Client {
    /// Starts a client on a machine. Clients at the same time have different names.
    ///
    /// # Errors
    /// The machine is off, or the program is not built.
    pub fn start(lab: &Lab, machine: &Machine, name: &str, uses: Use<'_>) -> Result<Self, LabError> {
        let start = |source| LabError::Start { what: format!("the client {name}"), source };
        let log = std::fs::File::create(log(lab, name)).map_err(start)?;
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "nsenter",
            &format!("--net=/proc/{}/ns/net", machine.pid()?),
            "--",
        ]);
        command.arg(built_program("pods/counting_client")?).arg("-kubeconfig").arg(uses.kubeconfig);
        command.args(["-server", uses.server, "-name", name, "-rate", &uses.rate.to_string()]);
        command.args(uses.pods.iter().flat_map(|url| ["-pod", url]));
        command.args(uses.names.iter().flat_map(|target| ["-dns", target]));
        command.env_clear().env("PATH", PATH).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().map_err(start)?;
        let held = process.stdin.take().ok_or_else(|| start(std::io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { name: name.to_owned(), process, held })
    }

    /// Ends the client; returns its counts after it has looked for acknowledged objects.
    ///
    /// # Errors
    /// It has failed, or does not end in time.
    pub async fn finish(self, lab: &Lab) -> Result<Report, LabError> {
        let Self { name, process, held } = self;
        let what = || format!("the client {name}");
        drop(held);
        let ended = timeout(JUDGE_WITHIN, process.wait_with_output()).await;
        let late = |_| LabError::Late { what: what(), within: JUDGE_WITHIN, said: "killed".to_owned() };
        let output = ended.map_err(late)?.map_err(|source| LabError::Start { what: what(), source })?;
        serde_json::from_slice(&output.stdout).map_err(|error| {
            let said = std::fs::read(log(lab, &name)).unwrap_or_default();
            let said = format!("{}: {error}: {}", output.status, crate::tool::shorten_output(&said));
            LabError::Failed { what: what(), said: said.chars().take(MAX_TOLD).collect() }
        })
    }
}

fn log(lab: &Lab, name: &str) -> std::path::PathBuf {
    lab.directory().join(format!("client-{name}.log"))
}
