//! Tests of `madako reboot-queue forecast` against an API server with scripted answers.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::program::{CLUSTER, Etcd, madako};

const REBOOT: &str = "reboot:\n  reboot_command: [reboot]\n  boot_check_command: [check]\n  \
                      protected_namespaces: {matchLabels: {protected: 'true'}}\n";

/// An API server with two nodes, a running job on the first and two protected pods with budgets on the second.
struct ScriptedApi {
    url: String,
    /// Method and path of each request, with the body of a write.
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl ScriptedApi {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let all = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&all)));
            }
        });
        Self { url, requests, task }
    }

    fn requests(&self, part: &str) -> Vec<String> {
        self.requests.lock().unwrap().iter().filter(|request| request.contains(part)).cloned().collect()
    }
}

impl Drop for ScriptedApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers one request of a connection.
async fn serve(stream: TcpStream, all: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        // A client that disconnects sends no request.
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    let target: Vec<&str> = head.split(' ').take(2).collect();
    let target = target.join(" ");
    all.lock().unwrap().push(format!("{target} {}", String::from_utf8(body).unwrap()));
    let (status, answer) = answer(&target);
    let text = answer.to_string();
    let length = text.len();
    let text = format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}");
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
}

fn pod(namespace: &str, name: &str, node: &str, (kind, owner): (&str, &str)) -> Value {
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": {"app": owner},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": kind, "name": owner, "uid": format!("uid-{owner}"), "controller": true,
            }],
        },
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    })
}

fn budget(name: &str, allowed: i64) -> Value {
    json!({
        "metadata": {"namespace": "safe", "name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1},
    })
}

fn answer(target: &str) -> (u16, Value) {
    let (method, path) = target.split_once(' ').unwrap();
    let path = path.split('?').next().unwrap();
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let owner = json!([{
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "tight-deployment", "uid": "d", "controller": true,
    }]);
    let items = match (method, path) {
        ("post", path) if path.ends_with("/tight-1/eviction") => {
            let causes =
                json!([{"reason": "DisruptionBudget", "message": "The disruption budget tight needs 1"}]);
            let answer = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429, "reason": "TooManyRequests",
                "message": "Cannot evict pod as it would violate the pod's disruption budget.",
                "details": {"causes": causes},
            });
            return (429, answer);
        }
        ("post", path) if path.ends_with("/eviction") => {
            return (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
        }
        ("get", "/api/v1/nodes") => {
            json!(["10.0.0.1", "10.0.0.2"].map(|name| json!({"metadata": {"name": name}, "status": ready})))
        }
        ("get", "/api/v1/namespaces") => json!([{"metadata": {"name": "safe"}}]),
        ("get", "/api/v1/pods") => json!([
            pod("open", "sum-1", "10.0.0.1", ("Job", "sum")),
            pod("safe", "tight-1", "10.0.0.2", ("ReplicaSet", "tight")),
            pod("safe", "loose-1", "10.0.0.2", ("ReplicaSet", "loose")),
        ]),
        ("get", "/apis/apps/v1/replicasets") => {
            json!([{"metadata": {"uid": "uid-tight", "ownerReferences": owner}}, {"metadata": {"uid": "uid-loose"}}])
        }
        ("get", "/apis/policy/v1/poddisruptionbudgets") => json!([budget("tight", 0), budget("loose", 1)]),
        ("get", _) => json!([]),
        _ => return (405, json!({})),
    };
    let kind = if path.ends_with("/nodes") { "NodeList" } else { "NamespaceList" };
    (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// The path of a configuration file with the API server.
fn configure(etcd: &Etcd, url: &str) -> String {
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
         contexts: [{{name: main, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\nusers: [{{name: u, user: {{token: secret}}}}]\n"
    );
    let kubeconfig = etcd.file("kubeconfig", kubeconfig);
    std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = std::fs::read_to_string(etcd.config()).unwrap();
    etcd.file("forecast.yml", format!("{settings}kubernetes: {{kubeconfig: '{kubeconfig}'}}\n"))
}

#[tokio::test]
async fn forecast_names_waves_blockers_and_durations_and_writes_nothing() {
    let Some(etcd) = Etcd::start().await else { return };
    let api = ScriptedApi::start().await;
    let config = configure(&etcd, &api.url);
    let run = async |args: &[&str]| {
        madako(&[&["--config", &*config, "reboot-queue", "forecast"], args].concat()).await
    };
    let message = run(&[]).await.refused(1);
    assert!(message.contains("no cluster configuration is stored"), "{message}");
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{REBOOT}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    let text = run(&[]).await.calm();
    assert!(text.starts_with("No reboot waits.\n\nDURATION  unknown: "), "{text}");

    etcd.run_fed(&["reboot-queue", "add", "-"], b"10.0.0.1").await.calm();
    let record = |id: u32, operation: &str, minute: u32| {
        let at = format!("2026-01-01T00:{minute:02}:00Z");
        json!({
            "id": id.to_string(), "status": "completed", "operation": operation, "targets": ["10.0.0.2"], "info": "",
            "command": {"name": "c", "target": "10.0.0.2"}, "error": "", "start-at": at, "end-at": at,
        })
    };
    for (id, operation, minute) in
        [(1, "reboot-drain-start", 0), (2, "reboot-reboot", 5), (3, "reboot-dequeue", 15)]
    {
        etcd.put(&format!("records/{id:016x}"), record(id, operation, minute).to_string()).await;
    }
    let nodes = etcd.file("nodes.txt", "10.0.0.2\n");
    let revision = etcd.revision().await;
    let found = run(&[&nodes, "-o", "json"]).await;
    assert_eq!((found.code, &*found.err), (1, ""));
    let json = found.json();
    assert_eq!(json["is_blocked"], true);
    assert_eq!((&json["duration"]["expected_seconds"], &json["dry_runs"]), (&json!(1800), &json!(2)));
    let waves: Vec<Value> = json["waves"]
        .as_array()
        .unwrap()
        .iter()
        .map(|wave| {
            json!([wave["nodes"][0]["node"], wave["nodes"][0]["index"], wave["begins_after_seconds"]])
        })
        .collect();
    assert_eq!(waves, [json!(["10.0.0.2", null, 0]), json!(["10.0.0.1", 0, 900])], "the worker goes first");
    let budget = &json["waves"][0]["nodes"][0]["blockers"];
    assert_eq!(budget.as_array().unwrap().len(), 1, "{budget}");
    assert_eq!((&budget[0]["kind"], &budget[0]["pod"]), (&json!("budget"), &json!("safe/tight-1")));
    let owners = json!([
        {"kind": "ReplicaSet", "name": "tight"}, {"kind": "Deployment", "name": "tight-deployment"},
    ]);
    assert_eq!(budget[0]["owners"], owners);
    let state = json!([{"namespace": "safe", "name": "tight", "allowed": 0, "healthy": 1, "desired": 1}]);
    assert_eq!(budget[0]["budgets"], state);
    let job = &json["waves"][1]["nodes"][0]["blockers"][0];
    assert_eq!((&job["kind"], &job["pod"]), (&json!("job"), &json!("open/sum-1")));
    assert!(job["age_seconds"].as_u64().unwrap() > 86_400, "{job}");

    let evictions = api.requests("/eviction");
    assert_eq!(evictions.len(), 2, "{evictions:?}");
    assert!(evictions.iter().all(|eviction| eviction.contains(r#""dryRun":["All"]"#)), "{evictions:?}");
    let writes = api.requests("").into_iter().filter(|request| !request.starts_with("get ")).count();
    assert_eq!(writes, 2, "only the dry runs");
    let table = run(&["--no-dry-run"]).await;
    assert_eq!((table.code, &*table.err), (1, ""));
    assert!(table.out.contains("Reboots: 1. Waves: 1. Blocked reboots: 1."), "{}", table.out);
    assert!(
        table.out.contains("the pod open/sum-1 (Job sum) of a job runs since 2026-01-01"),
        "{}",
        table.out
    );
    assert_eq!(api.requests("/eviction").len(), 2);
    assert_eq!(etcd.revision().await, revision, "the forecast writes nothing");
}

#[tokio::test]
async fn forecast_needs_access_and_known_nodes() {
    let Some(etcd) = Etcd::start().await else { return };
    let message = etcd.run(&["reboot-queue", "forecast"]).await.refused(2);
    assert!(message.contains("no kubernetes.kubeconfig"), "{message}");
    let file = etcd.file("cluster.yml", format!("{CLUSTER}{REBOOT}"));
    etcd.run(&["cluster", "set", &file]).await.calm();
    // No server listens on the discard port.
    let config = configure(&etcd, "http://127.0.0.1:9");
    let run = async |args: &[&str]| {
        madako(&[&["--config", &*config, "reboot-queue", "forecast"], args].concat()).await
    };
    let nodes = etcd.file("nodes.txt", "10.0.0.77\n");
    let message = run(&[&nodes]).await.refused(2);
    assert!(message.contains("no node of the cluster has the address 10.0.0.77"), "{message}");
    let message = run(&[]).await.refused(1);
    assert!(message.contains("nodes: the API server did not answer"), "{message}");
}
