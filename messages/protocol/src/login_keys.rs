//! The port to the private keys for logins on nodes.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::secret::Secret;

/// The keys of one source: by the address of a node, and a default key under the empty address.
///
/// A key that cannot be read concerns only the nodes that need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoginKeys(pub BTreeMap<String, Result<Secret, LoginKeysError>>);

impl LoginKeys {
    /// The key of a node, or the default key.
    #[must_use]
    pub fn key_for(&self, address: &str) -> Option<Result<&Secret, &LoginKeysError>> {
        self.0.get(address).or_else(|| self.0.get("")).map(Result::as_ref)
    }
}

/// The reason why keys cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the SSH keys in {place}: {why}")]
pub struct LoginKeysError {
    /// The store, Vault, or the file that has the keys, for messages.
    pub place: String,
    /// The reason, without a part of a key.
    pub why: String,
}

/// The port to the sources of private keys.
#[async_trait]
pub trait LoginKeySource: Send + Sync + 'static {
    /// All keys. The first source with a key of a node counts.
    ///
    /// # Errors
    /// A source cannot be read. A later source is not a substitute, since a node may need the key of the first one.
    async fn read(&self) -> Result<Vec<LoginKeys>, LoginKeysError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_node_counts_before_the_default() {
        let keys = |given: &[&str]| {
            LoginKeys(
                given.iter().map(|at| ((*at).to_owned(), Ok(Secret::new(format!("key of {at}"))))).collect(),
            )
        };
        let both = keys(&["", "10.0.0.1"]);
        assert_eq!(both.key_for("10.0.0.1"), Some(Ok(&Secret::new("key of 10.0.0.1"))));
        assert_eq!(both.key_for("10.0.0.2"), Some(Ok(&Secret::new("key of "))));
        assert_eq!(keys(&["10.0.0.1"]).key_for("10.0.0.2"), None);
    }
}
