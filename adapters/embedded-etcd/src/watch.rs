//! Watch streams of the embedded store. A stream pulls: it learns the newest revision, and reads the changes since its
//! last one from memory, or from the file if it lags. A slow client therefore costs a few responses of memory, however
//! far it lags, and every stream sees every change once and in order.
//!
//! Guarantees: the changes of one revision are never split over two responses, except over fragments if the client
//! asked for them. After a progress response no older change follows for the watches that existed then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};

use crate::limits::PROGRESS_INTERVAL;
pub(crate) use crate::limits::{MAX_WAITING_RESPONSES, MAX_WATCHES};
use crate::options::DEFAULT_MAX_REQUEST_BYTES;
use crate::recent::{DELETE, RevisionEvents};
use crate::request_error::RequestError;
use crate::span::Span;
use crate::store::Store;

/// Watch id of a response that does not concern a single watch.
const NO_WATCH: i64 = -1;
/// `FilterType` of the protocol.
const NO_PUT: i32 = 0;
const NO_DELETE: i32 = 1;

#[derive(Debug)]
struct Watch {
    key: Vec<u8>,
    range_end: Vec<u8>,
    /// The first revision that was not yet delivered.
    next: i64,
    no_put: bool,
    no_delete: bool,
    prev_kv: bool,
    fragment: bool,
    progress: bool,
    /// Ended by a compaction. As in etcd, its id stays taken until the client cancels it.
    ended: bool,
    /// True if changes were sent since the last progress interval.
    heard: bool,
}

/// The stream ends: the client has disconnected, or the store stops.
struct StreamEnded;

pub(crate) struct WatchStream {
    store: Arc<Store>,
    responses: mpsc::Sender<Result<PbWatchResponse, Status>>,
    watches: BTreeMap<i64, Watch>,
    next_id: i64,
}

impl WatchStream {
    pub(crate) fn new(store: Arc<Store>, responses: mpsc::Sender<Result<PbWatchResponse, Status>>) -> Self {
        Self { store, responses, watches: BTreeMap::new(), next_id: 0 }
    }

    pub(crate) async fn run(mut self, mut requests: Streaming<PbWatchRequest>) {
        let mut published = self.store.subscribe();
        let stopping = self.store.watch_stop();
        let mut progress = interval_at(Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            published.mark_seen();
            if self.catch_up().await.is_err() {
                return;
            }
            let outcome = tokio::select! {
                biased;
                () = stopping.wait() => {
                    // The client may have disconnected.
                    let _ = self.responses.try_send(Err(RequestError::Stopped.into()));
                    return;
                }
                () = self.responses.closed() => return,
                request = requests.message() => match request {
                    Ok(Some(request)) => self.handle(request).await,
                    Ok(None) | Err(_) => return,
                },
                () = published.wait_for_change() => Ok(()),
                _ = progress.tick() => self.send_progress().await,
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    async fn send(&self, response: PbWatchResponse) -> Result<(), StreamEnded> {
        self.responses.send(Ok(response)).await.map_err(|_| StreamEnded)
    }

    async fn handle(&mut self, request: PbWatchRequest) -> Result<(), StreamEnded> {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                let current = self.store.lock_state().view.current;
                let key = if create.key.is_empty() { vec![0] } else { create.key };
                let watch = Watch {
                    key,
                    range_end: create.range_end,
                    next: if create.start_revision == 0 { current + 1 } else { create.start_revision },
                    no_put: create.filters.contains(&NO_PUT),
                    no_delete: create.filters.contains(&NO_DELETE),
                    prev_kv: create.prev_kv,
                    fragment: create.fragment,
                    progress: create.progress_notify,
                    ended: false,
                    heard: false,
                };
                let (watch_id, cancel_reason) = match self.add(create.watch_id, watch) {
                    Ok(id) => (id, String::new()),
                    Err(reason) => (NO_WATCH, reason.to_owned()),
                };
                self.send(PbWatchResponse {
                    header: Some(self.store.response_header(current)),
                    watch_id,
                    created: true,
                    canceled: !cancel_reason.is_empty(),
                    cancel_reason,
                    ..PbWatchResponse::default()
                })
                .await
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                if self.remove(cancel.watch_id).is_none() {
                    return Ok(());
                }
                self.send(PbWatchResponse {
                    header: Some(self.store.current_header()),
                    watch_id: cancel.watch_id,
                    canceled: true,
                    ..PbWatchResponse::default()
                })
                .await
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                let reached = self.catch_up().await?;
                self.send(PbWatchResponse {
                    header: Some(self.store.response_header(reached)),
                    watch_id: NO_WATCH,
                    ..PbWatchResponse::default()
                })
                .await
            }
            None => Ok(()),
        }
    }

    fn add(&mut self, wanted_id: i64, watch: Watch) -> Result<i64, &'static str> {
        // A span from a key on is never empty, regardless of the bytes of its end.
        if !watch.range_end.is_empty() && watch.range_end != [0] && watch.key >= watch.range_end {
            return Err("mvcc: watcher range is empty");
        }
        if wanted_id != 0 && self.watches.contains_key(&wanted_id) {
            return Err("mvcc: duplicate watch ID provided on the WatchStream");
        }
        if self.store.watches.fetch_add(1, Ordering::AcqRel) >= MAX_WATCHES {
            self.store.watches.fetch_sub(1, Ordering::AcqRel);
            return Err("embedded store: too many watches");
        }
        let id = if wanted_id == 0 {
            while self.watches.contains_key(&self.next_id) {
                self.next_id += 1;
            }
            self.next_id += 1;
            self.next_id - 1
        } else {
            wanted_id
        };
        self.watches.insert(id, watch);
        Ok(id)
    }

    fn remove(&mut self, id: i64) -> Option<Watch> {
        let removed = self.watches.remove(&id);
        if removed.is_some() {
            self.store.watches.fetch_sub(1, Ordering::AcqRel);
        }
        removed
    }

    fn living_watches(&self) -> impl Iterator<Item = (i64, &Watch)> {
        self.watches.iter().filter(|(_, watch)| !watch.ended).map(|(id, watch)| (*id, watch))
    }

    /// Sends every watch its pending changes, and returns the revision up to which they are complete.
    async fn catch_up(&mut self) -> Result<i64, StreamEnded> {
        loop {
            let view = self.store.lock_state().view;
            let compacted = |watch: &Watch| watch.next < view.compacted;
            let ending: Vec<_> =
                self.living_watches().filter(|(_, watch)| compacted(watch)).map(|(id, _)| id).collect();
            for id in ending {
                if let Some(watch) = self.watches.get_mut(&id) {
                    watch.ended = true;
                }
                self.send(PbWatchResponse {
                    // As in etcd, this response contains no revision but the compacted one.
                    header: Some(self.store.response_header(0)),
                    watch_id: id,
                    canceled: true,
                    compact_revision: view.compacted,
                    ..PbWatchResponse::default()
                })
                .await?;
            }
            let behind =
                self.living_watches().map(|(_, watch)| watch.next).filter(|next| *next <= view.current).min();
            let Some(from) = behind else { return Ok(view.current) };
            let batch = match self.store.events_since(from) {
                Ok(batch) => batch,
                // A compaction happened after the view was taken; the next iteration sees it.
                Err(RequestError::Compacted) => continue,
                Err(refusal) => {
                    // The client may have disconnected; the stream ends in both cases.
                    let _ = self.responses.send(Err(refusal.into())).await;
                    return Err(StreamEnded);
                }
            };
            let ids: Vec<_> = self
                .living_watches()
                .filter(|(_, watch)| watch.next <= batch.upto)
                .map(|(id, _)| id)
                .collect();
            for id in ids {
                let Some(watch) = self.watches.get_mut(&id) else { continue };
                let events = watch.select(&self.store, &batch.revisions);
                watch.next = batch.upto + 1;
                watch.heard |= !events.is_empty();
                let fragment = watch.fragment;
                if events.is_empty() {
                    continue;
                }
                let response = PbWatchResponse {
                    header: Some(self.store.response_header(batch.upto)),
                    watch_id: id,
                    events,
                    ..PbWatchResponse::default()
                };
                if fragment {
                    for part in split_response(response) {
                        self.send(part).await?;
                    }
                } else {
                    self.send(response).await?;
                }
            }
        }
    }

    async fn send_progress(&mut self) -> Result<(), StreamEnded> {
        let reached = self.catch_up().await?;
        let mut quiet = Vec::new();
        for (id, watch) in &mut self.watches {
            if watch.progress && !watch.ended && !watch.heard && watch.next <= reached + 1 {
                quiet.push(*id);
            }
            watch.heard = false;
        }
        for watch_id in quiet {
            self.send(PbWatchResponse {
                header: Some(self.store.response_header(reached)),
                watch_id,
                ..PbWatchResponse::default()
            })
            .await?;
        }
        Ok(())
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.store.watches.fetch_sub(self.watches.len(), Ordering::AcqRel);
    }
}

impl Watch {
    fn select(&self, store: &Store, revisions: &[Arc<RevisionEvents>]) -> Vec<PbEvent> {
        let span = Span::new(&self.key, &self.range_end);
        let mut selected = Vec::new();
        for revision in revisions.iter().filter(|revision| revision.main >= self.next) {
            for event in &revision.events {
                let Some(kv) = &event.kv else { continue };
                let unwanted = if event.r#type == DELETE { self.no_delete } else { self.no_put };
                if unwanted || !span.contains(&kv.key) {
                    continue;
                }
                let mut event = event.clone();
                if self.prev_kv && (event.r#type == DELETE || kv.create_revision != kv.mod_revision) {
                    event.prev_kv = store.find_pair_before(&kv.key, kv.mod_revision);
                }
                selected.push(event);
            }
        }
        selected
    }
}

/// Splits a response that exceeds etcd's default request limit, as etcd does.
fn split_response(mut response: PbWatchResponse) -> Vec<PbWatchResponse> {
    if response.encoded_len() < DEFAULT_MAX_REQUEST_BYTES || response.events.len() < 2 {
        return vec![response];
    }
    let events = std::mem::take(&mut response.events);
    let empty = response.encoded_len();
    let mut parts = Vec::new();
    let mut part = PbWatchResponse { fragment: true, ..response.clone() };
    let mut bytes = empty;
    for event in events {
        // Tag and length take at most six bytes.
        let added = event.encoded_len() + 6;
        if !part.events.is_empty() && bytes + added >= DEFAULT_MAX_REQUEST_BYTES {
            parts.push(std::mem::replace(&mut part, PbWatchResponse { fragment: true, ..response.clone() }));
            bytes = empty;
        }
        bytes += added;
        part.events.push(event);
    }
    part.fragment = false;
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_MAX_REQUEST_BYTES, split_response};
    use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchResponse};
    use prost::Message;

    #[test]
    fn fragments_hold_every_event_once_and_only_the_last_is_marked_as_last() {
        let event = |byte| PbEvent {
            kv: Some(PbKeyValue { key: vec![byte], value: vec![byte; 700_000], ..PbKeyValue::default() }),
            ..PbEvent::default()
        };
        let whole = PbWatchResponse {
            watch_id: 5,
            events: (0..7).map(event).collect(),
            ..PbWatchResponse::default()
        };
        let parts = split_response(whole.clone());
        assert_eq!(parts.iter().map(|part| part.fragment).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(
            parts.iter().all(|part| part.encoded_len() < DEFAULT_MAX_REQUEST_BYTES && part.watch_id == 5)
        );
        assert_eq!(parts.into_iter().flat_map(|part| part.events).collect::<Vec<_>>(), whole.events);
    }
}
