//! The actor of scheduled backups: its timer, the backup in progress, and the metrics.

mod attempt;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use madako_domain::backup::{BackupRecord, BackupSchedule};
use madako_domain::keys;
use madako_domain::state::{ClusterState, RevisedValue};
use madako_effects::Permits;
use madako_protocol::actors::{BackupEnd, BackupMessage};
use madako_protocol::backup::EtcdBackups;
use madako_protocol::event::{Event, EventSink};
use madako_protocol::feed::{Task, forward_values, send_later};
use madako_protocol::latest::Subscriber;
use madako_protocol::mailbox::Envelope;
use madako_protocol::permit::Moment;
use madako_protocol::ports::Clock;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use self::attempt::{BackupAttempt, make_backup};
use crate::limits::TICK;
use crate::schedule::{Failures, age_of_last_backup, time_until_next};

#[derive(Clone)]
pub struct BackupsArguments {
    pub epoch: i64,
    /// Registered name of the leader actor.
    pub leader: String,
    pub host: String,
    pub schedule: BackupSchedule,
    pub backups: Arc<dyn EtcdBackups>,
    pub clock: Arc<dyn Clock>,
    pub events: Arc<dyn EventSink>,
    pub state: Subscriber<Arc<ClusterState>>,
}

pub struct Backups;

/// A cache: a new actor rebuilds all of it.
pub struct BackupsState {
    given: BackupsArguments,
    state: Option<Arc<ClusterState>>,
    failures: Option<Failures>,
    /// The backup in progress, and its beginning.
    running: Option<(Moment, Task)>,
    timer: Option<Task>,
    _feed: Task,
}

madako_protocol::declare_metrics! {
    "Operations on nodes":
    gauge madako_etcd_backup_age_seconds() in Seconds
        "Age of the last backup of etcd that counts: the last proved one, or the last one with `prove: false`; \
         without one, the time since 1970. Exported only with the section `etcd_backup`.";
    gauge madako_etcd_backup_interval_seconds() in Seconds
        "Configured time between two backups of etcd (`etcd_backup.every`).";
    gauge madako_etcd_backup_size_bytes() in Bytes "Size of the last backup of etcd that counts; 0 without one.";
    counter madako_etcd_backups_total(outcome)
        "Backups of etcd by the leader: `proved`, `taken` (with `prove: false`), or the failure: `etcd` (it did not \
         answer), `file`, `busy`, `damaged`, `program`, `not-restored`, `compacted`, `refuted`, `permit`, `commit` \
         (the record is not known to be written).";
    histogram madako_etcd_backup_seconds() in Seconds
        "Duration of a backup of etcd with its proof, whatever its outcome.";
}

impl Actor for Backups {
    type Msg = Envelope<BackupMessage>;
    type State = BackupsState;
    type Arguments = BackupsArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Envelope<BackupMessage>>,
        given: BackupsArguments,
    ) -> Result<BackupsState, ActorProcessingErr> {
        let feed = forward_values(given.state.clone(), myself.clone(), BackupMessage::State);
        madako_etcd_backup_interval_seconds().set(given.schedule.every.as_secs_f64());
        myself.cast(BackupMessage::Tick.into())?;
        Ok(BackupsState { given, state: None, failures: None, running: None, timer: None, _feed: feed })
    }

    async fn handle(
        &self,
        myself: ActorRef<Envelope<BackupMessage>>,
        envelope: Envelope<BackupMessage>,
        state: &mut BackupsState,
    ) -> Result<(), ActorProcessingErr> {
        match envelope.open() {
            BackupMessage::State(new, _handled) => state.state = Some(new),
            BackupMessage::Tick => {
                state.timer = Some(send_later(myself.clone(), TICK, BackupMessage::Tick));
            }
            BackupMessage::Ended(end) => state.handle_end(*end),
        }
        state.show();
        state.begin_if_due(&myself);
        Ok(())
    }
}

impl BackupsState {
    /// The stored record; `None` without a readable one.
    fn last_backup(&self) -> Option<&BackupRecord> {
        Some(&self.state.as_ref()?.etcd_backup.as_ref()?.value)
    }

    fn show(&self) {
        // Before the first state, nothing is known.
        if self.state.is_none() {
            return;
        }
        let now = self.given.clock.now();
        let age = age_of_last_backup(&self.given.schedule, self.last_backup(), now);
        let shown = age.map_or(now.unix_timestamp() as f64, |age| age.as_secs_f64());
        madako_etcd_backup_age_seconds().set(shown);
        let size = self.last_backup().filter(|_| age.is_some()).map_or(0, |last| last.size);
        madako_etcd_backup_size_bytes().set(size as f64);
    }

    fn begin_if_due(&mut self, myself: &ActorRef<Envelope<BackupMessage>>) {
        let Some(state) = self.state.as_ref().filter(|_| self.running.is_none()) else { return };
        let Some(cluster) = &state.cluster else { return };
        let now = self.given.clock.now();
        let moment = Moment::now();
        if !time_until_next(&self.given.schedule, self.last_backup(), self.failures, (now, moment)).is_zero()
        {
            return;
        }
        let attempted = BackupAttempt {
            given: self.given.clone(),
            permits: Permits { leader: self.given.leader.clone(), epoch: self.given.epoch },
            addresses: cluster.value.control_plane().map(|node| node.address.clone()).collect(),
            at: now,
            last: self.last_backup().cloned(),
            revision: state.revision_of(keys::ETCD_BACKUP),
        };
        let reply = myself.clone();
        let task = Task::start_anew(async move {
            let end = make_backup(&attempted).await;
            // The actor is gone: a new one reads the record.
            let _ = reply.cast(BackupMessage::Ended(Box::new(end)).into());
        });
        self.running = Some((moment, task));
    }

    fn handle_end(&mut self, BackupEnd { outcome, removed }: BackupEnd) {
        let now = Moment::now();
        if let Some((began, _)) = self.running.take() {
            madako_etcd_backup_seconds().record(now - began);
        }
        let events = &self.given.events;
        if let Err(error) = removed {
            events.emit(Event::EtcdBackupFailed { why: format!("old backups stay: {error}") });
        }
        match outcome {
            Ok((record, revision)) => {
                self.failures = None;
                let proved = record.proved_at.is_some();
                madako_etcd_backups_total(if proved { "proved" } else { "taken" }).increment(1);
                events.emit(Event::EtcdBackup { file: record.file.clone(), size: record.size, proved });
                self.note_record(record, revision);
            }
            Err(failure) => {
                self.failures = Some(Failures::add_failure(self.failures, now));
                madako_etcd_backups_total(failure.name()).increment(1);
                events.emit(Event::EtcdBackupFailed { why: failure.to_string() });
            }
        }
    }

    /// Takes a record that was just committed as known: the watch may deliver it later than the next tick.
    fn note_record(&mut self, value: BackupRecord, revision: i64) {
        let Some(state) = &mut self.state else { return };
        if state.revision_of(keys::ETCD_BACKUP) >= revision {
            return;
        }
        let state = Arc::make_mut(state);
        state.revisions.insert(keys::ETCD_BACKUP.to_owned(), revision);
        state.etcd_backup = Some(RevisedValue { value, revision });
    }
}
