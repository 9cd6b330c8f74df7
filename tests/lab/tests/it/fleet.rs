//! Test support: a lab with the service, and clients that observe it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use madako_lab::{Lab, Machine, Service, Store};
use serde_json::Value;

use crate::eventually;

/// Time limit of a program: an etcdctl waits at most 5 s for a member.
const PROGRAM_WITHIN: Duration = Duration::from_secs(30);

/// Messages of the service that a failed test shows.
const MESSAGES_SHOWN: usize = 120;

pub(crate) struct Fleet {
    pub(crate) service: Service,
    /// All output of commands, in which no key may be.
    transcript: Mutex<String>,
}

/// The output of a command that succeeded, or its message.
pub(crate) type Answer = Result<String, String>;

impl Fleet {
    /// Machines without containers, authorities, and a service without a cluster. `None`: the test is skipped.
    pub(crate) async fn start(machines: usize) -> Option<Self> {
        let fleet = Self::prepare(machines, Store::Embedded).await?;
        fleet.begin().await;
        Some(fleet)
    }

    /// The same on machines with the images of Kubernetes, whose components the service keeps.
    pub(crate) async fn start_kubernetes(machines: usize) -> Option<Self> {
        let fleet = Self::on(Lab::for_kubernetes(machines).await?, Store::Embedded);
        fleet.begin().await;
        Some(fleet)
    }

    async fn begin(&self) {
        self.serve().await;
        self.madako(&["ca", "init"]).await.unwrap();
    }

    /// Machines without containers, and a configuration. `None`: the test is skipped.
    pub(crate) async fn prepare(machines: usize, store: Store) -> Option<Self> {
        Some(Self::on(Lab::for_test(machines).await?, store))
    }

    /// The same with the images of Kubernetes.
    pub(crate) async fn prepare_kubernetes(machines: usize, store: Store) -> Option<Self> {
        Some(Self::on(Lab::for_kubernetes(machines).await?, store))
    }

    fn on(lab: Lab, store: Store) -> Self {
        let service = Service::new(lab, program(), store).unwrap();
        Self { service, transcript: Mutex::default() }
    }

    pub(crate) fn lab(&self) -> &Lab {
        self.service.lab()
    }

    pub(crate) fn machine(&self, index: usize) -> &Machine {
        self.lab().machine(index)
    }

    pub(crate) fn address(&self, index: usize) -> String {
        self.machine(index).address()
    }

    /// Starts the service and waits until its store answers.
    pub(crate) async fn serve(&self) {
        self.service.serve().unwrap();
        self.service.answers().await.unwrap();
    }

    fn note(&self, answer: Answer) -> Answer {
        let mut transcript = self.transcript.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ok(text) | Err(text)) = &answer;
        transcript.push_str(text);
        transcript.push('\n');
        answer
    }

    /// All output of commands so far.
    pub(crate) fn transcript(&self) -> String {
        self.transcript.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn madako(&self, words: &[&str]) -> Answer {
        self.note(self.service.madako(words).await.map_err(|error| error.to_string()))
    }

    /// Runs a program in the network of the machines.
    pub(crate) async fn program(&self, program: &str, words: &[&str]) -> Answer {
        let answer = self.service.program(program, words, PROGRAM_WITHIN).await;
        self.note(answer.map_err(|error| error.to_string()))
    }

    /// Stores a cluster with these machines. The first ones are the control plane.
    pub(crate) async fn set_cluster(&self, control_plane: &[usize], workers: &[usize]) {
        self.set_options(control_plane, workers, "{}").await;
    }

    /// The same with options of containers.
    pub(crate) async fn set_options(&self, control_plane: &[usize], workers: &[usize], options: &str) {
        self.service.set_cluster(control_plane, workers, options).await.unwrap();
    }

    /// The page `/ops`.
    pub(crate) async fn ops(&self) -> Option<Value> {
        let answer = self.madako(&["ops", "-o", "json"]).await.ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// The held operation with this name and reason, once there is one: its targets and the reason in words.
    pub(crate) async fn held(&self, what: &str, reason: &str) -> (Vec<String>, String) {
        let find = async || {
            let page = self.ops().await?;
            let held = page["held"].as_array()?.clone();
            let held = held.iter().find(|held| held["what"] == what && held["reason"] == reason)?;
            let targets = held["targets"].as_array()?.iter().filter_map(Value::as_str).map(str::to_owned);
            Some((targets.collect(), held["why"].as_str()?.to_owned()))
        };
        eventually(&format!("{what} is held: {reason}"), find).await
    }

    /// The reason for which a machine is unreachable, once it has one with this word.
    pub(crate) async fn unreachable(&self, machine: usize, word: &str) -> String {
        let address = self.address(machine);
        let find = async || {
            let page = self.ops().await?;
            let node = &page["nodes"][&address];
            let error = node["error"].as_str()?;
            (node["reachable"] == false && error.contains(word)).then(|| error.to_owned())
        };
        eventually(&format!("{address} is unreachable: {word}"), find).await
    }

    /// Waits until these machines are the members of etcd, no operation is due and none is held.
    pub(crate) async fn settled(&self, machines: &[usize]) {
        let wanted = self.addresses(machines);
        let settled = async || self.is_settled(machines).await.then_some(());
        eventually(&format!("the members are {wanted:?}, and no operation is due"), settled).await;
    }

    /// True if these machines are the members of etcd, no operation is due and none is held.
    pub(crate) async fn is_settled(&self, machines: &[usize]) -> bool {
        let Some(page) = self.ops().await else { return false };
        let is_empty = |field: &str| page[field].as_array().is_some_and(Vec::is_empty);
        let is_calm = page["phase"] == "completed" && page["running"].is_null();
        let mut members = match is_calm && is_empty("next") && is_empty("held") {
            true => self.members().await.unwrap_or_default(),
            false => return false,
        };
        members.sort();
        members == self.addresses(machines)
    }

    /// Sorted addresses.
    fn addresses(&self, machines: &[usize]) -> Vec<String> {
        let mut addresses: Vec<String> = machines.iter().map(|machine| self.address(*machine)).collect();
        addresses.sort();
        addresses
    }

    /// The names of the members of etcd that are not learners.
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
        if !self.service.path(&format!("etcd-{user}.crt")).is_file() {
            let issue: &[&str] = match user {
                "root" => &["etcd", "root-issue", "--output", "file"],
                _ => &["etcd", "issue", user, "--output", "file"],
            };
            self.madako(issue).await?;
        }
        let endpoints: Vec<String> =
            self.lab().machines().iter().map(|machine| client_url(&machine.address())).collect();
        self.etcdctl_at(&endpoints.join(","), user, words).await
    }

    /// Runs etcdctl with the files of a certificate that this user has already.
    pub(crate) async fn etcdctl_at(&self, endpoints: &str, user: &str, words: &[&str]) -> Answer {
        let files = [
            format!("--endpoints={endpoints}"),
            "--cacert=etcd-ca.crt".to_owned(),
            format!("--cert=etcd-{user}.crt"),
            format!("--key=etcd-{user}.key"),
        ];
        let all: Vec<&str> = files.iter().map(String::as_str).chain(words.iter().copied()).collect();
        self.program("/usr/bin/etcdctl", &all).await
    }

    /// Runs etcdctl against the store of the service.
    pub(crate) async fn store(&self, words: &[&str]) -> Answer {
        let endpoint = format!("--endpoints=http://{}", madako_lab::STORE);
        let all: Vec<&str> = [endpoint.as_str()].into_iter().chain(words.iter().copied()).collect();
        self.program("/usr/bin/etcdctl", &all).await
    }

    /// A page of the service, also if it reports a failure.
    pub(crate) async fn page(&self, name: &str) -> Answer {
        // Python is the client of HTTP that each host of these tests has.
        let script = format!(
            "from urllib import error, request\n\
             try: page = request.urlopen('http://{}/{name}')\n\
             except error.HTTPError as failure: page = failure\n\
             print(page.read().decode())",
            madako_lab::PAGES
        );
        self.program("python3", &["-c", &script]).await
    }

    /// The records of operations, the newest first.
    pub(crate) async fn history(&self) -> Vec<Value> {
        self.read_history().await.unwrap()
    }

    /// The same, with an error while the store does not answer, as between a leader that was killed and its successor.
    pub(crate) async fn read_history(&self) -> Result<Vec<Value>, String> {
        let records = self.madako(&["history", "-o", "json"]).await?;
        Ok(serde_json::from_str(&records).unwrap())
    }

    /// The names of the running containers of a machine, sorted.
    pub(crate) async fn running(&self, machine: usize) -> Vec<String> {
        let names = self.machine(machine).docker(&["ps", "--format", "{{.Names}}"]).await.unwrap();
        let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The messages of the service.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.service.path("log")).unwrap_or_default()
    }
}

/// The end of the service's messages explains a failed test.
impl Drop for Fleet {
    #[allow(clippy::print_stdout, reason = "the output of a test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(MESSAGES_SHOWN)..].join("\n"));
        }
    }
}

pub(crate) fn client_url(address: &str) -> String {
    format!("https://{address}:2379")
}

/// The program of this build.
pub(crate) fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_madako-lab")).with_file_name("madako")
}
