//! Explains the next actions from the store alone, for commands in a process that does not lead.

use madako_domain::reboot::config::RebootConfig;
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::next_action::{BlockedBy, Explained};
use crate::pass::{Live, RebootSettings, View, next_actions, nodes};

/// The reboot configuration of a state.
///
/// # Errors
/// There is no cluster, or its section cannot be used.
pub fn config(state: &ClusterState) -> Result<RebootConfig, BlockedBy> {
    let cluster = state.cluster.as_ref().ok_or(BlockedBy::NoCluster)?;
    RebootConfig::read(&cluster.value.reboot).map_err(|error| BlockedBy::Unusable { why: error.to_string() })
}

/// Next action of every entry, or of the entries of one node, in the order of service.
///
/// The store does not know etcd, unreachable nodes, boots and the progress of drains: etcd counts as good, all nodes as
/// reachable, and no node as booted or empty. The leader is assumed to run commands.
#[must_use]
pub fn explain(
    state: &ClusterState,
    kubernetes: bool,
    address: Option<&str>,
    now: OffsetDateTime,
) -> Vec<Explained> {
    let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
    let config = config(state);
    let live = Live { host: true, kubernetes, ..Live::default() };
    let view = View {
        queue: &state.repair,
        nodes: &nodes,
        config: config.as_ref(),
        settings: RebootSettings::default(),
        maximum_unreachable: 0,
        live: &live,
        now,
    };
    let mut actions = next_actions(&view);
    actions.retain(|action| address.is_none_or(|address| action.node == address));
    actions.iter().map(Explained::from).collect()
}

#[cfg(test)]
mod tests {
    use madako_domain::reboot::RebootStatus;

    use super::*;
    use crate::testing::{NOW, Store};

    #[test]
    fn next_actions_are_explained_from_the_store() {
        let mut store = Store::new(&["a"], &["v", "w"]);
        store.reboot(0, "a", RebootStatus::Queued);
        store.reboot(1, "v", RebootStatus::Rebooting);
        store.reboot(2, "w", RebootStatus::Queued);
        let named = |address| -> Vec<_> {
            let explained = explain(&store.state(), true, address, NOW);
            explained.iter().map(|entry| (entry.index, entry.next, entry.obstacle)).collect()
        };
        assert_eq!(
            named(None),
            [
                (1, "await-boot", Some("booting")),
                (2, "drain", Some("slots")),
                (0, "drain", Some("workers-first"))
            ]
        );
        assert_eq!(named(Some("w")), [(2, "drain", Some("slots"))]);
        let booting = &explain(&store.state(), true, Some("v"), NOW)[0];
        assert_eq!(booting.at.as_deref(), Some("2026-01-02T03:34:05Z"));
        assert_eq!(booting.why.as_deref(), Some("the node boots; it is overdue after 2026-01-02T03:34:05Z"));
    }

    #[test]
    fn unusable_configuration_is_the_obstacle() {
        let mut store = Store::new(&[], &["w"]);
        store.reboot(0, "w", RebootStatus::Queued);
        store.configure(&[], &["w"], r#"{"reboot_command": 5}"#);
        let explained = explain(&store.state(), true, None, NOW);
        assert_eq!(explained[0].obstacle, Some("unusable-configuration"));
        let without = explain(&store.state(), false, None, NOW);
        assert_eq!(without[0].obstacle, Some("unusable-configuration"), "the earlier obstacle counts");
    }
}
