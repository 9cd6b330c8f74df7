//! Writes the kubeconfigs of Kubernetes' components and of administrators, in the form of `ckecli`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madako_domain::cluster::Node;
use madako_protocol::secret::Secret;

use super::paths::pki_path;

/// The rivers of the node.
pub const LOCAL_SERVER: &str = "https://localhost:16443";

/// The certificates of a kubeconfig, in PEM.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    /// Certificate of the servers' authority.
    pub trusted: &'a str,
    pub certificate: &'a str,
    pub key: &'a Secret,
}

/// A kubeconfig of a user, with its credentials in it.
#[must_use]
pub fn kubeconfig_with_inline_credentials(
    cluster: &str,
    user: &str,
    server: &str,
    credentials: &Credentials<'_>,
) -> Secret {
    let encoded = |name: &str, text: &str| format!("{name}-data: {}", STANDARD.encode(text));
    Secret::new(format_kubeconfig(
        cluster,
        user,
        server,
        &encoded("certificate-authority", credentials.trusted),
        &encoded("client-certificate", credentials.certificate),
        &encoded("client-key", credentials.key.reveal()),
    ))
}

/// The kubeconfig of a kubelet, which names its files.
#[must_use]
pub fn kubelet_kubeconfig(cluster: &str, node: &Node) -> String {
    format_kubeconfig(
        cluster,
        &format!("system:node:{}", node.name()),
        LOCAL_SERVER,
        &format!("certificate-authority: {}", pki_path("ca.crt")),
        &format!("client-certificate: {}", pki_path("kubelet.crt")),
        &format!("client-key: {}", pki_path("kubelet.key")),
    )
}

fn format_kubeconfig(
    cluster: &str,
    user: &str,
    server: &str,
    trusted: &str,
    certificate: &str,
    key: &str,
) -> String {
    let (cluster, user) = (quote_word(cluster), quote_word(user));
    format!(
        "apiVersion: v1\n\
         clusters:\n\
         - cluster:\n    \
             {trusted}\n    \
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
             {certificate}\n    \
             {key}\n"
    )
}

/// A text in YAML: plain where no reader can take it for something else, else in quotes.
fn quote_word(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c));
    let means_more = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    if is_plain && !means_more.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        // A string of JSON is one of YAML.
        madako_json::strict::Tree::Text(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_has_the_form_of_ckecli() {
        let key = Secret::new("key");
        let credentials = Credentials { trusted: "ca", certificate: "cert", key: &key };
        let text =
            kubeconfig_with_inline_credentials("tokyo0", "admin", "https://10.0.0.11:6443", &credentials);
        assert_eq!(
            text.reveal(),
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Y2E=\n    server: \
             https://10.0.0.11:6443\n  name: tokyo0\ncontexts:\n- context:\n    cluster: tokyo0\n    user: admin\n  \
             name: default\ncurrent-context: default\nkind: Config\npreferences: {}\nusers:\n- name: admin\n  user:\n    \
             client-certificate-data: Y2VydA==\n    client-key-data: a2V5\n"
        );
    }

    #[test]
    fn names_that_yaml_takes_for_something_else_are_quoted() {
        for name in ["admin", "cke:user:alice", "a.b-c@d"] {
            assert_eq!(quote_word(name), name);
        }
        for name in ["true", "No", "1", "0x10", "a: b", "a#", "-", "ä", "", "a:"] {
            assert_eq!(quote_word(name), format!("{name:?}"), "{name}");
        }
    }
}
