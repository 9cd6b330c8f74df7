//! Uncordons nodes that this system cordoned and that no repair or reboot needs any more: when a repair or a reboot of a node
//! ends or is cancelled, and once an interval, as CKE does.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::invariants::cordoned_nodes;
use madako_domain::kubernetes::KubeNode;
use madako_domain::state::ClusterState;
use madako_protocol::actors::RepairMessage;
use madako_protocol::event::Event;
use madako_protocol::feed::Task;
use tracing::{Instrument as _, Span, info_span};

use super::RepairState;

#[derive(Default)]
pub(super) struct Cordons {
    looking: Option<Task>,
    /// Read the nodes again when the current read ends.
    again: bool,
    /// Nodes that the last read found, until the queue is consulted.
    found: Vec<String>,
    uncordoning: BTreeMap<String, Task>,
    /// Span of each node's last drain, until the node is uncordoned.
    drained: BTreeMap<String, Span>,
    trouble: String,
}

impl Cordons {
    pub(super) fn is_uncordoned(&self, node: &str) -> bool {
        self.uncordoning.contains_key(node)
    }

    /// Keeps the span of an ended drain, for the node's uncordoning.
    pub(super) fn keep_span(&mut self, node: String, drain: Span) {
        self.drained.insert(node, drain);
    }
}

impl RepairState {
    /// Reads which nodes this system cordoned.
    pub(super) fn check_nodes(&mut self) {
        let Some(kubernetes) = self.given.kubernetes.clone() else { return };
        if self.cordons.looking.is_some() {
            self.cordons.again = true;
            return;
        }
        let actor = self.myself.clone();
        self.cordons.looking = Some(Task::start_anew(async move {
            let ours = |nodes: Vec<KubeNode>| {
                nodes.into_iter().filter(KubeNode::is_cordoned_by_us).map(|node| node.name).collect()
            };
            let nodes = kubernetes.nodes().await.map(ours).map_err(|error| error.to_string());
            // The actor is gone: the answer is not needed.
            let _ = actor.cast(RepairMessage::Cordoned(nodes).into());
        }));
    }

    pub(super) fn note_cordoned(&mut self, nodes: Result<Vec<String>, String>) {
        self.cordons.looking = None;
        match nodes {
            Err(why) => {
                self.cordons.again = false;
                return self.note_trouble(why);
            }
            Ok(nodes) => {
                self.note_trouble(String::new());
                self.cordons.drained.retain(|node, _| nodes.contains(node));
                self.cordons.found = nodes;
            }
        }
        if std::mem::take(&mut self.cordons.again) {
            self.check_nodes();
        }
    }

    /// Uncordons the nodes of the last read that, by the newest state, no repair or reboot needs.
    pub(super) fn uncordon_idle(&mut self, state: &ClusterState) {
        let found = std::mem::take(&mut self.cordons.found);
        if found.is_empty() || is_planted(Canary::CordonForgotten) {
            return;
        }
        let busy = cordoned_nodes(state);
        for node in found {
            let drained = self.drains.values().any(|drain| drain.node == node);
            if !busy.contains(node.as_str()) && !drained && !self.cordons.is_uncordoned(&node) {
                self.uncordon(node);
            }
        }
    }

    fn uncordon(&mut self, node: String) {
        let Some(kubernetes) = self.given.kubernetes.clone() else { return };
        let (actor, permits, name) = (self.myself.clone(), self.runner.permits().clone(), node.clone());
        let kubernetes = Arc::clone(&kubernetes);
        let drain = self.cordons.drained.get(&node).and_then(Span::id);
        let span = info_span!(parent: drain, "uncordon", node);
        let uncordoned = async move {
            let uncordon = |permit| {
                let (kubernetes, name) = (Arc::clone(&kubernetes), name.clone());
                async move { kubernetes.uncordon(&permit, &name).await }
            };
            let failed = permits.try_effect(uncordon).await.err().map(|error| error.to_string());
            // The actor is gone: its successor reads the nodes again.
            let _ = actor.cast(RepairMessage::Uncordoned { node: name, failed }.into());
        };
        let task = Task::start_anew(uncordoned.instrument(span));
        self.cordons.uncordoning.insert(node, task);
    }

    pub(super) fn note_uncordoned(&mut self, node: &str, failed: Option<String>) {
        self.cordons.uncordoning.remove(node);
        match failed {
            Some(why) => self.note_trouble(why),
            None => {
                self.cordons.drained.remove(node);
            }
        }
    }

    /// Emits an event when the Kubernetes error differs from the previous one.
    fn note_trouble(&mut self, why: String) {
        if self.cordons.trouble != why {
            self.cordons.trouble.clone_from(&why);
            self.given.events.emit(Event::RepairTrouble { why });
        }
    }
}

/// True if the new state leaves a node idle that the old one has under repair or reboot.
pub(super) fn frees_node(old: &ClusterState, new: &ClusterState) -> bool {
    !Arc::ptr_eq(&old.repair, &new.repair) && !cordoned_nodes(old).is_subset(&cordoned_nodes(new))
}
