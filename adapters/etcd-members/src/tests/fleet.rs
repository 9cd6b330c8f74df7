//! Test support: real members of etcd on loopback addresses, with certificates of the built-in authorities.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::authority::Authority;
use madako_domain::node_status::{EtcdMember, EtcdStatus};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use madako_pki::{BuiltInAuthorities, Keys};
use madako_protocol::authorities::{Authorities, CertificateRequest, Usage};
use madako_protocol::etcd::{EtcdCluster as _, EtcdError};
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_store::{EtcdStore, StoreConfig};
use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::EtcdMembers;

/// Long enough for processes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Polling interval of an expected state.
const GLANCE: Duration = Duration::from_millis(50);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// The wall clock, since etcd validates certificates by it.
struct Wall;

impl Clock for Wall {
    #[expect(clippy::disallowed_methods, reason = "real processes have no other clock")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

/// Members, which are killed when the fleet is dropped.
pub(crate) struct Fleet {
    pub(crate) authorities: Arc<BuiltInAuthorities>,
    pub(crate) etcd: Arc<EtcdMembers>,
    pub(crate) client_port: u16,
    peer_port: u16,
    program: PathBuf,
    directory: tempfile::TempDir,
    members: BTreeMap<String, Child>,
    _store: EmbeddedEtcd,
}

/// The etcd program, if it is installed.
fn installed() -> Option<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join("etcd")).find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "etcd is not installed, and CI must not skip this test");
        println!("skipped: etcd is not installed");
    }
    found
}

/// A port that is free on all addresses.
fn free_port() -> u16 {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// The built-in authorities in a store of their own.
pub(crate) async fn authorities() -> (EmbeddedEtcd, Arc<BuiltInAuthorities>) {
    let embedded = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).unwrap();
    let client = embedded.direct_client().await.unwrap();
    let store: Arc<dyn Store> = Arc::new(EtcdStore::from_client(client, &StoreConfig::default(), 1).unwrap());
    let authorities = BuiltInAuthorities::new(store, Keys::parse(KEY).unwrap(), Arc::new(Wall));
    (embedded, Arc::new(authorities))
}

/// A permit that outlives the test.
pub(crate) fn permit() -> Permit {
    Permit::give(1, Instant::now() + PATIENCE * 10)
}

pub(crate) fn addresses(last: &[u8]) -> Vec<String> {
    last.iter().map(|last| format!("127.0.0.{last}")).collect()
}

impl Fleet {
    /// Starts a new cluster on 127.0.0.1 to 127.0.0.3, and waits until its members are in sync. `None` if etcd is not
    /// installed.
    pub(crate) async fn start() -> Option<Self> {
        let program = installed()?;
        let (store, authorities) = authorities().await;
        authorities.init().await.unwrap();
        let (client_port, peer_port) = (free_port(), free_port());
        let port: Arc<dyn Authorities> = Arc::clone(&authorities) as _;
        let mut fleet = Self {
            etcd: Arc::new(EtcdMembers::new(port, client_port)),
            authorities,
            client_port,
            peer_port,
            program,
            directory: tempfile::tempdir().unwrap(),
            members: BTreeMap::new(),
            _store: store,
        };
        let first = addresses(&[1, 2, 3]);
        let cluster: Vec<String> = first.iter().map(|at| format!("{at}={}", fleet.peer_url(at))).collect();
        for address in &first {
            fleet.run(address, "new", &cluster.join(",")).await;
        }
        fleet.until(&first, "a new cluster", |status| in_sync(status) == first).await;
        Some(fleet)
    }

    pub(crate) fn peer_url(&self, address: &str) -> String {
        format!("https://{address}:{}", self.peer_port)
    }

    /// Starts a member with the arguments and files of a node.
    pub(crate) async fn run(&mut self, address: &str, state: &str, cluster: &str) {
        let home = self.directory.path().join(address);
        std::fs::create_dir_all(&home).unwrap();
        self.files(address, &home).await;
        let client = format!("https://{address}:{}", self.client_port);
        let peer = self.peer_url(address);
        let at = |name: &str| home.join(name).display().to_string();
        let flags = [
            ("name", address.to_owned()),
            ("data-dir", at("data")),
            ("listen-peer-urls", peer.clone()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("cert-file", at("server.crt")),
            ("key-file", at("server.key")),
            ("client-cert-auth", "true".into()),
            ("trusted-ca-file", at("ca-client.crt")),
            ("peer-cert-file", at("peer.crt")),
            ("peer-key-file", at("peer.key")),
            ("peer-client-cert-auth", "true".into()),
            ("peer-trusted-ca-file", at("ca-peer.crt")),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", cluster.to_owned()),
            ("initial-cluster-token", "cke".into()),
            ("initial-cluster-state", state.to_owned()),
            ("logger", "zap".into()),
        ];
        let log = std::fs::File::create(home.join("log")).unwrap();
        let process = Command::new(&self.program)
            .args(flags.map(|(flag, value)| format!("--{flag}={value}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.members.insert(address.to_owned(), process);
    }

    async fn files(&self, address: &str, home: &Path) {
        let both = ["127.0.0.1".to_owned(), address.to_owned()];
        let server = CertificateRequest {
            authority: Authority::Server,
            common_name: address.to_owned(),
            organization: String::new(),
            dns_names: vec!["localhost".into()],
            addresses: both.into(),
            usage: Usage::Server,
            validity: YEAR,
        };
        let peer = CertificateRequest {
            authority: Authority::EtcdPeer,
            dns_names: vec![],
            usage: Usage::Both,
            ..server.clone()
        };
        for (name, request) in [("server", server), ("peer", peer)] {
            let issued = self.authorities.issue(&request).await.unwrap();
            std::fs::write(home.join(format!("{name}.crt")), issued.certificate).unwrap();
            std::fs::write(home.join(format!("{name}.key")), issued.private_key.reveal()).unwrap();
        }
        for (name, authority) in [("ca-peer", Authority::EtcdPeer), ("ca-client", Authority::EtcdClient)] {
            let certificate = self.authorities.certificate(authority).await.unwrap();
            std::fs::write(home.join(format!("{name}.crt")), certificate).unwrap();
        }
    }

    pub(crate) async fn kill(&mut self, address: &str) {
        self.members.remove(address).unwrap().kill().await.unwrap();
    }

    pub(crate) fn signal(&self, address: &str, signal: Signal) {
        let id = self.members[address].id().and_then(|id| i32::try_from(id).ok());
        kill_process(id.and_then(Pid::from_raw).unwrap(), signal).unwrap();
    }

    /// Polls the status until it is as expected.
    pub(crate) async fn until(
        &mut self,
        asked: &[String],
        what: &str,
        expected: impl Fn(&EtcdStatus) -> bool,
    ) -> EtcdStatus {
        let looking = async {
            loop {
                match self.etcd.status(asked).await {
                    Ok(status) if expected(&status) => return status,
                    _ => sleep(GLANCE).await,
                }
                for (address, process) in &mut self.members {
                    if let Some(ended) = process.try_wait().unwrap() {
                        let log = self.directory.path().join(address).join("log");
                        panic!("{address} ended with {ended}: {}", std::fs::read_to_string(log).unwrap());
                    }
                }
            }
        };
        let observed = timeout(PATIENCE, looking).await;
        observed.unwrap_or_else(|_| panic!("within {PATIENCE:?}: {what}"))
    }

    /// The members after the addition of a learner, which etcd refuses until all members have been connected for 5 s.
    pub(crate) async fn joined(&self, asked: &[String], url: &str) -> Vec<EtcdMember> {
        let adding = async {
            loop {
                match self.etcd.add_learner(&permit(), asked, url).await {
                    Ok(members) => return members,
                    Err(EtcdError::Refused { why, .. }) if why.contains("unhealthy cluster") => {
                        sleep(GLANCE).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(PATIENCE, adding).await.expect("all members are connected")
    }

    /// A client of one member whose certificate has this name.
    pub(crate) async fn client(&self, address: &str, user: &str) -> etcd_client::Client {
        let request = CertificateRequest {
            authority: Authority::EtcdClient,
            common_name: user.to_owned(),
            organization: String::new(),
            dns_names: vec![],
            addresses: vec![],
            usage: Usage::Client,
            validity: YEAR,
        };
        let issued = self.authorities.issue(&request).await.unwrap();
        let trusted = self.authorities.certificate(Authority::Server).await.unwrap();
        let tls = etcd_client::TlsOptions::new()
            .ca_certificate(etcd_client::Certificate::from_pem(trusted))
            .identity(etcd_client::Identity::from_pem(issued.certificate, issued.private_key.reveal()));
        let options = etcd_client::ConnectOptions::new().with_tls(tls).with_timeout(PATIENCE);
        let endpoint = format!("https://{address}:{}", self.client_port);
        etcd_client::Client::connect([endpoint], Some(options)).await.unwrap()
    }
}

/// Addresses of the members in sync.
pub(crate) fn in_sync(status: &EtcdStatus) -> Vec<String> {
    let mut found: Vec<String> = status
        .members
        .iter()
        .filter(|member| member.is_in_sync())
        .map(|member| member.address().into_owned())
        .collect();
    found.sort();
    found
}

pub(crate) fn member<'m>(members: &'m [EtcdMember], address: &str) -> &'m EtcdMember {
    members.iter().find(|member| member.address() == address).unwrap()
}

/// A single member without TLS, which ends when this is dropped.
pub(crate) struct Alone {
    pub(crate) client: etcd_client::Client,
    _process: Child,
    _directory: tempfile::TempDir,
}

impl Alone {
    /// Starts an empty etcd. It must be installed.
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (client, peer) = (free_port(), free_port());
        let client = format!("http://127.0.0.1:{client}");
        let flags = [
            ("data-dir", directory.path().join("data").display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client.clone()),
            ("listen-peer-urls", format!("http://127.0.0.1:{peer}")),
            ("logger", "zap".into()),
        ];
        let process = Command::new(installed().unwrap())
            .args(flags.map(|(flag, value)| format!("--{flag}={value}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let connecting = async {
            loop {
                let Ok(mut client) = etcd_client::Client::connect([&client], None).await else { continue };
                match client.get("health", None).await {
                    Ok(_) => return client,
                    Err(_) => sleep(GLANCE).await,
                }
            }
        };
        let client = timeout(PATIENCE, connecting).await.expect("etcd answers");
        Self { client, _process: process, _directory: directory }
    }
}
