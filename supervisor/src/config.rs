//! CKE's configuration file (default `/etc/cke/config.yml`), with sections of our own.
//!
//! For: one file that serves `madako`, `cke` and `ckecli`. The keys for etcd are those of
//! cybozu-go/etcdutil with CKE's prefix; `embedded` is ours. Later sections are one more entry of
//! `document::SECTIONS` and one more reader beside `embedded`.
//!
//! Guarantees: the file is judged whole before anything starts; [`ConfigError`] names every wrong
//! field at once. Unknown keys are refused, as is a file that others can read though it holds a
//! password or a private key. Secrets are in neither `Debug` nor error texts.
//!
//! Assumes: files that are named in it (certificates) stay readable to this process only while it
//! starts; their content is taken then.
//!
//! Does not: dial, bind, or look whether the embedded store's port is free. That happens at the start,
//! with [`Embedded::explain_taken`] as the explanation.

mod access;
mod document;
mod embedded;
mod encryption;
mod kubernetes;
mod pem;
mod placement;
mod repair;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_json::duration;
use madako_json::input::{InputError, Problems};
use madako_kubernetes::Access;
use madako_store::StoreConfig;

pub use embedded::{DEFAULT_LISTEN, Embedded, EmbeddedOrigin, ServerTls};
pub use placement::{Api, Authentication, Metrics, Placement, Strategy};
pub use repair::Repair;

use crate::limits::{MAX_FILE, MAX_PREFIX};

/// Where CKE's programs look for the file.
pub const DEFAULT_PATH: &str = "/etc/cke/config.yml";
/// CKE's key prefix.
pub const DEFAULT_PREFIX: &str = "/cke/";

/// Where the state is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// In an etcd that runs elsewhere, which [`Config::clients`] reaches.
    External,
    /// In this process.
    Embedded(Embedded),
}

/// A configuration that was judged whole.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the state is kept.
    pub store: StoreChoice,
    /// How a client reaches it: `endpoints`, else the embedded store's address; prefix, time-out,
    /// password and certificates.
    pub clients: StoreConfig,
    /// Prefix of every key; the same as in `clients`.
    pub prefix: String,
    /// Time-out of connecting and of each request; the same as in `clients`.
    pub timeout: Duration,
    /// Placement; without it there is neither API nor scheduler.
    pub placement: Option<Placement>,
    /// How repairs are held back.
    pub repair: Repair,
    /// How the API server of the cluster is reached; without it no node is drained, and taints of nodes are not known.
    pub kubernetes: Option<Access>,
    /// What is allowed but unwise: to be logged once by `serve`.
    pub warnings: Vec<String>,
}

/// Why there is no configuration. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no YAML or JSON document.
    #[error("configuration file {} is not valid YAML: {why}", path.display())]
    NotYaml {
        /// The file.
        path: PathBuf,
        /// Line, column and what is wrong there; never the content.
        why: String,
    },
    /// Fields are wrong.
    #[error(transparent)]
    Invalid(#[from] InputError),
}

impl Config {
    /// Reads the file that was named, or the default one.
    ///
    /// A file that was named must exist. Without a file at the default place the defaults hold: the
    /// embedded store on loopback. (CKE fails there; it has no store of its own to fall back on.)
    ///
    /// # Errors
    /// The file cannot be read, is no YAML, or has wrong fields; see [`ConfigError`].
    pub fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT_PATH));
        let read_error = |source| ConfigError::Read { path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                return Self::parse("", path, None);
            }
            Err(error) => return Err(read_error(error)),
        };
        let facts = file.metadata().map_err(read_error)?;
        // Modes say nothing about pipes, which a shell makes for `--config <(...)`.
        let mode = facts.is_file().then(|| facts.permissions().mode());
        let text = bounded(file, MAX_FILE).map_err(read_error)?;
        Self::parse(&text, path, mode)
    }

    /// Judges the text of a file; `mode` is that of the file, if it has one.
    fn parse(text: &str, path: &Path, mode: Option<u32>) -> Result<Self, ConfigError> {
        let mut root =
            document::read(text).map_err(|why| ConfigError::NotYaml { path: path.to_owned(), why })?;
        let mut problems = Problems::default();
        let mut warnings = Vec::new();

        let prefix = root
            .text("prefix", &mut problems)
            .map_or_else(|| DEFAULT_PREFIX.to_owned(), |prefix| checked_prefix(prefix, &mut problems));
        let timeout = root
            .text("timeout", &mut problems)
            .map_or(madako_store::DEFAULT_TIMEOUT, |text| checked_timeout(&text, &mut problems));
        let embedded = root.section("embedded", &mut problems);
        let placement = root.section("placement", &mut problems);
        let repair = root.section("repair", &mut problems);
        let kubernetes = root.section("kubernetes", &mut problems);
        let access = access::read(&mut root, &mut problems, &mut warnings);
        root.finish(&mut problems);
        let embedded = embedded.map(|section| embedded::read(section, &mut problems, &mut warnings));
        let (embedded, embedded_secret) = embedded.unzip();
        let placement = placement.map(|section| placement::read(section, &mut problems, &mut warnings));
        let (placement, placement_secret) = placement.unzip();
        let kubernetes = kubernetes.and_then(|section| kubernetes::read(section, &mut problems));

        let repair = repair.map_or_else(Repair::default, |section| repair::read(section, &mut problems));

        let secret = access.secret.or(embedded_secret.flatten()).or(placement_secret.flatten());
        if let (Some(mode), Some(field)) = (mode, secret) {
            check_mode(mode, &field, &mut problems);
        }
        let sealing = placement.as_ref().map(|placement| placement.encryption.clone()).unwrap_or_default();
        let mut clients = StoreConfig { prefix, timeout, sealing, ..access.clients };
        let store = match (embedded, clients.endpoints.is_empty()) {
            (Some(embedded), _) => StoreChoice::Embedded(embedded),
            (None, false) => StoreChoice::External,
            (None, true) => StoreChoice::Embedded(Embedded::by_default()),
        };
        if let StoreChoice::Embedded(embedded) = &store
            && clients.endpoints.is_empty()
        {
            clients.endpoints = vec![embedded.client_endpoint()];
        }
        // The store has the last word; it stops at the first problem, so it is asked when none is left.
        if problems.is_empty()
            && let Err(error) = clients.check()
        {
            problems.add("endpoints and tls-*", "", format!("settings that the store can use: {error}"));
        }
        problems.finish(&format!("configuration file {}", path.display()))?;
        Ok(Self {
            store,
            prefix: clients.prefix.clone(),
            timeout: clients.timeout,
            clients,
            placement,
            repair,
            kubernetes,
            warnings,
        })
    }

    /// What the operator's commands dial: `endpoints`, else the embedded store's address.
    #[must_use]
    pub fn client_endpoints(&self) -> &[String] {
        &self.clients.endpoints
    }
}

/// The text of a file that is not longer than that.
fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    bounded(File::open(path)?, most)
}

fn bounded(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes")));
    }
    Ok(text)
}

/// Bounds of the time-out: below, no request can succeed; above, nobody waits.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(600);

fn checked_prefix(prefix: String, problems: &mut Problems) -> String {
    if prefix.len() > MAX_PREFIX {
        problems.add("prefix", format!("{} bytes", prefix.len()), format!("at most {MAX_PREFIX} bytes"));
    }
    prefix
}

fn checked_timeout(text: &str, problems: &mut Problems) -> Duration {
    match duration::parse(text) {
        Ok(timeout) if TIMEOUTS.contains(&timeout) => return timeout,
        Ok(_) => problems.add("timeout", format!("{text:?}"), "between 1ms and 10m"),
        Err(expected) => problems.add("timeout", format!("{text:?}"), expected.to_string()),
    }
    madako_store::DEFAULT_TIMEOUT
}

/// Others are those who are neither the owner nor in the group.
const OTHERS_READ: u32 = 0o004;
const OTHERS_WRITE: u32 = 0o002;

fn check_mode(mode: u32, secret: &str, problems: &mut Problems) {
    if mode & (OTHERS_READ | OTHERS_WRITE) != 0 {
        problems.add(
            "mode of the file",
            format!("{:04o}", mode & 0o7777),
            format!("no access for others, because it holds `{secret}` (chmod o-rwx)"),
        );
    }
}
