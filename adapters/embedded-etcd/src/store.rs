//! The store: the state that readers see, and the queue of the writer.
//!
//! Invariant: everything that [`State`] shows at its view's current revision is on disk. The writer advances the view,
//! and then answers, only after the sync. Lock order: `state` before `database`.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::BytesMut;
use etcd_client::proto::{
    PbDeleteRequest, PbDeleteResponse, PbEvent, PbKeyValue, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbResponseHeader, PbTxnRequest, PbTxnResponse,
};
use redb::{Database, ReadTransaction, ReadableDatabase};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::bell::{Latch, Latched, Listener, RevisionBell};
use crate::failure::{Failure, Snapshot};
use crate::file::{Disk, Identity, REVISIONS, StoredValues};
use crate::index::Index;
use crate::leases::{Renewal, TimedLeases};
pub(crate) use crate::limits::MAX_WAITING_WRITES;
use crate::limits::{MAX_EVENT_BYTES, MAX_EVENT_REVISIONS, MESSAGE_OVERHEAD_BYTES, WRITE_TIMEOUT};
use crate::range::{RangePlan, ReadableRevisions, RecordSource};
use crate::recent::{DELETE, RecentRevisions, RevisionEvents};
use crate::record::{Record, Revision};
use crate::request_error::RequestError;
use crate::txn;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) view: ReadableRevisions,
    pub(crate) leases: TimedLeases,
    pub(crate) recent: RecentRevisions,
    pub(crate) alarms: u64,
}

/// A change request to the writer.
#[derive(Debug)]
pub(crate) enum Operation {
    Put(PbPutRequest),
    Delete(PbDeleteRequest),
    Txn(PbTxnRequest),
    Compact { main: i64, physical: bool },
    Grant { id: i64, ttl_seconds: i64, owner: Option<Arc<str>> },
    Revoke { id: i64 },
    RevokeEnded,
    SetAlarms { alarms: u64 },
    Defragment,
    Close,
}

/// Result of an operation. Headers have only their revision.
#[derive(Debug)]
pub(crate) enum Answer {
    Put(PbPutResponse),
    Delete(PbDeleteResponse),
    Txn(PbTxnResponse),
    Granted { id: i64, ttl_seconds: i64, revision: i64 },
    Done { revision: i64 },
}

#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) operation: Operation,
    pub(crate) reply: oneshot::Sender<Result<Answer, RequestError>>,
}

/// Changes for watches, in order, and the revision up to which they are complete.
#[derive(Debug)]
pub(crate) struct EventBatch {
    pub(crate) revisions: Vec<Arc<RevisionEvents>>,
    pub(crate) upto: i64,
}

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) identity: Identity,
    pub(crate) disk: Arc<Disk>,
    /// Bytes of keys and values in the file.
    pub(crate) data_bytes: AtomicU64,
    pub(crate) max_request_bytes: usize,
    /// Current number of watches over all streams.
    pub(crate) watches: AtomicUsize,
    /// Notified when a lease is granted, because it may expire before the others.
    pub(crate) lease_granted: Notify,
    state: RwLock<State>,
    database: RwLock<Option<Database>>,
    pub(crate) failure: Failure,
    jobs: mpsc::Sender<WriteJob>,
    published: Arc<RevisionBell>,
    stopping: Latch,
}

impl Store {
    pub(crate) fn new(
        identity: Identity,
        disk: Arc<Disk>,
        database: Database,
        state: State,
        data_bytes: u64,
        max_request_bytes: usize,
        jobs: mpsc::Sender<WriteJob>,
    ) -> Self {
        Self {
            identity,
            disk,
            data_bytes: AtomicU64::new(data_bytes),
            max_request_bytes,
            watches: AtomicUsize::new(0),
            lease_granted: Notify::new(),
            published: Arc::new(RevisionBell::new(state.view.current)),
            state: RwLock::new(state),
            database: RwLock::new(Some(database)),
            failure: Failure::unset(),
            jobs,
            stopping: Latch::new(),
        }
    }

    // No code panics while it holds one of these locks with partial state, so a poisoned lock can be used.
    pub(crate) fn lock_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn database_mut(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, current: i64) {
        self.published.publish(current);
    }

    pub(crate) fn subscribe(&self) -> Listener {
        Listener::new(&self.published)
    }

    pub(crate) fn stop(&self) {
        self.stopping.set();
    }

    pub(crate) fn watch_stop(&self) -> Latched {
        self.stopping.subscribe()
    }

    /// Asks the writer to close if the queue has room; otherwise it closes when the queue is empty.
    pub(crate) fn close_soon(&self) {
        let (reply, _) = oneshot::channel();
        // The queue is full or closed already: nothing to do.
        let _ = self.jobs.try_send(WriteJob { operation: Operation::Close, reply });
    }

    pub(crate) fn response_header(&self, revision: i64) -> PbResponseHeader {
        PbResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.identity.term,
        }
    }

    pub(crate) fn current_header(&self) -> PbResponseHeader {
        self.response_header(self.lock_state().view.current)
    }

    /// Maximum size of a message; a larger one is not read.
    pub(crate) fn message_limit(&self) -> usize {
        self.max_request_bytes + MESSAGE_OVERHEAD_BYTES
    }

    /// Sends a change to the writer and waits until it is on disk.
    pub(crate) async fn write(&self, operation: Operation) -> Result<Answer, RequestError> {
        self.check_failure()?;
        self.submit(operation).await
    }

    /// Asks the writer to close the file, failed or not, and waits for it.
    pub(crate) async fn close(&self) -> Result<(), RequestError> {
        self.submit(Operation::Close).await.map(|_| ())
    }

    async fn submit(&self, operation: Operation) -> Result<Answer, RequestError> {
        let (reply, answer) = oneshot::channel();
        let send_and_wait = async {
            self.jobs.send(WriteJob { operation, reply }).await.map_err(|_| RequestError::Stopped)?;
            answer.await.map_err(|_| RequestError::Stopped)?
        };
        tokio::time::timeout(WRITE_TIMEOUT, send_and_wait).await.unwrap_or(Err(RequestError::TimedOut))
    }

    /// The plan of a range, the header of its answer, and the snapshot with its values.
    fn plan_range(
        &self,
        request: &PbRangeRequest,
    ) -> Result<(RangePlan, PbResponseHeader, Snapshot), RequestError> {
        let state = self.lock_state();
        let plan = RangePlan::new(&state.index, state.view, request)?;
        Ok((plan, self.response_header(state.view.current), self.take_snapshot()?))
    }

    pub(crate) fn read_range(&self, request: &PbRangeRequest) -> Result<PbRangeResponse, RequestError> {
        let (plan, header, snapshot) = self.plan_range(request)?;
        plan.finish(&StoredValues(&open_revisions(&snapshot)?), header)
    }

    /// The answer to a range as a message, with `room` bytes before it.
    pub(crate) fn encode_range(
        &self,
        request: &PbRangeRequest,
        room: usize,
    ) -> Result<BytesMut, RequestError> {
        let (plan, header, snapshot) = self.plan_range(request)?;
        plan.encode(&StoredValues(&open_revisions(&snapshot)?), header, room)
    }

    pub(crate) fn read_txn(&self, request: &PbTxnRequest) -> Result<PbTxnResponse, RequestError> {
        let state = self.lock_state();
        let snapshot = self.take_snapshot()?;
        let table = open_revisions(&snapshot)?;
        let mut response = txn::run_read_only(&state.index, state.view, &StoredValues(&table), request)?;
        response.header = Some(self.response_header(state.view.current));
        Ok(response)
    }

    /// The pair that a change at revision `main` replaced.
    pub(crate) fn find_pair_before(&self, key: &[u8], main: i64) -> Option<PbKeyValue> {
        let state = self.lock_state();
        let before = state.view.resolve(main - 1).ok()?;
        let change = state.index.change_at(key, before).copied()?;
        let snapshot = self.take_snapshot().ok()?;
        drop(state);
        StoredValues(&open_revisions(&snapshot).ok()?).key_value_at(change.revision).ok()
    }

    /// Changes from revision `from` on, as far as they are on disk. `from` must not be compacted.
    pub(crate) fn events_since(&self, from: i64) -> Result<EventBatch, RequestError> {
        let state = self.lock_state();
        let current = state.view.current;
        if from < state.view.compacted {
            return Err(RequestError::Compacted);
        }
        if let Some(recent) = state.recent.events_since(from) {
            let (mut revisions, mut bytes, mut upto) = (Vec::new(), 0, current);
            for events in recent.take_while(|events| events.main <= current) {
                if revisions.len() >= MAX_EVENT_REVISIONS || bytes > MAX_EVENT_BYTES {
                    upto = events.main - 1;
                    break;
                }
                bytes += events.size_in_bytes();
                revisions.push(Arc::clone(events));
            }
            return Ok(EventBatch { revisions, upto });
        }
        let snapshot = self.take_snapshot()?;
        drop(state);
        stored_events(&open_revisions(&snapshot)?, from, current)
    }

    pub(crate) fn renew(&self, id: i64) -> Renewal {
        self.state_mut().leases.renew(id, Instant::now())
    }

    /// The present contents of the file. A snapshot taken while the state is locked agrees with the index.
    pub(crate) fn take_snapshot(&self) -> Result<Snapshot, RequestError> {
        self.check_failure()?;
        match &*self.lock_database() {
            Some(database) => {
                let begun = database.begin_read().map_err(|error| RequestError::Failed(error.to_string()))?;
                Ok(Snapshot::new(begun, &self.failure))
            }
            None => Err(RequestError::Stopped),
        }
    }

    fn check_failure(&self) -> Result<(), RequestError> {
        self.failure.reason().map_or(Ok(()), |reason| Err(RequestError::Failed(reason)))
    }

    pub(crate) fn add_data_bytes(&self, added: u64, removed: u64) {
        self.data_bytes.fetch_add(added, Ordering::Relaxed);
        self.data_bytes.fetch_sub(removed, Ordering::Relaxed);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // After a panic within redb its locks are poisoned, and closing would panic again. The process ends.
        if self.failure.reason().is_some() {
            std::mem::forget(self.database_mut().take());
        }
    }
}

/// The table of changes in a snapshot.
pub(crate) type StoredRevisions =
    redb::ReadOnlyTable<&'static [u8; crate::record::REVISION_BYTES], &'static [u8]>;

pub(crate) fn open_revisions(snapshot: &ReadTransaction) -> Result<StoredRevisions, RequestError> {
    snapshot.open_table(REVISIONS).map_err(|error| RequestError::Failed(error.to_string()))
}

fn stored_events(table: &StoredRevisions, from: i64, current: i64) -> Result<EventBatch, RequestError> {
    let failed = |error: redb::StorageError| RequestError::Failed(error.to_string());
    let start = Revision::first_in_transaction(from.max(0)).to_bytes();
    let end = Revision::first_in_transaction(current + 1).to_bytes();
    let (mut revisions, mut bytes, mut upto): (Vec<RevisionEvents>, _, _) = (Vec::new(), 0, current);
    let bounds = (Bound::Included(&start), Bound::Excluded(&end));
    for entry in table.range::<&[u8; crate::record::REVISION_BYTES]>(bounds).map_err(failed)? {
        let (revision, stored) = entry.map_err(failed)?;
        let revision = Revision::from_bytes(revision.value());
        let record = Record::decode(revision, stored.value()).ok_or(RequestError::Corrupt)?;
        let event = PbEvent {
            r#type: if record.is_tombstone() { DELETE } else { 0 },
            kv: Some(record.to_key_value(revision)),
            prev_kv: None,
        };
        match revisions.last_mut() {
            Some(last) if last.main == revision.main => last.events.push(event),
            _ => {
                if revisions.len() >= MAX_EVENT_REVISIONS || bytes > MAX_EVENT_BYTES {
                    upto = revision.main - 1;
                    break;
                }
                revisions.push(RevisionEvents { main: revision.main, events: vec![event] });
            }
        }
        bytes += stored.value().len();
    }
    Ok(EventBatch { revisions: revisions.into_iter().map(Arc::new).collect(), upto })
}
