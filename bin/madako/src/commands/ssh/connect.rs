//! Starts OpenSSH's `ssh` and `scp` with the private key of the service.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{self, Command};
use std::sync::Arc;

use anyhow::Context as _;
use madako_protocol::login_keys::LoginKeySource as _;
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;
use madako_supervisor::config::Config;
use madako_supervisor::operations;
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

use crate::access;
use crate::cli::Global;
use crate::failure::Failure;

/// Copies files between nodes and this host with the key of the service.
///
/// The command runs OpenSSH's scp, with the private key of the first node that an argument names (see madako ssh). It checks no
/// host key. The exit code is that of scp.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako scp cybozu@10.0.0.11:/etc/hosts .\n  madako scp -r logs cybozu@10.0.0.11:/tmp"
)]
pub(crate) struct ScpArgs {
    /// Copies whole directories
    #[arg(short = 'r')]
    recursive: bool,
    /// Files, each as FILE or [USER@]NODE:FILE; the last one is the destination
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    files: Vec<String>,
}

/// A private key that OpenSSH can read.
enum Identity {
    /// A file of the operator.
    Path(String),
    /// A file in memory, which ends with this process. OpenSSH reads it through this process, since it closes what it
    /// inherits.
    Memory(File),
}

impl Identity {
    fn write_to_memory(key: &Secret) -> io::Result<Self> {
        let memory = memfd_create("madako-ssh-key", MemfdFlags::CLOEXEC)?;
        // OpenSSH refuses a key that others may read.
        fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(memory);
        file.write_all(key.reveal().trim_end().as_bytes())?;
        file.write_all(b"\n")?;
        Ok(Self::Memory(file))
    }

    fn file_path(&self) -> String {
        match self {
            Self::Path(path) => path.clone(),
            Self::Memory(file) => format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()),
        }
    }
}

pub(super) async fn run_ssh(target: &str, words: &[String], global: &Global) -> Result<(), Failure> {
    let identity = login_identity(node_of(target), global).await?;
    run("ssh", &identity, &[], std::iter::once(target).chain(words.iter().map(String::as_str)))
}

pub(super) async fn run_scp(args: &ScpArgs, global: &Global) -> Result<(), Failure> {
    let remote = args.files.iter().find_map(|file| file.split_once(':'));
    let (target, _) = remote
        .ok_or_else(|| Failure::bad_input("the node name is not specified: one file must be NODE:FILE"))?;
    let identity = login_identity(node_of(target), global).await?;
    let options: &[&str] = if args.recursive { &["-r"] } else { &[] };
    run("scp", &identity, options, args.files.iter().map(String::as_str))
}

/// The node of `[USER@]NODE`.
fn node_of(target: &str) -> &str {
    target.split_once('@').map_or(target, |(_, node)| node)
}

/// The key that the service uses for a node.
async fn login_identity(node: &str, global: &Global) -> Result<Identity, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    let keys =
        operations::login_keys(&operations::vault_client(&store), config.operations.pki.as_ref(), &store);
    let sources = keys.read().await.map_err(Failure::failed)?;
    if let Some(key) = sources.iter().find_map(|source| source.key_for(node)) {
        let identity = Identity::write_to_memory(key.map_err(|error| Failure::failed(error.clone()))?)
            .context("cannot write the private key for the login to a file in memory");
        return identity.map_err(Failure::Failed);
    }
    config.operations.ssh.key_file.map(Identity::Path).ok_or_else(|| {
        Failure::failed(format_args!(
            "no ssh private key for {node}: neither Vault, nor the key of madako ssh key set, nor the setting \
             ssh.key_file gives one"
        ))
    })
}

fn run<'a>(
    program: &str,
    identity: &Identity,
    options: &[&str],
    words: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    let status = Command::new(program)
        .args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "ConnectTimeout=60",
        ])
        // Without it, keys of an agent come first, and a node may refuse further ones.
        .args(["-o", "IdentitiesOnly=yes", "-i", &identity.file_path()])
        .args(options)
        .args(words)
        .status();
    let status = status
        .with_context(|| format!("cannot run {program}, which opens the connection to the node"))
        .map_err(Failure::Failed)?;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    match u8::try_from(code).unwrap_or(u8::MAX) {
        0 => Ok(()),
        code => Err(Failure::Program(code)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_in_memory_is_a_file_for_its_owner_that_can_be_read_twice() {
        let identity = Identity::write_to_memory(&Secret::new("hunter2\n\n")).unwrap();
        for _ in 0..2 {
            assert_eq!(std::fs::read_to_string(identity.file_path()).unwrap(), "hunter2\n");
        }
        let mode = std::fs::metadata(identity.file_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn a_target_may_have_a_user() {
        assert_eq!((node_of("cybozu@10.0.0.1"), node_of("10.0.0.1")), ("10.0.0.1", "10.0.0.1"));
    }
}
