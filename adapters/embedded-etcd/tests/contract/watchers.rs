//! Test support: a watch stream, and the events that each of its watches received.

use std::collections::BTreeMap;

use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchResponse};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

use crate::outcome::normalise;
use crate::peers::DEADLINE;
use crate::wire::{Wire, progress_request};

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shown {
    pub(crate) events: Vec<PbEvent>,
    /// Reason of the watch's end, and the compacted revision.
    pub(crate) ended: Option<(String, i64)>,
}

pub(crate) struct Watchers {
    requests: mpsc::Sender<PbWatchRequest>,
    responses: Streaming<PbWatchResponse>,
    /// By id, and by the number of earlier uses of the id.
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

    /// Creates a watch; returns the answer to the request.
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

    /// Reads until every watch has received the `expected` events, or more, or until the deadline.
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
        // Missing events show up in the comparison.
        let _ = timeout(DEADLINE, reading).await;
    }

    /// Requests progress, and reads everything up to that answer.
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
    /// Reads until the first watch has received `count` events.
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
