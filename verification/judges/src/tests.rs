//! Tests of the promises: for each, a stream of facts that keeps it, and one that breaks it.

mod cluster;
mod components;
mod drains;
mod operations;
mod others;
mod pace;
mod repairs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::TAINT_STATE;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use serde_json::{Value, json};

use crate::{
    Change, Command, Exemption, ExemptionUse, Fact, FactTime, KubernetesRequest, MachineReport, Oracle,
    PodFact, Promise, PromiseTerms, RegistryQuestion,
};

const TERMS: PromiseTerms = PromiseTerms {
    interval: Duration::from_secs(60),
    session_ttl: Duration::from_secs(60),
    retire_wait: Duration::from_secs(300),
    metrics_interval: Duration::from_secs(15),
    metric_max_age: Duration::from_secs(45),
    reschedule_after: Duration::from_secs(60),
    eviction_timeout: Duration::from_secs(120),
    answer_within: Duration::from_secs(3),
    tolerance: Duration::from_secs(5),
    holds_back: false,
};

/// Host name of the leader.
const LEADER: &str = "alpha";

/// A stream of facts. Three control plane nodes and twelve workers of twenty-four machines.
struct Tape {
    oracle: Oracle,
    at: FactTime,
    revision: i64,
    states: BTreeMap<u32, (MachineState, FactTime)>,
    missing: Vec<u32>,
}

fn address(number: u32) -> String {
    format!("10.0.0.{number}")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Tape {
    fn new() -> Self {
        let mut tape = Self {
            oracle: Oracle::new(TERMS),
            at: FactTime::ZERO,
            revision: 0,
            states: BTreeMap::new(),
            missing: Vec::new(),
        };
        tape.put(&[("leader//1", json!(LEADER))]);
        tape.put(&[(keys::SABAKAN_URL, json!("http://registry"))]);
        tape.put(&[(keys::CONSTRAINTS, json!({"control-plane-count": 3, "minimum-workers": 10}))]);
        tape.template();
        tape.poll(RegistryQuestion::Machines);
        tape.plan(&[1, 2, 3], &(4..16).collect::<Vec<_>>(), &[]);
        tape
    }

    fn later(&mut self, seconds: u64) -> &mut Self {
        self.at += Duration::from_secs(seconds);
        self
    }

    fn tell(&mut self, fact: Fact) {
        self.oracle.observe(self.at, &fact);
    }

    /// Stores a revision; a value other than a string becomes JSON.
    fn put(&mut self, writes: &[(&str, Value)]) -> i64 {
        self.revision += 1;
        let value = |value: &Value| match value {
            Value::Null => None,
            Value::String(text) => Some(Arc::from(text.as_bytes())),
            other => Some(Arc::from(other.to_string().as_bytes())),
        };
        let change = |(key, new): &(&str, Value)| Change { key: (*key).to_owned(), value: value(new) };
        let changes = writes.iter().map(change).collect();
        self.tell(Fact::Stored { revision: self.revision, changes });
        self.revision
    }

    fn template(&mut self) {
        self.put(&[(keys::SABAKAN_TEMPLATE, json!({"name": "t"}))]);
    }

    fn plan(&mut self, control_plane: &[u32], workers: &[u32], taints: &[(u32, &str)]) {
        let template = self.revision_of_template();
        self.plan_of(template, control_plane, workers, taints);
    }

    fn revision_of_template(&self) -> i64 {
        // The last revision: in these tests a plan follows the template at once.
        self.revision
    }

    fn plan_of(&mut self, template: i64, control_plane: &[u32], workers: &[u32], taints: &[(u32, &str)]) {
        let node = |number: &u32, control_plane: bool| {
            let taint = taints.iter().filter(|(of, _)| of == number);
            let taints: Vec<Value> = taint
                .map(|(_, value)| json!({"key": TAINT_STATE, "value": value, "effect": "NoExecute"}))
                .collect();
            json!({"address": address(*number), "control_plane": control_plane, "user": "u", "taints": taints})
        };
        let nodes: Vec<Value> = control_plane
            .iter()
            .map(|number| node(number, true))
            .chain(workers.iter().map(|number| node(number, false)))
            .collect();
        let step = |watch: u32| json!({"repair_command": ["reset"], "watch_seconds": watch});
        let repair = json!({
            "max_concurrent_repairs": 2,
            "repair_procedures": [{
                "machine_types": ["t"],
                "repair_operations": [{"operation": "o", "repair_steps": [step(120), step(300)]}],
            }],
        });
        self.put(&[
            (keys::CLUSTER, json!({"name": "c", "nodes": nodes, "repair": repair})),
            (keys::CLUSTER_REVISION, json!(template)),
            (keys::LAST_PLAN, json!({"epoch": 1})),
        ]);
    }

    /// A request to the registry and its answer.
    fn poll(&mut self, question: RegistryQuestion) {
        self.tell(Fact::Polled { instance: LEADER.to_owned(), question });
        let there = (1..=24).filter(|number| !self.missing.contains(number));
        let machines = there.map(|number| {
            let (state, since) =
                self.states.get(&number).copied().unwrap_or((MachineState::Healthy, FactTime::ZERO));
            MachineReport { address: address(number), state, since }
        });
        let machines = Arc::new(machines.collect());
        self.tell(Fact::Answered { instance: LEADER.to_owned(), question, machines });
    }

    fn state(&mut self, number: u32, state: MachineState) {
        self.states.insert(number, (state, self.at));
    }

    /// The key and new value of an entry of the repair queue.
    fn entry(&mut self, index: i64, status: &str, step: u32, step_status: &str) -> (String, Value) {
        let number = u32::try_from(index).unwrap() + 4;
        let entry = json!({
            "index": index.to_string(), "address": address(number), "nodename": "", "machine_type": "t",
            "operation": "o", "status": status, "step": step, "step_status": step_status, "deleted": false,
        });
        (keys::repair(index), entry)
    }

    fn write_entry(&mut self, index: i64, status: &str, step: u32, step_status: &str) -> i64 {
        let (key, entry) = self.entry(index, status, step, step_status);
        self.put(&[(&key, entry)])
    }

    /// Announces the command of a step. Returns the address of its machine.
    fn announce(&mut self, index: i64, step: u32) -> String {
        let (key, entry) = self.entry(index, "processing", step, "watching");
        let address = entry["address"].as_str().unwrap().to_owned();
        let id = self.revision;
        let record = json!({
            "id": id.to_string(), "status": "running", "operation": "repair-execute", "targets": [address],
            "command": {"name": "c", "target": ""}, "info": "", "error": "",
            "start-at": "2026-01-01T00:00:00Z", "end-at": "0001-01-01T00:00:00Z",
        });
        self.put(&[(&key, entry), (&keys::record(id), record)]);
        address
    }

    /// Announces the command of a step, which runs for 5 s.
    fn execute(&mut self, index: i64, step: u32, good: bool) {
        let address = self.announce(index, step);
        self.command(Command::Repair, &address, true, good);
        self.later(5);
        self.command(Command::Repair, &address, false, good);
    }

    fn command(&mut self, command: Command, address: &str, begins: bool, good: bool) {
        let (instance, address) = (LEADER.to_owned(), address.to_owned());
        self.tell(if begins {
            Fact::Began { instance, command, address }
        } else {
            Fact::Ended { instance, command, address, good }
        });
    }

    fn health(&mut self, index: i64, healthy: bool) {
        let address = address(u32::try_from(index).unwrap() + 4);
        self.command(Command::HealthCheck, &address, true, false);
        self.command(Command::HealthCheck, &address, false, healthy);
    }

    /// A request to Kubernetes that is sent now. The namespace `kept` is protected.
    fn kubernetes(&mut self, action: KubernetesRequest, node: &str, pod: Option<&str>, refused: bool) {
        let pod = pod.map(|name| PodFact { name: name.to_owned(), protected: name.starts_with("kept/") });
        self.tell(Fact::Kubernetes { action, node: node.to_owned(), pod, refused, sent: self.at });
    }

    /// Number of tests and of violations of a promise.
    fn of(&self, promise: Promise) -> (u64, usize) {
        let verdicts = self.oracle.verdicts();
        let verdict = &verdicts[&promise];
        (verdict.judged, verdict.violations.len())
    }

    fn used(&self, exemption: Exemption) -> ExemptionUse {
        let table = self.oracle.exemptions().list_uses();
        table.into_iter().find(|(it, _)| *it == exemption).unwrap().1
    }

    #[track_caller]
    fn keeps(&self, promise: Promise) {
        let (judged, broken) = self.of(promise);
        let all = self.oracle.verdicts();
        assert!(judged > 0 && broken == 0, "{}: {judged} judged, {:?}", promise.name(), all[&promise]);
    }

    #[track_caller]
    fn breaks(&self, promise: Promise) {
        assert_eq!(self.of(promise).1, 1, "{}: {:?}", promise.name(), self.oracle.verdicts()[&promise]);
    }
}

/// Two streams that differ by one fact.
fn pair(example: impl Fn(&mut Tape, bool)) -> (Tape, Tape) {
    let tapes = [false, true].map(|spoiled| {
        let mut tape = Tape::new();
        example(&mut tape, spoiled);
        tape
    });
    let [kept, broken] = tapes;
    (kept, broken)
}

#[track_caller]
fn judges(promise: Promise, example: impl Fn(&mut Tape, bool)) {
    let (kept, broken) = pair(example);
    kept.keeps(promise);
    broken.breaks(promise);
}

#[test]
fn writes_of_users_break_no_promise() {
    let mut tape = Tape::new();
    tape.write_entry(0, "queued", 0, "waiting");
    let (key, mut entry) = tape.entry(0, "queued", 0, "waiting");
    entry["deleted"] = json!(true);
    tape.put(&[(&key, entry)]);
    let revision = tape.write_entry(0, "queued", 0, "waiting");
    tape.breaks(Promise::DeletionKept);
    tape.tell(Fact::ByUser { revision });
    tape.keeps(Promise::DeletionKept);
}
