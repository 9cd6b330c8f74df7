//! `madako vault`: Vault's setup for CKE, and CKE's secrets in it. Words, prompts and output are ckecli's.

mod config;
mod init;

use std::sync::Arc;

use clap::Subcommand;
use madako_domain::keys;
use madako_pki::vault::VaultSecrets;
use madako_protocol::ports::Clock as _;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_protocol::vault::VaultError;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;

use crate::access;
use crate::cli::Global;
use crate::commands::kubernetes;
use crate::commands::ssh::read_login_key;
use crate::failure::Failure;
use crate::output::print_text;

/// Sets Vault up, and changes the secrets in it.
///
/// If the store has the key `vault`, the service issues certificates with Vault's authorities, and logs in to nodes with
/// Vault's SSH keys.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    Init(init::Args),
    /// Stores the access to Vault.
    ///
    /// FILE is a JSON object with these fields: endpoint, the URL of Vault; ca-cert, the certificate in PEM of the authority
    /// of the server's certificate, which may be empty; role-id, the identifier of the AppRole; secret-id, its secret.
    #[command(after_help = "Example:\n  madako vault config vault.json")]
    Config {
        /// File in JSON; - is standard input
        file: String,
    },
    /// Stores a private key in Vault for logins on a node.
    ///
    /// Without --host, the key is the default key.
    #[command(
        after_help = "Examples:\n  madako vault ssh-privkey ~/.ssh/id_ed25519\n  madako vault ssh-privkey --host 10.0.0.11 -"
    )]
    SshPrivkey {
        /// Address of the node
        #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
        host: String,
        /// File with a private key without passphrase; - is standard input
        file: String,
    },
    /// Adds a key with which Kubernetes encrypts its secrets.
    ///
    /// The present key stays to decrypt. Earlier keys are removed from Vault. API servers use the new key after their next
    /// restart, and Secrets keep the earlier key: `madako kube rotate-encryption-key` does all of it.
    #[command(after_help = "Example:\n  madako vault enckey")]
    Enckey,
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Init(args) => init::run(&args, global).await,
        Command::Config { file } => config::run(&file, &access::open_store(global)?).await,
        Command::SshPrivkey { host, file } => {
            let key = Secret::new(read_login_key(&file)?);
            Ok(open_secrets(global).await?.put_login_key(&host, &key).await?)
        }
        Command::Enckey => {
            // The new key would stand before the one of the rotation, and remove an earlier one.
            kubernetes::rotate::refuse_during_rotation(&access::open_store(global)?).await?;
            open_secrets(global).await?.rotate_encryption_key(SystemClock.now()).await?;
            print_text("succeeded\n")
        }
    }
}

/// CKE's secrets in the Vault that the store names.
async fn open_secrets(global: &Global) -> Result<VaultSecrets, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    // An unreachable store is no fault of the access to Vault.
    let access = access::get_entry(store.as_ref(), keys::VAULT).await?;
    let secrets = match access {
        Some(_) => madako_supervisor::operations::vault_client(&store).open_secrets().await?,
        None => None,
    };
    secrets.ok_or_else(|| {
        Failure::failed(format_args!(
            "the store at {} has no access to Vault in the key {}{}: madako vault init or madako vault config stores it",
            config.clients.endpoints.join(", "),
            config.clients.prefix,
            keys::VAULT
        ))
    })
}

impl From<VaultError> for Failure {
    fn from(error: VaultError) -> Self {
        Self::Failed(error.into())
    }
}
