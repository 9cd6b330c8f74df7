//! Versions of the nodes of the simulated API server, and watches of them.
//!
//! A version is the time of a change in microseconds, or one more than the version before it, so that a restarted process knows
//! no version of its predecessor: those watches begin with another list, as after a real API server compacted its history.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::ApiServer;
use super::objects::Failure;
use crate::datacenter::tap::Streamed;

/// Changes that a watch may catch up with: a run changes nodes some hundred times.
const MAX_EVENTS: usize = 1_000;
/// Interval at which a watch looks at the nodes.
const LOOK: Duration = Duration::from_millis(200);
/// Interval of bookmarks. A real API server sends one a minute; a run of chaos lasts some minutes.
const BOOKMARK: Duration = Duration::from_secs(10);
/// Time after which a watch ends, as `timeoutSeconds` of the service's requests.
const LASTS: Duration = Duration::from_secs(290);
/// Events that wait for a slow client.
const QUEUE: usize = 16;

/// The nodes of the newest version, and the changes that led to it.
#[derive(Debug)]
pub(super) struct NodeHistory {
    nodes: BTreeMap<String, Value>,
    version: u64,
    /// The version from which on `events` are complete.
    complete_from: u64,
    /// Lines of a watch, by version.
    events: VecDeque<(u64, String)>,
}

impl NodeHistory {
    pub(super) fn new(version: u64) -> Self {
        Self { nodes: BTreeMap::new(), version, complete_from: version, events: VecDeque::new() }
    }

    /// Notes the present nodes, whose objects have no versions.
    pub(super) fn note(&mut self, present: Vec<Value>) {
        let named = present.into_iter().map(|node| {
            let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (name, node)
        });
        let present: BTreeMap<String, Value> = named.collect();
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !present.contains_key(*name)).cloned().collect();
        for name in gone {
            if let Some(node) = self.nodes.remove(&name) {
                self.record("DELETED", node);
            }
        }
        for (name, mut node) in present {
            let known = self.nodes.get(&name);
            let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
            node["metadata"]["resourceVersion"] =
                known.map_or(Value::Null, |it| it["metadata"]["resourceVersion"].clone());
            if known != Some(&node) {
                let node = self.record(kind, node);
                self.nodes.insert(name, node);
            }
        }
    }

    /// Records a change at the next version, and returns the object of that version.
    fn record(&mut self, kind: &str, mut node: Value) -> Value {
        self.version += 1;
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push_back((self.version, format!("{}\n", json!({"type": kind, "object": node}))));
        if self.events.len() > MAX_EVENTS {
            self.complete_from = self.events.pop_front().map_or(self.version, |(version, _)| version);
        }
        node
    }

    pub(super) fn list(&self) -> Value {
        let items: Vec<&Value> = self.nodes.values().collect();
        let metadata = json!({"resourceVersion": self.version.to_string()});
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items})
    }

    /// The changes after a version, and the newest version. `None`: not all of these changes are known.
    pub(super) fn after(&self, version: u64) -> Option<(Vec<String>, u64)> {
        let is_known = (self.complete_from..=self.version).contains(&version);
        let lines = self.events.iter().filter(|(at, _)| *at > version).map(|(_, line)| line.clone());
        is_known.then(|| (lines.collect(), self.version))
    }
}

/// The lines of a watch as the body of an answer.
struct Events(mpsc::Receiver<String>);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line.into()))))
    }
}

impl ApiServer {
    fn nodes_after(&self, version: u64) -> Option<(Vec<String>, u64)> {
        self.with_history(|history| history.after(version))
    }

    /// Answers with the changes of nodes after a version, as they happen.
    pub(super) fn watch_nodes(&self, version: &str) -> Result<Response, Failure> {
        let begins = version.parse().ok().filter(|version| self.nodes_after(*version).is_some());
        let Some(mut version) = begins else { return Err(Failure::gone(version)) };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let server = self.clone();
        tokio::spawn(async move {
            let (begun, mut heard) = (Instant::now(), Instant::now());
            while begun.elapsed() < LASTS {
                // A version that is lost meanwhile ends the watch; its client is refused when it goes on.
                let Some((mut lines, newest)) = server.nodes_after(version) else { return };
                version = newest;
                if lines.is_empty() && heard.elapsed() >= BOOKMARK {
                    let metadata = json!({"resourceVersion": version.to_string()});
                    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": metadata});
                    lines.push(format!("{}\n", json!({"type": "BOOKMARK", "object": object})));
                }
                for line in lines {
                    heard = Instant::now();
                    // The client left.
                    let Ok(()) = sender.send(line).await else { return };
                }
                sleep(LOOK).await;
            }
        });
        let mut response = Response::new(Body::new(Events(receiver)));
        response.extensions_mut().insert(Streamed);
        Ok(response)
    }
}
