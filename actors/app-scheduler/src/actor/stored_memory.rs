//! Reads the scheduler's memory (last decisions, moves, clusters offline or unused) that an earlier leader wrote to
//! etcd.
//!
//! Guarantees: an unreadable value counts as absent and is reported by an event; the other values are read
//! nevertheless.

use std::collections::BTreeMap;

use madako_domain::keys;
use madako_domain::placement::decision::Decision;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::store::Snapshot;

use crate::memory::Memory;

#[derive(Default)]
pub(super) struct StoredMemory {
    pub(super) memory: Memory,
    pub(super) last: BTreeMap<ObjectKey, Decision>,
    /// Revision of the history of moves; 0: there is none.
    pub(super) moves_revision: i64,
}

/// Reads all keys below [`keys::PLACEMENT`].
pub(super) fn stored_memory(kept: &Snapshot) -> StoredMemory {
    let mut remembered = StoredMemory::default();
    let StoredMemory { memory, last, moves_revision } = &mut remembered;
    for (key, entry) in &kept.entries {
        let read = if let Some(name) = key.strip_prefix(keys::PLACEMENT_CLUSTERS) {
            serde_json::from_slice(&entry.value).map(|cluster| {
                memory.clusters.extend(key_of(Kind::Cluster, name).map(|key| (key, cluster)));
            })
        } else if let Some(name) = key.strip_prefix(keys::PLACEMENT_DECISIONS) {
            serde_json::from_slice(&entry.value).map(|decision| {
                last.extend(key_of(Kind::Application, name).map(|key| (key, decision)));
            })
        } else if key == keys::PLACEMENT_MOVES {
            *moves_revision = entry.mod_revision;
            serde_json::from_slice(&entry.value).map(|moves| memory.moves = moves)
        } else {
            Ok(())
        };
        if let Err(error) = read {
            tracing::warn!(
                key, %error,
                "a stored value of the scheduler cannot be read; the scheduler starts without it"
            );
        }
    }
    remembered
}

fn key_of(kind: Kind, name: &str) -> Option<ObjectKey> {
    let (namespace, name) = name.split_once('/')?;
    Some(ObjectKey::new(kind, Some(namespace), name))
}
