//! Test that the service changes nothing on nodes that CKE set up with equal parameters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use madako_lab::{ETCD_IMAGE, LOGIN, STORE, Store, TOOLS_IMAGE};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::Instant;

use crate::contract::{self, Role};
use crate::fleet::{Fleet, client_url};
use crate::secrets::Needle;
use crate::{eventually, measured};

/// CKE's names of authorities, and the names in their certificates.
const AUTHORITIES: [(&str, &str); 6] = [
    ("server", "server CA"),
    ("etcd-peer", "etcd peer CA"),
    ("etcd-client", "etcd client CA"),
    ("kubernetes", "kubernetes CA"),
    ("kubernetes-aggregation", "kubernetes aggregation CA"),
    ("kubernetes-webhook", "kubernetes webhook CA"),
];
/// Names of a member besides its address.
const SERVER_NAMES: [&str; 4] = ["localhost", "cke-etcd", "cke-etcd.kube-system", "cke-etcd.kube-system.svc"];
/// Passes after which a service that would change something had time for it.
pub(crate) const ROUNDS: u64 = 5;

/// Keys that a leader writes: leader, status and host keys, and two notes for programs of Madako, its address and its
/// settings. CKE knows neither of the notes.
pub(crate) const OWN: [&str; 5] = [
    "/cke/leader/",
    "/cke/status",
    "/cke/madako/leader-url",
    "/cke/madako/settings",
    "/cke/madako/ssh/host-keys/",
];

/// An authority with its key, as an operator exports it.
pub(crate) struct Authority {
    name: &'static str,
    pub(crate) certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

fn dated(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2124, 1, 1));
    params
}

/// The addresses of a machine.
fn of_machine(address: Option<&str>) -> Vec<&str> {
    address.into_iter().chain(address.map(|_| "127.0.0.1")).collect()
}

impl Authority {
    pub(crate) fn new((name, common_name): (&'static str, &str)) -> Self {
        let mut params = dated(common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { name, certificate, key: key.serialize_pem(), issuer: Issuer::new(params, key) }
    }

    /// The service issues certificates of this authority.
    pub(crate) async fn set(&self, fleet: &Fleet) {
        let (file, key) = (format!("{}.crt", self.name), format!("{}.key", self.name));
        fleet.service.write(&file, &self.certificate).unwrap();
        fleet.service.write(&key, &self.key).unwrap();
        fleet.madako(&["ca", "set", self.name, &file, "--key", &key]).await.unwrap();
    }

    /// A certificate and its key, in PEM.
    pub(crate) fn issue(&self, name: &str, address: Option<&str>, names: &[&str]) -> (String, String) {
        self.sign(dated(name), &of_machine(address), names)
    }

    /// The same with an end in a day.
    pub(crate) async fn issue_for_a_day(
        &self,
        fleet: &Fleet,
        name: &str,
        addresses: &[&str],
        names: &[&str],
    ) -> (String, String) {
        let mut params = dated(name);
        let end = fleet.program("date", &["-d", "+1 day", "+%s"]).await.unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(end.trim().parse().unwrap());
        self.sign(params, addresses, names)
    }

    /// The same with a group of Kubernetes.
    pub(crate) fn issue_for_group(
        &self,
        name: &str,
        group: &str,
        address: Option<&str>,
        names: &[&str],
    ) -> (String, String) {
        let mut params = dated(name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        self.sign(params, &of_machine(address), names)
    }

    fn sign(&self, mut params: CertificateParams, addresses: &[&str], names: &[&str]) -> (String, String) {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = match self.name {
            "server" => vec![ExtendedKeyUsagePurpose::ServerAuth],
            "etcd-client" => vec![ExtendedKeyUsagePurpose::ClientAuth],
            _ => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        let addresses = addresses.iter().map(|address| SanType::IpAddress(address.parse().unwrap()));
        params.subject_alt_names = addresses.collect();
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        params.subject_alt_names.extend(names);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Values of the store with their mod revisions, by key in etcdctl's JSON.
pub(crate) type Keys = BTreeMap<String, (String, u64)>;

/// Machines with everything that CKE makes, and its store.
pub(crate) struct Adopted {
    pub(crate) fleet: Fleet,
    authorities: Vec<Authority>,
    pub(crate) control_plane: Vec<String>,
    _store: Child,
}

impl Adopted {
    async fn build() -> Option<Self> {
        let adopted = Self::with_etcd(Fleet::prepare(4, Store::Etcd).await?, 3).await;
        let workers = [adopted.fleet.address(3)];
        adopted.fill_store(&contract::cluster(LOGIN, &adopted.control_plane, &workers)).await;
        Some(adopted)
    }

    /// Rivers on all machines, and etcd on the first ones.
    pub(crate) async fn with_etcd(fleet: Fleet, members: usize) -> Self {
        let store = start_store(&fleet).await;
        let authorities: Vec<Authority> = AUTHORITIES.into_iter().map(Authority::new).collect();
        let control_plane: Vec<String> = (0..members).map(|machine| fleet.address(machine)).collect();
        let adopted = Self { fleet, authorities, control_plane, _store: store };
        for machine in 0..adopted.fleet.lab().machines().len() {
            adopted.run_containers(machine).await;
        }
        adopted.make_users().await;
        adopted
    }

    pub(crate) fn authority(&self, name: &str) -> &Authority {
        self.authorities.iter().find(|authority| authority.name == name).unwrap()
    }

    async fn run_containers(&self, machine: usize) {
        let address = self.fleet.address(machine);
        let is_member = self.control_plane.contains(&address);
        if is_member {
            self.write_files(machine, &address).await;
            for volume in ["etcd-cke", "etcd-added-member"] {
                self.fleet.machine(machine).docker(&["volume", "create", volume]).await.unwrap();
            }
        }
        for role in Role::ALL.into_iter().filter(|role| is_member || *role == Role::Rivers) {
            let image = if role == Role::Etcd { ETCD_IMAGE } else { TOOLS_IMAGE };
            let arguments = contract::arguments(role, &address, &self.control_plane);
            let words = contract::docker_run(role, image, &arguments);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.fleet.machine(machine).docker(&words).await.unwrap();
        }
    }

    /// CKE's `write_files` gives every file mode 0644.
    async fn write_files(&self, machine: usize, address: &str) {
        let server = self.authority("server").issue(address, Some(address), &SERVER_NAMES);
        let peer = self.authority("etcd-peer").issue(address, Some(address), &[]);
        let files = [
            ("server.crt", &server.0),
            ("server.key", &server.1),
            ("peer.crt", &peer.0),
            ("peer.key", &peer.1),
            ("ca-peer.crt", &self.authority("etcd-peer").certificate),
            ("ca-client.crt", &self.authority("etcd-client").certificate),
        ];
        let machine = self.fleet.machine(machine);
        machine.sh("mkdir -p /etc/etcd/pki").await.unwrap();
        for (name, text) in files {
            machine.sh(&format!("cat >/etc/etcd/pki/{name} <<'END'\n{text}END")).await.unwrap();
        }
    }

    async fn make_users(&self) {
        for user in ["root", "kube-apiserver"] {
            let (certificate, key) = self.authority("etcd-client").issue(user, None, &[]);
            self.fleet.service.write(&format!("etcd-{user}.crt"), &certificate).unwrap();
            self.fleet.service.write(&format!("etcd-{user}.key"), &key).unwrap();
        }
        self.fleet.service.write("etcd-ca.crt", &self.authority("server").certificate).unwrap();
        let grant =
            ["role", "grant-permission", "--prefix=true", "kube-apiserver", "readwrite", "/registry/"];
        let orders: [&[&str]; 8] = [
            &["role", "add", "root"],
            &["user", "add", "root:0123456789abcdef"],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "kube-apiserver"],
            &grant,
            &["user", "add", "kube-apiserver:0123456789abcdef"],
            &["user", "grant-role", "kube-apiserver", "kube-apiserver"],
            &["auth", "enable"],
        ];
        let healthy = async || self.fleet.etcdctl(&["endpoint", "health", "--cluster"]).await.ok();
        eventually("CKE's etcd is healthy", healthy).await;
        for words in orders {
            let endpoint = client_url(&self.control_plane[0]);
            self.fleet.etcdctl_at(&endpoint, "root", words).await.unwrap();
        }
        let put =
            async || self.fleet.etcdctl_as("kube-apiserver", &["put", "/registry/kept", "value"]).await.ok();
        eventually("the API server's user writes", put).await;
    }

    /// Keys of CKE, and the authorities' keys, which CKE has in Vault.
    pub(crate) async fn fill_store(&self, cluster: &Value) {
        let count = self.control_plane.len();
        let constraints = json!({"control-plane-count": count, "minimum-workers": 0, "maximum-workers": 0});
        let texts = [
            ("config-version", "2".to_owned()),
            ("cluster", cluster.to_string()),
            ("constraints", constraints.to_string()),
            ("records", "2".to_owned()),
            ("records/0000000000000001", contract::bootstrap_record(&self.control_plane).to_string()),
        ];
        for (key, text) in texts {
            self.fleet.store(&["put", &format!("/cke/{key}"), &text]).await.unwrap();
        }
        for authority in &self.authorities {
            authority.set(&self.fleet).await;
        }
    }

    /// Ids, start times and volumes of all machines.
    pub(crate) async fn containers(&self) -> Vec<String> {
        let all = "docker inspect --format '{{.Id}} {{.Name}} {{.State.StartedAt}}' $(docker ps -a -q) && \
                   docker volume inspect --format '{{.Name}} {{.CreatedAt}}' $(docker volume ls -q) etcd-cke || :";
        self.fleet.lab().each(async |machine| machine.sh(all).await.unwrap()).await
    }

    /// Keys whose values changed since these were read, decoded. No key is gone but those of `may_go`.
    pub(crate) async fn changed_since(&self, before: &Keys, may_go: &[&str]) -> Vec<String> {
        let after = self.keys().await;
        let gone: Vec<&str> =
            before.keys().filter(|key| !after.contains_key(*key)).map(String::as_str).collect();
        let gone = decoded_keys(&gone).await;
        let is_gone = |key: &String| !may_go.iter().any(|prefix| key.starts_with(prefix));
        assert!(!gone.iter().any(is_gone), "these keys are gone: {gone:?}");
        let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
        let changed: Vec<&str> = changed.map(|(key, _)| key.as_str()).collect();
        decoded_keys(&changed).await
    }

    /// Values with their mod revisions, by key.
    pub(crate) async fn keys(&self) -> Keys {
        let dump = self.fleet.store(&["get", "", "--prefix", "-w", "json"]).await.unwrap();
        let dump: Value = serde_json::from_str(&dump).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = dump["kvs"].as_array().unwrap().iter();
        entries
            .map(|kv| (text(&kv["key"]), (text(&kv["value"]), kv["mod_revision"].as_u64().unwrap())))
            .collect()
    }
}

/// An etcd without TLS: the store of CKE.
async fn start_store(fleet: &Fleet) -> Child {
    let url = format!("http://{STORE}");
    let directory: PathBuf = fleet.service.path("etcd");
    let mut command = fleet.lab().command("/usr/bin/etcd");
    command.arg(format!("--data-dir={}", directory.display()));
    command.args([format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")]);
    command.args(["--listen-peer-urls=http://127.0.0.1:2380"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the store answers", async || fleet.store(&["get", "x"]).await.ok()).await;
    child
}

/// The number of collections in the metrics of the service.
pub(crate) async fn rounds(fleet: &Fleet) -> Option<u64> {
    let metrics = fleet.page("metrics").await.ok()?;
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("madako_operations_collect_seconds_count "))?;
    line.trim().parse().ok()
}

impl Adopted {
    /// `madako ops diff` needs no leader, and names each change of the cluster that concerns a node.
    async fn differs_only_after_a_change(&self) {
        let began = Instant::now();
        assert_eq!(self.fleet.madako(&["ops", "diff"]).await.unwrap(), "nothing\n");
        measured("`ops diff` of four machines as wanted", began.elapsed());
        let cluster = contract::cluster(LOGIN, &self.control_plane, &[self.fleet.address(3)]);
        let mut changed = cluster.clone();
        changed["options"]["rivers"]["extra_args"] = json!(["--shutdown-timeout=5s"]);
        self.fleet.store(&["put", "/cke/cluster", &changed.to_string()]).await.unwrap();
        let found = self.fleet.madako(&["ops", "diff"]).await.unwrap_err();
        for machine in 0..4 {
            let why = "container  rivers  it restarts: the argument --shutdown-timeout=5s is missing";
            let line = format!("{}  {why}", self.fleet.address(machine));
            assert!(found.contains(&line), "{line} is not in {found}");
        }
        self.fleet.store(&["put", "/cke/cluster", &cluster.to_string()]).await.unwrap();
        assert_eq!(self.fleet.madako(&["ops", "diff"]).await.unwrap(), "nothing\n");
    }

    /// A day before its end, a certificate of CKE's authority is renewed, and etcd goes on.
    async fn renews_a_certificate_before_its_end(&self) {
        let address = self.fleet.address(1);
        let addresses = of_machine(Some(&address));
        let server = self.authority("server");
        let (certificate, key) =
            server.issue_for_a_day(&self.fleet, &address, &addresses, &SERVER_NAMES).await;
        let machine = self.fleet.machine(1);
        let containers = self.containers().await;
        self.fleet.service.kill().await.unwrap();
        for (name, text) in [("server.key", &key), ("server.crt", &certificate)] {
            machine.sh(&format!("cat >/etc/etcd/pki/{name} <<'END'\n{text}END")).await.unwrap();
        }
        let found = self.fleet.madako(&["ops", "diff"]).await.unwrap_err();
        let line = format!("{address}  certificate  server.crt  it is renewed: it ends soon");
        assert!(found.contains(&line), "{found}");

        self.fleet.serve().await;
        let newest = async || self.fleet.history().await.into_iter().next();
        let renewed =
            async || newest().await.filter(|record| record["operation"] == "etcd-renew-certificates");
        let renewed = async || renewed().await.filter(|record| record["status"] == "completed");
        let record = eventually("the certificate is renewed", renewed).await;
        assert_eq!(record["targets"], json!([address]));
        let served = machine.sh("cat /etc/etcd/pki/server.crt").await.unwrap();
        assert!(served.contains("BEGIN CERTIFICATE") && served.trim() != certificate.trim());
        assert_eq!(self.containers().await, containers, "nothing restarts");
        assert_eq!(self.fleet.madako(&["ops", "diff"]).await.unwrap(), "nothing\n");
    }
}

#[tokio::test]
async fn a_fleet_of_cke_is_left_as_it_is() {
    let Some(adopted) = Adopted::build().await else { return };
    adopted.differs_only_after_a_change().await;
    let (containers, before) = (adopted.containers().await, adopted.keys().await);

    adopted.fleet.serve().await;
    let fleet = &adopted.fleet;
    fleet.settled(&[0, 1, 2]).await;
    eventually("rounds pass", async || rounds(fleet).await.filter(|rounds| *rounds >= ROUNDS)).await;
    fleet.settled(&[0, 1, 2]).await;

    assert_eq!(adopted.containers().await, containers);
    let changed = adopted.changed_since(&before, &[]).await;
    let is_own = |key: &&String| OWN.iter().any(|prefix| key.starts_with(prefix));
    let foreign: Vec<&String> = changed.iter().filter(|key| !is_own(key)).collect();
    assert!(foreign.is_empty(), "the service writes these keys, too: {foreign:?}");
    assert!(changed.iter().any(|key| key.ends_with("host-keys/10.78.0.11")), "{changed:?}");
    assert_eq!(fleet.history().await.len(), 1, "no operation ran");
    let value = fleet.etcdctl_as("kube-apiserver", &["get", "--print-value-only", "/registry/kept"]).await;
    assert_eq!(value.unwrap().trim(), "value");

    adopted.renews_a_certificate_before_its_end().await;
    let mut keys = Vec::new();
    for authority in &adopted.authorities {
        keys.extend(Needle::of_pem(authority.name, &authority.key).await);
    }
    fleet.shows_no_key(&[0, 1, 2], keys).await;
}

/// Keys of the store from their form in etcdctl's JSON.
async fn decoded_keys(keys: &[&str]) -> Vec<String> {
    let mut texts = Vec::new();
    for key in keys {
        texts.push(String::from_utf8(crate::secrets::decoded(key).await).unwrap());
    }
    texts
}
