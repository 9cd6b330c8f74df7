//! The single writer of the embedded store: takes all waiting operations, applies them as one group, commits once, then
//! answers.
//!
//! Guarantees: an answer is sent only after the sync of its commit; waiting writers share that sync.
//! After a commit that failed before its sync, the writer rolls back, reopens the database and continues. If a full
//! disk does not even accept the writes of the reopening, the database is opened read-only, so that reads continue.
//! After a failed sync the store stops, because the contents of the disk are unknown, regardless of later reads.

use std::collections::VecDeque;
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use redb::{Database, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::auto_compaction::AutoCompactor;
use crate::batch::{Batch, Changes, WriterHead};
use crate::failure::FailsOnPanic;
use crate::file::{LoadedFile, REVISIONS, reopen_aside, reopen_file};
use crate::index::SupersededChange;
use crate::leases::LeaseTable;
use crate::limits::{MAX_BATCH, MAX_ENDED_LEASES, MAX_REMOVALS, WRITER_PAUSE};
use crate::request_error::RequestError;
use crate::store::{Answer, Operation, Store, WriteJob};

/// `AlarmType::Nospace` as a bit of the alarms.
pub(crate) const NOSPACE_BIT: u64 = 1 << 1;

type Reply = oneshot::Sender<Result<Answer, RequestError>>;

pub(crate) struct Writer {
    store: Arc<Store>,
    _fails: FailsOnPanic,
    jobs: mpsc::Receiver<WriteJob>,
    head: WriterHead,
    auto_compactor: AutoCompactor,
    /// Compacted changes that are still in the file.
    removals: VecDeque<SupersededChange>,
    /// Clients that wait until all changes compacted so far are removed from the file.
    waiting_for_removal: Vec<(Reply, i64)>,
    /// Writes are refused until this time, with this error.
    refuses: Option<(Instant, RequestError)>,
    /// Until this time the writer starts no work of its own.
    rests: Option<Instant>,
    /// The database is open read-only, because opening it for writing failed.
    is_aside: bool,
    quota_bytes: u64,
    cache_bytes: usize,
}

pub(crate) struct WriterSetup {
    pub(crate) head: WriterHead,
    pub(crate) auto_compactor: AutoCompactor,
    pub(crate) superseded: Vec<SupersededChange>,
    pub(crate) quota_bytes: u64,
    pub(crate) cache_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum WriterState {
    GoOn,
    Close,
}

impl Writer {
    pub(crate) fn new(store: Arc<Store>, jobs: mpsc::Receiver<WriteJob>, setup: WriterSetup) -> Self {
        let WriterSetup { head, auto_compactor, superseded, quota_bytes, cache_bytes } = setup;
        Self {
            _fails: store.failure.fail_on_panic("its writer"),
            store,
            jobs,
            head,
            auto_compactor,
            removals: superseded.into(),
            waiting_for_removal: Vec::new(),
            refuses: None,
            rests: None,
            is_aside: false,
            quota_bytes,
            cache_bytes,
        }
    }

    /// Writes until the store is closed, on the caller's runtime.
    pub(crate) async fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            let idle = !self.has_work_of_its_own();
            if idle && (self.is_to_stop() || self.jobs.recv_many(&mut jobs, MAX_BATCH).await == 0) {
                break;
            }
            if self.step(&mut jobs) == WriterState::Close {
                break;
            }
            // Let other tasks of this thread run between two commits.
            tokio::task::yield_now().await;
        }
        self.close();
    }

    /// Writes until the store is closed, on the caller's thread, which must not belong to a runtime.
    pub(crate) fn run_blocking(mut self) {
        let mut jobs = Vec::new();
        loop {
            let idle = !self.has_work_of_its_own();
            if idle && (self.is_to_stop() || self.jobs.blocking_recv_many(&mut jobs, MAX_BATCH) == 0) {
                break;
            }
            if self.step(&mut jobs) == WriterState::Close {
                break;
            }
        }
        self.close();
    }

    /// True if the store stops and no operation waits.
    fn is_to_stop(&self) -> bool {
        self.store.watch_stop().is_set() && self.jobs.is_empty()
    }

    fn has_work_of_its_own(&mut self) -> bool {
        self.store.failure.reason().is_none()
            && self.rests.is_none_or(|until| until <= Instant::now())
            && (!self.removals.is_empty() || self.auto_compactor.next_target(self.head.view).is_some())
    }

    /// Runs one commit, or one operation outside of commits.
    fn step(&mut self, jobs: &mut Vec<WriteJob>) -> WriterState {
        while jobs.len() < MAX_BATCH
            && let Ok(job) = self.jobs.try_recv()
        {
            jobs.push(job);
        }
        let mut group = Vec::with_capacity(jobs.len());
        let mut alone = None;
        let mut later = Vec::new();
        for job in jobs.drain(..) {
            if alone.is_some() {
                later.push(job);
            } else if matches!(job.operation, Operation::Defragment | Operation::Close) {
                alone = Some(job);
            } else {
                group.push(job);
            }
        }
        self.commit(group);
        match alone {
            Some(WriteJob { operation: Operation::Close, reply }) => {
                let revision = self.head.view.current;
                self.close();
                // The client may have disconnected; that is not an error.
                let _ = reply.send(Ok(Answer::Done { revision }));
                return WriterState::Close;
            }
            Some(WriteJob { reply, .. }) => {
                let outcome = self.defragment_file();
                let _ = reply.send(outcome);
            }
            None => {}
        }
        if later.is_empty() {
            return WriterState::GoOn;
        }
        *jobs = later;
        self.step(jobs)
    }

    fn commit(&mut self, group: Vec<WriteJob>) {
        let mut outcomes = Vec::with_capacity(group.len());
        let mut waiting = Vec::new();
        match self.commit_group(group, &mut outcomes, &mut waiting) {
            Ok(()) => {
                for (reply, outcome) in outcomes {
                    // The client may have disconnected; its write is done nevertheless.
                    let _ = reply.send(outcome);
                }
                self.waiting_for_removal.extend(waiting);
                if self.removals.is_empty() {
                    for (reply, revision) in self.waiting_for_removal.drain(..) {
                        let _ = reply.send(Ok(Answer::Done { revision }));
                    }
                }
            }
            Err((group, refusal)) => {
                let replies = outcomes.into_iter().map(|(reply, _)| reply);
                let waiting =
                    waiting.into_iter().chain(self.waiting_for_removal.drain(..)).map(|(reply, _)| reply);
                for reply in group.into_iter().map(|job| job.reply).chain(replies).chain(waiting) {
                    let _ = reply.send(Err(refusal.clone()));
                }
            }
        }
    }

    /// Applies and commits a group. Returns the operations that were not started, and the error if the group had no
    /// effect.
    fn commit_group(
        &mut self,
        group: Vec<WriteJob>,
        outcomes: &mut Vec<(Reply, Result<Answer, RequestError>)>,
        waiting: &mut Vec<(Reply, i64)>,
    ) -> Result<(), (Vec<WriteJob>, RequestError)> {
        if let Some(reason) = self.store.failure.reason() {
            return Err((group, RequestError::Failed(reason)));
        }
        if let Some((until, refusal)) = &self.refuses
            && Instant::now() < *until
        {
            return Err((group, refusal.clone()));
        }
        let mut transaction = match self.begin() {
            Ok(transaction) => transaction,
            Err(refusal) => return Err((group, refusal)),
        };
        if is_planted(Canary::AnswerBeforeSync) && self.head.view.current % 8 > 0 {
            // Only fails after a change of a savepoint, and the store uses none.
            let _ = transaction.set_durability(redb::Durability::None);
        }
        let changes = match self.apply(&transaction, group, outcomes, waiting) {
            Ok(changes) => changes,
            Err((group, error)) => {
                drop(transaction);
                return Err((group, self.recover(&error)));
            }
        };
        if !changes.touched {
            drop(transaction);
            return Ok(());
        }
        match transaction.commit() {
            Ok(()) => {
                self.publish(changes);
                Ok(())
            }
            Err(error) => Err((Vec::new(), self.recover(&error.to_string()))),
        }
    }

    /// Begins a transaction; first reopens the database if an earlier failure closed it.
    fn begin(&mut self) -> Result<WriteTransaction, RequestError> {
        if self.is_aside || self.store.lock_database().is_none() {
            self.open_again().map_err(|detail| self.fail_for_good(&detail))?;
        }
        // Clear the flag: a lack of space during a read does not concern this transaction.
        self.store.disk.take_full();
        let begun = match &*self.store.lock_database() {
            Some(database) => database.begin_write().map_err(|error| error.to_string()),
            None => Err("the database is closed".to_owned()),
        };
        begun.map_err(|error| self.recover(&error))
    }

    fn apply(
        &mut self,
        transaction: &WriteTransaction,
        group: Vec<WriteJob>,
        outcomes: &mut Vec<(Reply, Result<Answer, RequestError>)>,
        waiting: &mut Vec<(Reply, i64)>,
    ) -> Result<Changes, (Vec<WriteJob>, String)> {
        let table = match transaction.open_table(REVISIONS) {
            Ok(table) => table,
            Err(error) => return Err((group, error.to_string())),
        };
        let over_quota = self.store.data_bytes.load(std::sync::atomic::Ordering::Relaxed) > self.quota_bytes;
        let full = over_quota || self.head.alarms & NOSPACE_BIT != 0;
        let automatic = self.auto_compactor.next_target(self.head.view);
        let mut batch = Batch::new(&self.store, &mut self.head, transaction, table, full);
        for WriteJob { operation, reply } in group {
            let outcome = match operation {
                Operation::Put(request) => batch.put(request),
                Operation::Delete(request) => batch.delete(&request),
                Operation::Txn(request) => batch.apply_transaction(&request),
                Operation::Grant { id, ttl_seconds, owner } => batch.grant(id, ttl_seconds, owner),
                Operation::Revoke { id } => batch.revoke(id),
                Operation::RevokeEnded => revoke_ended(&self.store, &mut batch),
                Operation::SetAlarms { alarms } => batch.set_alarms(alarms),
                Operation::Compact { main, physical } => match batch.compact(main) {
                    Ok(revision) if physical => {
                        waiting.push((reply, revision));
                        continue;
                    }
                    outcome => outcome.map(|revision| Answer::Done { revision }),
                },
                // `step` has removed these from the group.
                Operation::Defragment | Operation::Close => continue,
            };
            if let Err(RequestError::TakenBack(error)) = &outcome {
                let error = error.clone();
                outcomes.push((reply, outcome));
                return Err((Vec::new(), error));
            }
            outcomes.push((reply, outcome));
        }
        let removed = self.removals.iter().take(MAX_REMOVALS).copied().collect::<Vec<_>>();
        let mut own = batch.remove(&removed);
        if let Some(main) = automatic {
            // A client's compaction in this group may have compacted further.
            own = own.and(batch.compact(main).map(|_| ()).or_else(|refusal| match refusal {
                RequestError::Compacted => Ok(()),
                other => Err(other),
            }));
        }
        match own {
            Ok(()) => Ok(batch.finish()),
            Err(refusal) => Err((Vec::new(), refusal.to_string())),
        }
    }

    fn publish(&mut self, changes: Changes) {
        self.store.add_data_bytes(changes.bytes_added, changes.bytes_removed);
        self.removals.drain(..self.removals.len().min(MAX_REMOVALS));
        let now = Instant::now();
        let granted =
            changes.leases.iter().any(|change| matches!(change, crate::leases::LeaseChange::Granted { .. }));
        {
            let mut state = self.store.state_mut();
            state.view = self.head.view;
            for change in &changes.leases {
                state.leases.apply(change, now);
            }
            if let Some(alarms) = changes.alarms {
                state.alarms = alarms;
            }
            for events in changes.revisions {
                self.auto_compactor.record_write(events.main, events.size_in_bytes() as u64);
                state.recent.push(Arc::new(events));
            }
            if let Some(main) = changes.compacted {
                self.removals.extend(state.index.compact(main));
            }
        }
        self.store.publish(self.head.view.current);
        if granted {
            self.store.lease_granted.notify_one();
        }
    }

    /// After a fault in a commit: returns to the state of the file.
    fn recover(&mut self, error: &str) -> RequestError {
        let full = self.store.disk.take_full();
        if self.store.disk.has_failed_sync() {
            self.give_up(&format!("syncing the file: {error}"));
            return RequestError::Failed(error.to_owned());
        }
        tracing::warn!(
            error,
            full,
            "a commit of the embedded store failed before its sync and is rolled back"
        );
        let until = Instant::now() + WRITER_PAUSE;
        self.rests = Some(until);
        if full {
            self.refuses = Some((until, RequestError::NoSpace));
        }
        if let Err(detail) = self.open_again() {
            return self.fail_for_good(&detail);
        }
        if full { RequestError::NoSpace } else { RequestError::TakenBack(error.to_owned()) }
    }

    /// The refusal while the storage cannot be written; the next attempt follows after a pause.
    fn fail_for_good(&mut self, detail: &str) -> RequestError {
        if let Some(reason) = self.store.failure.reason() {
            return RequestError::Failed(reason);
        }
        let full = self.store.disk.take_full();
        if self.store.disk.has_failed_sync() {
            self.give_up(&format!("syncing the file: {detail}"));
            return RequestError::Failed(detail.to_owned());
        }
        let now = Instant::now();
        let was_full = matches!(&self.refuses, Some((until, RequestError::NoSpace)) if now < *until);
        let refusal =
            if full || was_full { RequestError::NoSpace } else { RequestError::TakenBack(detail.to_owned()) };
        self.rests = Some(now + WRITER_PAUSE);
        self.refuses = Some((now + WRITER_PAUSE, refusal.clone()));
        refusal
    }

    /// Reopens the database; if that fails, opens it read-only. The error states why it cannot be written.
    fn open_again(&mut self) -> Result<(), String> {
        let store = Arc::clone(&self.store);
        if !self.is_aside {
            // Close the failed database first, because two on one storage would corrupt it. Until then a read-only
            // database serves readers.
            *store.database_mut() = None;
        }
        let error = match reopen_file(&store.disk, self.cache_bytes) {
            Ok(opened) => {
                self.is_aside = false;
                return self.take_over(opened);
            }
            Err(error) if error.is_damage() => {
                let reason = format!("reopening the file: {}", error.detailed_message());
                self.give_up(&reason);
                return Err(reason);
            }
            Err(error) => error.to_string(),
        };
        if !self.is_aside {
            match reopen_aside(&store.disk, self.cache_bytes) {
                Ok(opened) => {
                    self.take_over(opened)?;
                    self.is_aside = true;
                }
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the embedded store can neither be written nor read now"
                ),
            }
        }
        Err(error)
    }

    /// Adopts the contents of a reopened database, which must equal the state that readers saw.
    fn take_over(&mut self, (database, loaded): (Database, LoadedFile)) -> Result<(), String> {
        let store = Arc::clone(&self.store);
        let mut state = store.state_mut();
        if loaded.view != state.view {
            let reason =
                format!("the file is at revision {}, expected {}", loaded.view.current, state.view.current);
            drop(state);
            self.give_up(&reason);
            return Err(reason);
        }
        state.leases = state.leases.with_known_ends(loaded.leases.clone(), Instant::now());
        state.index = loaded.index;
        state.alarms = loaded.alarms;
        self.head.view = loaded.view;
        self.head.leases = loaded.leases;
        self.head.alarms = loaded.alarms;
        self.removals = loaded.superseded.into();
        store.data_bytes.store(loaded.data_bytes, std::sync::atomic::Ordering::Relaxed);
        *store.database_mut() = Some(database);
        Ok(())
    }

    fn give_up(&mut self, reason: &str) {
        self.is_aside = false;
        self.store.failure.set(reason);
        *self.store.database_mut() = None;
        self.head.leases = LeaseTable::default();
    }

    /// Returns free space in the file to the file system.
    fn defragment_file(&mut self) -> Result<Answer, RequestError> {
        if self.is_aside {
            self.open_again().map_err(|detail| self.fail_for_good(&detail))?;
        }
        let mut database = self.store.database_mut();
        let Some(open) = database.as_mut() else { return Err(RequestError::Stopped) };
        match open.compact() {
            Ok(_) => Ok(Answer::Done { revision: self.head.view.current }),
            Err(redb::CompactionError::TransactionInProgress) => {
                Err(RequestError::TakenBack("a read is in progress".to_owned()))
            }
            Err(error) => {
                drop(database);
                Err(self.recover(&error.to_string()))
            }
        }
    }

    fn close(&mut self) {
        self.jobs.close();
        drop(self.store.database_mut().take());
    }
}

fn revoke_ended(store: &Store, batch: &mut Batch<'_>) -> Result<Answer, RequestError> {
    let (ended, revision): (Vec<_>, _) = {
        let state = store.lock_state();
        (state.leases.expired_leases(Instant::now()).take(MAX_ENDED_LEASES).collect(), state.view.current)
    };
    for id in ended {
        match batch.revoke(id) {
            // A client revoked it earlier in this group.
            Ok(_) | Err(RequestError::LeaseNotFound) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(Answer::Done { revision })
}
