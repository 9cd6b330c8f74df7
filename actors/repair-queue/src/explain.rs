//! What would happen next, told from the store alone: for a command that asks while another process leads.

use std::collections::BTreeMap;

use madako_messages::state::ClusterState;
use time::OffsetDateTime;

use crate::outlook::{Next, Obstacle, Outlook};
use crate::round::{Drain, Health, Live, View, config, look, places};

/// What is known beside the store.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// Racks that are held, by the address of each entry's machine that stands in one.
    pub held: BTreeMap<String, String>,
    /// Whether the service reaches Kubernetes, as its configuration says.
    pub kubernetes: bool,
}

/// What comes next for every entry, or for those of one machine, if its health check goes on saying that it is not healthy.
///
/// What only the leader knows is taken to be as usual: a machine that is reported is not healthy, pods of a node that is
/// drained have not ended yet, and commands can be run.
#[must_use]
pub fn explain(
    state: &ClusterState,
    beside: &Beside,
    address: Option<&str>,
    now: OffsetDateTime,
) -> Vec<Outlook> {
    let places = places(state.cluster.as_ref().map(|cluster| &*cluster.value));
    let config = config(state);
    let queue = &state.repair;
    let live = Live {
        health: queue.entries.keys().map(|index| (*index, Health::Unhealthy)).collect(),
        drains: queue.entries.keys().map(|index| (*index, Drain::Runs { waits: None })).collect(),
        host: true,
        kubernetes: beside.kubernetes,
    };
    let view = View {
        queue,
        places: &places,
        config: config.as_ref().map(|config| *config),
        held: &beside.held,
        live: &live,
        now,
    };
    let mut outlooks = look(&view);
    outlooks.retain(|outlook| address.is_none_or(|address| outlook.address == address));
    outlooks.sort_by_key(|outlook| outlook.index);
    for outlook in &mut outlooks {
        // What is due is preceded by a health check, on which it depends.
        let begins = matches!(outlook.next, Next::Drain { .. } | Next::Execute { .. } | Next::Fail(_));
        if outlook.obstacle.is_none() && begins {
            outlook.obstacle = Some(Obstacle::HealthUnknown);
        }
    }
    outlooks
}
