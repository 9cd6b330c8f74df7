//! Explains the next actions from the store alone, for commands in a process that does not lead.

use std::collections::BTreeMap;

use madako_domain::reboot::RebootSettings;
use madako_domain::reboot::config::RebootConfig;
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::next_action::{BlockedBy, Explained, NextAction};
use crate::pass::{Live, View, next_actions, nodes};

/// The reboot configuration of a state.
///
/// # Errors
/// There is no cluster, or its section cannot be used.
pub fn config(state: &ClusterState) -> Result<RebootConfig, BlockedBy> {
    let cluster = state.cluster.as_ref().ok_or(BlockedBy::NoCluster)?;
    RebootConfig::read(&cluster.value.reboot).map_err(|error| BlockedBy::Unusable { why: error.to_string() })
}

/// Inputs that the store does not have.
#[derive(Debug, Clone)]
pub struct ExplainContext {
    pub settings: RebootSettings,
    /// The service reaches Kubernetes.
    pub kubernetes: bool,
    /// The reason for the end of the newest aborted drain of each node, by address.
    pub aborts: BTreeMap<String, String>,
}

/// Next action of every entry, in the order of service.
///
/// The store does not know etcd, unreachable nodes, boots and the progress of drains: etcd counts as good, all nodes as
/// reachable, and no node as booted or empty. The leader is assumed to run commands.
#[must_use]
pub fn explain(state: &ClusterState, context: &ExplainContext, now: OffsetDateTime) -> Vec<Explained> {
    let explain = |next: &NextAction| {
        let mut explained = Explained::from(next);
        let reason = context.aborts.get(&next.node);
        if let (Some(BlockedBy::BackOff { .. }), Some(reason)) = (&next.blocked_by, reason) {
            explained.why = explained.why.map(|why| format!("{why}; the last drain ended: {reason}"));
        }
        explained
    };
    next(state, context, now).iter().map(explain).collect()
}

/// Indexes of the entries of workers that did not boot in time.
#[must_use]
pub fn overdue_workers(state: &ClusterState, settings: RebootSettings, now: OffsetDateTime) -> Vec<i64> {
    let context = ExplainContext { settings, kubernetes: true, aborts: BTreeMap::new() };
    let actions = next(state, &context, now).into_iter();
    let is_overdue = |action: &NextAction| {
        matches!(action.blocked_by, Some(BlockedBy::BootOverdue { keeps_slot: false, .. }))
    };
    actions.filter(is_overdue).map(|action| action.index).collect()
}

fn next(state: &ClusterState, context: &ExplainContext, now: OffsetDateTime) -> Vec<NextAction> {
    let nodes = nodes(state.cluster.as_ref().map(|cluster| &*cluster.value));
    let config = config(state);
    let live = Live { host: true, kubernetes: context.kubernetes, ..Live::default() };
    next_actions(&View {
        queue: &state.repair,
        nodes: &nodes,
        config: config.as_ref(),
        settings: context.settings,
        maximum_unreachable: 0,
        live: &live,
        now,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use madako_domain::limits::BOOT_TIMEOUT;
    use madako_domain::reboot::RebootStatus;

    use super::*;
    use crate::testing::{NOW, Store};

    const CONTEXT: ExplainContext = ExplainContext {
        settings: RebootSettings { boot_timeout: BOOT_TIMEOUT, cordon_first: false },
        kubernetes: true,
        aborts: BTreeMap::new(),
    };

    #[test]
    fn overdue_workers_are_named_and_control_plane_nodes_are_not() {
        let mut store = Store::new(&["a"], &["v", "w"]);
        store.reboot(0, "a", RebootStatus::Rebooting);
        store.reboot(1, "v", RebootStatus::Rebooting);
        store.reboot(2, "w", RebootStatus::Draining);
        let overdue = |later| overdue_workers(&store.state(), CONTEXT.settings, NOW + later);
        assert_eq!(overdue(BOOT_TIMEOUT), Vec::<i64>::new());
        assert_eq!(overdue(BOOT_TIMEOUT + Duration::from_secs(1)), [1]);
    }

    #[test]
    fn next_actions_are_explained_from_the_store() {
        let mut store = Store::new(&["a"], &["v", "w"]);
        store.reboot(0, "a", RebootStatus::Queued);
        store.reboot(1, "v", RebootStatus::Rebooting);
        store.reboot(2, "w", RebootStatus::Queued);
        let explained = explain(&store.state(), &CONTEXT, NOW);
        let named: Vec<_> =
            explained.iter().map(|entry| (entry.index, entry.next, entry.obstacle, entry.is_held)).collect();
        assert_eq!(
            named,
            [
                (1, "await-boot", Some("booting"), false),
                (2, "drain", Some("slots"), true),
                (0, "drain", Some("workers-first"), true)
            ]
        );
        let booting = &explained[0];
        assert_eq!(booting.at.as_deref(), Some("2026-01-02T03:34:05Z"));
        assert_eq!(booting.why.as_deref(), Some("the node boots; it is overdue after 2026-01-02T03:34:05Z"));
    }

    #[test]
    fn unusable_configuration_is_the_obstacle() {
        let mut store = Store::new(&[], &["w"]);
        store.reboot(0, "w", RebootStatus::Queued);
        store.configure(&[], &["w"], r#"{"reboot_command": 5}"#);
        let explained = explain(&store.state(), &CONTEXT, NOW);
        assert_eq!(explained[0].obstacle, Some("unusable-configuration"));
        let without = explain(&store.state(), &ExplainContext { kubernetes: false, ..CONTEXT }, NOW);
        assert_eq!(without[0].obstacle, Some("unusable-configuration"), "the earlier obstacle counts");
    }
}
