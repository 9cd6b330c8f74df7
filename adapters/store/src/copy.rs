//! A copy of what the store holds, at one revision, for whoever works on it elsewhere.
//!
//! Guarantees: a [`CopyReader`] sends range requests, and the one that a user and a password need: by its type there is no way to a
//! lease, a campaign or a write. Only what is asked for leaves the store, and all of it is of one revision.
//!
//! Does not: keep a copy, or show its values, secrets as they may be.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use madako_domain::placement::objects::Stored;
use madako_domain::store::{Entry, StoreError};

use crate::config::{ConfigError, StoreConfig};
use crate::error::revision_is_gone;
use crate::limits::COPY_TRIES;
use crate::lines::{Failed, Lines, Target};
use crate::list::{What, list};
use crate::namespace::Namespace;
use crate::objects::decoded;
use crate::sealing::Sealing;

/// Reads the store, and can do nothing else with it.
pub struct CopyReader {
    lines: Lines,
    prefix: Namespace,
}

/// Keys and what they hold, at one revision. Values are not shown: there may be secrets among them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keyspace {
    /// The revision.
    pub revision: i64,
    /// Keys below the prefix, relative to it.
    pub own: BTreeMap<String, Entry>,
    /// Keys at the root, as the store has them.
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
    /// Placement's resources among the keys at the root, opened with the keys that there are, and the keys of those that cannot
    /// be read, each with the reason.
    #[must_use]
    pub fn resources(&self, sealing: &Sealing) -> (Vec<Arc<Stored>>, Vec<(String, String)>) {
        let (mut resources, mut unread) = (Vec::new(), Vec::new());
        for (key, entry) in &self.root {
            match decoded(key, entry, sealing) {
                Ok(stored) => resources.push(stored),
                Err(why) => unread.push((key.clone(), why)),
            }
        }
        (resources, unread)
    }
}

impl CopyReader {
    /// At the configured endpoints. Dials nothing yet.
    ///
    /// # Errors
    /// A setting that cannot be used.
    pub fn open(config: &StoreConfig, seed: u64) -> Result<Self, ConfigError> {
        let targets =
            config.dialled()?.into_iter().map(|(name, endpoint)| Target::Endpoint(name, Box::new(endpoint)));
        let lines = Lines::new(targets.collect(), config, seed)?;
        Ok(Self { lines, prefix: Namespace::new(&config.prefix) })
    }

    /// Every key that begins with one of these, below the configured prefix (`own`) and at the root.
    ///
    /// # Errors
    /// The store does not answer, refuses, or holds more there than a list may have.
    pub async fn read(&self, own: &[&str], root: &[&str]) -> Result<Keyspace, StoreError> {
        let mut tries = 1;
        loop {
            match self.at_one_revision(own, root).await {
                Err(failed) if tries < COPY_TRIES && failed.seen.as_ref().is_some_and(revision_is_gone) => {
                    tries += 1;
                }
                done => return Ok(done?),
            }
        }
    }

    async fn at_one_revision(&self, own: &[&str], root: &[&str]) -> Result<Keyspace, Failed> {
        let mut copy = Keyspace::default();
        for prefix in own {
            let snapshot = list(&self.lines, &self.prefix, prefix, What::All, copy.revision).await?;
            copy.revision = snapshot.revision;
            copy.own.extend(snapshot.entries);
        }
        let namespace = Namespace::new("");
        for prefix in root {
            let snapshot = list(&self.lines, &namespace, prefix, What::All, copy.revision).await?;
            copy.revision = snapshot.revision;
            copy.root.extend(snapshot.entries);
        }
        Ok(copy)
    }
}
