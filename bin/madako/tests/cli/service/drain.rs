//! Test of a whole repair of a node of a real Kubernetes, with its API server, its controllers, and a disruption budget
//! that delays the drain.

use std::sync::Arc;
use std::time::Duration;

use madako_datacenter_sim::kubernetes::{PodOwner, Workload, WorkloadBudget};
use serde_json::{Value, json};

use self::objects::Kubelets;
use self::server::{ADMIN, MADAKO, Server, get};
use super::etcd::RealEtcd;
use super::page;
use super::procedure::Procedure;
use super::site::{QUICK, Site};
use super::stage::eventually;
use crate::program::TEMPLATE;

#[path = "../../../../../adapters/kubernetes/tests/it/objects.rs"]
mod objects;
#[path = "../../../../../adapters/kubernetes/tests/it/pki.rs"]
mod pki;
#[path = "../../../../../adapters/kubernetes/tests/it/server.rs"]
mod server;

/// Namespace and name of the pods.
const NAMESPACE: &str = "default";
const WEB: &str = "web";
/// The mark of a node that is cordoned for a repair.
const OURS: &str = "/metadata/annotations/cke.cybozu.com~1reboot";

/// The template with the procedure, whose scripts are in the site's directory.
fn template(site: &Site) -> String {
    let reset = "echo reset \"$1\" >> \"$D/done\"";
    let procedure = Procedure { machine_types: &["bmc"], reset, success: None, watch_seconds: 3600 };
    let mut repair = procedure.written(&site.files);
    repair["evict_retries"] = json!(1);
    repair["evict_interval"] = json!(1);
    repair["repair_procedures"][0]["repair_operations"][0]["repair_steps"][0]["need_drain"] = json!(true);
    format!("{TEMPLATE}repair: {repair}\n")
}

/// The clients of an operator and of an administrator of Kubernetes.
struct DrainFixture {
    site: Site,
    admin: kube::Client,
    node: String,
}

impl DrainFixture {
    async fn kube(&self, path: &str) -> Value {
        serde_json::from_str(&self.admin.request_text(get(path)).await.unwrap()).unwrap()
    }

    /// True if the node is cordoned, and marked.
    async fn cordon(&self) -> (bool, bool) {
        let node = self.kube(&format!("/api/v1/nodes/{}", self.node)).await;
        (node["spec"]["unschedulable"] == true, node.pointer(OURS).is_some_and(|ours| ours == "true"))
    }

    /// Uids of pods without a deletion: those of the node, and all.
    async fn pods(&self) -> (Vec<String>, Vec<String>) {
        let list = self.kube(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await;
        let pods = list["items"].as_array().unwrap().iter();
        let running: Vec<&Value> = pods
            .filter(|pod| {
                pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
            })
            .collect();
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let here = running.iter().filter(|pod| pod["spec"]["nodeName"] == self.node.as_str());
        (here.map(|pod| uid(pod)).collect(), running.iter().map(|pod| uid(pod)).collect())
    }

    /// Waits until the disruption controller allows this number of disruptions, with two healthy pods required.
    async fn until_allowed(&self, count: u64) {
        let path = format!("/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{WEB}");
        eventually(&format!("{count} may be evicted"), async || {
            let budget = self.kube(&path).await;
            let (status, generation) = (&budget["status"], &budget["metadata"]["generation"]);
            (status["observedGeneration"] == *generation
                && status["currentHealthy"] == 2
                && status["disruptionsAllowed"] == count)
                .then_some(())
        })
        .await;
    }

    async fn entry(&self) -> Value {
        let stored = self.site.keys.get("repairs/data/0000000000000000").await.expect("it stays");
        serde_json::from_slice(stored.value()).unwrap()
    }

    async fn until_entry(&self, field: &str, value: &str) {
        eventually(&format!("the entry's {field} is {value}"), async || {
            (self.entry().await[field] == value).then_some(())
        })
        .await;
    }

    async fn explained(&self) -> Value {
        let answer = self.site.run(&["repair-queue", "explain", &self.node, "-o", "json"]).await;
        assert_eq!(answer.code, 0, "{answer:?}");
        answer.json()["entries"][0].clone()
    }

    /// The record of the repair command.
    fn done(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.site.files.path("done")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_node_is_drained_when_its_disruption_budget_allows_it_repaired_and_uncordoned() {
    let Some(mut kubernetes) = Server::start().await else { return };
    kubernetes.start_controllers();
    let Some((etcd, site)) = RealEtcd::with_site().await else { return };
    let kubeconfig = kubernetes.kubeconfig("service", &kubernetes.token(MADAKO));
    let settings = format!("{}kubernetes: {{kubeconfig: '{}'}}\n", etcd.settings(), kubeconfig.display());
    site.files.write("config.yml", settings);
    let file = site.files.write("template.yml", template(&site));
    site.run(&["sabakan", "set-template", &file]).await.calm();
    // An effect must end before its permit does, and evictions beside a busy disruption controller may take seconds.
    let service = site.serve("60s", QUICK).await;
    let cluster = site.first_cluster().await;

    // All pods run on the one worker; then a second worker has room for others.
    let admin = kubernetes.client(ADMIN);
    let observed = DrainFixture { admin: admin.clone(), node: cluster.workers[0].clone(), site };
    objects::node(&admin, &observed.node, &[]).await;
    let _kubelets = Kubelets::start(admin.clone(), Arc::default());
    let workload = Workload {
        namespace: NAMESPACE.to_owned(),
        name: WEB.to_owned(),
        owner: PodOwner::ReplicaSet { replicas: 2 },
        grace: Duration::from_secs(1),
        ends_within: Duration::ZERO,
    };
    objects::workload(&admin, &workload, &[observed.node.clone()].into()).await;
    let budget = WorkloadBudget {
        namespace: NAMESPACE.to_owned(),
        name: WEB.to_owned(),
        workload: WEB.to_owned(),
        min_available: 2,
    };
    objects::budget(&admin, &budget).await;
    observed.until_allowed(0).await;
    let (here, all) = observed.pods().await;
    assert_eq!((here.len(), all.len()), (2, 2));
    objects::node(&admin, &cluster.workers[1], &[]).await;

    // The budget forbids the eviction: nothing is changed, and the reason is shown everywhere.
    observed.site.run(&["repair-queue", "add", "unreachable", "bmc", &observed.node]).await.calm();
    let why = eventually("the budget is in the way", async || {
        let explained = observed.explained().await;
        explained["why"].as_str().filter(|why| why.contains("cannot be evicted")).map(str::to_owned)
    })
    .await;
    assert!(why.contains("the pod default/web-") && why.contains("disruption budget"), "{why}");
    let entry = observed.entry().await;
    assert_eq!(
        (&entry["drain_backoff_count"], &entry["status"]),
        (&json!(1), &json!("processing")),
        "{entry}"
    );
    assert_eq!(observed.cordon().await, (false, false));
    assert_eq!(observed.pods().await, (here.clone(), all));
    // Health is checked in every pass meanwhile, and the command does not run.
    service.until_grown("madako_repair_health_checks_total", &["outcome=\"unhealthy\""], 3.0).await;
    assert_eq!(observed.done(), [""; 0]);

    // The budget allows both: the node is drained and then repaired, once.
    let path = format!("/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{WEB}");
    objects::patch(&admin, &path, &json!({"spec": {"minAvailable": 0}})).await.unwrap();
    observed.until_allowed(2).await;
    observed.site.run(&["repair-queue", "reset-backoff"]).await.calm();
    observed.until_entry("step_status", "watching").await;
    let repaired = [format!("reset {}", observed.node)];
    eventually("the command runs", async || (observed.done() == repaired).then_some(())).await;
    assert_eq!(observed.cordon().await, (true, true), "it stays so while it is repaired");
    let (left, others) = observed.pods().await;
    assert!(left.is_empty() && !others.iter().any(|pod| here.contains(pod)), "{left:?} {others:?}");
    service.until_grown("madako_repair_health_checks_total", &["outcome=\"unhealthy\""], 3.0).await;
    assert_eq!(observed.entry().await["status"], "processing");

    // The machine is healthy: the repair ends, and pods may return.
    observed.site.files.write(&format!("healthy-{}", observed.node), "");
    observed.until_entry("status", "succeeded").await;
    let shown = page::is_declared(&service).await;
    assert!(shown.contains("madako_kubernetes_requests_total"), "{shown:?}");
    eventually("the node is uncordoned", async || (observed.cordon().await == (false, false)).then_some(()))
        .await;
    assert_eq!(observed.done(), repaired);
    let expected = [
        "repair-drain-start completed",
        // The drain that the budget delayed had timed out.
        "repair-drain-timeout completed",
        "repair-drain-start completed",
        "repair-execute completed",
        "repair-finish completed",
    ];
    assert_eq!(observed.site.keys.records().await, expected);
}
