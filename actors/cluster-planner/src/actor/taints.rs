//! The taints of Kubernetes' nodes for the planner's shell: asked for once a poll interval, by a task of its own, so that a slow
//! API server holds nobody up.
//!
//! Guarantees: the last good answer counts until it is older than three intervals; after that, and where no API server is
//! configured, taints count as unknown, which keeps nobody from anything and replaces nobody (seed 000 makes them no
//! must). A reign's first plan waits for the first answer, but not for long.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::observation::TaintsLook;
use madako_protocol::actors::PlannerMessage;
use madako_protocol::event::Event;
use madako_protocol::feed::{Task, forward};
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::latest::{self, Publisher};
use madako_protocol::mailbox::Letter;
use metrics::{describe_gauge, gauge};
use ractor::ActorRef;
use tokio::time::{Instant, timeout};

use crate::limits::FIRST_LOOK;

/// Registers the help texts of these metrics.
pub(crate) fn describe_metrics() {
    describe_gauge!(
        "madako_node_taints_known",
        "1 while the taints of Kubernetes' nodes are known well enough to plan with."
    );
    describe_gauge!(
        "madako_node_taints_timestamp_seconds",
        "Unix time of the API server's last good answer about the taints of nodes."
    );
}

/// What is known of taints.
pub(crate) struct NodeTaints {
    /// Where no API server is configured, nothing is asked, nor missing.
    feeds: Option<[Task; 2]>,
    /// By the node's name, which is its machine's first address (CKE starts kubelets so).
    known: BTreeMap<String, Vec<Taint>>,
    seen: Option<Instant>,
    looked: bool,
    /// Whether they were told to be known; `None`: nothing was told.
    told: Option<bool>,
}

impl NodeTaints {
    /// Begins to ask.
    pub(crate) fn start(
        api: Option<Arc<dyn Kubernetes>>,
        interval: Duration,
        actor: ActorRef<Letter<PlannerMessage>>,
    ) -> Self {
        let feeds = api.map(|api| {
            let (looks, seen) = latest::channel();
            [Task::start(look(api, interval, looks)), forward(seen, actor, PlannerMessage::Taints)]
        });
        Self { feeds, known: BTreeMap::new(), seen: None, looked: false, told: None }
    }

    /// Whether the first answer is still awaited.
    pub(crate) fn awaited(&self) -> bool {
        self.feeds.is_some() && !self.looked
    }

    /// What is known, by address.
    pub(crate) fn known(&self) -> &BTreeMap<String, Vec<Taint>> {
        &self.known
    }

    /// Takes what a look came to, at `unix` by the wall clock. Whether it may change a plan, and what is to be told.
    pub(crate) fn take(&mut self, look: &TaintsLook, most: Duration, unix: f64) -> (bool, Option<Event>) {
        let first = !std::mem::replace(&mut self.looked, true);
        let before = std::mem::take(&mut self.known);
        let (known, event) = match &look.result {
            Ok(taints) => {
                self.seen = Some(look.seen);
                gauge!("madako_node_taints_timestamp_seconds").set(unix);
                self.known.clone_from(taints);
                (true, Event::TaintsKnown { nodes: taints.len() })
            }
            Err(error) => {
                let age = self.seen.map(|seen| look.seen.duration_since(seen));
                let known = age.is_some_and(|age| age <= most);
                if known {
                    self.known.clone_from(&before);
                }
                (known, Event::TaintsUnknown { why: error.clone(), age })
            }
        };
        gauge!("madako_node_taints_known").set(if known { 1.0 } else { 0.0 });
        // Known again says nothing to who never heard otherwise.
        let news = self.told.replace(known) != Some(known);
        (first || self.known != before, news.then_some(event))
    }
}

/// Asks for ever, once an interval.
async fn look(api: Arc<dyn Kubernetes>, interval: Duration, looks: Publisher<Arc<TaintsLook>>) {
    let mut within = interval.min(FIRST_LOOK);
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
        looks.publish(Arc::new(TaintsLook { result, seen: begun }));
        tokio::time::sleep_until(begun + interval).await;
        within = interval;
    }
}
