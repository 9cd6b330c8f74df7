//! Applies the writes of one group commit before it reaches the file. Writes are applied one after another; each sees
//! the earlier ones.
//!
//! Guarantees: a refused write has no effect; a write that changes something gets its own revision. Readers see nothing
//! of a batch: their view ends before its first revision.

use std::sync::Arc;

use etcd_client::proto::{
    PbDeleteRequest, PbDeleteResponse, PbEvent, PbKeyValue, PbPutRequest, PbPutResponse, PbResponseOp,
    PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnResponse,
};
use redb::{Table, WriteTransaction};

use crate::file::{LEASES, META, OWNED_LEASES, StoredValues, meta};
use crate::index::{Change, SupersededChange};
use crate::leases::{LeaseChange, LeaseTable, MAX_TTL_SECONDS, MIN_TTL_SECONDS};
use crate::random::SplitMix64;
use crate::range::{RangePlan, ReadableRevisions, RecordSource};
use crate::recent::{DELETE, RevisionEvents};
use crate::record::{REVISION_BYTES, Record, Revision};
use crate::request_error::RequestError;
use crate::span::Span;
use crate::store::{Answer, Store};
use crate::txn::{Path, check_ranges, header_with_revision, select_branch};

/// State of the writer, ahead of the file.
#[derive(Debug)]
pub(crate) struct WriterHead {
    pub(crate) view: ReadableRevisions,
    pub(crate) leases: LeaseTable,
    pub(crate) alarms: u64,
    pub(crate) lease_ids: SplitMix64,
}

/// Changes of a batch, for publication after the commit.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) revisions: Vec<RevisionEvents>,
    pub(crate) leases: Vec<LeaseChange>,
    pub(crate) compacted: Option<i64>,
    pub(crate) alarms: Option<u64>,
    pub(crate) bytes_added: u64,
    pub(crate) bytes_removed: u64,
    /// True if the batch must be committed to the file.
    pub(crate) touched: bool,
}

pub(crate) struct Batch<'a> {
    store: &'a Store,
    head: &'a mut WriterHead,
    transaction: &'a WriteTransaction,
    table: Table<'a, &'static [u8; REVISION_BYTES], &'static [u8]>,
    changes: Changes,
    /// Puts are refused for lack of space.
    full: bool,
    events: Vec<PbEvent>,
    lease_changes: Vec<LeaseChange>,
    buffer: Vec<u8>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        store: &'a Store,
        head: &'a mut WriterHead,
        transaction: &'a WriteTransaction,
        table: Table<'a, &'static [u8; REVISION_BYTES], &'static [u8]>,
        full: bool,
    ) -> Self {
        Self {
            store,
            head,
            transaction,
            table,
            changes: Changes::default(),
            full,
            events: Vec::new(),
            lease_changes: Vec::new(),
            buffer: Vec::new(),
        }
    }

    pub(crate) fn finish(self) -> Changes {
        self.changes
    }

    pub(crate) fn put(&mut self, request: PbPutRequest) -> Result<Answer, RequestError> {
        self.refuse_when_full()?;
        if request.lease != 0 && self.head.leases.get(request.lease).is_none() {
            return Err(RequestError::LeaseNotFound);
        }
        let response = self.apply_put(request);
        self.end_write(response).map(Answer::Put)
    }

    pub(crate) fn delete(&mut self, request: &PbDeleteRequest) -> Result<Answer, RequestError> {
        let response = self.apply_delete(request);
        self.end_write(response).map(Answer::Delete)
    }

    pub(crate) fn apply_transaction(&mut self, request: &PbTxnRequest) -> Result<Answer, RequestError> {
        if contains_put(request) {
            self.refuse_when_full()?;
        }
        let path = {
            let state = self.store.lock_state();
            let path =
                Path::decide(&state.index, self.head.view.current, &StoredValues(&self.table), request)?;
            self.check_puts(&state.index, request, &path)?;
            path
        };
        check_ranges(request, &path, self.head.view)?;
        let response = self.apply_txn(request, &path);
        let mut response = self.end_write(response)?;
        response.header = Some(header_with_revision(self.head.view.current));
        Ok(Answer::Txn(response))
    }

    pub(crate) fn compact(&mut self, main: i64) -> Result<i64, RequestError> {
        if main <= self.head.view.compacted {
            return Err(RequestError::Compacted);
        }
        if main > self.head.view.current {
            return Err(RequestError::FutureRevision);
        }
        self.set_number(meta::COMPACTED_PLUS_ONE, (main + 1) as u64)?;
        self.head.view.compacted = main;
        self.changes.compacted = Some(main);
        Ok(self.head.view.current)
    }

    /// Grants a lease. The same transaction records the lease's owner, so a crash cannot separate them.
    pub(crate) fn grant(
        &mut self,
        id: i64,
        ttl_seconds: i64,
        owner: Option<Arc<str>>,
    ) -> Result<Answer, RequestError> {
        if ttl_seconds > MAX_TTL_SECONDS {
            return Err(RequestError::LeaseTtlTooLarge);
        }
        let id = if id == 0 { self.new_lease_id() } else { id };
        if self.head.leases.get(id).is_some() {
            return Err(RequestError::LeaseExists);
        }
        self.refuse_when_full()?;
        let ttl_seconds = ttl_seconds.max(MIN_TTL_SECONDS);
        let mut leases = self.transaction.open_table(LEASES).map_err(|error| internal_error(&error))?;
        leases.insert(id, ttl_seconds).map_err(|error| internal_error(&error))?;
        if let Some(owner) = &owner {
            let mut owners =
                self.transaction.open_table(OWNED_LEASES).map_err(|error| internal_error(&error))?;
            owners.insert(id, &**owner).map_err(|error| internal_error(&error))?;
        }
        self.change_lease(LeaseChange::Granted { id, ttl_seconds, owner });
        let granted = self.end_write(Ok(()));
        granted.map(|()| Answer::Granted { id, ttl_seconds, revision: self.head.view.current })
    }

    pub(crate) fn revoke(&mut self, id: i64) -> Result<Answer, RequestError> {
        let lease = self.head.leases.get(id).ok_or(RequestError::LeaseNotFound)?;
        let (keys, is_owned) = (lease.keys.iter().cloned().collect::<Vec<_>>(), lease.owner.is_some());
        {
            let mut leases = self.transaction.open_table(LEASES).map_err(|error| internal_error(&error))?;
            leases.remove(id).map_err(|error| internal_error(&error))?;
        }
        if is_owned {
            let mut owners =
                self.transaction.open_table(OWNED_LEASES).map_err(|error| internal_error(&error))?;
            owners.remove(id).map_err(|error| internal_error(&error))?;
        }
        let deleted = keys.into_iter().try_for_each(|key| {
            self.apply_delete(&PbDeleteRequest { key, ..PbDeleteRequest::default() }).map(|_| ())
        });
        self.change_lease(LeaseChange::Revoked { id });
        self.end_write(deleted).map(|()| Answer::Done { revision: self.head.view.current })
    }

    pub(crate) fn set_alarms(&mut self, alarms: u64) -> Result<Answer, RequestError> {
        self.set_number(meta::ALARMS, alarms)?;
        self.head.alarms = alarms;
        self.changes.alarms = Some(alarms);
        Ok(Answer::Done { revision: self.head.view.current })
    }

    pub(crate) fn remove(&mut self, superseded: &[SupersededChange]) -> Result<(), RequestError> {
        for change in superseded {
            self.table.remove(&change.revision.to_bytes()).map_err(|error| internal_error(&error))?;
            self.changes.bytes_removed += u64::from(change.bytes);
            self.changes.touched = true;
        }
        Ok(())
    }

    fn refuse_when_full(&self) -> Result<(), RequestError> {
        if self.full { Err(RequestError::NoSpace) } else { Ok(()) }
    }

    /// Ends the current write: assigns its revision, or rolls it back.
    fn end_write<T>(&mut self, outcome: Result<T, RequestError>) -> Result<T, RequestError> {
        let events = std::mem::take(&mut self.events);
        let lease_changes = std::mem::take(&mut self.lease_changes);
        let main = self.head.view.current + 1;
        if outcome.is_err() {
            let mut state = self.store.state_mut();
            for (sub, event) in events.iter().enumerate().rev() {
                if let Some(kv) = &event.kv {
                    state.index.pop(&kv.key);
                }
                self.table
                    .remove(&Revision { main, sub: sub as u32 }.to_bytes())
                    .map_err(|error| internal_error(&error))?;
            }
            return outcome;
        }
        if !lease_changes.is_empty() {
            lease_changes.iter().for_each(|change| self.head.leases.apply(change));
            self.changes.leases.extend(lease_changes);
            self.changes.touched = true;
        }
        if !events.is_empty() {
            self.head.view.current = main;
            self.changes.touched = true;
            let events = RevisionEvents { main, events };
            self.changes.bytes_added += events.size_in_bytes() as u64;
            self.changes.revisions.push(events);
        }
        outcome
    }

    fn change_lease(&mut self, change: LeaseChange) {
        self.lease_changes.push(change);
    }

    /// The revision of the current write if it changes something.
    fn write_revision(&self) -> i64 {
        self.head.view.current + 1
    }

    /// The revision at which the current write reads the store.
    fn read_revision(&self) -> i64 {
        if self.events.is_empty() { self.head.view.current } else { self.write_revision() }
    }

    fn apply_put(&mut self, request: PbPutRequest) -> Result<PbPutResponse, RequestError> {
        let main = self.write_revision();
        let previous = self.store.lock_state().index.change_at(&request.key, main).copied();
        let mut previous_pair = None;
        if request.ignore_value || request.prev_kv {
            previous_pair = match previous {
                Some(change) => Some(StoredValues(&self.table).key_value_at(change.revision)?),
                None => None,
            };
        }
        let PbPutRequest { key, mut value, mut lease, prev_kv, ignore_value, ignore_lease } = request;
        if ignore_value || ignore_lease {
            let previous = previous.ok_or(RequestError::KeyNotFound)?;
            if ignore_lease {
                lease = previous.lease;
            }
            if ignore_value {
                value = previous_pair.as_ref().map(|pair| pair.value.clone()).unwrap_or_default();
            }
        }
        let create = previous.map_or(main, |change| change.create);
        let version = previous.map_or(1, |change| change.version + 1);
        self.write(&Record { key: &key, value: &value, create, version, lease })?;
        if let Some(id) = previous.map(|change| change.lease).filter(|id| *id != 0) {
            self.change_lease(LeaseChange::Detached { id, key: key.clone() });
        }
        if lease != 0 {
            self.change_lease(LeaseChange::Attached { id: lease, key: key.clone() });
        }
        let kv = PbKeyValue { key, create_revision: create, mod_revision: main, version, value, lease };
        self.events.push(PbEvent { r#type: 0, kv: Some(kv), prev_kv: None });
        Ok(PbPutResponse {
            header: Some(header_with_revision(main)),
            prev_kv: previous_pair.filter(|_| prev_kv),
        })
    }

    fn apply_delete(&mut self, request: &PbDeleteRequest) -> Result<PbDeleteResponse, RequestError> {
        let main = self.write_revision();
        let found: Vec<(Vec<u8>, Change)> = self
            .store
            .lock_state()
            .index
            .changes_in_range(Span::new(&request.key, &request.range_end), main)
            .map(|(key, change)| (key.to_vec(), *change))
            .collect();
        let mut prev_kvs = Vec::new();
        if request.prev_kv {
            for (_, change) in &found {
                prev_kvs.push(StoredValues(&self.table).key_value_at(change.revision)?);
            }
        }
        let deleted = found.len() as i64;
        for (key, change) in found {
            self.write(&Record { key: &key, value: &[], create: 0, version: 0, lease: 0 })?;
            if change.lease != 0 {
                self.change_lease(LeaseChange::Detached { id: change.lease, key: key.clone() });
            }
            let kv = PbKeyValue { key, mod_revision: main, ..PbKeyValue::default() };
            self.events.push(PbEvent { r#type: DELETE, kv: Some(kv), prev_kv: None });
        }
        Ok(PbDeleteResponse { header: Some(header_with_revision(self.read_revision())), deleted, prev_kvs })
    }

    fn apply_txn(&mut self, request: &PbTxnRequest, path: &Path) -> Result<PbTxnResponse, RequestError> {
        let mut nested = path.nested.iter();
        let mut responses = Vec::new();
        for operation in select_branch(request, path.succeeded) {
            let response = match &operation.request {
                Some(PbTxnOpRequest::RequestRange(range)) => {
                    let view = ReadableRevisions { current: self.read_revision(), ..self.head.view };
                    let plan = RangePlan::new(&self.store.lock_state().index, view, range)?;
                    PbTxnOpResponse::ResponseRange(
                        plan.finish(&StoredValues(&self.table), header_with_revision(view.current))?,
                    )
                }
                Some(PbTxnOpRequest::RequestPut(put)) => {
                    PbTxnOpResponse::ResponsePut(self.apply_put(put.clone())?)
                }
                Some(PbTxnOpRequest::RequestDeleteRange(delete)) => {
                    PbTxnOpResponse::ResponseDeleteRange(self.apply_delete(delete)?)
                }
                Some(PbTxnOpRequest::RequestTxn(inner)) => match nested.next() {
                    Some(path) => {
                        let mut response = self.apply_txn(inner, path)?;
                        response.header = Some(header_with_revision(0));
                        PbTxnOpResponse::ResponseTxn(response)
                    }
                    None => continue,
                },
                None => continue,
            };
            responses.push(PbResponseOp { response: Some(response) });
        }
        Ok(PbTxnResponse { header: None, succeeded: path.succeeded, responses })
    }

    /// Checks the preconditions of the puts in the chosen branches: an existing pair for `ignore_value` and
    /// `ignore_lease`, and an existing lease.
    fn check_puts(
        &self,
        index: &crate::index::Index,
        request: &PbTxnRequest,
        path: &Path,
    ) -> Result<(), RequestError> {
        let mut nested = path.nested.iter();
        for operation in select_branch(request, path.succeeded) {
            match &operation.request {
                Some(PbTxnOpRequest::RequestPut(put)) => {
                    let keeps = put.ignore_value || put.ignore_lease;
                    if keeps && index.change_at(&put.key, self.head.view.current).is_none() {
                        return Err(RequestError::KeyNotFound);
                    }
                    if put.lease != 0 && self.head.leases.get(put.lease).is_none() {
                        return Err(RequestError::LeaseNotFound);
                    }
                }
                Some(PbTxnOpRequest::RequestTxn(inner)) => {
                    if let Some(path) = nested.next() {
                        self.check_puts(index, inner, path)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the next change of the current write to the table and the index.
    fn write(&mut self, record: &Record<'_>) -> Result<(), RequestError> {
        let sub = u32::try_from(self.events.len()).map_err(|_| RequestError::TooManyOperations)?;
        let revision = Revision { main: self.write_revision(), sub };
        record.encode_into(revision, &mut self.buffer);
        self.table
            .insert(&revision.to_bytes(), self.buffer.as_slice())
            .map_err(|error| internal_error(&error))?;
        let change = Change {
            revision,
            create: record.create,
            version: record.version,
            lease: record.lease,
            bytes: (record.key.len() + record.value.len()) as u32,
        };
        self.store.state_mut().index.push(record.key, change);
        Ok(())
    }

    fn set_number(&mut self, name: &str, number: u64) -> Result<(), RequestError> {
        let mut numbers = self.transaction.open_table(META).map_err(|error| internal_error(&error))?;
        numbers.insert(name, number).map_err(|error| internal_error(&error))?;
        self.changes.touched = true;
        Ok(())
    }

    fn new_lease_id(&mut self) -> i64 {
        loop {
            let id = (self.head.lease_ids.next() & i64::MAX as u64) as i64;
            if id != 0 && self.head.leases.get(id).is_none() {
                return id;
            }
        }
    }
}

fn contains_put(request: &PbTxnRequest) -> bool {
    request.success.iter().chain(&request.failure).any(|operation| match &operation.request {
        Some(PbTxnOpRequest::RequestPut(_)) => true,
        Some(PbTxnOpRequest::RequestTxn(inner)) => contains_put(inner),
        _ => false,
    })
}

fn internal_error(error: &dyn std::fmt::Display) -> RequestError {
    RequestError::TakenBack(error.to_string())
}
