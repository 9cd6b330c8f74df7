//! A real Prometheus as a process, and the scripts of `grafana/` that send it the queries of the dashboards.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Time until it listens: about a second on an idle machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Interval of checks for that.
const GLANCE: Duration = Duration::from_millis(20);

/// Range of the queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryWindow {
    /// Length of the range.
    pub(crate) minutes: u32,
    /// End of the range, in seconds of Unix time.
    pub(crate) until: f64,
    /// Range of rates in seconds: at least four scrapes.
    pub(crate) rate: u32,
    /// True if the machine was busy in real time: then rows that a table marks as a matter of moments only need an
    /// answer.
    pub(crate) busy: bool,
}

/// Killed when dropped; its files are removed.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    _files: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The root of the repository, from a crate at any depth.
pub(crate) fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut found = crates.filter(|place| place.join("grafana/ask.py").is_file());
    found.next().unwrap().to_owned()
}

impl Server {
    /// Starts a server with a configuration and flags; its values are in the subdirectory `data` of its files.
    pub(crate) fn start(files: TempDir, config: &str, flags: &[&str]) -> Self {
        let path = files.path().join("prometheus.yml");
        fs::write(&path, config).unwrap();
        let log = files.path().join("log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", files.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self { child, url: String::new(), _files: files };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        server.url = runtime.block_on(server.listens(&log));
        server
    }

    /// The address on which it listens, from its log.
    async fn listens(&mut self, log: &Path) -> String {
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(log).unwrap();
            let mut lines = text.lines().filter(|line| line.contains("\"Listening on\""));
            if let Some((_, address)) = lines.find_map(|line| line.split_once("address=")) {
                return format!("http://{}", address.split_whitespace().next().unwrap());
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < STARTS_WITHIN, "prometheus: {ended:?}\n{text}");
            sleep(GLANCE).await;
        }
    }

    /// Sends the queries of the dashboards. The error has the rows of a table of `grafana/runs` that do not hold.
    pub(crate) fn shows(&self, table: &str, asked: QueryWindow) -> Result<(), String> {
        let table = root().join("grafana/runs").join(table);
        let words = ["--expect", table.to_str().unwrap(), "--busy"];
        self.python("ask.py", asked, &words[..2 + usize::from(asked.busy)])
    }

    pub(crate) fn python(&self, script: &str, asked: QueryWindow, more: &[&str]) -> Result<(), String> {
        let QueryWindow { minutes, until, rate, .. } = asked;
        let words = [
            ("--minutes", minutes.to_string()),
            ("--until", until.to_string()),
            ("--rate", rate.to_string()),
        ];
        let output = Command::new("python3")
            .arg("-B")
            .arg(root().join("grafana").join(script))
            .arg(&self.url)
            .args(words.iter().flat_map(|(name, value)| [*name, value]))
            .args(more)
            .output()
            .unwrap();
        if output.status.success() {
            return Ok(());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Err(format!("{script}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}
