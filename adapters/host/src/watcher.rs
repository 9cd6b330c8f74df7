//! The watcher's side: what the hidden words of the program do.

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
use crate::descendants::{self, Hunt};
use crate::limits::{LAST_PATIENCE, OUTPUT_PATIENCE};
use crate::notes::Held;
use crate::protocol::{
    End, Ended, KILL_PATIENCE, MAX_ORDER, Order, Report, START, StartFailure, THIS_PROGRAM, WATCH,
};

/// Signals that would end a process and that a watcher outlives: a command may send them to everybody, and a service
/// manager to every process of the service.
const OUTLIVED: [SignalKind; 7] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
    SignalKind::alarm(),
];

/// Runs what a hidden word of the program asks for, if `line` (the program's name first) has one. Must be asked before
/// anything else of the program happens: no thread, runtime or log may exist.
pub fn entry(line: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
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
            return tell(&Report::NotStarted { why: format!("its watcher has no runtime: {error}") });
        }
    };
    runtime.block_on(async {
        match Watch::begin().await {
            Ok(Some(watch)) => watch.run_order().await,
            // The service is gone already.
            Ok(None) => ExitCode::SUCCESS,
            Err(error) => tell(&Report::NotStarted { why: format!("its watcher failed: {error}") }),
        }
    })
}

/// Tells the service. When nobody listens any more there is nothing left to tell.
fn tell(report: &Report) -> ExitCode {
    let told = serde_json::to_vec(report).map_err(io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush())
    });
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why everything is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The deadline passed.
    Deadline,
    /// The service went away, or stands still.
    Service,
}

/// What wakes a watcher.
enum Woken {
    /// A sign of life.
    Alive,
    /// Everything is to be killed.
    Kill(Cause),
    /// A child ended, it is time to look for more to kill, or an output ended.
    Look,
}

/// A command that is about to run.
struct Watch {
    order: Order,
    /// What the service says: an order, then signs of life, then nothing.
    service: pipe::Receiver,
    service_is_there: bool,
    /// Held until nothing of the command runs.
    note: Option<Held>,
    /// Tells that a child ended.
    children: Signal,
    /// Kept, so that the signals stay caught.
    _outlived: Vec<Signal>,
}

/// A command that was started.
struct Started {
    command: Pid,
    status: Option<WaitStatus>,
    streams: Streams,
    began: Instant,
    /// Since when and why everything is killed, and whether the command itself had ended before that.
    hunt: Option<(Hunt, Cause, bool)>,
}

impl Watch {
    /// Everything that can fail before the command is started; `None` when no whole order came.
    async fn begin() -> io::Result<Option<Self>> {
        let outlived = OUTLIVED.into_iter().map(signal).collect::<io::Result<_>>()?;
        let children = signal(SignalKind::child())?;
        // Whoever talks to the service's process group or terminal does not mean this.
        setsid()?;
        set_child_subreaper(Some(getpid()))?;
        descendants::check()?;
        let mut service = streams::receiver(fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)?;
        let mut said = Vec::new();
        let end = loop {
            if let Some(end) = said.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if said.len() > MAX_ORDER || service.read_buf(&mut said).await? == 0 {
                return Ok(None);
            }
        };
        let order: Order = serde_json::from_slice(&said[..end])?;
        let note = order.note.clone().map(Held::take).transpose()?;
        Ok(Some(Self { order, service, service_is_there: true, note, children, _outlived: outlived }))
    }

    async fn run_order(mut self) -> ExitCode {
        if tell(&Report::Begins) != ExitCode::SUCCESS {
            self.nothing_runs();
            return ExitCode::FAILURE;
        }
        let mut started = match Started::start(&self.order) {
            Ok(started) => started,
            Err(error) => {
                self.nothing_runs();
                return tell(&Report::NotStarted { why: error.to_string() });
            }
        };
        if !self.until_over(&mut started).await {
            return ExitCode::FAILURE;
        }
        let took = started.began.elapsed();
        self.nothing_runs();
        // What is still open then is held by somebody who is no descendant; what came so far is kept.
        let _ = time::timeout(OUTPUT_PATIENCE, started.streams.read_to_end()).await;
        tell(&started.report(took))
    }

    /// Tells later processes that nothing of the command runs.
    fn nothing_runs(&mut self) {
        if let Some(note) = self.note.take() {
            note.remove();
        }
    }

    /// Waits until nothing of the command runs any more; kills it when that is due. False: it could not be killed in time,
    /// which is reported already.
    async fn until_over(&mut self, started: &mut Started) -> bool {
        let silence = Duration::from_millis(self.order.silence_ms);
        let mut deadline = pin!(time::sleep(Duration::from_millis(self.order.deadline_ms)));
        let mut quiet = pin!(time::sleep(silence));
        let mut heard = [0; 64];
        let mut lost = false;
        while started.reap() {
            if let Some((hunt, _, _)) = &mut started.hunt {
                hunt.kill(|_, _| true);
                if !lost && hunt.since().elapsed() > KILL_PATIENCE {
                    lost = true;
                    tell(&Report::Lost { why: hunt.what_is_left() });
                }
                if hunt.since().elapsed() > KILL_PATIENCE + LAST_PATIENCE {
                    break;
                }
            }
            let pause = started.hunt.as_ref().map(|(hunt, _, _)| hunt.pause());
            let woken = tokio::select! {
                biased;
                length = self.service.read(&mut heard), if self.service_is_there => match length {
                    Ok(1..) => Woken::Alive,
                    Ok(0) | Err(_) => Woken::Kill(Cause::Service),
                },
                () = &mut quiet, if pause.is_none() => Woken::Kill(Cause::Service),
                () = &mut deadline, if pause.is_none() => Woken::Kill(Cause::Deadline),
                _ = self.children.recv() => Woken::Look,
                () = time::sleep(pause.unwrap_or_default()), if pause.is_some() => Woken::Look,
                () = started.streams.read_to_end(), if !started.streams.ended() => Woken::Look,
            };
            match woken {
                Woken::Alive => quiet.as_mut().reset(Instant::now() + silence),
                Woken::Kill(cause) => {
                    self.service_is_there &= cause != Cause::Service;
                    if started.hunt.is_none() {
                        started.hunt = Some((Hunt::begin(), cause, started.status.is_some()));
                    }
                }
                Woken::Look => {}
            }
        }
        !lost
    }
}

impl Started {
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
        // What is wrong before the command exists is told through what will be its standard input.
        command.stdin(failure_to).stdout(stdout_to).stderr(stderr_to);
        let child = command.spawn()?;
        let command = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let command = command.ok_or_else(|| io::Error::other("the system gave no process id"))?;
        Ok(Self { command, status: None, streams, began: Instant::now(), hunt: None })
    }

    /// Takes note of every child that ended. False when there is none left: then nothing of the command runs, as whoever
    /// loses its parent becomes a child of this process.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((child, status))) if child == self.command => self.status = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// What is told of a command that is over.
    fn report(self, took: Duration) -> Report {
        match self.streams.failure() {
            Some(StartFailure::TooLate) => return Report::TooLate,
            Some(StartFailure::Failed(why)) => return Report::NotStarted { why },
            None => {}
        }
        let left_running = match self.hunt {
            None => false,
            Some((_, Cause::Deadline, had_ended)) => had_ended,
            Some((_, Cause::Service, _)) => {
                return Report::Lost { why: "it was killed, as the service gave no sign of life".to_owned() };
            }
        };
        let end = match self.status {
            Some(status) if self.hunt.is_none() || left_running => end_of(status),
            _ => End::Deadline,
        };
        let [(stdout, stdout_cut), (stderr, stderr_cut)] = self.streams.texts();
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Report::Ended(Ended { end, stdout, stderr, cut: stdout_cut || stderr_cut, took_us, left_running })
    }
}

fn end_of(status: WaitStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Signalled(signal),
        // Only these two are asked for.
        (None, None) => End::Deadline,
    }
}
