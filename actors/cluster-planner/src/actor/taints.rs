//! Taints of Kubernetes nodes for the planner's actor. A separate task reads them once a poll interval, so that a slow
//! API server delays nothing.
//!
//! Guarantees: the last good answer counts until it is older than three intervals. After that, and without a
//! configured API server, taints are unknown: then they neither exclude nor replace a node (CKE's
//! `sabakan-integration.md` does not require taints). The first plan of an epoch waits for the first answer, for a bounded time.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::observation::TaintsPoll;
use madako_protocol::actors::PlannerMessage;
use madako_protocol::event::Event;
use madako_protocol::feed::{Task, forward_values};
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{self, Publisher};
use madako_protocol::mailbox::Envelope;
use ractor::ActorRef;
use tokio::time::{Instant, timeout};

use super::{madako_node_taints_known, madako_node_taints_timestamp_seconds};
use crate::limits::FIRST_READ_WITHIN;

pub(crate) struct NodeTaints {
    /// `None`: no API server is configured, so no answer is expected.
    feeds: Option<[Task; 2]>,
    /// By node name, which is the machine's first address (CKE starts kubelets so).
    known: BTreeMap<String, Vec<Taint>>,
    last_success: Option<Instant>,
    polled: bool,
    /// True if the last event reported known taints; `None`: there was no event.
    reported: Option<bool>,
}

impl NodeTaints {
    pub(crate) fn start(
        api: Option<Arc<dyn Kubernetes>>,
        interval: Duration,
        actor: ActorRef<Envelope<PlannerMessage>>,
    ) -> Self {
        let feeds = api.map(|api| {
            let (polls, taints_feed) = latest::channel();
            [
                Task::start(poll_taints(api, interval, polls)),
                forward_values(taints_feed, actor, PlannerMessage::Taints),
            ]
        });
        Self { feeds, known: BTreeMap::new(), last_success: None, polled: false, reported: None }
    }

    pub(crate) fn is_awaiting_first_poll(&self) -> bool {
        self.feeds.is_some() && !self.polled
    }

    pub(crate) fn known(&self) -> &BTreeMap<String, Vec<Taint>> {
        &self.known
    }

    /// Accepts the result of a read at `unix` (wall clock). Returns whether plans may change, and the event to emit.
    pub(crate) fn update(&mut self, polled: &TaintsPoll, most: Duration, unix: f64) -> (bool, Option<Event>) {
        let first = !std::mem::replace(&mut self.polled, true);
        let before = std::mem::take(&mut self.known);
        let (known, event) = match &polled.result {
            Ok(taints) => {
                self.last_success = Some(polled.started);
                madako_node_taints_timestamp_seconds().set(unix);
                self.known.clone_from(taints);
                (true, Event::TaintsKnown { nodes: taints.len() })
            }
            Err(error) => {
                let age = self.last_success.map(|last_success| polled.started.duration_since(last_success));
                let known = age.is_some_and(|age| age <= most);
                if known {
                    self.known.clone_from(&before);
                }
                (known, Event::TaintsUnknown { why: error.clone(), age })
            }
        };
        madako_node_taints_known().set(f64::from(known));
        // The first good answer after none is not an event.
        let news = self.reported.replace(known) != Some(known);
        (first || self.known != before, news.then_some(event))
    }
}

/// Reads the nodes once an interval, for ever.
async fn poll_taints(api: Arc<dyn Kubernetes>, interval: Duration, polls: Publisher<Arc<TaintsPoll>>) {
    let mut within = interval.min(FIRST_READ_WITHIN);
    loop {
        let begun = Instant::now();
        let result = match timeout(within, api.nodes()).await {
            Err(_) => Err(format!("the API server did not list its nodes within {within:?}")),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(nodes)) => Ok(nodes
                .into_iter()
                .filter(|node| !node.taints.is_empty())
                .map(|node| (node.name, node.taints))
                .collect()),
        };
        polls.publish(Arc::new(TaintsPoll { result, started: begun }));
        tokio::time::sleep_until(begun + interval).await;
        within = interval;
    }
}
