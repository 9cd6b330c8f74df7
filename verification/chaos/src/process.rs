//! A process of a chaos run: started, stopped, killed, and restarted with its data on disk.
//!
//! Guarantees: it does not outlive the run, however the run ends ([`crate::keeper`]); its output goes to its own file.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::keeper;

#[derive(Debug, Clone)]
pub(crate) struct ProcessSpec {
    /// For messages and the name of the log.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// Variables in addition to the environment of this process.
    pub(crate) environment: Vec<(String, String)>,
    /// File for its output.
    pub(crate) log: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot start the process {name}")]
    Start { name: String, source: io::Error },
    #[error("cannot send the signal {signal} to the process {name}")]
    Signal { name: String, signal: &'static str, source: io::Error },
    /// The process ended by itself.
    #[error("the process {name} ended by itself: {status}; the end of its log: {words}")]
    Ended {
        name: String,
        status: String,
        /// The end of its log.
        words: String,
    },
}

/// A process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    spec: ProcessSpec,
    /// The program with [`keeper::keeper_main`], which ties the process to this one.
    own: PathBuf,
    child: Option<Child>,
    stopped: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Kills the whole process group; it may be gone already.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Process {
    /// `own` is the program that calls [`keeper::keeper_main`].
    pub(crate) fn start(own: &Path, spec: ProcessSpec) -> Result<Self, ProcessError> {
        let mut process = Self { spec, own: own.to_owned(), child: None, stopped: false };
        process.start_again()?;
        Ok(process)
    }

    pub(crate) fn start_again(&mut self) -> Result<(), ProcessError> {
        let start = || -> io::Result<Child> {
            let log = OpenOptions::new().create(true).append(true).open(&self.spec.log)?;
            Command::new(&self.own)
                .args(keeper::keeper_arguments(&self.spec.program))
                .args(&self.spec.args)
                .envs(self.spec.environment.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(Stdio::from(log.try_clone()?))
                .stderr(Stdio::from(log))
                .process_group(0)
                .kill_on_drop(true)
                .spawn()
        };
        let child = start().map_err(|source| ProcessError::Start { name: self.spec.name.clone(), source })?;
        self.child = Some(child);
        self.stopped = false;
        Ok(())
    }

    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Process id; 0 while it is down.
    #[must_use]
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).unwrap_or(0)
    }

    #[must_use]
    pub(crate) fn is_down(&self) -> bool {
        self.child.is_none()
    }

    /// True if it is stopped by SIGSTOP.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Sends SIGKILL to the whole process group, and waits for the end.
    pub(crate) async fn kill(&mut self) -> Result<(), ProcessError> {
        // A process that ended by itself and was waited for has no id.
        if let Some(pid) = self.pid() {
            let gone = kill_process_group(pid, Signal::KILL);
            self.check_signal("SIGKILL", gone)?;
        }
        if let Some(mut child) = self.child.take() {
            child.wait().await.map_err(|source| self.signal_error("SIGKILL", source))?;
        }
        Ok(())
    }

    /// Stops the process, or lets it continue.
    pub(crate) fn stop(&mut self, stopped: bool) -> Result<(), ProcessError> {
        self.stopped = stopped;
        let Some(pid) = self.pid() else { return Ok(()) };
        let (signal, name) = if stopped { (Signal::STOP, "SIGSTOP") } else { (Signal::CONT, "SIGCONT") };
        let taken = kill_process(pid, signal);
        self.check_signal(name, taken)
    }

    /// Waits up to `moment` for the process to end by itself.
    pub(crate) async fn wait_for_end_within(&mut self, moment: Duration) -> bool {
        let Some(child) = &mut self.child else { return false };
        timeout(moment, child.wait()).await.is_ok()
    }

    /// # Errors
    /// [`ProcessError::Ended`] if it ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), ProcessError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended_error(status.to_string())),
            Err(error) => Err(self.ended_error(error.to_string())),
        }
    }

    fn ended_error(&self, status: String) -> ProcessError {
        let words = read_end_of_log(&self.spec.log).unwrap_or_else(|error| error.to_string());
        ProcessError::Ended { name: self.spec.name.clone(), status, words }
    }

    /// `None` for a child that was waited for.
    fn pid(&self) -> Option<Pid> {
        let id = self.child.as_ref()?.id()?;
        i32::try_from(id).ok().and_then(Pid::from_raw)
    }

    fn check_signal(&self, name: &'static str, taken: rustix::io::Result<()>) -> Result<(), ProcessError> {
        match taken {
            // ESRCH: it ended and was not waited for yet.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(self.signal_error(name, error.into())),
        }
    }

    fn signal_error(&self, signal: &'static str, source: io::Error) -> ProcessError {
        ProcessError::Signal { name: self.spec.name.clone(), signal, source }
    }
}

/// Bytes of the end of a log in messages.
const LAST_WORDS: u64 = 2_000;

fn read_end_of_log(log: &Path) -> io::Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
    let mut end = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// The loopback address for processes that are restarted: made from this process's id, so that it belongs to this run
/// alone. No other process listens there, and outgoing connections use the first address of loopback: the port of a
/// process stays free while the process is down.
fn host_address() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low)
}

/// Free addresses, each port given out once.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    given: BTreeSet<u16>,
}

/// The first port: all ports are free on the run's own address, and the ports that Linux gives to connections begin at
/// 32,768.
const FIRST_PORT: u16 = 10_000;

/// Attempts to find a port that was not given out yet.
const TRIES: usize = 100;

impl Ports {
    /// The next address: at a node's own address, or on loopback.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) fn next(&mut self, home: Option<Ipv4Addr>) -> io::Result<SocketAddr> {
        if let Some(home) = home {
            let port = self.given.last().map_or(Some(FIRST_PORT), |last| last.checked_add(1));
            let port = port.ok_or(io::ErrorKind::AddrInUse)?;
            self.given.insert(port);
            return Ok((home, port).into());
        }
        for _ in 0..TRIES {
            let address = TcpListener::bind((host_address(), 0))?.local_addr()?;
            if self.given.insert(address.port()) {
                return Ok(address);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}
