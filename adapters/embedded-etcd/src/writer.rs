//! The writer: takes what waits, applies it as one group, commits once, then answers.
//!
//! Guarantees: an answer is sent only after the sync that makes it true; writers that wait share that sync.
//! A commit that fails before its sync is taken back, the database opened anew, and writing goes on. Where a full disk
//! takes not even what that writes, the database is opened beside it, so that reading goes on. After a failed sync the
//! store stops: what a disk holds then is unknown, whatever it reads back.

use std::collections::VecDeque;
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use redb::{Database, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::auto_compaction::AutoCompactor;
use crate::batch::{Batch, Changes, Head};
use crate::failure::FailsOnPanic;
use crate::file::{Loaded, REVISIONS, reopen, reopen_aside};
use crate::index::Superseded;
use crate::leases::LeaseTable;
use crate::limits::{MAX_BATCH, MAX_ENDED_LEASES, MAX_REMOVALS, WRITER_PAUSE};
use crate::refusal::Refusal;
use crate::store::{Answer, Job, Operation, Store};

/// `AlarmType::Nospace` as a bit of the alarms.
pub(crate) const NOSPACE_BIT: u64 = 1 << 1;

type Reply = oneshot::Sender<Result<Answer, Refusal>>;

/// See the module.
pub(crate) struct Writer {
    store: Arc<Store>,
    _fails: FailsOnPanic,
    jobs: mpsc::Receiver<Job>,
    head: Head,
    auto_compactor: AutoCompactor,
    /// Compacted, and still in the file.
    removals: VecDeque<Superseded>,
    /// Who waits until everything compacted so far is out of the file.
    waiting_for_removal: Vec<(Reply, i64)>,
    /// Until when writes are refused, and how.
    refuses: Option<(Instant, Refusal)>,
    /// Until when nothing is begun that nobody waits for.
    rests: Option<Instant>,
    /// The database is only read, since it could not be opened to be written.
    is_aside: bool,
    quota_bytes: u64,
    cache_bytes: usize,
}

/// What a writer needs beside its store.
pub(crate) struct WriterSetup {
    pub(crate) head: Head,
    pub(crate) auto_compactor: AutoCompactor,
    pub(crate) superseded: Vec<Superseded>,
    pub(crate) quota_bytes: u64,
    pub(crate) cache_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Close,
}

impl Writer {
    pub(crate) fn new(store: Arc<Store>, jobs: mpsc::Receiver<Job>, setup: WriterSetup) -> Self {
        let WriterSetup { head, auto_compactor, superseded, quota_bytes, cache_bytes } = setup;
        Self {
            _fails: store.failure.on_panic("its writer"),
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

    /// Writes until the store is closed, on the runtime of the caller.
    pub(crate) async fn run(mut self) {
        let mut jobs = Vec::new();
        loop {
            let idle = !self.has_work_of_its_own();
            if idle && (self.is_to_stop() || self.jobs.recv_many(&mut jobs, MAX_BATCH).await == 0) {
                break;
            }
            if self.step(&mut jobs) == Next::Close {
                break;
            }
            // Others on this thread get their turn between two commits.
            tokio::task::yield_now().await;
        }
        self.close();
    }

    /// Writes until the store is closed, on the thread of the caller, which must not be one of a runtime.
    pub(crate) fn run_blocking(mut self) {
        let mut jobs = Vec::new();
        loop {
            let idle = !self.has_work_of_its_own();
            if idle && (self.is_to_stop() || self.jobs.blocking_recv_many(&mut jobs, MAX_BATCH) == 0) {
                break;
            }
            if self.step(&mut jobs) == Next::Close {
                break;
            }
        }
        self.close();
    }

    /// Whether the store stops and nobody waits any more.
    fn is_to_stop(&self) -> bool {
        self.store.stopping().is_set() && self.jobs.is_empty()
    }

    fn has_work_of_its_own(&mut self) -> bool {
        self.store.failure.reason().is_none()
            && self.rests.is_none_or(|until| until <= Instant::now())
            && (!self.removals.is_empty() || self.auto_compactor.target(self.head.view).is_some())
    }

    /// One commit, or one of the operations that are not part of commits.
    fn step(&mut self, jobs: &mut Vec<Job>) -> Next {
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
            Some(Job { operation: Operation::Close, reply }) => {
                let revision = self.head.view.current;
                self.close();
                // Nobody may wait any more; that is no fault.
                let _ = reply.send(Ok(Answer::Done { revision }));
                return Next::Close;
            }
            Some(Job { reply, .. }) => {
                let outcome = self.defragment();
                let _ = reply.send(outcome);
            }
            None => {}
        }
        if later.is_empty() {
            return Next::GoOn;
        }
        *jobs = later;
        self.step(jobs)
    }

    fn commit(&mut self, group: Vec<Job>) {
        let mut outcomes = Vec::with_capacity(group.len());
        let mut waiting = Vec::new();
        match self.commit_group(group, &mut outcomes, &mut waiting) {
            Ok(()) => {
                for (reply, outcome) in outcomes {
                    // The client may have gone; its write is done all the same.
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

    /// Applies and commits; hands back what was not begun, and why nothing of the group is there.
    fn commit_group(
        &mut self,
        group: Vec<Job>,
        outcomes: &mut Vec<(Reply, Result<Answer, Refusal>)>,
        waiting: &mut Vec<(Reply, i64)>,
    ) -> Result<(), (Vec<Job>, Refusal)> {
        if let Some(reason) = self.store.failure.reason() {
            return Err((group, Refusal::Failed(reason)));
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
            // Refused only where a savepoint was changed, which nobody does.
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

    /// Begins a transaction; opens the database first where an earlier failure closed it.
    fn begin(&mut self) -> Result<WriteTransaction, Refusal> {
        if self.is_aside || self.store.database().is_none() {
            self.open_again().map_err(|detail| self.down(&detail))?;
        }
        // A read that found no room for what redb wrote beside it says nothing of this transaction.
        self.store.disk.take_full();
        let begun = match &*self.store.database() {
            Some(database) => database.begin_write().map_err(|error| error.to_string()),
            None => Err("it is closed".to_owned()),
        };
        begun.map_err(|error| self.recover(&error))
    }

    fn apply(
        &mut self,
        transaction: &WriteTransaction,
        group: Vec<Job>,
        outcomes: &mut Vec<(Reply, Result<Answer, Refusal>)>,
        waiting: &mut Vec<(Reply, i64)>,
    ) -> Result<Changes, (Vec<Job>, String)> {
        let table = match transaction.open_table(REVISIONS) {
            Ok(table) => table,
            Err(error) => return Err((group, error.to_string())),
        };
        let over_quota = self.store.data_bytes.load(std::sync::atomic::Ordering::Relaxed) > self.quota_bytes;
        let full = over_quota || self.head.alarms & NOSPACE_BIT != 0;
        let automatic = self.auto_compactor.target(self.head.view);
        let mut batch = Batch::new(&self.store, &mut self.head, transaction, table, full);
        for Job { operation, reply } in group {
            let outcome = match operation {
                Operation::Put(request) => batch.put(request),
                Operation::Delete(request) => batch.delete(&request),
                Operation::Txn(request) => batch.txn(&request),
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
                // Taken out of the group before.
                Operation::Defragment | Operation::Close => continue,
            };
            if let Err(Refusal::TakenBack(error)) = &outcome {
                let error = error.clone();
                outcomes.push((reply, outcome));
                return Err((Vec::new(), error));
            }
            outcomes.push((reply, outcome));
        }
        let removed = self.removals.iter().take(MAX_REMOVALS).copied().collect::<Vec<_>>();
        let mut own = batch.remove(&removed);
        if let Some(main) = automatic {
            // A client's compaction in this group may have been further on already.
            own = own.and(batch.compact(main).map(|_| ()).or_else(|refusal| match refusal {
                Refusal::Compacted => Ok(()),
                other => Err(other),
            }));
        }
        match own {
            Ok(()) => Ok(batch.finish()),
            Err(refusal) => Err((Vec::new(), refusal.to_string())),
        }
    }

    /// Shows readers what is on disk now.
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
                self.auto_compactor.wrote(events.main, events.bytes() as u64);
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

    /// After a fault in a commit: back to what the file holds.
    fn recover(&mut self, error: &str) -> Refusal {
        let full = self.store.disk.take_full();
        if self.store.disk.sync_failed() {
            self.give_up(&format!("syncing it: {error}"));
            return Refusal::Failed(error.to_owned());
        }
        tracing::warn!(
            error,
            full,
            "a commit of the embedded store failed before its sync and is taken back"
        );
        let until = Instant::now() + WRITER_PAUSE;
        self.rests = Some(until);
        if full {
            self.refuses = Some((until, Refusal::NoSpace));
        }
        if let Err(detail) = self.open_again() {
            return self.down(&detail);
        }
        if full { Refusal::NoSpace } else { Refusal::TakenBack(error.to_owned()) }
    }

    /// Why a write cannot be tried now: it may be later, the storage is asked again then.
    fn down(&mut self, detail: &str) -> Refusal {
        if let Some(reason) = self.store.failure.reason() {
            return Refusal::Failed(reason);
        }
        let full = self.store.disk.take_full();
        if self.store.disk.sync_failed() {
            self.give_up(&format!("syncing it: {detail}"));
            return Refusal::Failed(detail.to_owned());
        }
        let now = Instant::now();
        let was_full = matches!(&self.refuses, Some((until, Refusal::NoSpace)) if now < *until);
        let refusal = if full || was_full { Refusal::NoSpace } else { Refusal::TakenBack(detail.to_owned()) };
        self.rests = Some(now + WRITER_PAUSE);
        self.refuses = Some((now + WRITER_PAUSE, refusal.clone()));
        refusal
    }

    /// Opens the database anew; where that fails, to be read at least. The error says why nothing can be written.
    fn open_again(&mut self) -> Result<(), String> {
        let store = Arc::clone(&self.store);
        if !self.is_aside {
            // The failed database goes first: two on one storage would spoil it. One beside it serves readers until then.
            *store.database_mut() = None;
        }
        let error = match reopen(&store.disk, self.cache_bytes) {
            Ok(opened) => {
                self.is_aside = false;
                return self.take_over(opened);
            }
            Err(error) if error.is_damage() => {
                let reason = format!("opening it again: {}", error.detail());
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

    /// Takes over what an opened database holds, which must be what readers saw.
    fn take_over(&mut self, (database, loaded): (Database, Loaded)) -> Result<(), String> {
        let store = Arc::clone(&self.store);
        let mut state = store.state_mut();
        if loaded.view != state.view {
            let reason = format!(
                "it is at revision {} where {} was expected",
                loaded.view.current, state.view.current
            );
            drop(state);
            self.give_up(&reason);
            return Err(reason);
        }
        state.leases = state.leases.reloaded(loaded.leases.clone(), Instant::now());
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

    /// Gives free room in the file back.
    fn defragment(&mut self) -> Result<Answer, Refusal> {
        if self.is_aside {
            self.open_again().map_err(|detail| self.down(&detail))?;
        }
        let mut database = self.store.database_mut();
        let Some(open) = database.as_mut() else { return Err(Refusal::Stopped) };
        match open.compact() {
            Ok(_) => Ok(Answer::Done { revision: self.head.view.current }),
            Err(redb::CompactionError::TransactionInProgress) => {
                Err(Refusal::TakenBack("a read is going on".to_owned()))
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

fn revoke_ended(store: &Store, batch: &mut Batch<'_>) -> Result<Answer, Refusal> {
    let (ended, revision): (Vec<_>, _) = {
        let state = store.state();
        (state.leases.ended(Instant::now()).take(MAX_ENDED_LEASES).collect(), state.view.current)
    };
    for id in ended {
        match batch.revoke(id) {
            // Revoked by a client earlier in this group.
            Ok(_) | Err(Refusal::LeaseNotFound) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(Answer::Done { revision })
}
