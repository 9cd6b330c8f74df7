//! The watcher process of a command: the programs behind the hidden words `__watch-command` and `__start-command`.

mod start;
mod streams;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{self, Instant};

use self::streams::Streams;
use crate::descendants::{self, DescendantKiller};
use crate::limits::{LAST_PATIENCE, OUTPUT_PATIENCE};
use crate::notes::HeldNote;
use crate::protocol::{
    EndedCommand, KILL_PATIENCE, MAX_ORDER, Order, ProcessEnd, Report, START, StartFailure, THIS_PROGRAM,
    WATCH,
};

/// Signals that a watcher ignores although they would end a process: a command may send them to all processes, and a
/// service manager to every process of the service.
const OUTLIVED: [SignalKind; 7] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
    SignalKind::alarm(),
];

/// Runs the hidden word in `line` (the program's name first), if there is one. Must be called before the program
/// creates threads, a runtime or a log.
pub fn watcher_main(line: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut words = line.into_iter().skip(1);
    match words.next()?.to_str()? {
        WATCH => Some(run()),
        START => Some(start::become_command(words)),
        _ => None,
    }
}

/// A watcher, from its order to its report.
fn run() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return send_report(&Report::NotStarted { why: format!("its watcher has no runtime: {error}") });
        }
    };
    runtime.block_on(async {
        match Watch::begin().await {
            Ok(Some(watch)) => watch.run_order().await,
            // The service has already ended.
            Ok(None) => ExitCode::SUCCESS,
            Err(error) => send_report(&Report::NotStarted { why: format!("its watcher failed: {error}") }),
        }
    })
}

/// Sends a report. If the service no longer reads, the report is dropped.
fn send_report(report: &Report) -> ExitCode {
    let written = serde_json::to_vec(report).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush())
    });
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillCause {
    Deadline,
    /// The service ended or stalls.
    Service,
}

enum WakeReason {
    Alive,
    Kill(KillCause),
    /// A child ended, the next scan is due, or an output ended.
    Scan,
}

struct Watch {
    order: Order,
    /// Pipe from the service: an order, then heartbeats, then its end.
    service: pipe::Receiver,
    service_is_there: bool,
    /// Held while a process of the command runs.
    note: Option<HeldNote>,
    children: Signal,
    /// Kept, so that the signals stay caught.
    _outlived: Vec<Signal>,
}

struct StartedCommand {
    command: Pid,
    status: Option<WaitStatus>,
    streams: Streams,
    began: Instant,
    /// The kill in progress: its start and cause, and whether the command itself had ended before.
    hunt: Option<(DescendantKiller, KillCause, bool)>,
}

impl Watch {
    /// Steps that can fail before the command is started; `None` if no complete order arrived.
    async fn begin() -> io::Result<Option<Self>> {
        let outlived = OUTLIVED.into_iter().map(signal).collect::<io::Result<_>>()?;
        let children = signal(SignalKind::child())?;
        // Signals to the service's process group or terminal must not reach the watcher.
        setsid()?;
        set_child_subreaper(Some(getpid()))?;
        descendants::check_proc()?;
        let mut service = streams::pipe_receiver(fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)?;
        let mut received = Vec::new();
        let end = loop {
            if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if received.len() > MAX_ORDER || service.read_buf(&mut received).await? == 0 {
                return Ok(None);
            }
        };
        let order: Order = serde_json::from_slice(&received[..end])?;
        let note = order.note.clone().map(HeldNote::take).transpose()?;
        Ok(Some(Self { order, service, service_is_there: true, note, children, _outlived: outlived }))
    }

    async fn run_order(mut self) -> ExitCode {
        if send_report(&Report::Begins) != ExitCode::SUCCESS {
            self.remove_note();
            return ExitCode::FAILURE;
        }
        let mut started = match StartedCommand::start(&self.order) {
            Ok(started) => started,
            Err(error) => {
                self.remove_note();
                return send_report(&Report::NotStarted { why: error.to_string() });
            }
        };
        if !self.wait_until_over(&mut started).await {
            return ExitCode::FAILURE;
        }
        let took = started.began.elapsed();
        self.remove_note();
        // A process that is not a descendant may hold the output open; the output read so far is kept.
        let _ = time::timeout(OUTPUT_PATIENCE, started.streams.read_to_end()).await;
        send_report(&started.report(took))
    }

    /// Removes the note, which shows later processes that no process of the command runs.
    fn remove_note(&mut self) {
        if let Some(note) = self.note.take() {
            note.remove();
        }
    }

    /// Waits until no process of the command runs; kills them when that is due. `false`: they could not be killed in
    /// time, which is already reported.
    async fn wait_until_over(&mut self, started: &mut StartedCommand) -> bool {
        let silence = Duration::from_millis(self.order.silence_ms);
        let mut deadline = pin!(time::sleep(Duration::from_millis(self.order.deadline_ms)));
        let mut quiet = pin!(time::sleep(silence));
        let mut heard = [0; 64];
        let mut lost = false;
        while started.reap_children() {
            if let Some((hunt, _, _)) = &mut started.hunt {
                hunt.kill(|_, _| true);
                if !lost && hunt.start_time().elapsed() > KILL_PATIENCE {
                    lost = true;
                    send_report(&Report::Lost { why: hunt.describe_survivors() });
                }
                if hunt.start_time().elapsed() > KILL_PATIENCE + LAST_PATIENCE {
                    break;
                }
            }
            let pause = started.hunt.as_ref().map(|(hunt, _, _)| hunt.time_until_next_scan());
            let woken = tokio::select! {
                biased;
                length = self.service.read(&mut heard), if self.service_is_there => match length {
                    Ok(1..) => WakeReason::Alive,
                    Ok(0) | Err(_) => WakeReason::Kill(KillCause::Service),
                },
                () = &mut quiet, if pause.is_none() => WakeReason::Kill(KillCause::Service),
                () = &mut deadline, if pause.is_none() => WakeReason::Kill(KillCause::Deadline),
                _ = self.children.recv() => WakeReason::Scan,
                () = time::sleep(pause.unwrap_or_default()), if pause.is_some() => WakeReason::Scan,
                () = started.streams.read_to_end(), if !started.streams.is_at_end() => WakeReason::Scan,
            };
            match woken {
                WakeReason::Alive => quiet.as_mut().reset(Instant::now() + silence),
                WakeReason::Kill(cause) => {
                    self.service_is_there &= cause != KillCause::Service;
                    if started.hunt.is_none() {
                        started.hunt = Some((DescendantKiller::begin(), cause, started.status.is_some()));
                    }
                }
                WakeReason::Scan => {}
            }
        }
        !lost
    }
}

impl StartedCommand {
    /// Starts the process that becomes the command.
    fn start(order: &Order) -> io::Result<Self> {
        let (failure_from, failure_to) = io::pipe()?;
        let (stdout_from, stdout_to) = io::pipe()?;
        let (stderr_from, stderr_to) = io::pipe()?;
        let streams = Streams::new(failure_from.into(), stdout_from.into(), stderr_from.into())?;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg(START).arg(order.begin_before.to_string()).args(&order.words);
        if let Some(own_name) = std::env::args_os().next() {
            command.arg0(own_name);
        }
        // The command's future standard input carries errors that occur before the command exists.
        command.stdin(failure_to).stdout(stdout_to).stderr(stderr_to);
        let child = command.spawn()?;
        let command = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let command = command.ok_or_else(|| io::Error::other("the system gave no process id"))?;
        Ok(Self { command, status: None, streams, began: Instant::now(), hunt: None })
    }

    /// Reaps all ended children. `false` if no child is left: then no process of the command runs, because orphans
    /// become children of this process.
    fn reap_children(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) if child == self.command => self.status = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn report(self, took: Duration) -> Report {
        match self.streams.start_failure() {
            Some(StartFailure::TooLate) => return Report::TooLate,
            Some(StartFailure::Failed(why)) => return Report::NotStarted { why },
            None => {}
        }
        let left_running = match self.hunt {
            None => false,
            Some((_, KillCause::Deadline, had_ended)) => had_ended,
            Some((_, KillCause::Service, _)) => {
                return Report::Lost {
                    why: "its watcher killed it, because the service sent no heartbeat".to_owned(),
                };
            }
        };
        let end = match self.status {
            Some(status) if self.hunt.is_none() || left_running => end_of(status),
            _ => ProcessEnd::Deadline,
        };
        let [(stdout, stdout_cut), (stderr, stderr_cut)] = self.streams.output_texts();
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Report::Ended(EndedCommand {
            end,
            stdout,
            stderr,
            cut: stdout_cut || stderr_cut,
            took_us,
            left_running,
        })
    }
}

fn end_of(status: WaitStatus) -> ProcessEnd {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ProcessEnd::Exited(code),
        (None, Some(signal)) => ProcessEnd::Signalled(signal),
        // `waitpid` was called only for these two states.
        (None, None) => ProcessEnd::Deadline,
    }
}
