//! The hash of etcd's `HashKV`. Stores with the same history have the same hash.

use prost::Message;

use crate::crc32c::Crc32c;
use crate::file::StoredValues;
use crate::range::RecordSource;
use crate::record::Revision;
use crate::request_error::RequestError;
use crate::store::{Store, open_revisions};

/// Name of the bucket of changes in etcd's file; the hash includes it first.
const BUCKET: &[u8] = b"key";

/// A hash with the revisions that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashOfStore {
    pub(crate) hash: u32,
    pub(crate) revision: i64,
    pub(crate) current: i64,
    pub(crate) compacted: i64,
}

/// The hash of everything up to `requested`; 0 is the current revision.
pub(crate) fn hash_kv(store: &Store, requested: i64) -> Result<HashOfStore, RequestError> {
    let state = store.lock_state();
    let view = state.view;
    if requested > 0 && requested <= view.compacted {
        return Err(RequestError::Compacted);
    }
    if requested > view.current {
        return Err(RequestError::FutureRevision);
    }
    let revision = if requested == 0 { view.current } else { requested };
    let mut kept: Vec<_> = state.index.hashed_revisions_at(revision, view.compacted).collect();
    let snapshot = store.take_snapshot()?;
    drop(state);
    kept.sort_unstable();
    let table = open_revisions(&snapshot)?;
    let values = StoredValues(&table);
    let mut crc = Crc32c::new();
    crc.update(BUCKET);
    for revision in kept {
        let mut pair = values.key_value_at(revision)?;
        let tombstone = pair.version == 0;
        if tombstone {
            // Of a deletion, etcd stores only the key.
            pair.mod_revision = 0;
        }
        crc.update(&etcd_key(revision, tombstone));
        crc.update(&pair.encode_to_vec());
    }
    Ok(HashOfStore { hash: crc.finish(), revision, current: view.current, compacted: view.compacted })
}

/// Encoding of a revision in etcd's file.
pub(crate) fn etcd_key(revision: Revision, tombstone: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(18);
    key.extend_from_slice(&revision.main.to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&i64::from(revision.sub).to_be_bytes());
    if tombstone {
        key.push(b't');
    }
    key
}
