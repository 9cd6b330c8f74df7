//! `madako ca`: the certificate authorities of the cluster.

use std::sync::Arc;

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use madako_domain::authority::Authority;
use madako_domain::keys;
use madako_domain::store::Condition;
use madako_pki::{BuiltInAuthorities, CaError};
use madako_protocol::authorities::{Authorities, AuthorityError};
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_store::EtcdStore;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use madako_supervisor::operations;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

use crate::access::{self, concurrent_change_failure, get_entry, put_if, unchanged_condition};
use crate::cli::Global;
use crate::failure::Failure;
use crate::input::{STDIN, display_name, read_text};
use crate::output::{OutputArgs, Table, print_bytes, print_text, show_value};

/// Creates, shows or stores the certificate authorities of the cluster.
///
/// The service issues certificates with them, unless Vault does: then their private keys are in Vault alone, and only their
/// certificates are in the store. The configuration section `pki` names the keys that encrypt private keys in the store.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Creates the missing authorities.
    ///
    /// Existing authorities are unchanged. If the private key of an authority is missing or cannot be read, the command
    /// creates nothing.
    #[command(after_help = "Example:\n  madako ca init")]
    Init(OutputArgs),
    /// Prints the certificate of an authority in PEM.
    #[command(after_help = "Example:\n  madako ca get server > ca-server.crt")]
    Get {
        /// Name of the authority
        #[arg(value_parser = authority_parser())]
        name: Authority,
    },
    /// Stores the certificate of an authority, and its private key.
    ///
    /// The service can issue certificates only with the private key. Without --key the command stores the certificate
    /// alone, as ckecli does.
    #[command(
        after_help = "Examples:\n  madako ca set server ca-server.crt --key ca-server.key\n  madako ca set kubernetes ca.crt"
    )]
    Set {
        /// Name of the authority
        #[arg(value_parser = authority_parser())]
        name: Authority,
        /// Certificate in PEM
        file: String,
        /// Private key of the certificate in PEM (PKCS#8), without a password
        #[arg(long, value_name = "FILE")]
        key: Option<String>,
    },
}

fn authority_parser() -> impl TypedValueParser<Value = Authority> {
    PossibleValuesParser::new(Authority::ALL.map(|authority| authority.name()))
        .try_map(|name| name.parse::<Authority>())
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Init(args) => {
            refuse_beside_vault(global).await?;
            init(&args, &open_built_in_authorities(global)?).await
        }
        Command::Get { name } => {
            let key = keys::ca(name);
            let entry = get_entry(&access::open_store(global)?, &key).await?;
            let entry = entry.ok_or(AuthorityError::Missing { authority: name });
            print_bytes(&entry?.value)
        }
        Command::Set { name, file, key } => {
            if file == STDIN && key.as_deref() == Some(STDIN) {
                return Err(Failure::bad_input(
                    "only one of the certificate and --key can be - (standard input)",
                ));
            }
            let certificate = read_text(&file)?;
            let Some(key) = key else {
                return set_certificate(name, &file, certificate, &access::open_store(global)?).await;
            };
            refuse_beside_vault(global).await?;
            let key = Secret::new(read_text(&key)?);
            open_built_in_authorities(global)?.import(name, &certificate, &key).await?;
            print_text(&format!("{name}: stored with its private key\n"))
        }
    }
}

/// Vault keeps the private keys of its authorities; others would have no effect.
async fn refuse_beside_vault(global: &Global) -> Result<(), Failure> {
    match get_entry(&access::open_store(global)?, keys::VAULT).await? {
        None => Ok(()),
        Some(_) => Err(Failure::failed(
            "the store has the key vault: Vault issues the certificates, and private keys of authorities in the store would have \
             no effect (madako vault init creates the authorities of Vault)",
        )),
    }
}

/// The authorities in the configured store.
///
/// # Errors
/// The configuration is not usable, or has no keys for the authorities.
pub(super) fn open_built_in_authorities(global: &Global) -> Result<BuiltInAuthorities, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let keys = config.operations.pki.clone().ok_or_else(|| {
        Failure::bad_input(
            "the configuration file has no section `pki`, whose keys encrypt the private keys of the authorities",
        )
    })?;
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    Ok(BuiltInAuthorities::new(store, keys, Arc::new(SystemClock)))
}

/// The authorities that issue certificates: Vault where the store has access to it, else those in the store.
///
/// # Errors
/// The configuration is not usable.
pub(super) fn issuing_authorities(global: &Global) -> Result<Arc<dyn Authorities>, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    let pki = config.operations.pki.as_ref();
    Ok(operations::choose_authorities(&operations::vault_client(&store), pki, &store, Arc::new(SystemClock)))
}

async fn init(args: &OutputArgs, authorities: &BuiltInAuthorities) -> Result<(), Failure> {
    let created = authorities.init().await?;
    let all = Authority::ALL.map(|authority| (authority, created.contains(&authority)));
    let state = |created: bool| if created { "created" } else { "existing" };
    let Some(format) = args.output else {
        let lines = all.map(|(authority, created)| format!("{authority}: {}\n", state(created)));
        return print_text(&lines.concat());
    };
    let value = all.map(|(authority, created)| json!({ "name": authority.name(), "created": created }));
    show_value(format, &value, |_| {
        let mut table = Table::new(["AUTHORITY", "STATE"]);
        for (authority, created) in all {
            table.add_row([authority.to_string(), state(created).to_owned()]);
        }
        table.to_text()
    })
}

/// Stores a certificate, unless the store has the private key of another certificate of this authority.
async fn set_certificate(
    authority: Authority,
    file: &str,
    certificate: String,
    store: &EtcdStore,
) -> Result<(), Failure> {
    if CertificateDer::from_pem_slice(certificate.as_bytes()).is_err() {
        return Err(Failure::bad_input(format_args!("{} has no certificate in PEM", display_name(file))));
    }
    let key = keys::ca(authority);
    let before = get_entry(store, &key).await?;
    let change = match &before {
        Some(entry) if entry.value[..] == *certificate.as_bytes() => {
            return print_text(&format!("{authority}: stored, unchanged\n"));
        }
        Some(_) => "stored, replacing the previous certificate",
        None => "stored",
    };
    let private = format!("{}{authority}", keys::CA_KEYS);
    if get_entry(store, &private).await?.is_some() {
        return Err(Failure::bad_input(format_args!(
            "{private} has the private key of another certificate: give the private key of {} with --key",
            display_name(file)
        )));
    }
    let conditions =
        vec![unchanged_condition(&key, before.as_ref()), Condition::Unchanged { key: private, revision: 0 }];
    match put_if(store, &key, certificate.into_bytes(), conditions).await? {
        true if get_entry(store, keys::VAULT).await?.is_some() => {
            print_text(&format!("{authority}: {change}\n"))
        }
        true => print_text(&format!(
            "{authority}: {change}; Madako cannot issue certificates without its private key\n"
        )),
        false => Err(concurrent_change_failure(&key)),
    }
}

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Request { .. } | AuthorityError::NoIssuer => Self::BadInput(error.into()),
            other => Self::Failed(other.into()),
        }
    }
}

impl From<CaError> for Failure {
    fn from(error: CaError) -> Self {
        match error {
            CaError::Rejected { .. } | CaError::NoEncryption => Self::BadInput(error.into()),
            other => Self::Failed(other.into()),
        }
    }
}
