//! `madako etcd`: certificates for clients of the cluster's etcd, in ckecli's words, and restarts of its members.

mod restart;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use madako_domain::authority::Authority;
use madako_protocol::authorities::{Authorities, CertificateRequest, Usage};
use serde::Serialize;

use crate::access::open;
use crate::cli::Global;
use crate::commands::ca::built_in;
use crate::failure::Failure;
use crate::limits::{MAX_COMMON_NAME, MAX_USER_VALIDITY, ROOT_VALIDITY};
use crate::output::{OutputArgs, print};
use crate::serve_args::bounded;

/// Issues certificates for clients of the cluster's etcd, and restarts its members.
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
              value_parser = |text: &str| bounded(text, (Duration::from_secs(1), MAX_USER_VALIDITY)))]
        ttl: Duration,
        #[command(flatten)]
        output: Output,
    },
    /// Issues a client certificate for the user root, which is valid for an hour.
    #[command(after_help = "Example:\n  madako etcd root-issue --output file")]
    RootIssue(Output),
    /// Restarts etcd on a control plane node with its configured image and parameters, even if etcd stops meanwhile.
    ///
    /// The service restarts no member by itself while etcd has fewer than three voting members, since etcd would stop:
    /// `madako ops` shows such a restart as held (few-members), and this command allows it. The command also restarts a
    /// member that is not outdated. It stores a request (madako/etcd-restarts/ADDRESS), which the leader takes in its
    /// next pass. A request that the leader cannot take within an hour is deleted.
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
        Command::Restart { address, output } => return restart::run(&address, output, &open(global)?).await,
    };
    let authorities = built_in(global)?;
    let request = CertificateRequest {
        authority: Authority::EtcdClient,
        common_name: name.clone(),
        organization: String::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage: Usage::Client,
        validity,
    };
    // The first read tells a missing authority, before a certificate is issued in vain.
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
            print(&format!("{}\n", serde_json::to_string_pretty(&credentials)?))
        }
        Form::File => {
            write("etcd-ca.crt", 0o644, &ca_certificate)?;
            write(&format!("etcd-{name}.crt"), 0o644, &issued.certificate)?;
            write(&format!("etcd-{name}.key"), 0o600, private_key)?;
            print(&format!("wrote etcd-ca.crt, etcd-{name}.crt and etcd-{name}.key\n"))
        }
    }
}

/// Writes a file whole. A former file of this name is replaced, since it may have another mode.
fn write(name: &str, mode: u32, text: &str) -> Result<(), Failure> {
    let part = format!(".{name}.part");
    let written = write_new(&part, mode, text).and_then(|()| fs::rename(&part, name));
    written.with_context(|| format!("cannot write {name}")).map_err(Failure::Failed)
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
