//! Snapshots in etcd's own file format: `etcdctl snapshot status` and `snapshot restore` accept them, and a real etcd
//! can continue from this store's state.
//!
//! Two passes over one read transaction: the first computes the place of each page, the second produces the pages.
//! Memory is bounded by one page of changes and a small entry per leaf, regardless of the size of the store.

mod bolt;
mod read;

use std::ops::Bound;

use etcd_client::proto::PbSnapshotResponse;
use prost::Message;
use redb::{ReadTransaction, ReadableTable};
use tokio::sync::mpsc;
use tonic::Status;

use crate::failure::Snapshot as ReadableRevisions;
use crate::file::{LEASES, META, meta};
use crate::hash::etcd_key;
use crate::limits::SNAPSHOT_PART_BYTES;
use crate::record::{REVISION_BYTES, Record, Revision};
use crate::request_error::RequestError;
use crate::store::{StoredRevisions, open_revisions};
use bolt::{Bucket, Entry, FilePlan, LeafBuilder};

pub use read::{Snapshot, SnapshotError};

/// A lease as etcd stores it (its `leasepb.Lease`).
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

/// Sends the snapshot followed by its SHA-256, as etcd does.
pub(crate) async fn send_snapshot(
    snapshot: ReadableRevisions,
    parts: &mpsc::Sender<Result<PbSnapshotResponse, Status>>,
) -> Result<(), RequestError> {
    let revisions = open_revisions(&snapshot)?;
    let mut plan = FilePlan::new(read_small_buckets(&snapshot, &revisions)?);
    let mut next = Some(Revision::first_in_transaction(0));
    while let Some(from) = next {
        let (leaf, rest) = build_leaf(&revisions, from)?;
        if let Some(first_key) = leaf.first_key() {
            plan.add_leaf(first_key.to_vec(), leaf.count_pages());
        }
        next = rest;
        tokio::task::yield_now().await;
    }
    let mut sender = Sender {
        parts,
        remaining: plan.file_size(),
        buffer: Vec::with_capacity(SNAPSHOT_PART_BYTES),
        digest: ring::digest::Context::new(&ring::digest::SHA256),
    };
    sender.push(&plan.write_head()).await?;
    let mut next = Some(Revision::first_in_transaction(0));
    let mut pages = plan.leaf_pages();
    while let Some(from) = next {
        let (leaf, rest) = build_leaf(&revisions, from)?;
        if leaf.first_key().is_some() {
            let page =
                pages.next().ok_or_else(|| internal_error(&"the store changed during the snapshot"))?;
            sender.push(&leaf.build(page)).await?;
        }
        next = rest;
    }
    sender.push(&plan.write_branches()).await?;
    sender.finish().await
}

/// The changes from `from` on that fit into a leaf, and the start of the next leaf.
fn build_leaf(
    revisions: &StoredRevisions,
    from: Revision,
) -> Result<(LeafBuilder, Option<Revision>), RequestError> {
    let start = from.to_bytes();
    let bounds = (Bound::Included(&start), Bound::Unbounded);
    let mut leaf = LeafBuilder::default();
    for entry in revisions.range::<&[u8; REVISION_BYTES]>(bounds).map_err(|error| internal_error(&error))? {
        let (revision, stored) = entry.map_err(|error| internal_error(&error))?;
        let revision = Revision::from_bytes(revision.value());
        if leaf.is_full() {
            return Ok((leaf, Some(revision)));
        }
        let record = Record::decode(revision, stored.value()).ok_or(RequestError::Corrupt)?;
        leaf.push(etcd_entry(revision, record));
    }
    Ok((leaf, None))
}

/// A change as etcd stores it; of a deletion only the key.
fn etcd_entry(revision: Revision, record: Record<'_>) -> Entry {
    let tombstone = record.is_tombstone();
    let mut pair = record.to_key_value(revision);
    if tombstone {
        pair.mod_revision = 0;
    }
    Entry { key: etcd_key(revision, tombstone), value: pair.encode_to_vec() }
}

/// All buckets except the one of changes. The names are etcd's; etcd expects the empty ones to exist.
fn read_small_buckets(
    snapshot: &ReadTransaction,
    revisions: &StoredRevisions,
) -> Result<Vec<Bucket>, RequestError> {
    let mut leases = Vec::new();
    let stored = snapshot.open_table(LEASES).map_err(|error| internal_error(&error))?;
    for lease in stored.iter().map_err(|error| internal_error(&error))? {
        let (id, ttl) = lease.map_err(|error| internal_error(&error))?;
        let (id, ttl) = (id.value(), ttl.value());
        leases.push(Entry { key: id.to_be_bytes().to_vec(), value: StoredLease { id, ttl }.encode_to_vec() });
    }
    // As bytes, negative ids sort after the others.
    leases.sort_by(|a, b| a.key.cmp(&b.key));
    let numbers = snapshot.open_table(META).map_err(|error| internal_error(&error))?;
    let compacted = numbers
        .get(meta::COMPACTED_PLUS_ONE)
        .map_err(|error| internal_error(&error))?
        .map_or(-1, |number| number.value() as i64 - 1);
    let current = match revisions.last().map_err(|error| internal_error(&error))? {
        Some((revision, _)) => Revision::from_bytes(revision.value()).main,
        None => 1,
    };
    let mut counters =
        vec![Entry { key: b"consistent_index".to_vec(), value: current.to_be_bytes().to_vec() }];
    if compacted > 0 {
        let revision = etcd_key(Revision::first_in_transaction(compacted), false);
        counters.push(Entry { key: b"finishedCompactRev".to_vec(), value: revision.clone() });
        counters.push(Entry { key: b"scheduledCompactRev".to_vec(), value: revision });
    }
    let empty = |name: &'static str| Bucket { name, entries: Vec::new() };
    Ok(vec![
        empty("alarm"),
        empty("auth"),
        empty("authRoles"),
        empty("authUsers"),
        empty("cluster"),
        // The bucket of changes; the plan fills it.
        empty(bolt::CHANGES),
        Bucket { name: "lease", entries: leases },
        empty("members"),
        empty("members_removed"),
        Bucket { name: "meta", entries: counters },
    ])
}

/// Splits pushed bytes into messages.
struct Sender<'a> {
    parts: &'a mpsc::Sender<Result<PbSnapshotResponse, Status>>,
    remaining: u64,
    buffer: Vec<u8>,
    digest: ring::digest::Context,
}

impl Sender<'_> {
    async fn push(&mut self, mut bytes: &[u8]) -> Result<(), RequestError> {
        self.digest.update(bytes);
        while !bytes.is_empty() {
            let take = bytes.len().min(SNAPSHOT_PART_BYTES - self.buffer.len());
            let (part, rest) = bytes.split_at(take);
            self.buffer.extend_from_slice(part);
            bytes = rest;
            if self.buffer.len() == SNAPSHOT_PART_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), RequestError> {
        let blob = std::mem::replace(&mut self.buffer, Vec::with_capacity(SNAPSHOT_PART_BYTES));
        self.remaining = self.remaining.saturating_sub(blob.len() as u64);
        self.send(blob).await
    }

    async fn send(&self, blob: Vec<u8>) -> Result<(), RequestError> {
        let part =
            PbSnapshotResponse { remaining_bytes: self.remaining, blob, ..PbSnapshotResponse::default() };
        self.parts.send(Ok(part)).await.map_err(|_| RequestError::Stopped)
    }

    async fn finish(mut self) -> Result<(), RequestError> {
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        let digest = self.digest.clone().finish();
        self.send(digest.as_ref().to_vec()).await
    }
}

fn internal_error(error: &dyn std::fmt::Display) -> RequestError {
    RequestError::Failed(format!("making a snapshot: {error}"))
}
