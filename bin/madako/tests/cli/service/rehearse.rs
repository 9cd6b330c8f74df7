//! Test that `madako rehearse` predicts the events of a run with real processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use etcd_client::{EventType, WatchOptions};
use madako_datacenter_sim::{Datacenter, DatacenterConfig, GRAPHQL_PATH, SimulatedRegistry};
use madako_domain::machine::MachineState;
use madako_protocol::ports::Clock;
use madako_supervisor::clock::SystemClock;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::etcd::RealEtcd;
use super::keys::Keys;
use super::procedure::Procedure;
use super::site::leader_after;
use super::stage::{Serve, eventually};
use crate::program::{Answer, Files, TEMPLATE, madako};

/// Interval of polls in both.
const INTERVAL: &str = "2s";

/// A site whose machines are repaired by scripts: a machine is healthy after its script.
struct Site {
    _etcd: RealEtcd,
    keys: Keys,
    files: Files,
    config: String,
    registry: SimulatedRegistry,
    served: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.served.abort();
    }
}

impl Site {
    /// `None`: etcd is not installed.
    async fn open() -> Option<Self> {
        let etcd = RealEtcd::start(&[]).await?;
        let files = Files::new();
        let config = files.write("config.yml", etcd.settings());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let datacenter = DatacenterConfig::new(7, clock.now(), 4, &[("compute", 20), ("storage", 8)]);
        let registry = SimulatedRegistry::new(Datacenter::new(datacenter).unwrap(), clock);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{GRAPHQL_PATH}", listener.local_addr().unwrap());
        let serving = registry.clone();
        let served = tokio::spawn(async move { serving.serve_tcp(listener).await.unwrap() });
        let keys = Keys::at(&etcd.endpoint(), None);
        let site = Self { _etcd: etcd, keys, files, config, registry, served };
        site.run(&["sabakan", "set-url", &url]).await.calm();
        for (name, value) in
            [("control-plane-count", "3"), ("minimum-workers", "6"), ("maximum-repair-queue-entries", "5")]
        {
            site.run(&["constraints", "set", name, value]).await.calm();
        }
        // Longer than the time between polls, like the rehearsal's commands, so that the planner observes the failed
        // machine meanwhile.
        let reset = ": > \"$D/began-$1\"; sleep 5; : > \"$D/reset-$1\"";
        let success = Some("rm \"$D/healthy-$1\"");
        let machine_types = &["iDRAC-9", "IPMI-2.0"];
        let repair = Procedure { machine_types, reset, success, watch_seconds: 60 }.written(&site.files);
        let template = site.files.write("template.yml", format!("{TEMPLATE}repair: {repair}\n"));
        site.run(&["sabakan", "set-template", &template]).await.calm();
        Some(site)
    }

    async fn run(&self, args: &[&str]) -> Answer {
        madako(&[&["--config", self.config.as_str()], args].concat()).await
    }

    async fn serve(&self) -> Serve {
        Serve::start(&self.config, "2s", INTERVAL).await
    }

    /// The address of the first node of this part.
    async fn node(&self, control_plane: bool) -> String {
        let cluster = self.keys.cluster().await.unwrap();
        let nodes = if control_plane { cluster.control_plane } else { cluster.workers };
        nodes[0].clone()
    }

    /// Fails a machine, which is healthy after its script, and waits until its repair has succeeded and nothing is left
    /// to do.
    async fn fails(&self, service: &Serve, address: &str) {
        let machines = self.registry.list_machines();
        let failed = machines.iter().find(|machine| machine.address() == Some(address)).unwrap();
        self.registry.set_state(&failed.spec.serial, MachineState::Unreachable).unwrap();
        let [reset, healthy] = ["reset", "healthy"].map(|what| self.files.path(&format!("{what}-{address}")));
        eventually(&format!("the script of {address} was run"), async || fs::rename(&reset, &healthy).ok())
            .await;
        self.registry.set_state(&failed.spec.serial, MachineState::Healthy).unwrap();
        eventually(&format!("{address} is repaired"), async || {
            let everything = self.keys.everything().await;
            let entries = everything.iter().filter(|stored| stored.key().starts_with(b"/cke/repairs/data/"));
            let mut entries = entries.map(|stored| serde_json::from_slice::<Value>(stored.value()).unwrap());
            entries.find(|entry| entry["address"] == address && entry["status"] == "succeeded").map(drop)
        })
        .await;
        service.until_grown("madako_plans_total", &["action=\"none\""], 3.0).await;
    }

    /// Plans, repairs and records since a revision, from the store's history.
    async fn history(&self, since: i64) -> (Vec<Value>, Vec<Value>, Vec<String>) {
        let last = self.keys.revision().await;
        let mut client = self.keys.client().await;
        let options = WatchOptions::new().with_prefix().with_start_revision(since + 1);
        let mut stream = client.watch("/cke/", Some(options)).await.unwrap();
        // A write that marks the end of the watch.
        self.keys.client().await.put("/cke/end", "", None).await.unwrap();
        let (mut plans, mut begun, mut records) = (Vec::new(), Vec::new(), BTreeMap::new());
        loop {
            let answer = stream.message().await.unwrap().unwrap();
            for event in answer.events().iter().filter(|event| event.event_type() == EventType::Put) {
                let kv = event.kv().unwrap();
                if kv.mod_revision() > last {
                    return (plans, begun, records.into_values().collect());
                }
                let value = || serde_json::from_slice::<Value>(kv.value()).unwrap();
                match kv.key_str().unwrap() {
                    "/cke/madako/decisions/cluster-plan" => {
                        let plan = value();
                        plans.push(json!({"action": plan["action"], "changes": plan["changes"]}));
                    }
                    key if key.starts_with("/cke/repairs/data/") => {
                        let entry = value();
                        let step = json!([entry["address"], entry["operation"], entry["status"]]);
                        if begun.last() != Some(&step) {
                            begun.push(step);
                        }
                    }
                    key if key.starts_with("/cke/records/") => {
                        let record = value();
                        let (operation, targets) = (&record["operation"], &record["targets"]);
                        records.insert(key.to_owned(), format!("{operation} {targets}"));
                    }
                    _ => {}
                }
            }
        }
    }
}

#[tokio::test]
async fn rehearsal_matches_the_real_system() {
    let Some(site) = Site::open().await else { return };
    let service = site.serve().await;
    eventually("a cluster is committed", async || site.keys.cluster().await).await;
    service.until_grown("madako_plans_total", &["action=\"none\""], 3.0).await;
    let (worker, control_plane) = (site.node(false).await, site.node(true).await);
    assert!(service.terminate().await.success());

    let revision = site.keys.revision().await;
    let faults = [format!("kill {worker} at 10s"), format!("kill {control_plane} at 1m")];
    let length = ["rehearse", "--for", "2m", "--interval", INTERVAL, "--session-ttl", "2s"];
    let rest = ["--command-takes", "5s", "--fault", &faults[0], "--fault", &faults[1], "-o", "json"];
    let rehearsed = site.run(&[&length[..], &rest].concat()).await;
    assert_eq!(rehearsed.code, 0, "{rehearsed:?}");
    assert_eq!(site.keys.revision().await, revision, "nothing was written");
    let began = |address: &str| Path::new(&site.files.path(&format!("began-{address}"))).exists();
    assert!(!began(&worker) && !began(&control_plane), "no command of the system was run");
    let rehearsed = rehearsed.json();

    // The same with processes on the copied data.
    let service = site.serve().await;
    leader_after(&[&service], 0).await;
    service.until_grown("madako_plans_total", &["action=\"none\""], 3.0).await;
    site.fails(&service, &worker).await;
    assert!(began(&worker));
    site.fails(&service, &control_plane).await;
    let (plans, states, records) = Box::pin(site.history(revision)).await;
    assert!(service.terminate().await.success());

    let of_rehearsal: Vec<Value> = rehearsed["plans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plan| json!({"action": plan["action"], "changes": plan["changes"]}))
        .collect();
    assert!(plans.len() >= 2, "something is planned for each of them: {plans:#?}");
    assert_eq!(of_rehearsal, plans, "the same plans in the same order");

    let repairs = rehearsed["repairs"].as_array().unwrap();
    let addresses: Vec<&Value> = repairs.iter().map(|repair| &repair["address"]).collect();
    assert_eq!(addresses, [&json!(worker), &json!(control_plane)]);
    let of_rehearsal: Vec<Value> = repairs
        .iter()
        .flat_map(|repair| {
            ["queued", "processing", "succeeded"]
                .map(|status| json!([repair["address"], repair["operation"], status]))
        })
        .collect();
    assert!(repairs.iter().all(|repair| repair["status"] == "succeeded"), "{repairs:#?}");
    assert_eq!(of_rehearsal, states, "the same repairs in the same order");
    let of_rehearsal: Vec<String> = repairs
        .iter()
        .flat_map(|repair| {
            let steps = repair["steps"].as_array().unwrap().iter();
            let operations = steps.filter_map(|step| step["what"].as_str()?.split(": ").next());
            operations.map(|operation| format!("\"{operation}\" [{}]", repair["address"])).collect::<Vec<_>>()
        })
        .collect();
    for operation in &records {
        assert!(of_rehearsal.contains(operation), "{operation}: {of_rehearsal:#?}");
    }
    assert!(records.len() >= 4, "{records:?}");
}
