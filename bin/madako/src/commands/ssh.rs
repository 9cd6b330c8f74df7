//! `madako ssh` and `madako scp`: logins on nodes with the keys of the service, its own keys, and the host keys of nodes.

mod connect;
mod forget;
mod key;

use clap::Subcommand;
use madako_protocol::store::Store;

pub(crate) use self::connect::ScpArgs;
use crate::access::open_store;
use crate::cli::Global;
use crate::failure::Failure;
use crate::input::{display_name, read_text};
use crate::output::OutputArgs;

/// Connects to a node with the key of the service, or manages keys.
///
/// The command runs OpenSSH's ssh with the private key that the service uses for the node: the key of Vault for this node, else
/// Vault's default key, else those of `madako ssh key set`, else ssh.key_file of the configuration. As in ckecli, it checks
/// no host key. The key is in no file. The exit code is that of ssh.
///
/// A node whose name is forget or key needs a user: key@key.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  madako ssh cybozu@10.0.0.11\n  madako ssh cybozu@10.0.0.11 docker ps\n  madako ssh forget 10.0.0.11"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Address or name of the node, with an optional user: USER@NODE
    node: Option<String>,
    /// Command to run on the node
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Forgets the host key that the service pinned at the first connection to an address.
    ///
    /// The service refuses a node with another host key than the pinned one. After this command it pins the key that the
    /// node has at the next connection. A new machine at an address needs no command: the service knows it by its serial.
    #[command(after_help = "Example:\n  madako ssh forget 10.0.0.11")]
    Forget {
        /// Address of the node
        address: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    #[command(subcommand)]
    Key(key::Command),
}

pub(crate) async fn run(args: Args, global: &Global) -> Result<(), Failure> {
    match (args.command, args.node) {
        (Some(Command::Forget { address, output }), _) => {
            forget::run(&address, output, &open_store(global)? as &dyn Store).await
        }
        (Some(Command::Key(command)), _) => key::run(command, global).await,
        (None, Some(node)) => connect::run_ssh(&node, &args.words, global).await,
        (None, None) => Err(Failure::bad_input("no node is named: give its address or its name")),
    }
}

pub(crate) async fn run_scp(args: ScpArgs, global: &Global) -> Result<(), Failure> {
    connect::run_scp(&args, global).await
}

/// The text of a file with a private key without passphrase.
///
/// # Errors
/// The file cannot be read, or has no such key.
pub(crate) fn read_login_key(file: &str) -> Result<String, Failure> {
    let text = read_text(file)?;
    match madako_ssh::read_key(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::bad_input(format_args!(
            "cannot use the login key in {}: {error}; expected {}",
            display_name(file),
            error.expected_key()
        ))),
    }
}
