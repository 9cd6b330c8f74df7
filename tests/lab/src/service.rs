//! The service on a lab: `madako serve` in the network of the machines, with a configuration and keys of its own.
//!
//! Guarantees: all files are in the lab's directory, and the processes in the lab's network, so both end with the lab.
//!
//! Assumes: the program `madako` of the same build.
//!
//! Does not: wait until the service leads.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::process::Child;
use tokio::time::{Instant, sleep};

use crate::limits::{COMMAND_WITHIN, GLANCE, START_WITHIN};
use crate::tool::{LabError, run};
use crate::{
    COREDNS_IMAGE, ETCD_IMAGE, KUBERNETES_IMAGE, LOGIN, Lab, PAUSE_IMAGE, TOOLS_IMAGE,
    UNBOUND_EXPORTER_IMAGE, UNBOUND_IMAGE,
};

/// Interval between reconcile passes of the service.
const INTERVAL: &str = "5s";
/// Longer than the shortest action on a node, with room for a busy host.
const SESSION: &str = "60s";
/// Address of the service's pages.
pub const PAGES: &str = "127.0.0.1:10180";
/// Address of the store.
pub const STORE: &str = "127.0.0.1:2379";
/// The key that encrypts the keys of the authorities: it protects a lab alone.
pub const PKI_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// The store of the service, at [`STORE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In the service's process.
    Embedded,
    /// An etcd that another part of the test starts.
    Etcd,
}

/// A lab with the service.
#[derive(Debug)]
pub struct Service {
    lab: Lab,
    program: PathBuf,
    directory: PathBuf,
    process: Mutex<Option<Child>>,
}

impl Service {
    /// Writes the configuration and the keys. `program` is `madako`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(lab: Lab, program: PathBuf, store: Store) -> Result<Self, LabError> {
        let directory = lab.directory().join("service");
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|source| LabError::Start { what: directory.display().to_string(), source })?;
        let service = Self { lab, program, directory, process: Mutex::default() };
        service.write("pki.key", PKI_KEY)?;
        service.write("config.yml", &service.configuration(store))?;
        // Every command of an operator has the configuration.
        let [enter, place] = service.lab.enter();
        let program = service.program.display();
        let config = service.path("config.yml");
        let script =
            format!("#!/bin/sh\nexec {enter} {place} -- {program} --config {} \"$@\"\n", config.display());
        service.write_with_mode("madako", &script, 0o700)?;
        Ok(service)
    }

    fn configuration(&self, store: Store) -> String {
        let store = match store {
            Store::Embedded => {
                format!("embedded: {{data-dir: {}, listen: '{STORE}'}}\n", self.path("store").display())
            }
            Store::Etcd => format!("endpoints: ['http://{STORE}']\n"),
        };
        let more = if self.lab.has_kubernetes() {
            format!(
                ", kubernetes: '{KUBERNETES_IMAGE}', pause: '{PAUSE_IMAGE}', coredns: '{COREDNS_IMAGE}', \
                 unbound: '{UNBOUND_IMAGE}', unbound_exporter: '{UNBOUND_EXPORTER_IMAGE}'"
            )
        } else {
            String::new()
        };
        // The service keeps the components of Kubernetes where their images are.
        let mode = if self.lab.has_kubernetes() { "kubernetes: {mode: act}\n" } else { "" };
        format!(
            "{store}{mode}ssh: {{key_file: {ssh}}}\n\
             pki: {{key_file: {pki}}}\n\
             images: {{etcd: '{ETCD_IMAGE}', tools: '{TOOLS_IMAGE}'{more}}}\n",
            ssh = self.lab.key_file().display(),
            pki = self.path("pki.key").display(),
        )
    }

    #[must_use]
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The directory of the service's files: `config.yml`, `pki.key`, `log`, `store`, and the script `madako`, which runs
    /// a command with this configuration in the lab's network.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A file in [`Self::directory`].
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file that other users cannot read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        self.write_with_mode(name, text, 0o600)
    }

    fn write_with_mode(&self, name: &str, text: &str, mode: u32) -> Result<(), LabError> {
        use std::io::Write as _;
        let path = self.path(name);
        let mut options = fs::File::options();
        let file = options.create(true).truncate(true).write(true).mode(mode).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| LabError::Start { what: path.display().to_string(), source })
    }

    /// Starts the service. Its messages are appended to the file `log`.
    ///
    /// # Errors
    /// The program does not start.
    pub fn serve(&self) -> Result<(), LabError> {
        let what = || self.program.display().to_string();
        let start = |source| LabError::Start { what: what(), source };
        let log = fs::File::options().create(true).append(true).open(self.path("log")).map_err(start)?;
        let mut command = self.lab.command(&self.program);
        command.args(["serve", "--interval", INTERVAL, "--session-ttl", SESSION, "--http", PAGES]);
        command.arg("--config").arg(self.path("config.yml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(command.spawn().map_err(start)?);
        Ok(())
    }

    /// Waits until the store answers.
    ///
    /// # Errors
    /// It does not answer in time.
    pub async fn answers(&self) -> Result<(), LabError> {
        let end = Instant::now() + START_WITHIN;
        loop {
            match self.madako(&["leader"]).await {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < end => sleep(GLANCE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Kills the service as SIGKILL does, and waits for its end.
    ///
    /// # Errors
    /// The service does not run.
    pub async fn kill(&self) -> Result<(), LabError> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut process = process.ok_or_else(|| LabError::Failed {
            what: "kill of the service".to_owned(),
            said: "it does not run".to_owned(),
        })?;
        let killed = process.kill().await;
        killed.map_err(|source| LabError::Start { what: "kill of the service".to_owned(), source })
    }

    /// Runs a command of `madako` in the directory of the service; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn madako(&self, words: &[&str]) -> Result<String, LabError> {
        let mut command = self.lab.command(&self.program);
        command.arg("--config").arg(self.path("config.yml")).args(words);
        command.current_dir(&self.directory).stdin(Stdio::null());
        run(&format!("madako {}", words.join(" ")), &mut command, COMMAND_WITHIN).await
    }

    /// Runs any program in the network of the machines; returns its standard output.
    ///
    /// # Errors
    /// The exit status is not 0, or the time limit is exceeded.
    pub async fn program(
        &self,
        program: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        within: Duration,
    ) -> Result<String, LabError> {
        let mut command = self.lab.command(program);
        command.args(words).env("ETCDCTL_API", "3").current_dir(&self.directory).stdin(Stdio::null());
        run(program, &mut command, within).await
    }

    /// Stores a cluster of these machines, by their indices. `options` is a value in YAML's flow form.
    ///
    /// # Errors
    /// A command fails.
    pub async fn set_cluster(
        &self,
        control_plane: &[usize],
        workers: &[usize],
        options: &str,
    ) -> Result<(), LabError> {
        self.set_cluster_with(control_plane, workers, options, "").await
    }

    /// The same with further fields of the cluster, as lines of YAML.
    ///
    /// # Errors
    /// A command fails.
    pub async fn set_cluster_with(
        &self,
        control_plane: &[usize],
        workers: &[usize],
        options: &str,
        more: &str,
    ) -> Result<(), LabError> {
        let node = |machine: &usize, control_plane: bool| {
            let address = self.lab.machine(*machine).address();
            format!("- {{address: {address}, user: {LOGIN}, control_plane: {control_plane}}}\n")
        };
        let nodes = control_plane.iter().map(|machine| node(machine, true));
        let nodes: String = nodes.chain(workers.iter().map(|machine| node(machine, false))).collect();
        let count = control_plane.len().to_string();
        self.madako(&["constraints", "set", "control-plane-count", &count]).await?;
        self.madako(&["constraints", "set", "minimum-workers", "0"]).await?;
        let cluster =
            format!("name: lab\nservice_subnet: 10.68.0.0/16\noptions: {options}\n{more}nodes:\n{nodes}");
        self.write("cluster.yml", &cluster)?;
        self.madako(&["cluster", "set", "cluster.yml"]).await.map(drop)
    }
}
