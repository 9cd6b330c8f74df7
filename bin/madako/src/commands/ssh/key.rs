//! `madako ssh key`: stores private keys for logins on nodes, encrypted.

use std::sync::Arc;

use clap::Subcommand;
use madako_pki::PutLoginKeyError;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_supervisor::config::Config;
use madako_supervisor::operations;

use super::read_login_key;
use crate::access;
use crate::cli::Global;
use crate::failure::Failure;
use crate::output::print_text;

/// Manages the private keys for logins on nodes.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(super) enum Command {
    /// Stores a private key for logins on a node, encrypted with the keys of the section `pki`.
    ///
    /// Without --host, the key is the default key. The service tries keys in Vault first, then this key, then ssh.key_file
    /// of the configuration. The service uses the new key within a minute.
    #[command(
        after_help = "Examples:\n  madako ssh key set ~/.ssh/id_ed25519\n  madako ssh key set --host 10.0.0.11 id_ed25519"
    )]
    Set {
        /// Address of the node
        #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
        host: String,
        /// File with a private key without passphrase; - is standard input
        file: String,
    },
}

pub(super) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let Command::Set { host, file } = command;
    let key = Secret::new(read_login_key(&file)?);
    let config = Config::load(global.config.as_deref())?;
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    let keys =
        operations::login_keys(&operations::vault_client(&store), config.operations.pki.as_ref(), &store);
    keys.put(&host, &key).await?;
    let of = if host.is_empty() { "default" } else { &host };
    print_text(&format!("{of}: stored, encrypted\n"))
}

impl From<PutLoginKeyError> for Failure {
    fn from(error: PutLoginKeyError) -> Self {
        match error {
            PutLoginKeyError::NoEncryption => Self::BadInput(error.into()),
            PutLoginKeyError::Store { .. } => Self::Failed(error.into()),
        }
    }
}
