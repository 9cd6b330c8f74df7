//! CKE's configuration file (default `/etc/cke/config.yml`), with additional sections.
//!
//! One file serves `madako`, `cke` and `ckecli`. The keys for etcd are those of cybozu-go/etcdutil with CKE's prefix;
//! `embedded` is Madako's own. Each section is one declaration by `section!`.
//!
//! Guarantees: the file is checked whole before anything starts; [`ConfigError`] names all wrong fields at once.
//! Unknown keys are rejected, and so is a file that other users can read and that contains a password or a private
//! key. Secrets appear in neither `Debug` nor error texts.
//!
//! Assumes: this process can read the files named in it (certificates) at its start; later changes of them have no
//! effect.
//!
//! Does not: connect, bind, or check whether the embedded store's port is free. That happens at the start, with
//! [`Embedded::explain_taken`] as the explanation.

mod access;
mod backup;
mod embedded;
mod encryption;
mod kubernetes;
mod operations;
mod pem;
mod placement;
mod repair;
mod settings;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use madako_domain::backup::BackupSchedule;
use madako_domain::images::ImageName;
use madako_domain::reboot::RebootSettings;
use madako_domain::repair::hold::HoldSettings;
use madako_json::input::{InputError, Problems};
use madako_json::strict::{Kind, Schema};
use madako_kubernetes::ApiServerAccess;
use madako_store::StoreConfig;

pub use embedded::{DEFAULT_LISTEN, Embedded, EmbeddedOrigin, ServerTls};
pub use operations::{Operations, Ssh};
pub use placement::{Api, Authentication, Metrics, Placement, Strategy};
pub use repair::Repair;

use self::operations::GivenMode;
use self::settings::{ConfigFindings, Pem, is_span, read_secret, read_span, read_word, section};
use crate::limits::{MAX_FILE, MAX_LABEL, MAX_PREFIX};

/// Path at which CKE's programs expect the file.
pub const DEFAULT_PATH: &str = "/etc/cke/config.yml";
/// CKE's key prefix.
pub const DEFAULT_PREFIX: &str = "/cke/";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// An external etcd, with access by [`Config::clients`].
    External,
    Embedded(Embedded),
}

#[derive(Debug, Clone)]
pub struct Config {
    pub store: StoreChoice,
    /// Access of a client: `endpoints`, else the embedded store's address; prefix, time-out, password and
    /// certificates.
    pub clients: StoreConfig,
    /// Prefix of every key; the same as in `clients`.
    pub prefix: String,
    /// Time-out of connecting and of each request; the same as in `clients`.
    pub timeout: Duration,
    /// `None`: neither API nor scheduler runs.
    pub placement: Option<Placement>,
    pub repair: Repair,
    pub reboots: RebootSettings,
    /// `None`: no kubeconfig is given. See [`Self::reaches_kubernetes`].
    pub kubernetes: Option<ApiServerAccess>,
    pub operations: Operations,
    /// Permitted but unwise settings: `serve` logs them once.
    pub warnings: Vec<String>,
}

/// The settings of the file, before their checks.
#[derive(Default)]
pub(crate) struct GivenSettings {
    access: access::GivenAccess,
    embedded: Option<(Embedded, [Pem; 3])>,
    placement: Option<placement::GivenPlacement>,
    repair: Option<(bool, HoldSettings)>,
    reboots: RebootSettings,
    kubernetes: Option<kubernetes::GivenKubernetes>,
    mode: Option<GivenMode>,
    ssh: Ssh,
    has_ssh: bool,
    pki: Option<encryption::GivenKeys>,
    operations: madako_operation_runner::Settings,
    backup: Option<BackupSchedule>,
}

section! {
    it: GivenSettings = GivenSettings::default() => {
        "endpoints": Kind::List(&Kind::Text) => it.access.endpoints;
        "prefix": PREFIX => it.access.prefix;
        "timeout": TIMEOUT => it.access.clients.timeout, by read_span;
        "username": Kind::Text => it.access.username;
        "password": Kind::Secret => it.access.password, by read_secret;
        pem "tls-ca-file", "tls-ca": Kind::Text => it.access.pems[0];
        pem "tls-cert-file", "tls-cert": Kind::Text => it.access.pems[1];
        pem "tls-key-file", "tls-key": Kind::Secret => it.access.pems[2];
        at "embedded": embedded => it.embedded;
        at "placement": placement => it.placement;
        at "repair": repair => it.repair;
        at "kubernetes": kubernetes => it.kubernetes;
        at "pki": encryption => it.pki;
        at "etcd_backup": backup => it.backup;
        in "reboot" {
            "boot_timeout": BOOT_TIMEOUT => it.reboots.boot_timeout, by read_span;
            "cordon_first": Kind::Bool => it.reboots.cordon_first;
        }
        in "operations" {
            "mode": operations::MODE => it.mode, by |mode| Some(read_word(mode));
        }
        in "ssh" {
            "key_file": Kind::Text => it.ssh.key_file;
            "host_keys": operations::HOST_KEYS => it.ssh.host_keys, by read_word;
        }
        in "images" {
            "etcd": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Etcd);
            "tools": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Tools);
            "kubernetes": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Kubernetes);
            "pause": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Pause);
            "coredns": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Coredns);
            "unbound": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::Unbound);
            "unbound_exporter": operations::IMAGE => *it.operations.configured_images.image_mut(ImageName::UnboundExporter);
        }
    }
}

// Texts of kinds state these limits.
const _: () = assert!(MAX_PREFIX == 1024 && MAX_LABEL == 63);

/// The names and kinds of all settings.
#[must_use]
pub fn schema() -> &'static Schema {
    &SCHEMA
}

const PREFIX: Kind = Kind::Checked("a text of at most 1024 bytes", |prefix| prefix.len() <= MAX_PREFIX);
/// Below, no request can succeed; above, no client waits.
const TIMEOUT: Kind = Kind::Checked("a duration from 1ms to 10m, such as 2s", |text| {
    is_span(text, &(Duration::from_millis(1)..=Duration::from_secs(600)))
});

/// A virtual machine boots in seconds, and a large server tests its memory for up to an hour.
const BOOT_TIMEOUT: Kind = Kind::Checked("a duration from 1m to 24h, such as 30m", |text| {
    is_span(text, &(Duration::from_secs(60)..=Duration::from_secs(24 * 3600)))
});

/// Error of loading a configuration. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is neither YAML nor JSON.
    #[error("configuration file {} is not valid YAML: {why}", path.display())]
    NotYaml {
        path: PathBuf,
        /// Line, column and problem; never the content.
        why: String,
    },
    #[error(transparent)]
    Invalid(#[from] InputError),
}

impl Config {
    /// True if nodes can be drained and their taints are known: by the kubeconfig, or by the certificates with which operations
    /// ask the API servers.
    #[must_use]
    pub fn reaches_kubernetes(&self) -> bool {
        self.kubernetes.is_some() || self.operations.keeps_kubernetes()
    }

    /// Reads the named file, or the default one.
    ///
    /// A named file must exist. Without a file at the default path the defaults apply: the embedded store on
    /// loopback. (CKE fails there; it has no embedded store.)
    ///
    /// # Errors
    /// The file cannot be read, is not YAML, or has wrong fields; see [`ConfigError`].
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
        // Modes of pipes mean nothing; a shell makes them for `--config <(...)`.
        let mode = facts.is_file().then(|| facts.permissions().mode());
        let text = read_within(file, MAX_FILE).map_err(read_error)?;
        Self::parse(&text, path, mode)
    }

    /// Checks the text of a file; `mode` is the file's, if it has one.
    fn parse(text: &str, path: &Path, mode: Option<u32>) -> Result<Self, ConfigError> {
        let mut findings = ConfigFindings::default();
        let tree = settings::read_settings(text, &SCHEMA, &mut findings)
            .map_err(|why| ConfigError::NotYaml { path: path.to_owned(), why })?;
        let mut given = from_tree(&tree);
        given.has_ssh = tree.get("ssh").is_some();
        let mut clients = access::read_access(mem::take(&mut given.access), &mut findings);
        let embedded = given.embedded.take().map(|embedded| embedded::read_embedded(embedded, &mut findings));
        let placement =
            given.placement.take().map(|placement| placement::read_placement(placement, &mut findings));
        let mut operations = operations::read_operations(&mut given, &mut findings);
        let mut kubernetes = None;
        if let Some(given) = given.kubernetes.take() {
            let operates = operations.mode.is_some();
            let settings = &mut operations.settings;
            (kubernetes, settings.kubernetes, settings.minor_upgrade) =
                kubernetes::read_kubernetes(given, operates, &mut findings);
        }

        let ConfigFindings { mut problems, warnings, secret, .. } = findings;
        problems.number_lines(text);
        if let (Some(mode), Some(field)) = (mode, secret) {
            check_mode(mode, &field, &mut problems);
        }
        let encryption = placement.as_ref().map(|placement| placement.encryption.clone()).unwrap_or_default();
        clients.encryption = encryption;
        let store = match (embedded, clients.endpoints.is_empty()) {
            (Some(embedded), _) => StoreChoice::Embedded(embedded),
            (None, false) => StoreChoice::External,
            (None, true) => StoreChoice::Embedded(Embedded::without_configuration()),
        };
        if let StoreChoice::Embedded(embedded) = &store
            && clients.endpoints.is_empty()
        {
            clients.endpoints = vec![embedded.client_endpoint()];
        }
        // The store checks last: it stops at the first problem, so it runs only without other problems.
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
            repair: given.repair.map(Repair::from).unwrap_or_default(),
            reboots: given.reboots,
            kubernetes,
            operations,
            warnings,
        })
    }

    /// Endpoints for the operator's commands: `endpoints`, else the embedded store's address.
    #[must_use]
    pub fn client_endpoints(&self) -> &[String] {
        &self.clients.endpoints
    }
}

/// Text of a file of at most `most` bytes.
fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    read_within(File::open(path)?, most)
}

fn read_within(file: File, most: u64) -> io::Result<String> {
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than {most} bytes")));
    }
    Ok(text)
}

/// Permission bits for users that are neither the owner nor in the group.
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
