//! Runs commands on the host for the service: starts a watcher process for each command, sends it heartbeats, and reads
//! its report.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use madako_protocol::host::{Host, HostCommand, HostEnd, HostError, HostOutcome};
use madako_protocol::permit::{Permit, PermitEnded};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{self, Instant};

use crate::environment;
use crate::limits::{COMPLAINT_PATIENCE, MAX_COMPLAINT, REPORT_PATIENCE, SIGNS_IN_SILENCE};
use crate::notes::CommandNote;
use crate::orphans;
use crate::protocol::{
    EndedCommand, KILL_PATIENCE, MAX_ORDER, MAX_REPORTS, Order, ProcessEnd, Report, THIS_PROGRAM, WATCH,
    monotonic_nanoseconds,
};
use crate::telemetry::RunningCommand;

#[derive(Debug, Clone)]
pub struct CommandsOnHost {
    program: PathBuf,
    silence: Duration,
    notes: Option<PathBuf>,
}

impl CommandsOnHost {
    /// Uses this program as the watcher.
    ///
    /// `silence` is how long the service may stall before its commands are killed: a host that is paused or out of
    /// memory loses leadership without noticing. It must be less than the smallest remaining time of the session lease,
    /// two thirds of its TTL.
    #[must_use]
    pub fn new(silence: Duration) -> Self {
        Self::with_watcher(THIS_PROGRAM, silence)
    }

    /// Uses another program as the watcher. It must pass its command line to [`watcher_main`](crate::watcher_main).
    #[must_use]
    pub fn with_watcher(program: impl Into<PathBuf>, silence: Duration) -> Self {
        Self { program: program.into(), silence, notes: None }
    }

    /// Keeps a note of each command in a directory that [`LeftCommands::list_notes`](crate::LeftCommands::list_notes) has listed.
    #[must_use]
    pub fn with_notes(self, directory: impl Into<PathBuf>) -> Self {
        Self { notes: Some(directory.into()), ..self }
    }

    async fn watch(&self, permit: &Permit, command: &HostCommand) -> Result<HostOutcome, HostError> {
        let name = command.words.first().cloned().unwrap_or_default();
        let not_started = |why: String| HostError::NotStarted { program: name.clone(), why };
        if command.words.is_empty() {
            return Err(not_started("no command was given".to_owned()));
        }
        let left = permit.expires_at().saturating_duration_since(Instant::now());
        let note = self.notes.as_deref().map(CommandNote::create).transpose();
        let note =
            note.map_err(|error| not_started(format!("the command's note cannot be written: {error}")))?;
        let order = Order {
            words: command.words.clone(),
            deadline_ms: to_milliseconds(command.deadline),
            silence_ms: to_milliseconds(self.silence),
            begin_before: monotonic_nanoseconds()
                .saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)),
            note: note.as_ref().map(|note| note.path().to_owned()),
        };
        let mut order = serde_json::to_vec(&order).map_err(|error| not_started(error.to_string()))?;
        order.push(b'\n');
        if order.len() > MAX_ORDER {
            return Err(not_started(format!("the command is longer than {MAX_ORDER} bytes")));
        }
        let mut watcher = Command::new(&self.program);
        watcher.arg(WATCH).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(own_name) = std::env::args_os().next() {
            watcher.arg0(own_name);
        }
        for (variable, _) in std::env::vars_os().filter(|(name, _)| environment::is_ours(name)) {
            watcher.env_remove(variable);
        }
        let mut watched = orphans::start(&mut watcher, note)
            .map_err(|error| not_started(format!("its watcher does not start: {error}")))?;
        // Dropped with this future in all cases; the closed pipe makes the watcher kill.
        let pipes = &mut watched.watcher;
        let pipes = (pipes.stdin.take(), pipes.stdout.take(), pipes.stderr.take());
        let guard = watched.start_guard();
        let (Some(orders), Some(reports), Some(complaints)) = pipes else {
            return Err(not_started("the watcher of the command has no pipes".to_owned()));
        };
        let patience = command.deadline.saturating_add(KILL_PATIENCE + REPORT_PATIENCE);
        let talk = async {
            tokio::select! {
                biased;
                heard = read_reports(reports) => heard,
                never = send_heartbeats(orders, order, self.silence / SIGNS_IN_SILENCE) => match never {},
            }
        };
        let Ok(heard) = time::timeout(patience, talk).await else {
            let why = format!("its watcher did not answer within {patience:?}");
            return Err(lost_command(name, why, guard.kill().await));
        };
        match heard {
            LastReport { last: Some(Report::Ended(ended)), .. } => {
                if ended.left_running {
                    tracing::warn!(
                        program = name,
                        "processes that the command left running were killed at its deadline"
                    );
                }
                Ok(outcome_of_command(ended))
            }
            LastReport { last: Some(Report::TooLate), .. } => {
                Err(HostError::Permit(PermitEnded { epoch: permit.epoch() }))
            }
            LastReport { last: Some(Report::NotStarted { why }), .. } => Err(not_started(why)),
            LastReport { last: Some(Report::Lost { why }), .. } => {
                Err(HostError::Lost { program: name, why })
            }
            LastReport { last: Some(Report::Begins), fault } => {
                let why = format!("its watcher ended: {}", explain_watcher_end(fault, complaints).await);
                Err(lost_command(name, why, guard.wait_for_end().await))
            }
            LastReport { last: None, fault } => Err(not_started(format!(
                "its watcher ended: {}",
                explain_watcher_end(fault, complaints).await
            ))),
        }
    }
}

#[async_trait]
impl Host for CommandsOnHost {
    async fn run(&self, permit: &Permit, command: HostCommand) -> Result<HostOutcome, HostError> {
        let now = Instant::now();
        let running = RunningCommand::begin(now);
        let result = match permit.check(now) {
            Ok(()) => self.watch(permit, &command).await,
            Err(ended) => Err(ended.into()),
        };
        running.end(&result);
        result
    }
}

/// Sends the order and then heartbeats. A watcher that no longer reads has reported or ended; [`hear`] finds out which.
async fn send_heartbeats(mut orders: ChildStdin, order: Vec<u8>, pause: Duration) -> Infallible {
    let mut written = orders.write_all(&order).await;
    while written.is_ok() {
        time::sleep(pause).await;
        written = orders.write_all(b"\n").await;
    }
    std::future::pending().await
}

struct LastReport {
    last: Option<Report>,
    fault: Option<String>,
}

/// Reads until the watcher reports the command's end, or ends itself.
async fn read_reports(reports: ChildStdout) -> LastReport {
    let mut lines = BufReader::new(reports.take(MAX_REPORTS)).lines();
    let mut last = None;
    loop {
        let fault = match lines.next_line().await {
            Ok(Some(line)) => match serde_json::from_str(&line) {
                Ok(Report::Begins) => {
                    last = Some(Report::Begins);
                    continue;
                }
                Ok(end) => return LastReport { last: Some(end), fault: None },
                Err(error) => Some(format!("its report is malformed: {error}")),
            },
            Ok(None) => None,
            Err(error) => Some(format!("its report cannot be read: {error}")),
        };
        return LastReport { last, fault };
    }
}

/// Error of a command that lost its watcher, with the result of the sweep.
fn lost_command(program: String, why: String, swept: Result<(), String>) -> HostError {
    let why = match swept {
        Ok(()) => why,
        Err(left) => format!("{why}; {left}"),
    };
    HostError::Lost { program, why }
}

/// The reason for the end of a watcher, from its error output.
async fn explain_watcher_end(fault: Option<String>, complaints: ChildStderr) -> String {
    if let Some(fault) = fault {
        return fault;
    }
    let mut words = Vec::new();
    let mut complaints = complaints.take(MAX_COMPLAINT);
    let read = time::timeout(COMPLAINT_PATIENCE, complaints.read_to_end(&mut words)).await;
    match read {
        Ok(Ok(_)) if !words.is_empty() => String::from_utf8_lossy(&words).trim_end().to_owned(),
        _ => "it gave no reason".to_owned(),
    }
}

fn outcome_of_command(ended: EndedCommand) -> HostOutcome {
    HostOutcome {
        end: match ended.end {
            ProcessEnd::Exited(code) => HostEnd::Exited { code },
            ProcessEnd::Signalled(signal) => HostEnd::Signalled { signal },
            ProcessEnd::Deadline => HostEnd::Deadline,
        },
        stdout: ended.stdout,
        stderr: ended.stderr,
        cut: ended.cut,
        took: Duration::from_micros(ended.took_us),
    }
}

fn to_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
