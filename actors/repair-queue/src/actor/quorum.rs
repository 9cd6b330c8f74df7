//! Checks invariants I2 and I13 for repairs of control plane nodes, on the newest answers of etcd and the API servers.
//!
//! An answer counts only if etcd was asked after this actor began, and after the last repair of a control plane node
//! ended: the member of that node may not be in sync yet. An answer of a runner that has failed becomes too old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::invariants::repair::is_active;
use madako_domain::invariants::{api_available, quorum_of_repair};
use madako_domain::state::ClusterState;
use madako_protocol::operations::OperationsState;
use tokio::time::Instant;

use crate::limits::FRESH_ANSWER_INTERVALS;

/// The time from which answers of etcd count.
pub(super) struct EtcdAnswers {
    since: Instant,
    /// Control plane nodes under repair.
    repaired: BTreeSet<String>,
}

impl Default for EtcdAnswers {
    fn default() -> Self {
        Self { since: Instant::now(), repaired: BTreeSet::new() }
    }
}

impl EtcdAnswers {
    /// Notes the control plane nodes under repair.
    pub(super) fn follow(&mut self, state: &ClusterState) {
        let entries = state.repair.entries.values().map(|item| &item.value);
        let active: BTreeSet<&str> =
            entries.filter(|entry| is_active(entry)).map(|entry| entry.address.as_str()).collect();
        let repaired = control_plane(state).filter(|address| active.contains(address));
        let repaired: BTreeSet<String> = repaired.map(str::to_owned).collect();
        if !self.repaired.is_subset(&repaired) {
            self.since = Instant::now();
        }
        self.repaired = repaired;
    }

    /// Control plane nodes whose repair would break the invariant, with the violation. Without data there is no quorum.
    /// `found` is `None` until the operation runner has read the nodes.
    pub(super) fn find_violations(
        &self,
        state: &ClusterState,
        found: Option<&OperationsState>,
        interval: Duration,
    ) -> BTreeMap<String, String> {
        let violation = |address: &str| match found {
            None => Some("the members of etcd have not been read yet".to_owned()),
            Some(found) if !found.has_data => None,
            Some(found) if found.read_at < self.since => Some(
                "the members of etcd have not been read since the last repair of a control plane node"
                    .to_owned(),
            ),
            Some(found) if found.read_at.elapsed() > interval * FRESH_ANSWER_INTERVALS => {
                Some("the last read of the members of etcd is too old".to_owned())
            }
            Some(found) => {
                let lost = BTreeSet::from([address]);
                let violation = quorum_of_repair(found.etcd.as_deref(), address);
                violation.or_else(|| api_available(&found.api_servers, &lost)).map(|it| it.to_string())
            }
        };
        control_plane(state).filter_map(|address| Some((address.to_owned(), violation(address)?))).collect()
    }
}

fn control_plane(state: &ClusterState) -> impl Iterator<Item = &str> {
    let cluster = state.cluster.iter().flat_map(|cluster| cluster.value.control_plane());
    cluster.map(|node| node.address.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use madako_domain::node_status::{EtcdMember, EtcdStatus};
    use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

    use super::*;
    use crate::testing::{Store, queued};

    const INTERVAL: Duration = Duration::from_secs(10);

    fn read_now() -> OperationsState {
        let member = |(id, name): (u64, &str)| EtcdMember {
            id,
            name: name.to_owned(),
            in_sync: Some(true),
            ..EtcdMember::default()
        };
        let members = [(1, "a"), (2, "b"), (3, "c")].map(member).into();
        let etcd = Some(Arc::new(EtcdStatus { healthy: true, members }));
        let unreachable = BTreeSet::new();
        OperationsState {
            is_due: false,
            updates_kubelets: true,
            has_data: true,
            unreachable,
            etcd,
            api_servers: BTreeMap::new(),
            read_at: Instant::now(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_only_after_the_last_repair_of_a_control_plane_node_and_for_a_while() {
        let mut store = Store::new(&["a", "b", "c"], &["w"]);
        let mut answers = EtcdAnswers::default();
        let second = Duration::from_secs(1);
        let count_violations = |answers: &EtcdAnswers, store: &Store, found: &OperationsState| {
            answers.find_violations(&store.state(), Some(found), INTERVAL).len()
        };
        answers.follow(&store.state());
        let first = read_now();
        assert_eq!(count_violations(&answers, &store, &first), 0);
        assert_eq!(answers.find_violations(&store.state(), None, INTERVAL).len(), 3, "nothing was read");

        // The repair of a worker changes nothing.
        for (index, address, counts) in [(0, "w", true), (1, "a", false)] {
            tokio::time::advance(second).await;
            let active = RepairQueueEntry {
                status: RepairStatus::Processing,
                step_status: RepairStepStatus::Watching,
                ..queued(index, address, "unreachable")
            };
            store.entry(&active);
            answers.follow(&store.state());
            assert_eq!(
                count_violations(&answers, &store, &first),
                0,
                "the repair of {address} has not ended"
            );
            store.entry(&RepairQueueEntry { status: RepairStatus::Succeeded, ..active });
            answers.follow(&store.state());
            assert_eq!(count_violations(&answers, &store, &first) == 0, counts, "{address}");
        }
        let second = read_now();
        assert_eq!(count_violations(&answers, &store, &second), 0);
        tokio::time::advance(INTERVAL * FRESH_ANSWER_INTERVALS).await;
        assert_eq!(count_violations(&answers, &store, &second), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(count_violations(&answers, &store, &second), 3, "the runner reads no more");
        let one_down = OperationsState {
            api_servers: [("a", true), ("b", true), ("c", false)].map(|(at, up)| (at.to_owned(), up)).into(),
            ..read_now()
        };
        let violations = answers.find_violations(&store.state(), Some(&one_down), INTERVAL);
        assert_eq!(violations.keys().collect::<Vec<_>>(), ["a", "b"], "the API server on c is down");
        assert!(violations["a"].starts_with("I13: "), "{violations:?}");
        let without_data = OperationsState { has_data: false, ..first };
        assert_eq!(count_violations(&answers, &store, &without_data), 0);
    }
}
