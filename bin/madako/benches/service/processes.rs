//! Benchmark support: the measured processes, etcd and `madako serve`.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Far more than any awaited event takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A directory for the files of one measurement, removed on drop.
pub(crate) struct WorkDirectory(tempfile::TempDir);

impl WorkDirectory {
    /// On the disk of builds: the system's temporary directories may be in memory.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        Ok(Self(directory.context("no directory for the measurement's files")?))
    }

    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a configuration file.
    pub(crate) fn write_config(&self, name: &str, content: &str) -> anyhow::Result<PathBuf> {
        let path = self.path_of(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0").context("no port is free")?.local_addr()?.port())
}

/// A running member of an etcd; killed when dropped.
pub(crate) struct Etcd {
    pub(crate) endpoint: String,
    pub(crate) pid: Pid,
    /// Its command line.
    words: Vec<OsString>,
    process: Child,
}

impl Etcd {
    /// An etcd of one member.
    pub(crate) fn start(place: &WorkDirectory) -> anyhow::Result<Self> {
        let [etcd] = Self::start_members(place)?;
        Ok(etcd)
    }

    pub(crate) fn start_members<const MANY: usize>(place: &WorkDirectory) -> anyhow::Result<[Self; MANY]> {
        let mut peers = Vec::new();
        for number in 0..MANY {
            peers.push((format!("etcd-{number}"), format!("http://127.0.0.1:{}", free_port()?)));
        }
        let cluster: Vec<String> = peers.iter().map(|(name, peer)| format!("{name}={peer}")).collect();
        let mut members = Vec::new();
        for (name, peer) in &peers {
            members.push(Self::start_member(place, name, peer, &cluster.join(","))?);
        }
        members.try_into().map_err(|_| anyhow::anyhow!("not {MANY} members"))
    }

    fn start_member(place: &WorkDirectory, name: &str, peer: &str, cluster: &str) -> anyhow::Result<Self> {
        let endpoint = format!("http://127.0.0.1:{}", free_port()?);
        let words = [
            ["--name", name],
            ["--listen-client-urls", &endpoint],
            ["--advertise-client-urls", &endpoint],
            ["--listen-peer-urls", peer],
            ["--initial-advertise-peer-urls", peer],
            ["--initial-cluster", cluster],
            ["--log-level", "panic"],
            ["--logger", "zap"],
        ];
        let words = words.as_flattened().iter().map(OsString::from);
        let data = [OsString::from("--data-dir"), place.path_of(name).into()];
        let words: Vec<OsString> = words.chain(data).collect();
        let (process, pid) = Self::launch(&words)?;
        Ok(Self { endpoint, pid, words, process })
    }

    fn launch(words: &[OsString]) -> anyhow::Result<(Child, Pid)> {
        let process = Command::new("etcd")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("etcd does not start (scripts/set-up installs it)")?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok((process, pid.context("etcd ended at once")?))
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("SIGKILL cannot be sent")
    }

    /// Restarts a killed member with its data.
    pub(crate) fn start_again(&mut self) -> anyhow::Result<()> {
        (self.process, self.pid) = Self::launch(&self.words)?;
        Ok(())
    }
}

/// A running `madako serve`; killed when dropped.
pub(crate) struct Madako {
    process: Child,
    pub(crate) pid: Pid,
}

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl Madako {
    /// Starts a service. Its log is appended to the file `log`.
    pub(crate) fn start(config: &Path, log: &Path, interval: &str, ttl: &str) -> anyhow::Result<Self> {
        Self::serve(config, log, &["--http", "127.0.0.1:0", "--interval", interval, "--session-ttl", ttl])
    }

    /// Starts a service with these flags of `serve`.
    pub(crate) fn serve(config: &Path, log: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let process = Command::new(env!("CARGO_BIN_EXE_madako"))
            .arg("--config")
            .arg(config)
            .arg("serve")
            .args(flags)
            // As in the unit of the package and in the image.
            .envs([("MALLOC_ARENA_MAX", "1"), ("MALLOC_MMAP_THRESHOLD_", "131072")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("madako does not start")?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { process, pid: pid.context("madako ended at once")? })
    }

    pub(crate) fn send_sigterm(&self) -> anyhow::Result<()> {
        kill_process(self.pid, Signal::TERM).context("SIGTERM cannot be sent")
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        kill_process(self.pid, Signal::KILL).context("SIGKILL cannot be sent")
    }

    /// Waits until it has ended; returns whether that was a clean end.
    pub(crate) async fn wait_for_end(mut self) -> anyhow::Result<bool> {
        Ok(timeout(PATIENCE, self.process.wait()).await.context("madako does not end")??.success())
    }

    /// Its memory now, as the kernel counts it.
    pub(crate) fn read_memory(&self) -> anyhow::Result<Memory> {
        let path = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let bytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB"));
            let value = value.with_context(|| format!("{path} has no {name}"))?;
            anyhow::Ok(value.trim().parse::<u64>()? * 1024)
        };
        Ok(Memory { resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

/// CPU time of a process.
pub(crate) fn core_time(pid: Pid) -> anyhow::Result<Duration> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // After the name, which may have spaces, come the state and then numbers: 12th and 13th are user's and system's.
    let fields = stat.rsplit_once(')').with_context(|| format!("{path} has no name"))?.1;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second()))
}
