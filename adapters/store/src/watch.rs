//! A watch of etcd that never ends: it lists, follows and resumes.
//!
//! A stream is opened before anything is read. At the first time, everything is then listed, and the stream's changes
//! up to the list's revision are dropped. Later, the receiver's state is compared with the store at the last delivered
//! revision. If the store no longer has that revision, never had it, or had other keys at it (it was wiped or
//! restored), everything is listed again. A gap therefore cannot stay undetected: while the stream lives, its server
//! keeps the order, and the replacement of a server breaks the stream.
//!
//! Progress notifications only count as heartbeats, because etcd 3.4 sends them ahead of changes.

mod assembly;
mod interest;

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::{Error, EventType, WatchOptions, WatchResponse, WatchStream};
use madako_domain::store::{KeyChange, Snapshot, StoreError, StoreErrorKind};
use madako_protocol::store::WatchEvent;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub(crate) use self::assembly::DatedChange;
use self::assembly::{Assembly, DeliveredState, ReceivedChange, WholeRevisions};
use self::interest::StoreReader;
pub(crate) use self::interest::WatchedKeys;
use crate::backoff::Backoff;
use crate::connections::{Connection, Connections, Failed};
use crate::error::{classify_error_kind, revision_is_gone, store_error};
use crate::limits::{WATCH_BUFFER, WATCH_LIVED, WATCH_SILENCE};
use crate::list::{relative_key, to_entry};
use crate::namespace::{Namespace, Range};
use crate::telemetry::{self, Operation};

#[derive(Debug)]
pub(crate) enum FeedEvent {
    /// A list of everything: at the start, and whenever changes may have been missed.
    Listed { snapshot: Snapshot, others: usize, cause: &'static str },
    Changed {
        revision: i64,
        /// Changes of interest; may be empty.
        changes: Vec<DatedChange>,
    },
    /// The stream is broken. Sent once per interruption.
    Interrupted(StoreError),
    /// The stream is back and continues; not sent after a list.
    Resumed,
}

impl FeedEvent {
    /// The corresponding event of the port.
    fn into_watch_event(self) -> Option<WatchEvent> {
        match self {
            Self::Listed { snapshot, .. } => Some(WatchEvent::Listed(snapshot)),
            Self::Changed { changes, .. } if changes.is_empty() => None,
            Self::Changed { revision, changes, .. } => {
                let changes = changes.into_iter().map(|dated| dated.change).collect();
                Some(WatchEvent::Changed { revision, changes })
            }
            Self::Interrupted(error) => Some(WatchEvent::Interrupted(error)),
            Self::Resumed => None,
        }
    }
}

pub(crate) fn watch(
    connections: Arc<Connections>,
    namespace: Namespace,
    prefix: String,
    backoff: Backoff,
) -> mpsc::Receiver<WatchEvent> {
    let (events, receiver) = mpsc::channel(WATCH_BUFFER);
    let interest = WatchedKeys::All;
    let watcher = Watcher {
        connections,
        namespace,
        prefix,
        interest,
        events,
        wrap: FeedEvent::into_watch_event,
        delivered: None,
    };
    tokio::spawn(watcher.run(backoff));
    receiver
}

/// Starts a watch that delivers every revision, and the values of keys of interest.
pub(crate) fn watch_every_revision(
    connections: Arc<Connections>,
    namespace: Namespace,
    interest: WatchedKeys,
    backoff: Backoff,
) -> mpsc::Receiver<FeedEvent> {
    let (events, receiver) = mpsc::channel(WATCH_BUFFER);
    let prefix = String::new();
    let watcher = Watcher { connections, namespace, prefix, interest, events, wrap: Some, delivered: None };
    tokio::spawn(watcher.run(backoff));
    receiver
}

struct Watcher<E> {
    connections: Arc<Connections>,
    namespace: Namespace,
    prefix: String,
    interest: WatchedKeys,
    events: mpsc::Sender<E>,
    wrap: fn(FeedEvent) -> Option<E>,
    /// Last delivered state. `None` before the first list, and when a new list is needed.
    delivered: Option<DeliveredState>,
}

/// Reasons to leave a watch stream.
enum StreamEnd {
    /// The receiver was dropped.
    Unwatched,
    /// The stream failed; the delivered state is still valid.
    Failed(StoreError),
    /// The store no longer has the changes since the last delivered revision.
    Missed(&'static str),
}

impl From<Failed> for StreamEnd {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed.error)
    }
}

/// A stream whose creation the server has confirmed.
struct OpenStream {
    connection: Arc<Connection>,
    stream: WatchStream,
}

impl<E: Send + 'static> Watcher<E> {
    async fn run(mut self, mut backoff: Backoff) {
        let mut cause = "start";
        let mut interrupted = false;
        loop {
            let attached = self.attach(cause, &mut interrupted).await;
            let end = match attached {
                Ok(open) => {
                    let (began, before) = (Instant::now(), self.revision());
                    let end = self.follow(open).await;
                    if began.elapsed() >= WATCH_LIVED || self.revision() > before {
                        backoff.reset();
                    }
                    end
                }
                Err(end) => end,
            };
            match end {
                StreamEnd::Unwatched => return,
                StreamEnd::Missed(why) => {
                    tracing::info!(prefix = %self.prefix, why, "a watch lists everything again");
                    self.delivered = None;
                    cause = why;
                }
                StreamEnd::Failed(error) => {
                    tracing::debug!(prefix = %self.prefix, %error, "a watch lost its stream");
                    let began = !std::mem::replace(&mut interrupted, true);
                    if began {
                        telemetry::madako_store_watch_interruptions_total(self.prefix.clone()).increment(1);
                    }
                    // Sent once per interruption. The port gets it only after the first list.
                    if began
                        && (cause_is_delivered(&self.delivered, cause) || self.interest != WatchedKeys::All)
                        && self.send(FeedEvent::Interrupted(error)).await.is_err()
                    {
                        return;
                    }
                }
            }
            let wait = sleep(backoff.wait());
            tokio::select! {
                biased;
                () = self.events.closed() => return,
                () = wait => {}
            }
        }
    }

    async fn send(&self, event: FeedEvent) -> Result<(), StreamEnd> {
        match (self.wrap)(event) {
            Some(event) => self.events.send(event).await.map_err(|_| StreamEnd::Unwatched),
            None => Ok(()),
        }
    }

    fn count_others(&self) -> usize {
        let delivered = self.delivered.iter().flat_map(|delivered| delivered.keys.keys());
        delivered.filter(|key| !self.interest.includes(key)).count()
    }

    fn revision(&self) -> i64 {
        self.delivered.as_ref().map_or(0, |delivered| delivered.revision)
    }

    /// Opens a stream and brings the receiver to its starting point.
    async fn attach(&mut self, cause: &'static str, interrupted: &mut bool) -> Result<OpenStream, StreamEnd> {
        // Resume at the last delivered revision, 0 for now, and drop the changes that were already delivered. Starting at
        // the next revision is not safe: if the history is compacted up to it, etcd before 3.6 omits the deletions at
        // that revision without notice (its issue 18089).
        let resume = self.delivered.as_ref().map_or(0, |delivered| delivered.revision);
        let open = self.open(resume).await?;
        let from =
            StoreReader { connections: &self.connections, namespace: &self.namespace, prefix: &self.prefix };
        match &self.delivered {
            Some(delivered) => match self.interest.read_at_revision(from, delivered.revision).await {
                Ok(then) if then == *delivered => {
                    telemetry::madako_store_watch_resumptions_total(self.prefix.clone()).increment(1);
                    self.send(FeedEvent::Resumed).await?;
                }
                Ok(_) => return Err(StreamEnd::Missed("other-store")),
                Err(Failed { source: Some(source), .. }) if revision_is_gone(&source) => {
                    let compacted = classify_lost_stream(&source);
                    return Err(StreamEnd::Missed(compacted));
                }
                Err(failed) => return Err(failed.into()),
            },
            None => {
                let (delivered, snapshot) = self.interest.read(from).await?;
                telemetry::madako_store_watch_lists_total(self.prefix.clone(), cause).increment(1);
                self.delivered = Some(delivered);
                self.send(FeedEvent::Listed { snapshot, others: self.count_others(), cause }).await?;
            }
        }
        *interrupted = false;
        Ok(open)
    }

    /// Opens a stream from a revision, or (0) from now.
    async fn open(&self, from: i64) -> Result<OpenStream, StreamEnd> {
        let Range { from: key, end } = self.namespace.key_range(&self.prefix);
        let mut options = WatchOptions::new().with_range(end).with_fragment();
        if from > 0 {
            options = options.with_start_revision(from);
        }
        let ask = |connection: Arc<Connection>| {
            let (key, options) = (key.clone(), options.clone());
            async move {
                let mut stream = connection.watch_client().watch(key, Some(options)).await?;
                let first = stream.message().await?.ok_or_else(stream_ended_error)?;
                if first.canceled() && is_denied(&first) && connection.has_credentials() {
                    // etcd 3.4 does not distinguish an unknown token from a missing permission.
                    return Err(Error::GRpcStatus(tonic::Status::unauthenticated(first.cancel_reason())));
                }
                Ok((connection, stream, first))
            }
        };
        let (connection, stream, first) = self
            .connections
            .send_request(Operation::Watch, &self.prefix, self.connections.timeout(), ask)
            .await?;
        self.refuse_canceled(&connection, &first)?;
        Ok(OpenStream { connection, stream })
    }

    /// Classifies the cancellation of a watch by its server.
    fn refuse_canceled(&self, connection: &Connection, answer: &WatchResponse) -> Result<(), StreamEnd> {
        if answer.compact_revision() > 0 {
            return Err(StreamEnd::Missed("compacted"));
        }
        if !answer.canceled() {
            return Ok(());
        }
        let kind = if is_denied(answer) { StoreErrorKind::Denied } else { StoreErrorKind::Unavailable };
        let reason = answer.cancel_reason();
        let reason = if reason.is_empty() { "the store ended the watch" } else { reason };
        let why = format!("{reason}, from {}", connection.name());
        Err(StreamEnd::Failed(StoreError {
            operation: Operation::Watch.describe_on(&self.prefix),
            kind,
            why,
        }))
    }

    async fn follow(&mut self, open: OpenStream) -> StreamEnd {
        let OpenStream { connection, mut stream } = open;
        let mut assembly = Assembly::default();
        let mut silent_at = Instant::now() + WATCH_SILENCE;
        // Deadline of a requested heartbeat, while one is pending.
        let mut answer_by = None;
        let mut suspected = false;
        loop {
            let answer = tokio::select! {
                biased;
                () = self.events.closed() => return StreamEnd::Unwatched,
                answer = stream.message() => answer,
                () = sleep_until(answer_by.unwrap_or(silent_at)) => {
                    if answer_by.is_some() {
                        self.connections.replace_after(&connection, StoreErrorKind::Deadline);
                        return StreamEnd::Failed(self.silent_stream_error(&connection));
                    }
                    match self.ask(&connection, &mut stream).await {
                        Ok(by) => answer_by = Some(by),
                        Err(end) => return end,
                    }
                    continue;
                }
                // A request on the same connection timed out, so do not wait for silence.
                () = connection.wait_until_suspect(), if !suspected => {
                    suspected = true;
                    silent_at = Instant::now();
                    continue;
                }
            };
            let answer = match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => return self.handle_broken_stream(&connection, &stream_ended_error()),
                Err(error) => return self.handle_broken_stream(&connection, &error),
            };
            (silent_at, answer_by) = (Instant::now() + WATCH_SILENCE, None);
            if let Err(end) = self.refuse_canceled(&connection, &answer) {
                return end;
            }
            if let Err(end) = self.deliver(&mut assembly, answer).await {
                return end;
            }
        }
    }

    /// Requests a heartbeat. Returns its deadline.
    async fn ask(&self, connection: &Connection, stream: &mut WatchStream) -> Result<Instant, StreamEnd> {
        let by = Instant::now() + self.connections.timeout() * 2;
        match timeout_at(by, stream.request_progress()).await {
            Ok(Ok(())) => Ok(by),
            Ok(Err(error)) => Err(self.handle_broken_stream(connection, &error)),
            Err(_) => Err(StreamEnd::Failed(self.silent_stream_error(connection))),
        }
    }

    async fn deliver(&mut self, assembly: &mut Assembly, answer: WatchResponse) -> Result<(), StreamEnd> {
        let more_follows = answer.0.fragment;
        let arrived = changes_of_answer(&self.namespace, self.interest, answer);
        let Some(delivered) = &mut self.delivered else { return Err(StreamEnd::Missed("start")) };
        let whole = assembly.take(delivered, arrived, more_follows, self.interest);
        let Some(WholeRevisions { revision, changes }) = whole else { return Ok(()) };
        self.send(FeedEvent::Changed { revision, changes }).await
    }

    fn handle_broken_stream(&self, connection: &Connection, cause: &Error) -> StreamEnd {
        let error = store_error(Operation::Watch, &self.prefix, connection.name(), cause);
        self.connections.replace_after(connection, classify_error_kind(cause));
        StreamEnd::Failed(error)
    }

    fn silent_stream_error(&self, connection: &Connection) -> StoreError {
        StoreError {
            operation: Operation::Watch.describe_on(&self.prefix),
            kind: StoreErrorKind::Deadline,
            why: format!("no message in time, from {}", connection.name()),
        }
    }
}

/// True if a list was delivered, so that an interruption is visible to the receiver.
fn cause_is_delivered(delivered: &Option<DeliveredState>, cause: &str) -> bool {
    delivered.is_some() || cause != "start"
}

fn classify_lost_stream(error: &Error) -> &'static str {
    if error.to_string().contains("compacted") { "compacted" } else { "other-store" }
}

fn stream_ended_error() -> Error {
    Error::WatchError("the stream ended".to_owned())
}

fn is_denied(answer: &WatchResponse) -> bool {
    let reason = answer.cancel_reason();
    reason.contains("permission denied") || reason.contains("auth")
}

fn changes_of_answer(
    namespace: &Namespace,
    interest: WatchedKeys,
    answer: WatchResponse,
) -> Vec<ReceivedChange> {
    answer
        .0
        .events
        .into_iter()
        .filter_map(|event| {
            let deleted = event.r#type == EventType::Delete as i32;
            let kv = event.kv?;
            let revision = kv.mod_revision;
            let kv = etcd_client::KeyValue(kv);
            let change = if deleted {
                relative_key(namespace, &kv).map(|key| KeyChange { key, entry: None })
            } else {
                to_entry(namespace, kv).map(|(key, mut entry)| {
                    if !interest.includes(&key) {
                        entry.value = Bytes::new();
                    }
                    KeyChange { key, entry: Some(entry) }
                })
            };
            Some(ReceivedChange { revision, change })
        })
        .collect()
}
