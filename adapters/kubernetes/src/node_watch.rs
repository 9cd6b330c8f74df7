//! Node objects that a watch keeps, so that a service at rest does not list them.
//!
//! A list begins the watch, which goes on from the list's resource version. The kept objects are the answer of a read while the
//! API server is heard: a list, an event or a bookmark came within the age that the caller accepts. Kubelets report every
//! 5 min, so that a large cluster is heard every second. A small or a silent cluster is listed by each read: its list has few pages.
//!
//! # Guarantees
//! - A read after a write of this client is a list that began after the write, so that it shows the write.
//! - Each kept object has all changes up to one resource version, because a list and an unbroken series of events show them. A
//!   watch that cannot go on (its version is too old, or an event cannot be read) ends, and the next read is a list.
//! - A connection without events and bookmarks for [`WATCH_SILENCE`] ends. A watch that ended goes on from its last version after
//!   a back-off with jitter.
//! - At most [`MAX_NODES`] objects are kept, without their images and other parts that the service does not read.
//! - A list with an older version than the kept objects replaces them: etcd may have been restored from a backup.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Request, Resource, WatchEvent, WatchParams};
use kube::client::Body;
use madako_protocol::feed::Task;
use madako_protocol::kubernetes::KubernetesError;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep, timeout};

use crate::exchange::{self, Call, RequestDeadline, ServerClient};
use crate::limits::{
    CHECK_DEADLINE, MAX_EVENT_BYTES, MAX_NODES, WATCH_PAUSE_FIRST, WATCH_PAUSE_MOST, WATCH_SILENCE,
};
use crate::node_parts::NodeParts;

/// The Node objects of one cluster, kept by at most one watch. The watch ends with this value.
#[derive(Debug)]
pub(crate) struct WatchedNodes {
    kept: Arc<Mutex<KeptNodes>>,
    watch: Mutex<Option<Task>>,
    /// Seed of the back-off's jitter.
    seed: u64,
}

/// All nodes at one resource version, as a list has them.
#[derive(Debug)]
pub(crate) struct ListedNodes<'a> {
    pub(crate) nodes: &'a [Arc<NodeParts>],
    /// `None`: the server has no versions, and cannot be watched.
    pub(crate) version: Option<&'a str>,
    /// Number of the writes before the list, as [`WatchedNodes::writes`] returned it.
    pub(crate) writes: u64,
}

#[derive(Debug, Default)]
struct KeptNodes {
    nodes: BTreeMap<String, Arc<NodeParts>>,
    /// Resource version up to which `nodes` has all changes. `None`: nothing is known.
    version: Option<u64>,
    /// Time of the newest list, event or bookmark.
    heard: Option<Instant>,
    /// Number of the writes of this client, and of those that a list shows.
    writes: u64,
    shown_writes: u64,
    /// Number of the newest watch. An earlier one keeps nothing.
    watch: u64,
    is_connected: bool,
}

/// The reason why a watch ended.
#[derive(Debug, PartialEq, Eq)]
enum WatchEnd {
    /// The connection ended. The watch can go on from the last version.
    Closed { was_heard: bool },
    /// Only a list shows what happened since.
    Obsolete,
}

impl WatchedNodes {
    pub(crate) fn new(seed: u64) -> Self {
        Self { kept: Arc::default(), watch: Mutex::default(), seed }
    }

    /// The kept objects, if the server was heard within `age`.
    pub(crate) fn fresh(&self, age: Duration) -> Option<Vec<Arc<NodeParts>>> {
        let kept = lock(&self.kept);
        kept.is_fresh(age).then(|| kept.nodes.values().cloned().collect())
    }

    /// Number of the writes of this client up to now.
    pub(crate) fn writes(&self) -> u64 {
        lock(&self.kept).writes
    }

    /// Notes a write of this client, whether or not it succeeded: the next read is a list.
    pub(crate) fn note_write(&self) {
        lock(&self.kept).writes += 1;
    }

    /// Keeps a list, and watches the nodes from there on, unless a watch does.
    pub(crate) fn note_list(&self, listed: &ListedNodes<'_>, client: &ServerClient) {
        let mut kept = lock(&self.kept);
        if !kept.note_list(listed) {
            return;
        }
        kept.watch += 1;
        let watch = Watch { kept: Arc::clone(&self.kept), number: kept.watch, client: client.clone() };
        drop(kept);
        let seed = self.seed;
        // The guard of the former task is dropped, which ends that task.
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Task::start_anew(async move { watch.keep(seed).await }));
    }
}

/// No code panics while it holds the lock, and the kept objects are consistent at any moment.
fn lock(kept: &Mutex<KeptNodes>) -> MutexGuard<'_, KeptNodes> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_version(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

impl KeptNodes {
    fn is_fresh(&self, age: Duration) -> bool {
        self.version.is_some()
            && self.writes == self.shown_writes
            && self.heard.is_some_and(|heard| heard.elapsed() < age)
    }

    /// Returns whether another watch must begin.
    fn note_list(&mut self, listed: &ListedNodes<'_>) -> bool {
        let named = listed.nodes.iter().map(|node| Some((node.metadata.name.clone()?, Arc::clone(node))));
        let nodes: Option<BTreeMap<String, Arc<NodeParts>>> = named.collect();
        let Some((nodes, version)) = nodes.zip(read_version(listed.version)) else {
            self.forget();
            return false;
        };
        let is_older = self.version.is_some_and(|known| version < known);
        if is_older {
            self.shown_writes = listed.writes;
        } else {
            self.shown_writes = self.shown_writes.max(listed.writes);
        }
        (self.nodes, self.version) = (nodes, Some(version));
        self.heard = Some(Instant::now());
        is_older || !self.is_connected
    }

    /// Notes an event. False: it cannot be read, and only a list shows the nodes.
    fn note_event(&mut self, line: &[u8]) -> bool {
        let Ok(event) = serde_json::from_slice::<WatchEvent<NodeParts>>(line) else { return false };
        let (node, is_deleted) = match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => (node, false),
            WatchEvent::Deleted(node) => (node, true),
            WatchEvent::Bookmark(bookmark) => {
                let version = read_version(Some(&bookmark.metadata.resource_version));
                return version.is_some_and(|version| self.note_version(version));
            }
            // Most often: the version of the watch is too old.
            WatchEvent::Error(_) => return false,
        };
        let version = read_version(node.metadata.resource_version.as_deref());
        let Some((version, name)) = version.zip(node.metadata.name.clone()) else { return false };
        // A list may already have the change.
        if self.version.is_some_and(|known| version > known) {
            if is_deleted {
                self.nodes.remove(&name);
            } else {
                self.nodes.insert(name, Arc::new(node));
            }
        }
        self.note_version(version) && self.nodes.len() <= MAX_NODES
    }

    fn note_version(&mut self, version: u64) -> bool {
        self.version = self.version.map(|known| known.max(version));
        self.heard = Some(Instant::now());
        self.version.is_some()
    }

    fn forget(&mut self) {
        self.nodes.clear();
        (self.version, self.is_connected) = (None, false);
    }
}

/// A watch that goes on over several connections.
struct Watch {
    kept: Arc<Mutex<KeptNodes>>,
    number: u64,
    client: ServerClient,
}

impl Watch {
    async fn keep(self, seed: u64) {
        let mut jitter = ChaCha8Rng::seed_from_u64(seed);
        jitter.set_stream(self.number);
        let mut failures = 0;
        while let Some(version) = self.with_kept(|kept| kept.version).flatten() {
            let end = self.follow(version).await;
            self.with_kept(|kept| kept.is_connected = false);
            match end {
                WatchEnd::Obsolete => {
                    self.with_kept(KeptNodes::forget);
                    return;
                }
                WatchEnd::Closed { was_heard: true } => failures = 0,
                WatchEnd::Closed { was_heard: false } => failures += 1,
            }
            sleep(pause_after(failures, jitter.random_range(0.5..=1.0))).await;
        }
    }

    /// Acts on the kept objects. `None`: another watch keeps them.
    fn with_kept<R>(&self, act: impl FnOnce(&mut KeptNodes) -> R) -> Option<R> {
        let mut kept = lock(&self.kept);
        (kept.watch == self.number).then(|| act(&mut kept))
    }

    /// Follows the changes after a version until the connection ends.
    async fn follow(&self, version: u64) -> WatchEnd {
        let call = Call { name: "watch", what: "watch of nodes" };
        let request = Request::new(Node::url_path(&(), None));
        let request = request.watch(&WatchParams::default(), &version.to_string());
        let until = RequestDeadline::after(CHECK_DEADLINE);
        let mut body = match exchange::open_stream(&self.client, call, request, until).await {
            Ok(body) => body,
            Err(
                KubernetesError::Unavailable { .. } | KubernetesError::Refused { status: 429 | 500.., .. },
            ) => {
                return WatchEnd::Closed { was_heard: false };
            }
            // Among them 410 (the version is too old) and 403 (no right to watch).
            Err(_) => return WatchEnd::Obsolete,
        };
        self.with_kept(|kept| kept.is_connected = true);
        let (mut lines, mut was_heard) = (Lines::default(), false);
        loop {
            let Some(bytes) = next_bytes(&mut body).await else { return WatchEnd::Closed { was_heard } };
            let Some(events) = lines.push(&bytes) else { return WatchEnd::Obsolete };
            for event in events {
                match self.with_kept(|kept| kept.note_event(&event)) {
                    Some(true) => was_heard = true,
                    Some(false) | None => return WatchEnd::Obsolete,
                }
            }
        }
    }
}

/// The next bytes of an answer. `None`: it ended, or is silent for too long.
async fn next_bytes(body: &mut Body) -> Option<Vec<u8>> {
    loop {
        let frame = timeout(WATCH_SILENCE, body.frame()).await.ok()??.ok()?;
        // Trailers carry no events.
        if let Ok(data) = frame.into_data() {
            return Some(data.to_vec());
        }
    }
}

/// The time after so many failures in a row. `jitter` is a factor from 0.5 to 1.
fn pause_after(failures: u32, jitter: f64) -> Duration {
    let step = WATCH_PAUSE_FIRST.saturating_mul(1 << failures.min(16));
    step.min(WATCH_PAUSE_MOST).mul_f64(jitter)
}

/// Splits a stream into lines.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that these bytes complete. `None`: a line is longer than [`MAX_EVENT_BYTES`].
    fn push(&mut self, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        self.0.extend_from_slice(parts.next().unwrap_or_default());
        let mut complete = Vec::new();
        for part in parts {
            complete.push(std::mem::replace(&mut self.0, part.to_vec()));
        }
        complete.retain(|line| !line.is_empty());
        (self.0.len() <= MAX_EVENT_BYTES).then_some(complete)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const AGE: Duration = Duration::from_secs(10);

    fn node(name: &str, version: u64, label: &str) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": version.to_string(), "labels": {"x": label}}})
    }

    fn event(kind: &str, object: &Value) -> Vec<u8> {
        json!({"type": kind, "object": object}).to_string().into_bytes()
    }

    fn list(kept: &mut KeptNodes, version: u64, nodes: &[Value], writes: u64) -> bool {
        let read = |it: &Value| Arc::new(serde_json::from_value(it.clone()).unwrap());
        let nodes: Vec<Arc<NodeParts>> = nodes.iter().map(read).collect();
        let version = version.to_string();
        kept.note_list(&ListedNodes { nodes: &nodes, version: Some(&version), writes })
    }

    fn labels(kept: &KeptNodes) -> Vec<String> {
        let label = |node: &NodeParts| node.metadata.labels.as_ref().unwrap()["x"].clone();
        kept.nodes.iter().map(|(name, node)| format!("{name}={}", label(node))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn kept_nodes_are_those_of_the_list_with_each_later_change() {
        let mut kept = KeptNodes::default();
        assert!(list(&mut kept, 10, &[node("a", 5, "1"), node("b", 7, "1")], 0), "a watch begins");
        for (change, expected) in [
            (event("MODIFIED", &node("a", 9, "old")), vec!["a=1", "b=1"]),
            (event("MODIFIED", &node("a", 12, "2")), vec!["a=2", "b=1"]),
            (event("ADDED", &node("c", 13, "1")), vec!["a=2", "b=1", "c=1"]),
            (event("DELETED", &node("b", 14, "1")), vec!["a=2", "c=1"]),
        ] {
            assert!(kept.note_event(&change));
            assert_eq!(labels(&kept), expected);
        }
        let bookmark = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "90"}});
        assert!(kept.note_event(&event("BOOKMARK", &bookmark)));
        assert_eq!(kept.version, Some(90));
        kept.is_connected = true;
        assert!(!list(&mut kept, 95, &[node("d", 92, "1")], 0), "the watch goes on");
        assert_eq!(labels(&kept), ["d=1"]);
        // A restored etcd counts from an earlier version on.
        assert!(list(&mut kept, 20, &[node("e", 3, "1")], 0), "another watch begins");
        assert_eq!((labels(&kept), kept.version), (vec!["e=1".to_owned()], Some(20)));
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_events_end_the_watch() {
        for wrong in [
            b"{".to_vec(),
            event("MODIFIED", &json!({"metadata": {"name": "a"}})),
            event("MODIFIED", &json!({"metadata": {"resourceVersion": "11"}})),
            event(
                "BOOKMARK",
                &json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "x"}}),
            ),
            event(
                "ERROR",
                &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
            ),
        ] {
            let mut kept = KeptNodes::default();
            list(&mut kept, 10, &[node("a", 5, "1")], 0);
            assert!(!kept.note_event(&wrong), "{}", String::from_utf8_lossy(&wrong));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn kept_nodes_are_fresh_while_the_server_is_heard_and_no_write_is_missing() {
        let mut kept = KeptNodes::default();
        assert!(!kept.is_fresh(AGE));
        list(&mut kept, 10, &[node("a", 5, "1")], 0);
        assert!(kept.is_fresh(AGE) && !kept.is_fresh(Duration::ZERO));
        tokio::time::advance(AGE).await;
        assert!(!kept.is_fresh(AGE), "silence");
        assert!(kept.note_event(&event("MODIFIED", &node("a", 12, "2"))));
        assert!(kept.is_fresh(AGE));
        kept.writes += 1;
        assert!(!kept.is_fresh(AGE), "a write that no list shows");
        list(&mut kept, 13, &[node("a", 12, "2")], 0);
        assert!(!kept.is_fresh(AGE), "a list that began before the write");
        list(&mut kept, 14, &[node("a", 14, "3")], 1);
        assert!(kept.is_fresh(AGE));
        // A server without versions cannot be watched.
        assert!(!kept.note_list(&ListedNodes { nodes: &[], version: None, writes: 1 }));
        assert!(!kept.is_fresh(AGE));
    }

    #[test]
    fn pauses_double_up_to_the_longest_one() {
        assert_eq!(pause_after(0, 1.0), WATCH_PAUSE_FIRST);
        assert_eq!(pause_after(1, 0.5), WATCH_PAUSE_FIRST);
        assert_eq!(pause_after(2, 1.0), WATCH_PAUSE_FIRST * 4);
        assert_eq!(pause_after(u32::MAX, 1.0), WATCH_PAUSE_MOST);
    }

    #[test]
    fn lines_are_whole_whatever_the_frames_are() {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for frame in ["{\"a\"", ":1}\n{\"b\":2}\n\n", "{", "}\n"] {
            found.extend(lines.push(frame.as_bytes()).unwrap());
        }
        let found: Vec<&str> = found.iter().map(|line| std::str::from_utf8(line).unwrap()).collect();
        assert_eq!(found, ["{\"a\":1}", "{\"b\":2}", "{}"]);
        assert_eq!(lines.push(&vec![b'x'; MAX_EVENT_BYTES + 1]), None);
    }
}
