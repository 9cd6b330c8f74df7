//! Explains the next action of each entry of the repair queue from the store alone, for commands that run outside of
//! the leader.

pub mod reports;

use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::next_action::{Action, Explained, UNKNOWN_HEALTH};
use crate::pass::{LeaderState, View, config, next_actions, nodes_of_queue};
use crate::racks::HeldBack;

/// Knowledge from outside the queue.
#[derive(Debug, Clone, Default)]
pub struct ExplainContext {
    pub held: HeldBack,
    /// The service's configuration has access to Kubernetes.
    pub kubernetes: bool,
}

/// Next action of every entry, or of one machine's entries.
///
/// Machine health and drain progress are known to the leader only and are missing here. The leader is assumed to run
/// commands.
#[must_use]
pub fn explain(
    state: &ClusterState,
    beside: &ExplainContext,
    address: Option<&str>,
    now: OffsetDateTime,
) -> Vec<Explained> {
    let nodes = nodes_of_queue(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
    let config = config(state);
    let live = LeaderState { host: true, kubernetes: beside.kubernetes, ..LeaderState::default() };
    let view = View {
        queue: &state.repair,
        nodes: &nodes,
        config: config.as_ref().map(|config| *config),
        held: &beside.held,
        live: &live,
        now,
    };
    let mut actions = next_actions(&view);
    actions.retain(|action| address.is_none_or(|address| action.address == address));
    actions.sort_by_key(|action| action.index);
    let explained = actions.iter().map(|action| {
        let health = state.repair.entries.get(&action.index).and_then(|item| {
            let operation = view.config.ok()?.operation_for(&item.value).ok()?;
            let goes_on = matches!(
                action.action,
                Action::Drain { .. } | Action::Execute { .. } | Action::Abandon(_) | Action::Fail(_)
            );
            (goes_on && operation.health_check.is_some()).then_some(UNKNOWN_HEALTH)
        });
        Explained { health, ..Explained::from(action) }
    });
    explained.collect()
}

#[cfg(test)]
mod tests;
