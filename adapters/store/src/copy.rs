//! Reads a copy of the store's keys at one revision.
//!
//! Guarantees: a [`CopyReader`] only sends range requests and the authentication by password; its type offers no
//! leases, campaigns or writes. It reads only the requested keys, all at one revision.
//!
//! Does not: keep a copy, or show values in `Debug`, because they may be secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use madako_domain::placement::objects::Stored;
use madako_domain::store::{Entry, StoreError};

use crate::config::{ConfigError, StoreConfig};
use crate::connections::{Connections, Failed, Target};
use crate::encryption::Encryption;
use crate::error::revision_is_gone;
use crate::limits::COPY_TRIES;
use crate::list::{ReadExtent, list_keys};
use crate::namespace::Namespace;
use crate::objects::decode_entry;

pub struct CopyReader {
    connections: Connections,
    prefix: Namespace,
}

/// Keys and values at one revision. `Debug` hides the values, which may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keyspace {
    pub revision: i64,
    /// Keys below the prefix, relative to it.
    pub own: BTreeMap<String, Entry>,
    /// Keys at the root, as in etcd.
    pub root: BTreeMap<String, Entry>,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace")
            .field("revision", &self.revision)
            .field("own", &self.own.keys())
            .field("root", &self.root.keys())
            .finish()
    }
}

impl Keyspace {
    /// Placement's resources among the keys at the root, decrypted with the available keys; and the keys of unreadable
    /// ones, each with the reason.
    #[must_use]
    pub fn decode_resources(&self, encryption: &Encryption) -> (Vec<Arc<Stored>>, Vec<(String, String)>) {
        let (mut resources, mut unread) = (Vec::new(), Vec::new());
        for (key, entry) in &self.root {
            match decode_entry(key, entry, encryption) {
                Ok(stored) => resources.push(stored),
                Err(why) => unread.push((key.clone(), why)),
            }
        }
        (resources, unread)
    }
}

impl CopyReader {
    /// Uses the configured endpoints. Opens no connection yet.
    ///
    /// # Errors
    /// An invalid setting.
    pub fn open(config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        let targets = config
            .dial_endpoints()?
            .into_iter()
            .map(|(name, endpoint)| Target::Endpoint(name, Box::new(endpoint)));
        let connections = Connections::new(targets.collect(), config, seed)?;
        Ok(Self { connections, prefix: Namespace::new(&config.prefix) })
    }

    /// Every key with one of these prefixes, below the configured prefix (`own`) and at the root.
    ///
    /// # Errors
    /// The store does not answer, refuses, or has more keys there than the limit of a list.
    pub async fn read(&self, own: &[&str], root: &[&str]) -> Result<Keyspace, StoreError> {
        let mut tries = 1;
        loop {
            match self.read_at_one_revision(own, root).await {
                Err(failed) if tries < COPY_TRIES && failed.source.as_ref().is_some_and(revision_is_gone) => {
                    tries += 1;
                }
                done => return Ok(done?),
            }
        }
    }

    async fn read_at_one_revision(&self, own: &[&str], root: &[&str]) -> Result<Keyspace, Failed> {
        let mut copy = Keyspace::default();
        for prefix in own {
            let snapshot =
                list_keys(&self.connections, &self.prefix, prefix, ReadExtent::All, copy.revision).await?;
            copy.revision = snapshot.revision;
            copy.own.extend(snapshot.entries);
        }
        let namespace = Namespace::new("");
        for prefix in root {
            let snapshot =
                list_keys(&self.connections, &namespace, prefix, ReadExtent::All, copy.revision).await?;
            copy.revision = snapshot.revision;
            copy.root.extend(snapshot.entries);
        }
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_decoded_and_unreadable_keys_have_a_reason() {
        let entry = |value: &'static str| Entry {
            value: value.as_bytes().into(),
            create_revision: 3,
            mod_revision: 7,
            lease: 0,
        };
        let role = r#"{"api": "core", "kind": "Role", "rules": [],
            "metadata": {"name": "r", "uid": "u", "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00"}}"#;
        let root = [("/core/roles/r", role), ("/core/roles/torn", "{")];
        let copy = Keyspace {
            revision: 9,
            root: root.map(|(key, value)| (key.to_owned(), entry(value))).into(),
            ..Keyspace::default()
        };
        let (resources, unread) = copy.decode_resources(&Encryption::default());
        let read: Vec<_> = resources.iter().map(|it| (it.key.name.as_str(), it.mod_revision)).collect();
        assert_eq!(read, [("r", 7)], "{unread:?}");
        let [(key, why)] = &unread[..] else { panic!("{unread:?}") };
        assert_eq!(key, "/core/roles/torn");
        assert!(!why.is_empty());
    }
}
