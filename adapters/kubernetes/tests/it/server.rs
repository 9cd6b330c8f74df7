//! A real API server on a real etcd, and a controller manager: processes that end with their handle.
//!
//! The tests of the whole service share this file, `pki.rs` and `objects.rs`; other helpers are elsewhere.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::pki::{Authority, Pair};

/// Time limit of any wait on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

const POLL: Duration = Duration::from_millis(100);

/// A user with all rights.
pub(crate) const ADMIN: &str = "token-of-the-administrator";
/// A user with the rights that the adapter's documentation lists.
pub(crate) const MADAKO: &str = "token-of-madako";
/// A user without rights.
pub(crate) const NOBODY: &str = "token-of-nobody";

/// The rights that the adapter needs, as its documentation lists them.
const ROLE: &str = r#"{
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "madako"},
    "rules": [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": ["apps"], "resources": ["daemonsets", "replicasets", "deployments", "statefulsets"], "verbs": ["list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]}
    ]
}"#;

const BINDING: &str = r#"{
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "madako"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "madako"},
    "subjects": [{"kind": "User", "name": "madako"}, {"kind": "User", "name": "madako-by-certificate"}]
}"#;

/// Controllers that the tests need. The garbage collector would delete pods whose owners are made up.
const CONTROLLERS: &str = "disruption-controller,replicaset-controller,daemonset-controller,job-controller";

/// Waits until `look` returns a value.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} still not so: {what}");
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) directory: TempDir,
    pub(crate) authority: Arc<Authority>,
    pub(crate) api: Child,
    etcd: Child,
    controllers: Option<Child>,
}

/// The directory with Kubernetes' programs. `None` if they are not built; prints the reason.
fn programs() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let programs = target.join("tools/kubernetes");
    if programs.join("kube-apiserver").exists() && Path::new("/usr/bin/etcd").exists() {
        return Some(programs);
    }
    assert!(std::env::var_os("CI").is_none(), "no kube-apiserver in {} or no etcd", programs.display());
    println!("skipped: no kube-apiserver in {} or no etcd (scripts/set-up test)", programs.display());
    None
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// Starts etcd and an API server, waits until it is ready, and creates the role. `None` if Kubernetes is not built.
    pub(crate) async fn start() -> Option<Self> {
        let programs = programs()?;
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::write(place(name), text).unwrap();
            place(name).display().to_string()
        };
        let authority = Arc::new(Authority::new());
        let Pair { certificate, key } = authority.server();
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{etcd_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let etcd = spawn(
            Path::new("/usr/bin/etcd"),
            &place("etcd.log"),
            &[
                format!("--data-dir={}", place("etcd").display()),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=default={peer_url}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        );
        let (certificate, key) = (write("server.crt", &certificate), write("server.key", &key));
        let tokens = format!("{ADMIN},admin,1,system:masters\n{MADAKO},madako,2\n{NOBODY},nobody,3\n");
        let api = spawn(
            &programs.join("kube-apiserver"),
            &place("kube-apiserver.log"),
            &[
                format!("--etcd-servers={etcd_url}"),
                format!("--secure-port={port}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=10.96.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--tls-cert-file={certificate}"),
                format!("--tls-private-key-file={key}"),
                format!("--client-ca-file={}", write("ca.crt", &authority.pem())),
                format!("--token-auth-file={}", write("tokens", &tokens)),
                "--authorization-mode=RBAC".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-signing-key-file={key}"),
                format!("--service-account-key-file={certificate}"),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                // Nodes keep the taints of a test, because no controller would remove the others.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".to_owned(),
                "--enable-priority-and-fairness=false".to_owned(),
                format!("--cert-dir={}", place("certificates").display()),
            ],
        );
        let url = format!("https://127.0.0.1:{port}");
        let mut server = Self { url, directory, authority, api, etcd, controllers: None };
        let admin = server.client(ADMIN);
        until("the API server is ready", async || {
            let ended = server.api.try_wait().unwrap();
            assert!(ended.is_none(), "kube-apiserver ended: {}", server.log("kube-apiserver.log"));
            admin.request_text(get("/readyz")).await.ok()
        })
        .await;
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        admin.request_text(post(&format!("{rbac}/clusterroles"), ROLE)).await.unwrap();
        admin.request_text(post(&format!("{rbac}/clusterrolebindings"), BINDING)).await.unwrap();
        Some(server)
    }

    pub(crate) fn start_controllers(&mut self) {
        let programs = programs().expect("the API server was there");
        let log = self.directory.path().join("kube-controller-manager.log");
        self.controllers = Some(spawn(
            &programs.join("kube-controller-manager"),
            &log,
            &[
                format!("--kubeconfig={}", self.kubeconfig("admin", &self.token(ADMIN)).display()),
                format!("--controllers={CONTROLLERS}"),
                "--leader-elect=false".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--secure-port={}", free_port()),
                format!("--cert-dir={}", self.directory.path().join("controllers").display()),
            ],
        ));
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        let mut config = kube::Config::new(self.url.parse().unwrap());
        let pem = self.authority.pem();
        let der: rustls::pki_types::CertificateDer<'_> =
            rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap();
        config.root_cert = Some(vec![der.to_vec()]);
        config.auth_info.token = Some(token.to_owned().into());
        config.read_timeout = Some(Duration::from_secs(60));
        Client::try_from(config).unwrap()
    }

    /// A kubeconfig user with a token.
    pub(crate) fn token(&self, token: &str) -> String {
        format!("{{token: {token}}}")
    }

    pub(crate) fn kubeconfig(&self, name: &str, user: &str) -> PathBuf {
        let path = self.directory.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, kubeconfig(&self.url, "{certificate-authority: ca.crt}", user)).unwrap();
        restrict(&path);
        path
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In this order no process waits for another.
        for child in self.controllers.iter_mut().chain([&mut self.api, &mut self.etcd]) {
            let _ = child.start_kill();
        }
        if std::thread::panicking() {
            for name in ["kube-apiserver.log", "kube-controller-manager.log"] {
                let log = self.log(name);
                let lines: Vec<&str> = log.lines().collect();
                println!("{name}:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
    }
}

/// A kubeconfig with one context; the parts are YAML.
pub(crate) fn kubeconfig(server: &str, cluster: &str, user: &str) -> String {
    let cluster = cluster.trim_matches(['{', '}']);
    let cluster = if cluster.is_empty() { String::new() } else { format!(", {cluster}") };
    format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: main\n\
         contexts: [{{name: main, context: {{cluster: ours, user: us}}}}]\n\
         clusters: [{{name: ours, cluster: {{server: \"{server}\"{cluster}}}}}]\n\
         users: [{{name: us, user: {user}}}]\n"
    )
}

pub(crate) fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn spawn(program: &Path, log: &Path, arguments: &[String]) -> Child {
    let log = File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

pub(crate) fn get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

pub(crate) fn post(path: &str, body: &str) -> http::Request<Vec<u8>> {
    let request = http::Request::post(path).header("content-type", "application/json");
    request.body(body.as_bytes().to_vec()).unwrap()
}
