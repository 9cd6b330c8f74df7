//! `madako kubernetes issue`: issues certificates for users of Kubernetes, with the words and output of ckecli.

pub(crate) mod plan;
pub(crate) mod rollout;
pub(crate) mod rotate;
pub(crate) mod status;

use std::time::Duration;

use madako_domain::authority::Authority;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_operation_runner::kubernetes::kubeconfig::{Credentials, kubeconfig_with_inline_credentials};
use madako_protocol::authorities::{CertificateRequest, Usage};
use madako_protocol::store::Store;

use crate::access::{decode, get_entry, open_store};
use crate::cli::Global;
use crate::commands::ca::issuing_authorities;
use crate::failure::Failure;
use crate::limits::{LOOK_UP, MAX_COMMON_NAME, MAX_KUBERNETES_VALIDITY};
use crate::output::print_text;
use crate::serve_args::parse_bounded;

/// Name of the API server within the cluster.
const SERVICE: &str = "kubernetes.default.svc";
/// Port of the API server on a node.
const PORT: u16 = 6443;

/// Issues a client certificate for a user of Kubernetes, and prints a kubeconfig with it.
///
/// The server of the kubeconfig is https://kubernetes.default.svc where that name resolves, else the first control plane
/// node. Kubernetes takes the name of the user and its group from the certificate. The command uses the store of the
/// service, not its API.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako kube issue > ~/.kube/config\n  madako kube issue --user alice --group viewers --ttl 8h"
)]
pub(crate) struct Args {
    /// Validity of the certificate
    #[arg(long, value_name = "DURATION", default_value = "2h",
          value_parser = |text: &str| parse_bounded(text, (Duration::from_secs(1), MAX_KUBERNETES_VALIDITY)))]
    ttl: Duration,
    /// Group of the user
    #[arg(short, long, value_name = "NAME", default_value = "system:masters", value_parser = parse_subject)]
    group: String,
    /// Name of the user
    #[arg(short, long, value_name = "NAME", default_value = "admin", value_parser = parse_subject)]
    user: String,
}

/// A common name or an organization.
fn parse_subject(text: &str) -> Result<String, String> {
    let fits = (1..=MAX_COMMON_NAME).contains(&text.len());
    match fits && text.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected 1 to {MAX_COMMON_NAME} printable ASCII characters without spaces")),
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { ttl, group, user } = args;
    let cluster = read_cluster(&open_store(global)?).await?;
    let authorities = issuing_authorities(global)?;
    let server = match resolves_names().await {
        true => format!("https://{SERVICE}"),
        false => {
            let first = cluster.control_plane().next();
            let first = first.ok_or_else(|| {
                Failure::failed(
                    "the cluster has no control plane node whose address the kubeconfig could name",
                )
            })?;
            format!("https://{}:{PORT}", first.address)
        }
    };
    let trusted = authorities.certificate(Authority::Kubernetes).await?;
    let request = CertificateRequest {
        authority: Authority::Kubernetes,
        common_name: user.clone(),
        organization: group,
        dns_names: Vec::new(),
        addresses: Vec::new(),
        usage: Usage::Client,
        validity: ttl,
    };
    let issued = authorities.issue(&request).await?;
    let credentials =
        Credentials { trusted: &trusted, certificate: &issued.certificate, key: &issued.private_key };
    // ckecli prints an empty line at the end.
    print_text(&format!(
        "{}\n",
        kubeconfig_with_inline_credentials(&cluster.name, &user, &server, &credentials).reveal()
    ))
}

async fn read_cluster(store: &dyn Store) -> Result<Cluster, Failure> {
    let stored = get_entry(store, keys::CLUSTER).await?;
    let stored = stored.ok_or_else(|| {
        Failure::failed(
            "no cluster configuration is stored, so there is no API server (madako cluster set stores one)",
        )
    })?;
    decode(keys::CLUSTER, &stored)
}

/// True if this host knows the API server by its name within the cluster.
async fn resolves_names() -> bool {
    let looked_up = tokio::time::timeout(LOOK_UP, tokio::net::lookup_host((SERVICE, PORT))).await;
    looked_up.is_ok_and(|found| found.is_ok_and(|mut found| found.next().is_some()))
}
