//! Test support: `madako serve` as a process, observed from outside.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::program::{Files, PATIENCE, command};

/// Interval of checks of an awaited state.
const GLANCE: Duration = Duration::from_millis(20);
/// Time limit of an answer: a paused process accepts connections and does not answer.
const HTTP_PATIENCE: Duration = Duration::from_secs(5);

/// Repeats `look` until it returns a value.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    found(look).await.unwrap_or_else(|| panic!("within {PATIENCE:?}: {what}"))
}

/// Repeats `look` until it returns a value, or [`PATIENCE`] is over.
pub(crate) async fn found<T>(mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            sleep(GLANCE).await;
        }
    };
    timeout(PATIENCE, looking).await.ok()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    kill_process(pid.expect("it runs"), signal).expect("the signal is delivered");
}

/// A page over HTTP: status and body.
pub(crate) async fn page(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        // In HTTP/1.0 an answer comes in one piece and ends with the connection.
        let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<String, io::Error>(answer)
    };
    let answer = timeout(HTTP_PATIENCE, asking).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}

/// The sum of a metric's series that have all these labels (`name="value"`).
pub(crate) fn sum_of(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let series = metrics.lines().filter_map(|line| {
        let (series, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        let ours = series.is_empty() || series.starts_with('{');
        (ours && labels.iter().all(|label| series.contains(label))).then(|| value.parse::<f64>().ok())?
    });
    series.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// A running `madako serve`; killed when dropped.
pub(crate) struct Serve {
    child: Child,
    pub(crate) http: SocketAddr,
    log: String,
    _files: Files,
}

impl Serve {
    /// Starts a service and waits until it serves HTTP.
    pub(crate) async fn start(config: &str, session_ttl: &str, interval: &str) -> Self {
        Self::start_with(config, session_ttl, interval, &[]).await
    }

    /// [`Self::start`] with further flags.
    pub(crate) async fn start_with(config: &str, session_ttl: &str, interval: &str, more: &[&str]) -> Self {
        let files = Files::new();
        let log = files.path("log");
        let mut child = spawn(config, session_ttl, interval, more, &log);
        let http = eventually("the service starts", async || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("it ended: {status}: {}", std::fs::read_to_string(&log).unwrap());
            }
            let line = lines(&log).into_iter().find(|line| line["message"] == "the service started")?;
            Some(line["http"].as_str()?.parse().unwrap())
        })
        .await;
        Self { child, http, log, _files: files }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.http
    }

    pub(crate) fn signal(&self, which: Signal) {
        signal(&self.child, which);
    }

    /// Sends SIGKILL and waits, as after a crash. Returns the whole log.
    pub(crate) async fn kill(mut self) -> String {
        self.child.kill().await.unwrap();
        self.log()
    }

    /// Sends SIGTERM and waits.
    pub(crate) async fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.until_ended().await
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn until_ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap()
    }

    /// The status of `/health`; 0 if there is no answer.
    pub(crate) async fn health(&self) -> u16 {
        page(self.http, "/health").await.map_or(0, |(status, _)| status)
    }

    pub(crate) async fn until_health(&self, status: u16) {
        eventually(&format!("/health is {status}"), async || (self.health().await == status).then_some(()))
            .await;
    }

    /// The sum of a metric's series; 0 if there is none or no answer.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let metrics = page(self.http, "/metrics").await.map_or_else(|_| String::new(), |(_, text)| text);
        sum_of(&metrics, name, labels).unwrap_or(0.0)
    }

    pub(crate) async fn until_metric(&self, name: &str, labels: &[&str], least: f64) {
        eventually(&format!("{name}{labels:?} is {least}"), async || {
            (self.metric(name, labels).await >= least).then_some(())
        })
        .await;
    }

    /// Waits until a counter has grown by this since now.
    pub(crate) async fn until_grown(&self, name: &str, labels: &[&str], by: f64) {
        let before = self.metric(name, labels).await;
        self.until_metric(name, labels, before + by).await;
    }

    /// Its epoch, while it leads.
    pub(crate) async fn epoch(&self) -> Option<i64> {
        let epoch = self.metric("madako_leader_epoch", &[]).await;
        #[allow(clippy::cast_possible_truncation, reason = "a revision far below 2^52")]
        (epoch > 0.0).then_some(epoch as i64)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Number of log lines with this message.
    pub(crate) fn told(&self, message: &str) -> usize {
        lines(&self.log).iter().filter(|line| line["message"] == message).count()
    }

    /// Waits for a log line with this message about `what`; returns the line.
    pub(crate) async fn until_told(&self, message: &str, what: &str) -> Value {
        let is_it = |line: &Value| line["message"] == message && line["what"] == what;
        let found = async || lines(&self.log).into_iter().find(is_it);
        eventually(&format!("{message:?} of {what} is logged"), found).await
    }

    /// Waits until the log contains a text.
    pub(crate) async fn until_log(&self, part: &str) {
        eventually(&format!("{part:?} is logged"), async || self.log().contains(part).then_some(())).await;
    }
}

fn spawn(config: &str, session_ttl: &str, interval: &str, more: &[&str], log: &str) -> Child {
    let args = ["serve", "--config", config, "--http", "127.0.0.1:0", "--logformat", "json"];
    command(&args)
        .args(["--session-ttl", session_ttl, "--interval", interval])
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::from(File::create(log).unwrap()))
        .spawn()
        .unwrap()
}

/// The complete lines of a log.
pub(crate) fn lines(log: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
