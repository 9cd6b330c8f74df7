//! Messages to systemd about the state of the service (`sd_notify(3)`): it has started, it still runs, it stops.
//!
//! Guarantees: without `NOTIFY_SOCKET` nothing is sent. A message that cannot be sent never delays or ends the service.
//! The watchdog's messages come from the runtime of the actors: if no thread of it runs any more, they end, and systemd
//! restarts the service.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// The environment of systemd's protocol.
const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_TIME: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// The socket of the service manager.
pub(crate) struct Notifier {
    /// `None`: the service was not started by systemd, or not with `Type=notify`.
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// Time after which systemd counts the service as hung.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// # Errors
    /// The variables of the environment have no usable values, or there is no socket.
    pub(crate) fn from_environment() -> io::Result<Self> {
        let Some(path) = env::var_os(SOCKET).filter(|path| !path.is_empty()) else {
            return Ok(Self { manager: None, watchdog: None });
        };
        let socket = UnixDatagram::unbound()?;
        // A full queue of the manager must not stop a thread.
        socket.set_nonblocking(true)?;
        let watchdog = parse_watchdog_interval(
            env::var(WATCHDOG_TIME).ok().as_deref(),
            env::var(WATCHDOG_PROCESS).ok().as_deref(),
            process::id(),
        )?;
        Ok(Self { manager: Some((socket, parse_address(&path)?)), watchdog })
    }

    pub(crate) fn notify_started(&self) {
        self.send("READY=1");
    }

    pub(crate) fn notify_stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Tells systemd that the service runs, twice in the time of its watchdog. Never returns.
    pub(crate) async fn feed_watchdog(&self) {
        let Some(time) = self.watchdog else { return std::future::pending().await };
        let mut ticks = interval(time / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        let Some((socket, manager)) = &self.manager else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            tracing::warn!(%error, message, "cannot notify systemd");
        }
    }
}

/// The address of a path; a path with a leading `@` is a name in the abstract namespace.
fn parse_address(path: &OsStr) -> io::Result<SocketAddr> {
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

/// The watchdog's time for the process `own`; systemd sets it to microseconds, for one process.
fn parse_watchdog_interval(
    time: Option<&str>,
    process: Option<&str>,
    own: u32,
) -> io::Result<Option<Duration>> {
    let number = |name: &str, text: &str| {
        text.parse::<u64>().ok().filter(|number| *number > 0).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name} is {text:?}, expected a positive whole number"),
            )
        })
    };
    let Some(time) = time else { return Ok(None) };
    let time = Duration::from_micros(number(WATCHDOG_TIME, time)?);
    match process {
        Some(process) if number(WATCHDOG_PROCESS, process)? != u64::from(own) => Ok(None),
        _ => Ok(Some(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_for_the_process_that_systemd_names() {
        let read = |time, process| parse_watchdog_interval(time, process, 7);
        assert_eq!(read(None, None).unwrap(), None);
        assert_eq!(read(Some("30000000"), None).unwrap(), Some(Duration::from_secs(30)));
        assert_eq!(read(Some("1500"), Some("7")).unwrap(), Some(Duration::from_micros(1500)));
        assert_eq!(read(Some("1500"), Some("8")).unwrap(), None, "the variables of a parent process");
        for time in ["", "0", "-1", "soon"] {
            let message = read(Some(time), None).unwrap_err().to_string();
            assert!(message.contains("WATCHDOG_USEC"), "{message}");
        }
    }

    #[test]
    fn a_name_with_an_at_sign_is_abstract() {
        let name = parse_address(OsStr::new("@madako")).unwrap();
        assert_eq!(name.as_abstract_name(), Some(&b"madako"[..]));
        let path = parse_address(OsStr::new("/run/systemd/notify")).unwrap();
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/systemd/notify")));
    }
}
