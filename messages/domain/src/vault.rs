//! The access to Vault that CKE keeps under the key `vault`, and the places in Vault that CKE uses.

use madako_json::go::go_object;
use madako_json::krake::scalar::Secret;

use crate::authority::Authority;

/// Path of the key-value store of version 1.
pub const SECRETS: &str = "cke/secrets";
/// Path of the private keys for logins on nodes: one field for each address, and a default key in the field "".
pub const SSH_SECRET: &str = "cke/secrets/ssh";
/// Path of the keys with which Kubernetes encrypts its secrets.
pub const KUBERNETES_SECRET: &str = "cke/secrets/k8s";

go_object! {
    /// The address of Vault, and the login by AppRole.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct VaultAccess {
        /// URL of the server.
        pub endpoint: String = "endpoint";
        /// The authority of the server's certificate in PEM; empty for those of the operating system.
        pub ca_cert: String = "ca-cert";
        /// Identifier of the role.
        pub role_id: String = "role-id";
        /// Secret of the role.
        pub secret_id: Secret = "secret-id";
        ..drop
    }
}

/// Path of the secrets engine `pki` of an authority.
#[must_use]
pub fn authority_mount(authority: Authority) -> String {
    format!("cke/ca-{authority}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_is_ckes_json_and_hides_its_secret() {
        let text = r#"{"endpoint":"https://vault:8200","ca-cert":"","role-id":"r","secret-id":"hunter2"}"#;
        let access: VaultAccess = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&access).unwrap(), text);
        assert_eq!(access.secret_id.reveal(), "hunter2");
        assert!(!format!("{access:?}").contains("hunter2"), "{access:?}");
        let lenient = r#"{"Endpoint":"e","later":{"a":[1]},"ca-cert":null}"#;
        let access: VaultAccess = serde_json::from_str(lenient).unwrap();
        assert_eq!(access, VaultAccess { endpoint: "e".to_owned(), ..VaultAccess::default() });
    }

    #[test]
    fn each_authority_has_its_own_engine() {
        assert_eq!(authority_mount(Authority::KubernetesWebhook), "cke/ca-kubernetes-webhook");
    }
}
