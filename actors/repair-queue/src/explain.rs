//! Explains the next actions from the store alone, for commands in a process that does not lead.

pub mod reports;

use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::outlook::{Explained, Next, UNKNOWN_HEALTH};
use crate::racks::HeldBack;
use crate::round::{Live, View, config, look, places_of};

/// Knowledge from outside the queue.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// Machines in held racks.
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
    beside: &Beside,
    address: Option<&str>,
    now: OffsetDateTime,
) -> Vec<Explained> {
    let places = places_of(state.cluster.as_ref().map(|cluster| &*cluster.value), &state.repair);
    let config = config(state);
    let live = Live { host: true, kubernetes: beside.kubernetes, ..Live::default() };
    let view = View {
        queue: &state.repair,
        places: &places,
        config: config.as_ref().map(|config| *config),
        held: &beside.held,
        live: &live,
        now,
    };
    let mut outlooks = look(&view);
    outlooks.retain(|outlook| address.is_none_or(|address| outlook.address == address));
    outlooks.sort_by_key(|outlook| outlook.index);
    let explained = outlooks.iter().map(|outlook| {
        let health = state.repair.entries.get(&outlook.index).and_then(|item| {
            let operation = view.config.ok()?.of(&item.value).ok()?;
            let goes_on = matches!(
                outlook.next,
                Next::Drain { .. } | Next::Execute { .. } | Next::Abandon(_) | Next::Fail(_)
            );
            (goes_on && operation.health_check.is_some()).then_some(UNKNOWN_HEALTH)
        });
        Explained { health, ..Explained::from(outlook) }
    });
    explained.collect()
}

#[cfg(test)]
mod tests;
