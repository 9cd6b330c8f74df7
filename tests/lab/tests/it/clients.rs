//! Clients on the machines that use the cluster all the time and count each failed request, and the pods that they use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_lab::{Client, Count, ECHO_IMAGE, Machine, Report, Use};

use crate::components::kubeconfig;
use crate::fleet::Fleet;
use crate::{eventually, measured};

/// Failed first attempts of the requests of all clients that a roll of three API servers may cause. Of the watches of a client each
/// of the servers ends at most one.
const MOST_FAILURES: u64 = 3;
/// Longest time without a success of the requests of a kind, however busy the host is: a silent API is found.
const LONGEST_GAP: Duration = Duration::from_secs(5);
/// The same beside a fault that takes a member of etcd or an API server away: an election, and time limits of requests.
const LONGEST_GAP_OF_FAULT: Duration = Duration::from_secs(20);
/// The API server behind rivers on each machine, and behind the service of Kubernetes.
const SERVERS: [(&str, &str); 2] =
    [("rivers", "https://127.0.0.1:16443"), ("service", "https://10.68.0.1:443")];
/// Address of the service of [`echo`].
const ECHO_ADDRESS: &str = "10.68.77.77";

/// Two pods behind a service, one node apart.
fn echo() -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata: {{name: echo, namespace: default}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: echo}}}}
  template:
    metadata: {{labels: {{app: echo}}}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
          labelSelector: {{matchLabels: {{app: echo}}}}}}
      containers: [{{name: echo, image: '{ECHO_IMAGE}', imagePullPolicy: Never}}]
---
apiVersion: v1
kind: Service
metadata: {{name: echo, namespace: default}}
spec: {{clusterIP: {ECHO_ADDRESS}, selector: {{app: echo}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#
    )
}

/// Starts the pods, and waits until each machine reaches them, and until both DNS servers run. Returns the kubeconfig of
/// clients.
pub(crate) async fn start_pods(fleet: &Fleet) -> PathBuf {
    let credentials = kubeconfig(fleet).await;
    fleet.service.write("echo.yml", &echo()).unwrap();
    fleet.madako(&["resource", "set", "echo.yml"]).await.unwrap();
    for (namespace, object) in [
        ("kube-system", "daemonset/node-dns"),
        ("kube-system", "deployment/cluster-dns"),
        ("default", "deployment/echo"),
    ] {
        let wait = ["rollout", "status", object, "--namespace", namespace, "--timeout=20s"];
        eventually(object, async || fleet.lab().kubectl(&credentials, &wait).await.ok()).await;
    }
    for machine in fleet.lab().machines() {
        reaches_pods(machine).await;
    }
    credentials
}

/// Waits until a machine reaches the pods at their service address, and its own DNS server, which begins again after a boot.
pub(crate) async fn reaches_pods(machine: &Machine) {
    let ask = format!(
        "python3 -c 'import socket; from urllib import request; request.urlopen(\"http://{ECHO_ADDRESS}\", timeout=2); \
         socket.create_connection((\"{}\", 53), 2)'",
        machine.address()
    );
    eventually("a pod and the DNS server answer", async || machine.sh(&ask).await.ok()).await;
}

/// The running clients of a test.
pub(crate) struct Clients(Vec<(String, Client)>);

impl Clients {
    /// A client on each of these machines for each of [`SERVERS`], with so many requests of each kind in a second. The first
    /// of a machine uses the pods and a DNS name, too. `run` begins the names of clients.
    pub(crate) fn start(fleet: &Fleet, machines: &[usize], credentials: &Path, run: &str, rate: u32) -> Self {
        let mut clients = Vec::new();
        let url = format!("http://{ECHO_ADDRESS}");
        for machine in machines.iter().map(|machine| fleet.machine(*machine)) {
            let name = format!("echo.default.svc.cluster.local@{}", machine.address());
            for (way, server) in SERVERS {
                let client = format!("{run}-{way}-{}", machine.address().replace('.', "-"));
                let is_first = way == SERVERS[0].0;
                let (pods, names) = ([url.as_str()], [name.as_str()]);
                let uses = Use {
                    kubeconfig: credentials,
                    server,
                    pods: if is_first { &pods } else { &[] },
                    names: if is_first { &names } else { &[] },
                    rate,
                };
                let started = Client::start(fleet.lab(), machine, &client, uses).unwrap();
                clients.push((client, started));
            }
        }
        Self(clients)
    }

    pub(crate) async fn finish(self, fleet: &Fleet) -> Reports {
        let mut reports = BTreeMap::new();
        for (name, client) in self.0 {
            reports.insert(name, client.finish(fleet.lab()).await.unwrap());
        }
        Reports(reports)
    }
}

/// True for requests to the API, as opposed to those to pods and DNS servers, which end with their node.
pub(crate) fn is_of_api(kind: &str) -> bool {
    !(kind.starts_with("pod") || kind.starts_with("dns"))
}

/// The counts of each client.
pub(crate) struct Reports(BTreeMap<String, Report>);

impl Reports {
    /// No acknowledged write is lost or missed, no request fails twice, few of all clients fail once in each roll of the API
    /// servers, and none waits for long.
    pub(crate) fn judge(&self, what: &str, rolls: u64) {
        let mut wrong = self.faults(rolls, |_| true);
        let kinds = self.0.values().flat_map(|report| &report.kinds);
        let failures: u64 = kinds.filter(|(kind, _)| *kind != "watch").map(|(_, count)| count.failures).sum();
        if failures > rolls * MOST_FAILURES {
            wrong.push(format!("{failures} first attempts failed"));
        }
        self.print(what);
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    }

    /// The same of some kinds of requests, where few of each client and kind may fail once.
    pub(crate) fn judge_kinds(&self, what: &str, rolls: u64, is_judged: impl Fn(&str) -> bool) {
        let wrong = self.faults(rolls, is_judged);
        self.print(what);
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    }

    fn faults(&self, rolls: u64, is_judged: impl Fn(&str) -> bool) -> Vec<String> {
        let mut wrong = self.lost_writes();
        wrong.extend(self.long_gaps(LONGEST_GAP, &is_judged));
        for (client, report) in &self.0 {
            for (kind, count) in report.kinds.iter().filter(|(kind, _)| is_judged(kind)) {
                if count.failed > 0 || count.failures > rolls * MOST_FAILURES {
                    let told: Vec<_> =
                        report.failures.iter().filter(|failure| failure.kind == *kind).take(5).collect();
                    wrong.push(format!("{client}: {kind}: {count:?}: {told:?}"));
                }
            }
        }
        wrong
    }

    /// No acknowledged write is lost or missed, and the API answers beside the fault, whatever failed.
    pub(crate) fn judge_fault(&self, what: &str) {
        self.print(what);
        let mut wrong = self.lost_writes();
        wrong.extend(self.long_gaps(LONGEST_GAP_OF_FAULT, is_of_api));
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    }

    fn long_gaps(&self, most: Duration, is_judged: impl Fn(&str) -> bool) -> Vec<String> {
        let counts = self.0.iter().flat_map(|(client, report)| {
            report
                .kinds
                .iter()
                .map(move |(kind, count)| (client, kind, Duration::from_millis(count.longest_gap_ms)))
        });
        let long = counts.filter(|(_, kind, gap)| is_judged(kind) && *gap > most);
        long.map(|(client, kind, gap)| format!("{client}: {kind}: {gap:?} without a success")).collect()
    }

    fn lost_writes(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (client, Report { lost, missed, error, .. }) in &self.0 {
            if !(lost.is_empty() && missed.is_empty() && error.is_none()) {
                wrong.push(format!("{client}: lost {lost:?}, missed {missed:?}, {error:?}"));
            }
        }
        wrong
    }

    /// Prints the sums of all clients by kind, and the first failures of each client and kind of which a request failed twice.
    #[allow(clippy::print_stdout, reason = "the output of a test")]
    fn print(&self, what: &str) {
        let mut sums: BTreeMap<&str, Count> = BTreeMap::new();
        for (kind, count) in self.0.values().flat_map(|report| &report.kinds) {
            // DNS servers have the addresses of machines.
            let kind = kind.split('@').next().unwrap_or_default();
            let sum =
                sums.entry(kind).or_insert(Count { successes: 0, failures: 0, failed: 0, longest_gap_ms: 0 });
            sum.successes += count.successes;
            sum.failures += count.failures;
            sum.failed += count.failed;
            sum.longest_gap_ms = sum.longest_gap_ms.max(count.longest_gap_ms);
        }
        for (client, report) in &self.0 {
            for (kind, _) in report.kinds.iter().filter(|(_, count)| count.failed > 0) {
                let of_kind = report.failures.iter().filter(|failure| failure.kind == *kind);
                let told: Vec<_> = of_kind.take(5).collect();
                println!("{client}: {kind}: {told:?}");
            }
        }
        for (kind, sum) in sums {
            measured(
                &format!(
                    "longest time without a success: {what}: {kind}: {} succeeded, {} failed once, {} twice",
                    sum.successes, sum.failures, sum.failed
                ),
                Duration::from_millis(sum.longest_gap_ms),
            );
        }
    }
}
