//! A lab with the service: `madako serve` on its embedded store, in the network of the machines.

use std::path::PathBuf;
use std::process::Stdio;

use madako_lab::{ETCD_IMAGE, LOGIN, Lab, TOOLS_IMAGE};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::eventually;

/// Time between rounds of the service.
const INTERVAL: &str = "3s";
/// Longer than the shortest action on a node, with room for a busy host.
const SESSION: &str = "60s";
const PAGES: &str = "127.0.0.1:10180";

pub(crate) struct Fleet {
    pub(crate) lab: Lab,
    directory: TempDir,
    service: Option<Child>,
}

/// The output of a command that succeeded, or its message.
type Answer = Result<String, String>;

impl Fleet {
    /// Machines without containers, authorities, and a service without a cluster. `None`: the test is skipped.
    pub(crate) async fn start(machines: usize) -> Option<Self> {
        let lab = Lab::for_test(machines).await?;
        let directory = tempfile::tempdir().unwrap();
        let fleet = Self { lab, directory, service: None };
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        fleet.write("pki.key", key);
        let config = format!(
            "embedded: {{data-dir: {store}, listen: '127.0.0.1:2379'}}\n\
             ssh: {{key_file: {ssh}}}\n\
             pki: {{key_file: {pki}}}\n\
             images: {{etcd: '{ETCD_IMAGE}', tools: '{TOOLS_IMAGE}'}}\n",
            store = fleet.path("store").display(),
            ssh = fleet.lab.key_file().display(),
            pki = fleet.path("pki.key").display(),
        );
        fleet.write("config.yml", &config);
        let mut fleet = fleet;
        fleet.serve().await;
        fleet.madako(&["ca", "init"]).await.unwrap();
        Some(fleet)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file that others cannot read.
    fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Starts the service and waits until its store answers.
    pub(crate) async fn serve(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.lab.command(program());
        command.args(["serve", "--interval", INTERVAL, "--session-ttl", SESSION, "--http", PAGES]);
        command.arg("--config").arg(self.path("config.yml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.service = Some(command.spawn().unwrap());
        eventually("the store answers", async || self.madako(&["leader"]).await.ok()).await;
    }

    /// Kills the service as SIGKILL does.
    pub(crate) async fn kill(&mut self) {
        self.service.take().unwrap().kill().await.unwrap();
    }

    pub(crate) async fn madako(&self, words: &[&str]) -> Answer {
        let mut command = self.lab.command(program());
        command.arg("--config").arg(self.path("config.yml")).args(words);
        command.current_dir(self.directory.path());
        answer(&mut command).await
    }

    /// Stores a cluster with these machines. The first ones are the control plane.
    pub(crate) async fn set_cluster(&self, control_plane: &[usize], workers: &[usize]) {
        let node = |machine: &usize, control_plane: bool| {
            let address = self.lab.machine(*machine).address();
            format!("- {{address: {address}, user: {LOGIN}, control_plane: {control_plane}}}\n")
        };
        let nodes = control_plane.iter().map(|machine| node(machine, true));
        let nodes: String = nodes.chain(workers.iter().map(|machine| node(machine, false))).collect();
        let count = control_plane.len().to_string();
        self.madako(&["constraints", "set", "control-plane-count", &count]).await.unwrap();
        self.madako(&["constraints", "set", "minimum-workers", "0"]).await.unwrap();
        self.write("cluster.yml", &format!("name: lab\nservice_subnet: 10.68.0.0/16\nnodes:\n{nodes}"));
        self.madako(&["cluster", "set", self.path("cluster.yml").to_str().unwrap()]).await.unwrap();
    }

    /// The page `/ops`.
    pub(crate) async fn ops(&self) -> Option<Value> {
        let answer = self.madako(&["ops", "-o", "json"]).await.ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// Waits until these machines are the members of etcd, no operation is due and none is held.
    pub(crate) async fn settled(&self, machines: &[usize]) {
        let wanted: Vec<String> =
            machines.iter().map(|machine| self.lab.machine(*machine).address()).collect();
        let settled = async || {
            let page = self.ops().await?;
            let is_empty = |field: &str| page[field].as_array().is_some_and(Vec::is_empty);
            let is_calm = page["phase"] == "completed" && page["running"].is_null();
            if !(is_calm && is_empty("next") && is_empty("held")) {
                return None;
            }
            let mut members = self.members().await?;
            members.sort();
            (members == wanted).then_some(())
        };
        eventually(&format!("the members are {wanted:?}, and no operation is due"), settled).await;
    }

    /// The names of the members of etcd that are no learners.
    pub(crate) async fn members(&self) -> Option<Vec<String>> {
        let out = self.etcdctl(&["member", "list", "-w", "json"]).await.ok()?;
        let list: Value = serde_json::from_str(&out).ok()?;
        let members = list["members"].as_array()?;
        let voting = members.iter().filter(|member| member["isLearner"].as_bool() != Some(true));
        Some(voting.filter_map(|member| Some(member["name"].as_str()?.to_owned())).collect())
    }

    /// Runs etcdctl as `root` against every machine that answers.
    pub(crate) async fn etcdctl(&self, words: &[&str]) -> Answer {
        self.etcdctl_as("root", words).await
    }

    /// Runs etcdctl with a certificate of this user.
    pub(crate) async fn etcdctl_as(&self, user: &str, words: &[&str]) -> Answer {
        if !self.path(&format!("etcd-{user}.crt")).is_file() {
            let issue: &[&str] = match user {
                "root" => &["etcd", "root-issue", "--output", "file"],
                _ => &["etcd", "issue", user, "--output", "file"],
            };
            self.madako(issue).await?;
        }
        let endpoints: Vec<String> =
            self.lab.machines().iter().map(|machine| format!("https://{}:2379", machine.address())).collect();
        let mut command = self.lab.command("/usr/bin/etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(",")));
        for (flag, name) in [
            ("--cacert", "etcd-ca.crt".to_owned()),
            ("--cert", format!("etcd-{user}.crt")),
            ("--key", format!("etcd-{user}.key")),
        ] {
            command.arg(format!("{flag}={}", self.path(&name).display()));
        }
        answer(command.args(words)).await
    }

    /// The end of the service's log, for messages.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let start = log.len().saturating_sub(6000);
        log.get(start..).unwrap_or_default().to_owned()
    }
}

async fn answer(command: &mut Command) -> Answer {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The program of this build.
fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_madako-lab")).with_file_name("madako")
}
