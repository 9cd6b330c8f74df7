//! `madako etcd`: certificates for clients of the cluster's etcd, its users and backups, in ckecli's words, and restarts
//! of its members.

mod backup;
pub(crate) mod members;
mod restart;
mod restore;
mod user;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use madako_domain::authority::Authority;
use madako_protocol::authorities::{CertificateRequest, Usage};
use serde::Serialize;

use crate::access::open_store;
use crate::cli::Global;
use crate::commands::ca::issuing_authorities;
use crate::failure::Failure;
use crate::limits::{MAX_COMMON_NAME, MAX_USER_VALIDITY, ROOT_VALIDITY};
use crate::output::{OutputArgs, print_text};
use crate::serve_args::parse_bounded;

/// Issues certificates for clients of the cluster's etcd, adds users, makes backups, and restarts its members.
#[derive(Debug, Subcommand)]
#[command(arg_required_else_help = true)]
pub(crate) enum Command {
    /// Issues a client certificate for a user of etcd.
    ///
    /// etcd takes the name of the user from the certificate. The command does not create the user.
    #[command(
        after_help = "Examples:\n  madako etcd issue backup --ttl 720h\n  madako etcd issue backup --output file"
    )]
    Issue {
        /// Name of the user
        #[arg(value_parser = user_name)]
        name: String,
        /// Validity of the certificate
        #[arg(long, value_name = "DURATION", default_value = "87600h",
              value_parser = |text: &str| parse_bounded(text, (Duration::from_secs(1), MAX_USER_VALIDITY)))]
        ttl: Duration,
        #[command(flatten)]
        output: Output,
    },
    /// Issues a client certificate for the user root, which is valid for an hour.
    #[command(after_help = "Example:\n  madako etcd root-issue --output file")]
    RootIssue(Output),
    /// Adds a user to the cluster's etcd.
    ///
    /// The user may read and write the keys that begin with PREFIX. The user logs in with a certificate, which `madako
    /// etcd issue` issues. An existing user or role is refused and stays as it is. NAME must not be root or backup.
    #[command(after_help = "Example:\n  madako etcd user-add coil /coil/")]
    UserAdd {
        /// Name of the user and of its role
        #[arg(value_parser = user::parse_name)]
        name: String,
        /// Beginning of the keys of the user
        #[arg(value_parser = user::parse_prefix)]
        prefix: String,
    },
    /// Takes a snapshot of the cluster's etcd, which holds the data of Kubernetes, and keeps it on this host.
    ///
    /// The name of the file is etcd-YYYYMMDD-hhmmss.backup, in UTC. A snapshot whose checksum is wrong never gets this
    /// name. The oldest backups beyond the number to keep are removed after the new one is there.
    ///
    /// With --prove, the command restores an etcd from the backup in the same directory, starts it on loopback, and
    /// compares its revision, its number of keys and a hash of all keys and values with the cluster at that revision. The
    /// host needs etcd and etcdctl 3.4 or 3.5 on PATH, and free space for a second copy. A backup that differs is renamed
    /// to etcd-YYYYMMDD-hhmmss.refuted. If there is no proof, no older backup is removed.
    ///
    /// Exit codes: 0: there is a new backup, with --prove a proved one; 1: there is none, or it is not proved.
    #[command(
        after_help = "Examples:\n  madako etcd local-backup\n  madako etcd local-backup --dir /mnt/backups --max-backups 30 --prove"
    )]
    LocalBackup(backup::Args),
    /// Restarts etcd on a control plane node with its configured image and parameters, even if etcd stops meanwhile.
    ///
    /// The service restarts no member by itself while etcd has fewer than three voting members, since etcd would stop:
    /// `madako ops` shows such a restart as held (few-members), and this command allows it. The command also restarts a
    /// member that is not outdated. The command stores a request (madako/etcd-restarts/ADDRESS), which the leader takes
    /// in its next pass. A request that the leader cannot take within an hour is deleted.
    ///
    /// Exit codes: 0: the request is stored; 1: there is no cluster, or the store does not answer; 2: ADDRESS is no
    /// control plane node.
    #[command(
        after_help = "Examples:\n  madako etcd restart 10.0.0.11\n  madako etcd restart 10.0.0.11 -o json"
    )]
    Restart {
        /// Address of the node
        address: String,
        #[command(flatten)]
        output: OutputArgs,
    },
    Restore(restore::Args),
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Output {
    /// Form of the output; file writes etcd-ca.crt, etcd-NAME.crt and etcd-NAME.key into the current directory
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Form::Json)]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Json,
    File,
}

/// ckecli's JSON.
#[derive(Serialize)]
struct Credentials<'a> {
    certificate: &'a str,
    private_key: &'a str,
    ca_certificate: &'a str,
}

/// A common name that is also part of a file's name.
fn user_name(text: &str) -> Result<String, String> {
    let fits = (1..=MAX_COMMON_NAME).contains(&text.len());
    let is_plain = text.chars().all(|c| c.is_ascii_graphic() && c != '/');
    match fits && is_plain {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected 1 to {MAX_COMMON_NAME} printable ASCII characters without spaces and slashes"
        )),
    }
}

pub(crate) async fn run(command: Command, global: &Global) -> Result<(), Failure> {
    let (name, validity, output) = match command {
        Command::Issue { name, ttl, output } => (name, ttl, output),
        Command::RootIssue(output) => ("root".to_owned(), ROOT_VALIDITY, output),
        Command::UserAdd { name, prefix } => return user::run(&name, &prefix, global).await,
        Command::LocalBackup(args) => return backup::run(args, global).await,
        Command::Restart { address, output } => {
            return restart::run(&address, output, &open_store(global)?).await;
        }
        Command::Restore(args) => return Box::pin(restore::run(&args, global)).await,
    };
    let authorities = issuing_authorities(global)?;
    let request = CertificateRequest {
        authority: Authority::EtcdClient,
        common_name: name.clone(),
        organization: String::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage: Usage::Client,
        validity,
    };
    // The first read finds a missing authority, before a certificate is issued in vain.
    let ca_certificate = authorities.certificate(Authority::Server).await?;
    let issued = authorities.issue(&request).await?;
    let private_key = issued.private_key.reveal();
    match output.output {
        Form::Json => {
            let credentials = Credentials {
                certificate: &issued.certificate,
                private_key,
                ca_certificate: &ca_certificate,
            };
            print_text(&format!("{}\n", serde_json::to_string_pretty(&credentials)?))
        }
        Form::File => {
            write_output_file("etcd-ca.crt", 0o644, &ca_certificate)?;
            write_output_file(&format!("etcd-{name}.crt"), 0o644, &issued.certificate)?;
            write_output_file(&format!("etcd-{name}.key"), 0o600, private_key)?;
            // Spaces as ckecli prints them.
            print_text(&format!("cert files:  etcd-ca.crt etcd-{name}.crt etcd-{name}.key\n"))
        }
    }
}

/// Writes a file whole. A former file of this name is replaced, since it may have another mode.
fn write_output_file(name: &str, mode: u32, text: &str) -> Result<(), Failure> {
    let part = format!(".{name}.part");
    let written = write_new(&part, mode, text).and_then(|()| fs::rename(&part, name));
    written
        .with_context(|| format!("cannot write the file {name} into the current directory"))
        .map_err(Failure::Failed)
}

fn write_new(part: &str, mode: u32, text: &str) -> io::Result<()> {
    // A killed command may have left a part.
    if let Err(error) = fs::remove_file(part)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
