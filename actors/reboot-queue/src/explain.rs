//! Explains the next actions from the store alone, for commands in a process that does not lead.

use std::collections::BTreeMap;

use madako_domain::reboot::RebootSettings;
use madako_domain::reboot::config::RebootConfig;
use madako_domain::state::ClusterState;
use time::OffsetDateTime;

use crate::next_action::{BlockedBy, Explained, NextAction};
use crate::pass::{Live, View, next_actions, nodes};

/// Name of [`BlockedBy::BackOff`].
const BACK_OFF: &str = "back-off";

/// The reboot configuration of a state.
///
/// # Errors
/// There is no cluster, or its section cannot be used.
pub fn config(state: &ClusterState) -> Result<RebootConfig, BlockedBy> {
    let cluster = state.cluster.as_ref().ok_or(BlockedBy::NoCluster)?;
    RebootConfig::read(&cluster.value.reboot).map_err(|error| BlockedBy::Unusable { why: error.to_string() })
}

/// Inputs that the store does not have.
#[derive(Debug, Clone, Copy)]
pub struct ExplainContext {
    pub settings: RebootSettings,
    /// The service reaches Kubernetes.
    pub kubernetes: bool,
}

/// Next action of every entry, in the order of service.
///
/// The store does not know etcd, unreachable nodes, boots and the progress of drains: etcd counts as good, all nodes as
/// reachable, and no node as booted or empty. The leader is assumed to run commands.
#[must_use]
pub fn explain(state: &ClusterState, context: &ExplainContext, now: OffsetDateTime) -> Vec<Explained> {
    next(state, context, now).iter().map(Explained::from).collect()
}

/// Replaces explanations from the store by those of the leader. An entry that the leader does not know yet keeps its
/// explanation; an entry that only the leader knows has ended.
pub fn apply_leader_entries(explained: &mut [Explained], leader: Vec<Explained>) {
    let mut leader: BTreeMap<i64, Explained> = leader.into_iter().map(|entry| (entry.index, entry)).collect();
    for entry in explained {
        // The drain of another node may get the negative index of an ended one.
        if let Some(known) = leader.remove(&entry.index).filter(|known| known.node == entry.node) {
            *entry = known;
        }
    }
}

/// Adds the reason for the end of the newest aborted drain, by the address of its node, to each entry that backs off.
pub fn add_abort_reasons(explained: &mut [Explained], aborts: &BTreeMap<String, String>) {
    for entry in explained.iter_mut().filter(|entry| entry.obstacle.as_deref() == Some(BACK_OFF)) {
        if let (Some(why), Some(reason)) = (&mut entry.why, aborts.get(&entry.node)) {
            why.push_str(&format!("; the last drain ended: {reason}"));
        }
    }
}

/// Indexes of the entries of workers that did not boot in time.
#[must_use]
pub fn overdue_workers(state: &ClusterState, settings: RebootSettings, now: OffsetDateTime) -> Vec<i64> {
    let context = ExplainContext { settings, kubernetes: true };
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
    use madako_domain::reboot::{RebootQueueEntry, RebootStatus};

    use super::*;
    use crate::testing::{NOW, Store};

    const CONTEXT: ExplainContext = ExplainContext {
        settings: RebootSettings { boot_timeout: BOOT_TIMEOUT, cordon_first: false },
        kubernetes: true,
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
        let named =
            |entry: &Explained| (entry.index, entry.next.clone(), entry.obstacle.clone(), entry.is_held);
        let named: Vec<_> = explained.iter().map(named).collect();
        let expect = |index: i64, next: &str, obstacle: &str, is_held: bool| {
            (index, next.to_owned(), Some(obstacle.to_owned()), is_held)
        };
        assert_eq!(
            named,
            [
                expect(1, "await-boot", "booting", false),
                expect(2, "drain", "slots", true),
                expect(0, "drain", "workers-first", true)
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
        assert_eq!(explained[0].obstacle.as_deref(), Some("unusable-configuration"));
        let without = explain(&store.state(), &ExplainContext { kubernetes: false, ..CONTEXT }, NOW);
        assert_eq!(
            without[0].obstacle.as_deref(),
            Some("unusable-configuration"),
            "the earlier obstacle counts"
        );
    }

    fn leader_entry(index: i64, node: &str, obstacle: &str) -> Explained {
        Explained {
            index,
            node: node.to_owned(),
            next: "drain".to_owned(),
            what: "the node is drained".to_owned(),
            at: None,
            obstacle: Some(obstacle.to_owned()),
            why: Some("the leader knows".to_owned()),
            is_held: true,
        }
    }

    #[test]
    fn an_explanation_of_the_leader_replaces_that_of_the_same_entry() {
        let mut store = Store::new(&[], &["v", "w", "x"]);
        for (index, node) in [(-1, "w"), (0, "v"), (1, "x")] {
            store.reboot(index, node, RebootStatus::Queued);
        }
        let from_store = explain(&store.state(), &CONTEXT, NOW);
        let mut merged = from_store.clone();
        apply_leader_entries(&mut merged, Vec::new());
        assert_eq!(merged, from_store, "the leader did not answer");
        let known = leader_entry(0, "v", "etcd-not-good");
        let ended = [leader_entry(-1, "x", "no-host"), leader_entry(7, "v", "no-host")];
        apply_leader_entries(&mut merged, ended.into_iter().chain([known.clone()]).collect());
        for (merged, from_store) in merged.iter().zip(&from_store) {
            assert_eq!(merged, if from_store.index == 0 { &known } else { from_store });
        }
    }

    #[test]
    fn an_entry_that_backs_off_has_the_reason_of_its_last_drain() {
        let mut store = Store::new(&[], &["v", "w"]);
        for (index, node) in [(0, "v"), (1, "w")] {
            store.entry(&RebootQueueEntry {
                index,
                drain_backoff_count: 1,
                drain_backoff_expire: Some(NOW + Duration::from_secs(60)),
                ..RebootQueueEntry::new(node)
            });
        }
        let mut explained = explain(&store.state(), &CONTEXT, NOW);
        let before = explained.clone();
        add_abort_reasons(&mut explained, &BTreeMap::from([("w".to_owned(), "a job runs".to_owned())]));
        assert_eq!(explained[0], before[0], "no reason is known");
        let why = "draining was aborted once; the next attempt is at 2026-01-02T03:05:05Z; the last drain ended: \
                   a job runs";
        assert_eq!(explained[1].why.as_deref(), Some(why));
        let mut held = [leader_entry(1, "w", "slots")];
        add_abort_reasons(&mut held, &BTreeMap::from([("w".to_owned(), "a job runs".to_owned())]));
        assert_eq!(held, [leader_entry(1, "w", "slots")]);
    }
}
