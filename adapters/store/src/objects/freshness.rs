//! Reads that see all earlier writes.
//!
//! A reader needs the store's present revision, and a view that has reached it. The revision comes from a read that
//! begins after the reader's request; all waiting readers share it. Revisions of two stores cannot be compared, so an
//! answer counts only if the view kept its generation from before the read until it has reached the revision.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use madako_domain::store::{StoreError, StoreErrorKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::source::Source;
use super::{CacheState, Position};
use crate::limits::{MOST_READS_WAITING, MOST_REPORTED};
use crate::telemetry;

#[derive(Debug, Clone, Copy)]
struct RevisionAnswer {
    /// Position of the view when the read began.
    before: Position,
    revision: i64,
}

type Answer = Result<RevisionAnswer, StoreError>;

pub(super) struct RevisionReader {
    readers: mpsc::Sender<oneshot::Sender<Answer>>,
    reported: Mutex<VecDeque<ReportedRevision>>,
    deadline: Duration,
}

#[derive(Debug, Clone, Copy)]
struct ReportedRevision {
    generation: u64,
    revision: i64,
    at: Instant,
}

impl RevisionReader {
    fn remember(&self, new: ReportedRevision) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match reported.back_mut() {
            Some(last) if (last.generation, last.revision) == (new.generation, new.revision) => *last = new,
            _ => {
                if reported.len() == MOST_REPORTED {
                    reported.pop_front();
                }
                reported.push_back(new);
            }
        }
    }

    /// True if this revision was just reported for another generation; a reader may then follow from it by mistake.
    pub(super) fn reported_of_another_generation(
        &self,
        revision: i64,
        generation: u64,
        now: Instant,
    ) -> bool {
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.iter().any(|reported| {
            reported.revision == revision
                && reported.generation != generation
                && now < reported.at + self.deadline
        })
    }
}

/// An asker, and the task that it needs.
pub(super) fn revision_reader(
    source: Arc<dyn Source>,
    shared: Arc<CacheState>,
) -> (RevisionReader, impl Future<Output = ()> + Send + 'static) {
    let (sender, mut readers) = mpsc::channel(MOST_READS_WAITING);
    let asker = RevisionReader { readers: sender, reported: Mutex::default(), deadline: source.deadline() };
    let asking = async move {
        let mut waiting = Vec::new();
        while readers.recv_many(&mut waiting, MOST_READS_WAITING).await > 0 {
            let before = shared.newest_position();
            let answer = source.revision().await.map(|revision| RevisionAnswer { before, revision });
            telemetry::madako_objects_questions_total().increment(1);
            for reader in waiting.drain(..) {
                // A reader that no longer waits needs no answer.
                let _ = reader.send(answer.clone());
            }
        }
    };
    (asker, asking)
}

/// Waits until the view shows the store's present state. Returns a revision that it has reached.
pub(super) async fn refresh_cache(
    asker: &RevisionReader,
    shared: &CacheState,
    deadline: Duration,
) -> Result<i64, StoreError> {
    let began = Instant::now();
    let mut wanted = None;
    let reached = timeout_at(began + deadline, wait_for_revision(asker, shared, &mut wanted)).await;
    let result = reached.unwrap_or_else(|_| Err(deadline_error(shared, wanted, deadline)));
    let outcome = if result.is_ok() { "ok" } else { "failed" };
    telemetry::madako_objects_fresh_reads_total(outcome).increment(1);
    telemetry::madako_objects_fresh_seconds().record(began.elapsed());
    result
}

async fn wait_for_revision(
    asker: &RevisionReader,
    shared: &CacheState,
    wanted: &mut Option<i64>,
) -> Result<i64, StoreError> {
    loop {
        let RevisionAnswer { before, revision } = ask_revision(asker).await?;
        *wanted = Some(revision);
        // A store with a lower revision was replaced; its list follows.
        let went_back = revision < before.revision;
        let look = |now: &Position| {
            let same = now.generation == before.generation;
            !same || (!went_back && now.attached && now.revision >= revision)
        };
        let mut positions = shared.subscribe_positions();
        let now = loop {
            let now = positions.next().await;
            if look(&now) {
                break now;
            }
        };
        if now.generation == before.generation {
            asker.remember(ReportedRevision { generation: now.generation, revision, at: Instant::now() });
            return Ok(revision);
        }
    }
}

async fn ask_revision(asker: &RevisionReader) -> Answer {
    let (reader, answer) = oneshot::channel();
    asker.readers.send(reader).await.map_err(|_| feed_ended())?;
    answer.await.map_err(|_| feed_ended())?
}

const OPERATION: &str = "fresh view of placement's resources";

fn feed_ended() -> StoreError {
    let why = "the reader of the store has ended".to_owned();
    StoreError { operation: OPERATION.to_owned(), kind: StoreErrorKind::Other, why }
}

fn deadline_error(shared: &CacheState, wanted: Option<i64>, deadline: Duration) -> StoreError {
    let now = shared.newest_position();
    let trouble = if now.attached { None } else { shared.lock_trouble().clone() };
    let why = match wanted {
        None => format!("the store did not report its revision within {deadline:?}"),
        Some(_) if now.generation == 0 => format!("the store could not be read within {deadline:?}"),
        Some(_) if !now.attached => format!("the store could not be watched again within {deadline:?}"),
        Some(wanted) => {
            format!("the view is at revision {} and did not reach {wanted} within {deadline:?}", now.revision)
        }
    };
    let operation = OPERATION.to_owned();
    match trouble {
        // The watch's failure explains more than the timeout.
        Some(trouble) => StoreError { operation, kind: trouble.kind, why: format!("{why}: {trouble}") },
        None => StoreError { operation, kind: StoreErrorKind::Deadline, why },
    }
}
