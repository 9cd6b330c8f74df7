//! `madako vault init`: sets Vault up for CKE with an operator's token.

use std::env;
use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;

use madako_domain::authority::Authority;
use madako_domain::keys;
use madako_domain::store::Condition;
use madako_domain::vault::{VaultAccess, authority_mount};
use madako_pki::vault::{Operator, Role, SetUp, Transports as _};
use madako_protocol::ports::{Clock as _, HttpTransport};
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use madako_store::EtcdStore;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::vault::VaultTransports;

use crate::access::{self, concurrent_change_failure, decode, get_entry, put_if};
use crate::cli::Global;
use crate::commands::placement::read_hidden;
use crate::failure::Failure;
use crate::input::read_text;
use crate::limits::MAX_LOGIN_NAME;
use crate::output::print_text;

/// Address of a Vault that no option and no variable names: that of Vault's own client.
const DEFAULT_ENDPOINT: &str = "https://127.0.0.1:8200";

/// Sets Vault up for the service.
///
/// The command mounts a secrets engine for each authority and one for secrets below cke/, writes the policy cke,
/// creates an AppRole, and stores the access to it. The command creates the root certificates of the authorities that
/// have no certificate in the store, and a key with which Kubernetes encrypts its secrets. Existing ones stay: the
/// command may run again. The authentication method approle must be enabled (vault auth enable approle).
///
/// The command uses the token in VAULT_TOKEN. Without that variable, the command asks for a user name and a password
/// (method userpass).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  madako vault init --endpoint https://10.0.0.1:8200 --cacert vault-ca.crt"
)]
pub(crate) struct Args {
    /// URL of Vault [default: VAULT_ADDR, or https://127.0.0.1:8200]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Certificate in PEM of the authority of Vault's certificate [default: VAULT_CACERT, or those of the operating system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<String>,
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let store = access::open_store(global)?;
    let cacert = args.cacert.clone().or_else(|| environment_variable("VAULT_CACERT"));
    let ca_cert = cacert.as_deref().map(read_text).transpose()?.unwrap_or_default();
    let transport = VaultTransports.transport(&ca_cert);
    let transport = transport.map_err(|why| {
        Failure::bad_input(format_args!(
            "the CA certificate {} of Vault cannot be used: {why}",
            cacert.as_deref().unwrap_or_default()
        ))
    })?;
    let endpoint = args.endpoint.clone().or_else(|| environment_variable("VAULT_ADDR"));
    let operator = operator_session(transport, endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT)).await?;
    let mut text = String::new();
    let mounted = operator.mount(|step| {
        text += &match step {
            SetUp::MountedPki(path) => format!("mounted pki on {path}\n"),
            SetUp::MountedSecrets(path) => format!("mounted kv version 1 on {path}\n"),
        };
    });
    // The mounts before a failed one have happened.
    let mounted = mounted.await;
    print_text(&text)?;
    mounted?;
    let access = read_or_create_access(&operator, ca_cert, &store).await?;
    let role = Role::new(&access, &VaultTransports)?;
    for authority in Authority::ALL {
        create_root(authority, &role, &store).await?;
    }
    let secrets = role.secrets();
    if !secrets.has_encryption_keys().await? {
        secrets.rotate_encryption_key(SystemClock.now()).await?;
    }
    Ok(())
}

fn environment_variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

async fn operator_session(transport: Arc<dyn HttpTransport>, endpoint: &str) -> Result<Operator, Failure> {
    if let Some(token) = environment_variable("VAULT_TOKEN") {
        return Ok(Operator::with_token(transport, endpoint, Secret::new(token))?);
    }
    let user = ask_on_terminal("Vault username: ")?;
    let password = Secret::new(read_hidden("Vault password: ")?);
    Ok(Operator::log_in(transport, endpoint, &user, &password).await?)
}

/// A line of standard input.
fn ask_on_terminal(prompt: &str) -> Result<String, Failure> {
    write!(io::stdout(), "{prompt}")?;
    io::stdout().flush()?;
    let mut line = String::new();
    io::Read::take(io::stdin().lock(), MAX_LOGIN_NAME).read_line(&mut line)?;
    let name = line.trim();
    if name.is_empty() {
        return Err(Failure::bad_input(
            "no user name for the login at Vault was typed: type one, or set VAULT_TOKEN",
        ));
    }
    Ok(name.to_owned())
}

/// The stored access, or that of a new role.
async fn read_or_create_access(
    operator: &Operator,
    ca_cert: String,
    store: &EtcdStore,
) -> Result<VaultAccess, Failure> {
    if let Some(entry) = get_entry(store, keys::VAULT).await? {
        return decode(keys::VAULT, &entry);
    }
    let access = operator.create_role(ca_cert).await.map_err(|error| match error {
        VaultError::Refused { status: 404, .. } => {
            Failure::failed(format_args!("cannot create the role for Madako in Vault: {error}; enable the method first (vault auth enable approle)"))
        }
        error => error.into(),
    })?;
    let absent = vec![Condition::Unchanged { key: keys::VAULT.to_owned(), revision: 0 }];
    match put_if(store, keys::VAULT, serde_json::to_vec(&access)?, absent).await? {
        true => Ok(access),
        false => Err(concurrent_change_failure(keys::VAULT)),
    }
}

/// Creates the root of an authority, unless the store has its certificate.
async fn create_root(authority: Authority, role: &Role, store: &EtcdStore) -> Result<(), Failure> {
    let key = keys::ca(authority);
    if get_entry(store, &key).await?.is_some() {
        return Ok(());
    }
    let certificate = role.create_root(authority).await?;
    print_text(&format!("issued root certificate for {}\n", authority_mount(authority)))?;
    let absent = vec![Condition::Unchanged { key: key.clone(), revision: 0 }];
    match put_if(store, &key, certificate.into_bytes(), absent).await? {
        true => Ok(()),
        false => Err(concurrent_change_failure(&key)),
    }
}
