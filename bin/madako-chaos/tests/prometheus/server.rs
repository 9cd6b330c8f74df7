//! A real Prometheus as a process, and the scripts of `grafana/` that ask it what the dashboards ask.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Time until it listens: about a second on a machine that does nothing else.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// How often that is looked at.
const GLANCE: Duration = Duration::from_millis(20);

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// How far back.
    pub(crate) minutes: u32,
    /// The end, in seconds of Unix time.
    pub(crate) until: f64,
    /// Seconds that rates are taken over: four scrapes at least.
    pub(crate) rate: u32,
    /// Whether the machine had other things to do meanwhile, and time was real: what a table marks as a matter of moments need only answer.
    pub(crate) busy: bool,
}

/// Ends with the test, and its files with it.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    _files: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The root of the repository, however deep in it the crate is.
pub(crate) fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut found = crates.filter(|place| place.join("grafana/ask.py").is_file());
    found.next().unwrap().to_owned()
}

impl Server {
    /// Starts one with a configuration, whose values are in the directory `data` of its files, and whose flags these are.
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

    /// Where it listens, once it says so.
    async fn listens(&mut self, log: &Path) -> String {
        let began = Instant::now();
        loop {
            let said = fs::read_to_string(log).unwrap();
            let mut lines = said.lines().filter(|line| line.contains("\"Listening on\""));
            if let Some((_, address)) = lines.find_map(|line| line.split_once("address=")) {
                return format!("http://{}", address.split_whitespace().next().unwrap());
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < STARTS_WITHIN, "prometheus: {ended:?}\n{said}");
            sleep(GLANCE).await;
        }
    }

    /// Asks what the dashboards ask; the lines that tell of what is not as a table of `grafana/runs` says, and whether all is.
    pub(crate) fn shows(&self, table: &str, asked: Asked) -> Result<(), String> {
        let table = root().join("grafana/runs").join(table);
        let words = ["--expect", table.to_str().unwrap(), "--busy"];
        self.python("ask.py", asked, &words[..2 + usize::from(asked.busy)])
    }

    /// Runs a script of `grafana/`.
    pub(crate) fn python(&self, script: &str, asked: Asked, more: &[&str]) -> Result<(), String> {
        let Asked { minutes, until, rate, .. } = asked;
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
