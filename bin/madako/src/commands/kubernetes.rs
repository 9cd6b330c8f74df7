//! `madako kubernetes issue`: certificates for users of Kubernetes, in ckecli's words and output.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::authority::Authority;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_protocol::authorities::{CertificateRequest, Issued, Usage};
use madako_protocol::store::Store;

use crate::access::{decode, get, open};
use crate::cli::Global;
use crate::commands::ca::issuing;
use crate::failure::Failure;
use crate::limits::{LOOK_UP, MAX_COMMON_NAME, MAX_KUBERNETES_VALIDITY};
use crate::output::print;
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
    #[arg(short, long, value_name = "NAME", default_value = "system:masters", value_parser = subject)]
    group: String,
    /// Name of the user
    #[arg(short, long, value_name = "NAME", default_value = "admin", value_parser = subject)]
    user: String,
}

/// A common name or an organization.
fn subject(text: &str) -> Result<String, String> {
    let fits = (1..=MAX_COMMON_NAME).contains(&text.len());
    match fits && text.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected 1 to {MAX_COMMON_NAME} printable ASCII characters without spaces")),
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> Result<(), Failure> {
    let Args { ttl, group, user } = args;
    let cluster = cluster(&open(global)?).await?;
    let authorities = issuing(global)?;
    let server = match resolves().await {
        true => format!("https://{SERVICE}"),
        false => {
            let first = cluster.control_plane().next();
            let first = first.ok_or_else(|| Failure::failed("the cluster has no control plane node"))?;
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
    print(&kubeconfig(&cluster.name, &user, &server, &trusted, &issued))
}

async fn cluster(store: &dyn Store) -> Result<Cluster, Failure> {
    let stored = get(store, keys::CLUSTER).await?;
    let stored = stored.ok_or_else(|| Failure::failed("no cluster is stored: there is no API server"))?;
    decode(keys::CLUSTER, &stored)
}

/// True if this host knows the API server by its name within the cluster.
async fn resolves() -> bool {
    let looked_up = tokio::time::timeout(LOOK_UP, tokio::net::lookup_host((SERVICE, PORT))).await;
    looked_up.is_ok_and(|found| found.is_ok_and(|mut found| found.next().is_some()))
}

/// A kubeconfig as `ckecli` prints it, with its empty line at the end.
fn kubeconfig(cluster: &str, user: &str, server: &str, trusted: &str, issued: &Issued) -> String {
    let (cluster, user) = (word(cluster), word(user));
    let (trusted, certificate) = (STANDARD.encode(trusted), STANDARD.encode(&issued.certificate));
    let key = STANDARD.encode(issued.private_key.reveal());
    format!(
        "apiVersion: v1\n\
         clusters:\n\
         - cluster:\n    \
             certificate-authority-data: {trusted}\n    \
             server: {server}\n  \
           name: {cluster}\n\
         contexts:\n\
         - context:\n    \
             cluster: {cluster}\n    \
             user: {user}\n  \
           name: default\n\
         current-context: default\n\
         kind: Config\n\
         preferences: {{}}\n\
         users:\n\
         - name: {user}\n  \
           user:\n    \
             client-certificate-data: {certificate}\n    \
             client-key-data: {key}\n\n"
    )
}

/// A text in YAML: plain where no reader can take it for something else, else in quotes.
fn word(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c));
    let means_more = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    match is_plain && !means_more.contains(&text.to_ascii_lowercase().as_str()) {
        true => text.to_owned(),
        false => serde_json::Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use madako_protocol::secret::Secret;

    use super::*;

    #[test]
    fn a_kubeconfig_has_ckeclis_form() {
        let issued = Issued { certificate: "cert".to_owned(), private_key: Secret::new("key".to_owned()) };
        let text = kubeconfig("tokyo0", "admin", "https://10.0.0.11:6443", "ca", &issued);
        assert_eq!(
            text,
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Y2E=\n    server: \
             https://10.0.0.11:6443\n  name: tokyo0\ncontexts:\n- context:\n    cluster: tokyo0\n    user: admin\n  \
             name: default\ncurrent-context: default\nkind: Config\npreferences: {}\nusers:\n- name: admin\n  user:\n    \
             client-certificate-data: Y2VydA==\n    client-key-data: a2V5\n\n"
        );
    }

    #[test]
    fn names_that_yaml_takes_for_something_else_are_quoted() {
        for name in ["admin", "cke:user:alice", "a.b-c@d"] {
            assert_eq!(word(name), name);
        }
        for name in ["true", "No", "1", "0x10", "a: b", "a#", "-", "ä", "", "a:"] {
            assert_eq!(word(name), format!("{name:?}"), "{name}");
        }
    }
}
