//! The section `embedded`: the store in this process.
//!
//! The embedded store has no passwords. On loopback it trusts the users of the machine. On any other address clients
//! must present a certificate; otherwise every client that reaches the port could control the clusters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use madako_embedded_etcd::DEFAULT_CACHE_BYTES;
use madako_json::input::Problems;
use madako_store::Secret;

use super::access::{PRIVATE_KEY, certificate, check_match, private_key, secret_among};
use super::document::Fields;

const DEFAULT_DATA_DIR: &str = "/var/lib/madako";
/// etcd's own client port, on loopback.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);

/// Bounds of the page cache in bytes: a few pages, and far more than the store of a cluster.
const CACHE_BYTES: [u64; 2] = [64 * 1024, 1024 * 1024 * 1024];

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

/// Reads the section; also returns the name of its field with a secret value, if any.
pub(super) fn read(
    mut section: Fields,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> (Embedded, Option<String>) {
    let default = Embedded::by_default();
    let data_dir = match section.text("data-dir", problems) {
        None => default.data_dir,
        Some(path) => {
            if !path.starts_with('/') {
                section.report("data-dir", format!("{path:?}"), "an absolute path", problems);
            }
            PathBuf::from(path)
        }
    };
    let listen = match section.text("listen", problems) {
        None => default.listen,
        Some(text) => checked_listen(&text).unwrap_or_else(|expected| {
            section.report("listen", format!("{text:?}"), expected, problems);
            default.listen
        }),
    };
    let cache_bytes = section.number("cache-bytes", CACHE_BYTES[0], CACHE_BYTES[1], problems);
    let secret = secret_among(&section, &[PRIVATE_KEY]);
    let cert = certificate(&mut section, ["tls-cert-file", "tls-cert"], problems);
    let key = private_key(&mut section, ["tls-key-file", PRIVATE_KEY], problems, warnings);
    let client_ca = certificate(&mut section, ["tls-ca-file", "tls-ca"], problems);
    let outside = !listen.ip().is_loopback();
    let why = if outside { format!(", because {listen} is not loopback") } else { String::new() };
    let any = cert.is_some() || key.is_some() || client_ca.is_some();
    for (missing, field, what) in [
        (cert.is_none() && (outside || any), "tls-cert-file", "the server's certificate"),
        (key.is_none() && (outside || any), "tls-key-file", "the server's private key"),
        (client_ca.is_none() && outside, "tls-ca-file", "the authority of the clients' certificates"),
    ] {
        if missing {
            section.report_missing(field, format!("{what}{why}"), problems);
        }
    }
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => {
            check_match(&mut section, &cert, &key, problems);
            Some(ServerTls {
                certificate: cert.text,
                key: Secret::new(key.text),
                client_ca: client_ca.map(|ca| ca.text),
            })
        }
        _ => None,
    };
    section.finish(problems);
    let cache_bytes =
        cache_bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(default.cache_bytes);
    (Embedded { data_dir, listen, cache_bytes, tls, origin: EmbeddedOrigin::Section }, secret)
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
