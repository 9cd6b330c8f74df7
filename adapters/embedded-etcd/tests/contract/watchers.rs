//! A watch stream, and what each of its watches was shown.

use std::collections::BTreeMap;

use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchResponse};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

use crate::outcome::normalise;
use crate::peers::DEADLINE;
use crate::wire::{Wire, progress_request};

/// What a watch was shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shown {
    pub(crate) events: Vec<PbEvent>,
    /// Its end: why, and the compacted revision.
    pub(crate) ended: Option<(String, i64)>,
}

/// One stream.
pub(crate) struct Watchers {
    requests: mpsc::Sender<PbWatchRequest>,
    responses: Streaming<PbWatchResponse>,
    /// By id, and by how often the id was used before.
    pub(crate) shown: BTreeMap<(i64, usize), Shown>,
    uses: BTreeMap<i64, usize>,
}

impl Watchers {
    pub(crate) async fn open(wire: &Wire) -> Self {
        let (requests, responses) = wire.watch().await.expect("a watch stream");
        let mut watchers = Self { requests, responses, shown: BTreeMap::new(), uses: BTreeMap::new() };
        watchers.until_progress().await;
        watchers
    }

    /// Creates a watch, and returns the answer to that.
    pub(crate) async fn create(&mut self, request: PbWatchRequest) -> PbWatchResponse {
        self.requests.send(request).await.expect("the stream is open");
        loop {
            let mut response = self.next().await;
            if response.created {
                normalise(&mut response.header);
                if !response.canceled {
                    let uses = self.uses.entry(response.watch_id).or_default();
                    *uses += 1;
                    self.shown.insert((response.watch_id, *uses), Shown::default());
                }
                return response;
            }
        }
    }

    /// Reads until every watch was shown what `expected` says, or more, or the time is up.
    pub(crate) async fn catch_up_with(&mut self, expected: &BTreeMap<(i64, usize), Shown>) {
        let behind = |shown: &BTreeMap<(i64, usize), Shown>| {
            expected.iter().any(|(id, wanted)| {
                let got = &shown[id];
                got.events.len() < wanted.events.len() || (wanted.ended.is_some() && got.ended.is_none())
            })
        };
        let reading = async {
            while behind(&self.shown) {
                self.next().await;
            }
        };
        // What is missing then shows in the comparison.
        let _ = timeout(DEADLINE, reading).await;
    }

    /// Asks how far the stream is, and reads everything up to that.
    pub(crate) async fn catch_up(&mut self) -> i64 {
        self.requests.send(progress_request()).await.expect("the stream is open");
        self.until_progress().await
    }

    async fn until_progress(&mut self) -> i64 {
        loop {
            let response = self.next().await;
            if response.watch_id == -1 && !response.created {
                return response.header.expect("a header").revision;
            }
        }
    }

    async fn next(&mut self) -> PbWatchResponse {
        let response = timeout(DEADLINE, self.responses.message())
            .await
            .expect("an answer in time")
            .expect("no error")
            .expect("the stream goes on");
        let uses = self.uses.get(&response.watch_id).copied().unwrap_or_default();
        if !response.created
            && let Some(shown) = self.shown.get_mut(&(response.watch_id, uses))
        {
            shown.events.extend(response.events.iter().cloned());
            if response.canceled {
                shown.ended = Some((response.cancel_reason.clone(), response.compact_revision));
            }
        }
        response
    }
}

impl Watchers {
    /// Reads until the first watch was shown so many events.
    pub(crate) async fn until_events(&mut self, count: usize) -> Vec<PbEvent> {
        loop {
            if let Some(shown) = self.shown.values().next()
                && shown.events.len() >= count
            {
                return shown.events.clone();
            }
            self.next().await;
        }
    }
}
