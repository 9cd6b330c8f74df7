//! The encryption of Secrets in etcd: its keys, and the file of the API servers.

use madako_json::go::go_object;
use madako_json::strict::Tree;
use madako_protocol::secret::Secret;

/// A key of AES-CBC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptionKey {
    /// The time of its making in RFC 3339.
    pub name: String,
    /// 32 bytes in Base64.
    pub secret: Secret,
}

go_object! {
    #[derive(Clone, Default)]
    pub struct StoredKeys {
        pub keys: Vec<StoredKey> = "keys";
        ..drop
    }
}

go_object! {
    #[derive(Clone, Default)]
    pub struct StoredKey {
        pub name: String = "name";
        pub secret: String = "secret";
        ..drop
    }
}

/// Reads the keys as CKE stores them in Vault: `{"keys": [{"name": NAME, "secret": BASE64}]}`. The first one encrypts.
///
/// # Errors
/// The text has another shape. The error contains no part of a key.
pub fn read(stored: &str) -> Result<Vec<EncryptionKey>, UnreadableKeys> {
    let stored: StoredKeys = serde_json::from_str(stored).map_err(|_| UnreadableKeys)?;
    if stored.keys.is_empty() || stored.keys.iter().any(|key| key.name.is_empty() || key.secret.is_empty()) {
        return Err(UnreadableKeys);
    }
    Ok(stored
        .keys
        .into_iter()
        .map(|key| EncryptionKey { name: key.name, secret: Secret::new(key.secret) })
        .collect())
}

/// The stored keys have another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(r#"the encryption keys of the API servers are not readable: expected {{"keys": [{{"name": NAME, "secret": BASE64}}]}}"#)]
pub struct UnreadableKeys;

/// The file of the API servers: the first key encrypts, and each one decrypts. Values that were never encrypted stay
/// readable.
#[must_use]
pub fn encryption_configuration(keys: &[EncryptionKey]) -> Secret {
    let quoted = |text: &str| Tree::Text(text.to_owned()).to_string();
    let keys: String = keys
        .iter()
        .map(|key| {
            format!("      - name: {}\n        secret: {}\n", quoted(&key.name), quoted(key.secret.reveal()))
        })
        .collect();
    Secret::new(format!(
        "apiVersion: apiserver.config.k8s.io/v1\n\
         kind: EncryptionConfiguration\n\
         resources:\n\
         - providers:\n  \
           - aescbc:\n      \
               keys:\n\
         {keys}  \
           - identity: {{}}\n  \
           resources:\n  \
           - secrets\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_another_shape_are_refused_without_their_text() {
        for text in
            ["", "{}", "hunter2", r#"{"keys": [{"name": "a"}]}"#, r#"{"keys": [{"secret": "hunter2"}]}"#]
        {
            let error = read(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_first_key_encrypts() {
        let text = r#"{"keys": [{"name": "2024-01-01T00:00:00Z", "secret": "bmV3"}, {"name": "b", "secret": "b2xk"}]}"#;
        let keys = read(text).unwrap();
        assert!(!format!("{keys:?}").contains("bmV3"));
        let file = encryption_configuration(&keys);
        let (new, old) = (file.reveal().find("bmV3").unwrap(), file.reveal().find("b2xk").unwrap());
        assert!(
            new < old && file.reveal().contains("- name: \"2024-01-01T00:00:00Z\"\n"),
            "{}",
            file.reveal()
        );
    }
}
