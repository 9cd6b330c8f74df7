//! The keys that a watch delivers with their values: all keys, or those below some prefixes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use madako_domain::store::Snapshot;

use super::assembly::{DeliveredState, KeyFingerprint};
use crate::connections::{Connections, Failed};
use crate::list::{ReadExtent, list_keys};
use crate::namespace::Namespace;

/// Keys that are delivered with their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchedKeys {
    /// All keys. After an interruption, keys and their revisions identify the store.
    All,
    /// Keys with one of these prefixes; of other keys only the fact of a change. After an interruption, values identify
    /// the store too: a store that was wiped and refilled in the same steps is recognized as another one.
    Below(&'static [&'static str]),
}

impl WatchedKeys {
    /// True if a key is delivered with its value.
    pub(crate) fn includes(self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(prefixes) => prefixes.iter().any(|prefix| key.starts_with(prefix)),
        }
    }

    /// The fingerprint of a delivered key.
    pub(super) fn mark(self, key: &str, mod_revision: i64, value: &[u8]) -> KeyFingerprint {
        let value = match self {
            Self::Below(_) if self.includes(key) => {
                let mut hasher = DefaultHasher::new();
                value.hash(&mut hasher);
                hasher.finish()
            }
            _ => 0,
        };
        KeyFingerprint { mod_revision, value }
    }

    /// The present state: its fingerprints, and the snapshot to deliver.
    pub(super) async fn read(self, from: StoreReader<'_>) -> Result<(DeliveredState, Snapshot), Failed> {
        let StoreReader { connections, namespace, prefix } = from;
        let mut all = match self {
            Self::All => list_keys(connections, namespace, prefix, ReadExtent::All, 0).await?,
            Self::Below(_) => list_keys(connections, namespace, prefix, ReadExtent::Keys, 0).await?,
        };
        let revision = all.revision;
        self.fill(from, &mut all, revision).await?;
        let delivered = self.delivered_state(&all);
        all.entries.retain(|key, _| self.includes(key));
        Ok((delivered, all))
    }

    /// The store's fingerprints at a revision.
    pub(super) async fn read_at_revision(
        self,
        from: StoreReader<'_>,
        revision: i64,
    ) -> Result<DeliveredState, Failed> {
        let StoreReader { connections, namespace, prefix } = from;
        let mut all = list_keys(connections, namespace, prefix, ReadExtent::Keys, revision).await?;
        self.fill(from, &mut all, revision).await?;
        Ok(self.delivered_state(&all))
    }

    /// Adds the values of keys of interest.
    async fn fill(self, from: StoreReader<'_>, all: &mut Snapshot, revision: i64) -> Result<(), Failed> {
        let Self::Below(prefixes) = self else { return Ok(()) };
        for prefix in prefixes {
            // Most kinds have no resources at all.
            if !all
                .entries
                .range((*prefix).to_owned()..)
                .next()
                .is_some_and(|(key, _)| key.starts_with(prefix))
            {
                continue;
            }
            let below =
                list_keys(from.connections, from.namespace, prefix, ReadExtent::All, revision).await?;
            all.entries.extend(below.entries);
        }
        Ok(())
    }

    fn delivered_state(self, all: &Snapshot) -> DeliveredState {
        let mark = |(key, entry): (&String, &madako_domain::store::Entry)| {
            (key.clone(), self.mark(key, entry.mod_revision, &entry.value))
        };
        DeliveredState { revision: all.revision, keys: all.entries.iter().map(mark).collect() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct StoreReader<'a> {
    pub(super) connections: &'a Connections,
    pub(super) namespace: &'a Namespace,
    pub(super) prefix: &'a str,
}
