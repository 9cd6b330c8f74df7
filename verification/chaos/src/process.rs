//! A process of the run: started, stopped, killed, and started again with what is on its disk.
//!
//! Guarantees: it does not outlive the run, however that ends ([`crate::keeper`]); its output goes to a file of its own.

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

/// How a process is started.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Its name, for messages and for its log's.
    pub(crate) name: String,
    /// The program.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Its environment, beside ours.
    pub(crate) environment: Vec<(String, String)>,
    /// Where its output goes.
    pub(crate) log: PathBuf,
}

/// Why a process is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It does not start.
    #[error("{name} cannot be started")]
    Start {
        /// Which.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// It did not take a signal.
    #[error("{name} did not take the signal {signal}")]
    Signal {
        /// Which.
        name: String,
        /// The signal.
        signal: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It ended by itself.
    #[error("{name} ended by itself: {status}; its last words: {words}")]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// The end of its log.
        words: String,
    },
}

/// A process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    spec: Spec,
    /// The program that starts others so that they end with it.
    own: PathBuf,
    child: Option<Child>,
    stopped: bool,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever it started in its own group goes with it; it may be gone already.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Process {
    /// Starts it. `own` is the program that calls [`keeper::entry`].
    ///
    /// # Errors
    /// [`ProcessError::Start`].
    pub(crate) fn start(own: &Path, spec: Spec) -> Result<Self, ProcessError> {
        let mut process = Self { spec, own: own.to_owned(), child: None, stopped: false };
        process.start_again()?;
        Ok(process)
    }

    /// Starts it once more after it was killed.
    ///
    /// # Errors
    /// [`ProcessError::Start`].
    pub(crate) fn start_again(&mut self) -> Result<(), ProcessError> {
        let start = || -> io::Result<Child> {
            let log = OpenOptions::new().create(true).append(true).open(&self.spec.log)?;
            Command::new(&self.own)
                .args(keeper::words(&self.spec.program))
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

    /// Its name.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its number in the system; 0 while it is down.
    #[must_use]
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).unwrap_or(0)
    }

    /// Whether it was killed and not started again.
    #[must_use]
    pub(crate) fn is_down(&self) -> bool {
        self.child.is_none()
    }

    /// Whether it stands still.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Ends it at once, with SIGKILL to its whole group, and waits until it is gone.
    ///
    /// # Errors
    /// [`ProcessError::Signal`].
    pub(crate) async fn kill(&mut self) -> Result<(), ProcessError> {
        // One that ended by itself and was waited for has no number any more.
        if let Some(pid) = self.pid() {
            let gone = kill_process_group(pid, Signal::KILL);
            self.signalled("SIGKILL", gone)?;
        }
        if let Some(mut child) = self.child.take() {
            child.wait().await.map_err(|source| self.not_taken("SIGKILL", source))?;
        }
        Ok(())
    }

    /// Lets it stand still, or go on.
    ///
    /// # Errors
    /// [`ProcessError::Signal`].
    pub(crate) fn stop(&mut self, stopped: bool) -> Result<(), ProcessError> {
        self.stopped = stopped;
        let Some(pid) = self.pid() else { return Ok(()) };
        let (signal, name) = if stopped { (Signal::STOP, "SIGSTOP") } else { (Signal::CONT, "SIGCONT") };
        let taken = kill_process(pid, signal);
        self.signalled(name, taken)
    }

    /// Gives it a moment to end by itself.
    pub(crate) async fn ends_within(&mut self, moment: Duration) -> bool {
        let Some(child) = &mut self.child else { return false };
        timeout(moment, child.wait()).await.is_ok()
    }

    /// Whether it runs as it should.
    ///
    /// # Errors
    /// [`ProcessError::Ended`].
    pub(crate) fn check(&mut self) -> Result<(), ProcessError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status.to_string())),
            Err(error) => Err(self.ended(error.to_string())),
        }
    }

    fn ended(&self, status: String) -> ProcessError {
        let words = last_words(&self.spec.log).unwrap_or_else(|error| error.to_string());
        ProcessError::Ended { name: self.spec.name.clone(), status, words }
    }

    /// A child that was waited for has none.
    fn pid(&self) -> Option<Pid> {
        let id = self.child.as_ref()?.id()?;
        i32::try_from(id).ok().and_then(Pid::from_raw)
    }

    fn signalled(&self, name: &'static str, taken: rustix::io::Result<()>) -> Result<(), ProcessError> {
        match taken {
            // It is gone, and nobody has waited for it yet.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(self.not_taken(name, error.into())),
        }
    }

    fn not_taken(&self, signal: &'static str, source: io::Error) -> ProcessError {
        ProcessError::Signal { name: self.spec.name.clone(), signal, source }
    }
}

/// Bytes of a log's end that are told.
const LAST_WORDS: u64 = 2_000;

fn last_words(log: &Path) -> io::Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
    let mut end = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

/// Where processes that are started again listen, on loopback: an address of loopback that is this run's alone, since it is made of
/// its process's number. Nobody else listens there, and connections come from the first address of loopback: while one
/// of the processes is down, its port stays free for it.
fn host() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low)
}

/// Addresses on which nobody listens, each port given once.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    given: BTreeSet<u16>,
}

/// The first port where nobody else is: all are free there, and those that Linux gives to connections begin at 32,768.
const FIRST_PORT: u16 = 10_000;

/// Tries to find a port that was not given yet.
const TRIES: usize = 100;

impl Ports {
    /// The next one: of a node that has an address of its own, or of loopback.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn next(&mut self, home: Option<Ipv4Addr>) -> io::Result<SocketAddr> {
        if let Some(home) = home {
            let port = self.given.last().map_or(Some(FIRST_PORT), |last| last.checked_add(1));
            let port = port.ok_or(io::ErrorKind::AddrInUse)?;
            self.given.insert(port);
            return Ok((home, port).into());
        }
        for _ in 0..TRIES {
            let address = TcpListener::bind((host(), 0))?.local_addr()?;
            if self.given.insert(address.port()) {
                return Ok(address);
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}
