//! Test support: a real and a simulated Vault, and a store whose key `vault` names one of them.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use madako_datacenter_sim::vault::{ROOT_TOKEN, SimulatedVault};
use madako_domain::authority::Authority;
use madako_domain::keys;
use madako_domain::store::{Transaction, Write};
use madako_domain::vault::VaultAccess;
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options};
use madako_http_client::ReqwestTransport;
use madako_pki::vault::{Operator, Role, Transports, Vault};
use madako_pki::{BuiltInAuthorities, ChosenAuthorities, Keys, LoginKeySources, SharedSecrets};
use madako_protocol::login_keys::LoginKeySource as _;
use madako_protocol::ports::{Clock, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_store::{EtcdStore, StoreConfig};
use rustls::RootCertStore;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Time for the start of the real server, which takes a second on an idle machine.
const START: Duration = Duration::from_secs(60);
pub(crate) const KEYS: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// The wall clock, by which the real server issues.
struct Wall;

impl Clock for Wall {
    #[expect(clippy::disallowed_methods, reason = "real processes have no other clock")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Real,
    Simulated,
}

/// A server with an operator's token.
pub(crate) struct Server {
    pub(crate) transport: Arc<dyn HttpTransport>,
    pub(crate) endpoint: String,
    pub(crate) root: String,
    unseal_key: String,
    pub(crate) simulated: Option<SimulatedVault>,
    process: Option<Child>,
    /// The store with the authorities of the simulated server.
    _engines: Option<EmbeddedEtcd>,
}

/// Gives every client the transport of one server.
pub(crate) struct Fixed(pub(crate) Arc<dyn HttpTransport>);

impl Transports for Fixed {
    fn transport(&self, _: &str) -> Result<Arc<dyn HttpTransport>, String> {
        Ok(Arc::clone(&self.0))
    }
}

async fn store() -> (EmbeddedEtcd, Arc<dyn Store>) {
    let etcd = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).unwrap();
    let client = etcd.direct_client().await.unwrap();
    let config = StoreConfig { prefix: "/cke/".into(), ..StoreConfig::default() };
    let store = Arc::new(EtcdStore::from_client(client, &config, 1).unwrap());
    (etcd, store)
}

impl Server {
    /// `None`: the real server is not built. Prints the reason.
    pub(crate) async fn start(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Real => Self::real().await,
            Kind::Simulated => Some(Self::simulated().await),
        }
    }

    pub(crate) async fn simulated() -> Self {
        let (engines, store) = store().await;
        let authorities = BuiltInAuthorities::new(store, Keys::parse(KEYS).unwrap(), Arc::new(Wall));
        authorities.init().await.unwrap();
        let simulated = SimulatedVault::new(Arc::new(authorities));
        Self {
            transport: Arc::new(simulated.clone()),
            endpoint: "http://vault:8200".to_owned(),
            root: ROOT_TOKEN.to_owned(),
            unseal_key: String::new(),
            simulated: Some(simulated),
            process: None,
            _engines: Some(engines),
        }
    }

    async fn real() -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let program = target.join("tools/vault/vault");
        if !program.exists() {
            assert!(std::env::var_os("CI").is_none(), "no {}", program.display());
            println!("skipped: no {} (scripts/set-up test)", program.display());
            return None;
        }
        // It ends with its standard input, which ends with this process.
        let mut process = Command::new(program)
            .arg("127.0.0.1:0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let read = tokio::time::timeout(START, output.read_line(&mut line)).await;
        read.expect("the server starts in time").unwrap();
        let document: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| document[name].as_str().unwrap().to_owned();
        Some(Self {
            transport: Arc::new(ReqwestTransport::with_roots(RootCertStore::empty()).unwrap()),
            endpoint: text("address"),
            root: text("root_token"),
            unseal_key: text("unseal_key"),
            simulated: None,
            process: Some(process),
            _engines: None,
        })
    }

    /// A request with the operator's token.
    pub(crate) async fn ask(&self, method: HttpMethod, path: &str, body: Value) -> HttpResponse {
        let request = HttpRequest {
            method,
            url: format!("{}/v1/{path}", self.endpoint),
            headers: vec![("x-vault-token".to_owned(), self.root.clone())],
            body: if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) },
            max_response_bytes: 1 << 20,
            deadline: Duration::from_secs(30),
        };
        self.transport.send(request).await.unwrap()
    }

    async fn done(&self, path: &str, body: Value) {
        let answer = self.ask(HttpMethod::Put, path, body).await;
        assert!(matches!(answer.status, 200 | 204), "{path}: {answer:?}");
    }

    pub(crate) async fn seal(&self) {
        self.done("sys/seal", json!({})).await;
    }

    pub(crate) async fn unseal(&self) {
        self.done("sys/unseal", json!({ "key": self.unseal_key })).await;
    }

    /// Revokes the tokens of all roles.
    pub(crate) async fn revoke_tokens(&self) {
        self.done("sys/leases/revoke-prefix/auth/approle", json!({})).await;
    }

    /// Creates a user of an operator.
    pub(crate) async fn add_user(&self, user: &str, password: &str) {
        self.done(&format!("auth/userpass/users/{user}"), json!({ "password": password })).await;
    }

    /// Ends the server: nothing listens at its address any more.
    pub(crate) async fn end(&mut self) {
        if let Some(simulated) = &self.simulated {
            simulated.set_unreachable(true);
        }
        if let Some(process) = &mut self.process {
            process.kill().await.unwrap();
        }
    }

    pub(crate) fn operator(&self) -> Operator {
        let transport = Arc::clone(&self.transport);
        Operator::with_token(transport, &self.endpoint, Secret::new(self.root.as_str())).unwrap()
    }
}

/// A server with engines, a role and roots, and a store that names it.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) vault: Arc<Vault>,
    pub(crate) authorities: ChosenAuthorities,
    pub(crate) login_keys: LoginKeySources,
    pub(crate) secrets: SharedSecrets,
    store: Arc<dyn Store>,
    _etcd: EmbeddedEtcd,
}

impl Site {
    /// `None`: the real server is not built.
    pub(crate) async fn new(kind: Kind) -> Option<Self> {
        Some(Self::on(Server::start(kind).await?).await)
    }

    pub(crate) async fn on(server: Server) -> Self {
        let (etcd, store) = store().await;
        let transports = Arc::new(Fixed(Arc::clone(&server.transport)));
        let vault = Arc::new(Vault::new(Arc::clone(&store), Arc::clone(&transports) as _));
        let operator = server.operator();
        operator.mount(|_| {}).await.unwrap();
        let access = operator.create_role(String::new()).await.unwrap();
        let role = Role::new(&access, &*transports).unwrap();
        let keys = Keys::parse(KEYS).unwrap();
        let own = Arc::new(BuiltInAuthorities::new(Arc::clone(&store), keys.clone(), Arc::new(Wall)));
        let site = Self {
            authorities: ChosenAuthorities::new(Arc::clone(&vault), Arc::clone(&own) as _, true),
            secrets: SharedSecrets::new(
                Arc::clone(&vault),
                own,
                Arc::clone(&store),
                keys.clone(),
                Arc::new(Wall),
            ),
            login_keys: LoginKeySources::new(Arc::clone(&vault), Arc::clone(&store), keys),
            server,
            vault,
            store,
            _etcd: etcd,
        };
        site.put_access(&access).await;
        for authority in Authority::ALL {
            let root = role.create_root(authority).await.unwrap();
            site.put(&keys::ca(authority), root).await;
        }
        site
    }

    pub(crate) async fn put(&self, key: &str, value: String) {
        let write = Write::Put { key: key.to_owned(), value: Bytes::from(value), lease: 0 };
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.unwrap();
    }

    pub(crate) async fn put_access(&self, access: &VaultAccess) {
        self.put(keys::VAULT, serde_json::to_string(access).unwrap()).await;
    }

    pub(crate) async fn forget_access(&self) {
        let write = Write::Delete { key: keys::VAULT.to_owned() };
        self.store.commit(Transaction { conditions: Vec::new(), writes: vec![write] }).await.unwrap();
    }

    pub(crate) async fn login_keys_are_read(&self) {
        self.login_keys.read().await.unwrap();
    }

    /// A role of an authority as the server has it; `None`: there is none.
    pub(crate) async fn role(&self, authority: Authority, role: &str) -> Option<Value> {
        let path = format!("cke/ca-{authority}/roles/{role}");
        let answer = self.server.ask(HttpMethod::Get, &path, Value::Null).await;
        match answer.status {
            200 => Some(serde_json::from_slice::<Value>(&answer.body).unwrap()["data"].clone()),
            404 => None,
            _ => panic!("{answer:?}"),
        }
    }
}
