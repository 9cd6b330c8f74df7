//! The section `embedded`: the store in this process.
//!
//! The embedded store has no passwords. On loopback it trusts the users of the machine. On any other address clients
//! must present a certificate; otherwise every client that reaches the port could control the clusters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use madako_embedded_etcd::DEFAULT_CACHE_BYTES;
use madako_json::strict::Kind;
use madako_protocol::secret::Secret;

use super::access::server_tls;
use super::settings::{ABSOLUTE_PATH, ConfigFindings, LISTEN, Pem, listen_address, section};

const DEFAULT_DATA_DIR: &str = "/var/lib/madako";
/// etcd's own client port, on loopback.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embedded {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    /// Bytes of the file's pages kept in memory.
    pub cache_bytes: usize,
    /// `None`: plain connections, which only loopback allows.
    pub tls: Option<ServerTls>,
    pub origin: EmbeddedOrigin,
}

/// Reason for the choice of the embedded store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddedOrigin {
    Section,
    /// The default: there are neither endpoints nor such a section. An etcd that already runs on the port may be the
    /// intended store.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// Chain as PEM, the server's own certificate first.
    pub certificate: String,
    /// As PEM.
    pub key: Secret,
    /// Authorities of accepted clients, as PEM; `None`: all clients are accepted, which only loopback allows.
    pub client_ca: Option<String>,
}

impl Embedded {
    #[must_use]
    pub fn without_configuration() -> Self {
        Self {
            data_dir: PathBuf::from(DEFAULT_DATA_DIR),
            listen: DEFAULT_LISTEN,
            cache_bytes: DEFAULT_CACHE_BYTES,
            tls: None,
            origin: EmbeddedOrigin::Nothing,
        }
    }

    /// URL for clients on this machine.
    #[must_use]
    pub fn client_endpoint(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let ip = match self.listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        format!("{scheme}://{}", SocketAddr::new(ip, self.listen.port()))
    }

    /// Advice for an operator if the address is taken at the start.
    #[must_use]
    pub fn explain_taken(&self) -> String {
        let Self { listen, .. } = self;
        match self.origin {
            EmbeddedOrigin::Section => format!(
                "{listen} is taken by another program: give the embedded store another address with \
                 `embedded: {{listen: ADDRESS:PORT}}`, or remove the section and name an etcd in `endpoints`"
            ),
            EmbeddedOrigin::Nothing => format!(
                "the configuration names neither `endpoints` nor an `embedded` section, so the embedded \
                 store would serve {listen}, but another program listens there: if this program is the etcd \
                 to use, name it in `endpoints: [http://{listen}]`; if not, choose another address with \
                 `embedded: {{listen: ADDRESS:PORT}}`"
            ),
        }
    }
}

section! {
    it: (Embedded, [Pem; 3]) = (Embedded::without_configuration(), Default::default()) => {
        "data-dir": ABSOLUTE_PATH => it.0.data_dir;
        "listen": LISTEN => it.0.listen, by |address| listen_address(address.text()?);
        "cache-bytes": CACHE_BYTES => it.0.cache_bytes;
        pem "tls-cert-file", "tls-cert": Kind::Text => it.1[0];
        pem "tls-key-file", "tls-key": Kind::Secret => it.1[1];
        pem "tls-ca-file", "tls-ca": Kind::Text => it.1[2];
    }
}

/// Bounds of the page cache in bytes: a few pages, and far more than the store of a cluster.
const CACHE_BYTES: Kind = Kind::Whole(64 * 1024, 1024 * 1024 * 1024);

pub(super) fn read_embedded(
    (embedded, pems): (Embedded, [Pem; 3]),
    findings: &mut ConfigFindings,
) -> Embedded {
    let Embedded { listen, .. } = embedded;
    let outside = !listen.ip().is_loopback();
    let why = if outside { format!(", because {listen} is not loopback") } else { String::new() };
    let tls = server_tls(&pems, "embedded.", findings, |any| {
        [
            (outside || any).then(|| format!("the server's certificate{why}")),
            (outside || any).then(|| format!("the server's private key{why}")),
            outside.then(|| format!("the authority of the clients' certificates{why}")),
        ]
    });
    Embedded { tls, origin: EmbeddedOrigin::Section, ..embedded }
}
