//! The section `embedded`: the store in this process.
//!
//! The embedded store has no passwords. On loopback it trusts the users of the machine. On any other address clients
//! must present a certificate; otherwise every client that reaches the port could control the clusters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use madako_embedded_etcd::DEFAULT_CACHE_BYTES;
use madako_protocol::secret::Secret;

use super::access::{PRIVATE_KEY, server_tls};
use super::document::Fields;

const DEFAULT_DATA_DIR: &str = "/var/lib/madako";
/// etcd's own client port, on loopback.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);

/// Bounds of the page cache in bytes: a few pages, and far more than the store of a cluster.
const CACHE_BYTES: RangeInclusive<u64> = 64 * 1024..=1024 * 1024 * 1024;

const TLS: [[&str; 2]; 3] =
    [["tls-cert-file", "tls-cert"], ["tls-key-file", PRIVATE_KEY], ["tls-ca-file", "tls-ca"]];

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
    /// An `embedded` section.
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
    /// The store without any configuration.
    #[must_use]
    pub fn by_default() -> Self {
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

pub(super) fn read(mut section: Fields) -> Embedded {
    let default = Embedded::by_default();
    let data_dir = section.absolute_path("data-dir").map_or(default.data_dir, PathBuf::from);
    let listen = match section.text("listen") {
        None => default.listen,
        Some(text) => checked_listen(&text).unwrap_or_else(|expected| {
            section.report("listen", format!("{text:?}"), expected);
            default.listen
        }),
    };
    let cache_bytes = section.number("cache-bytes", CACHE_BYTES).unwrap_or(default.cache_bytes);
    let outside = !listen.ip().is_loopback();
    let why = if outside { format!(", because {listen} is not loopback") } else { String::new() };
    let tls = server_tls(&mut section, TLS, |any| {
        [
            (outside || any).then(|| format!("the server's certificate{why}")),
            (outside || any).then(|| format!("the server's private key{why}")),
            outside.then(|| format!("the authority of the clients' certificates{why}")),
        ]
    });
    section.finish();
    Embedded { data_dir, listen, cache_bytes, tls, origin: EmbeddedOrigin::Section }
}

fn checked_listen(text: &str) -> Result<SocketAddr, &'static str> {
    let expected = "an IP address and a port, such as 127.0.0.1:2379";
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let address: SocketAddr = numeric.parse().map_err(|_| expected)?;
    // Clients cannot know a port that the system chooses.
    if address.port() == 0 { Err(expected) } else { Ok(address) }
}
