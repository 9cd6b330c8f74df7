//! The health of etcd, evaluated from the newest answer: a reboot takes a member away only while all members are in sync (CKE).
//!
//! An answer counts only if etcd was asked after this actor began, and after the last reboot of a control plane node
//! ended: the member of that node may not be in sync yet. An answer of a runner that has failed becomes too old.
//!
//! The same answers tell whether a reboot would break invariant I13.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::invariants::api_available;
use madako_domain::state::ClusterState;
use madako_protocol::operations::OperationsState;
use tokio::time::Instant;

use crate::limits::FRESH_ANSWER_INTERVALS;

/// The times from which answers of etcd and of API servers count.
pub(super) struct EtcdAnswers {
    since: Instant,
    /// Control plane nodes that are drained or reboot.
    rebooted: BTreeSet<String>,
}

impl Default for EtcdAnswers {
    fn default() -> Self {
        Self { since: Instant::now(), rebooted: BTreeSet::new() }
    }
}

impl EtcdAnswers {
    /// Notes the control plane nodes that are drained or reboot.
    pub(super) fn follow(&mut self, state: &ClusterState) {
        let control_plane = state.cluster.iter().flat_map(|cluster| Cluster::control_plane(&cluster.value));
        let control_plane: BTreeSet<&str> = control_plane.map(|node| node.address.as_str()).collect();
        let rebooted = state.repair.rebooting_nodes().map(|(node, _)| node);
        let rebooted: BTreeSet<String> =
            rebooted.filter(|node| control_plane.contains(node)).map(str::to_owned).collect();
        if !self.rebooted.is_subset(&rebooted) {
            self.since = Instant::now();
        }
        self.rebooted = rebooted;
    }

    /// The reason why etcd does not count as good. `found` is `None` until the operation runner has read the nodes.
    pub(super) fn fault(
        &self,
        operates: bool,
        found: Option<&OperationsState>,
        interval: Duration,
    ) -> Option<String> {
        let why = match found {
            _ if !operates => "its members are unknown, because operations on nodes are off",
            None => "its members have not been read yet",
            Some(found) if found.read_at < self.since => {
                "its members have not been read since the last reboot of a control plane node"
            }
            Some(found) if found.read_at.elapsed() > interval * FRESH_ANSWER_INTERVALS => {
                "the last read of its members is too old"
            }
            Some(found) => match &found.etcd {
                None => "it does not answer",
                Some(etcd) if !etcd.healthy => "it grants no lease",
                Some(etcd) => {
                    let late: Vec<_> = etcd.members.iter().filter(|member| !member.is_in_sync()).collect();
                    let names: Vec<_> = late.iter().map(|member| member.address()).collect();
                    return (!late.is_empty())
                        .then(|| format!("these members are not in sync: {}", names.join(", ")));
                }
            },
        };
        Some(why.to_owned())
    }

    /// Control plane nodes whose reboot would break I13, with the violation. An answer that is too old is a fault of etcd
    /// as well, so that it needs no reason of its own.
    pub(super) fn api_gaps(&self, found: Option<&OperationsState>) -> BTreeMap<String, String> {
        let Some(found) = found else { return BTreeMap::new() };
        let gap = |address: &String| {
            let violation = api_available(&found.api_servers, &BTreeSet::from([address.as_str()]))?;
            Some((address.clone(), violation.to_string()))
        };
        found.api_servers.keys().filter_map(gap).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use madako_domain::node_status::{EtcdMember, EtcdStatus};
    use madako_domain::reboot::RebootStatus;

    use super::*;
    use crate::testing::Store;

    const INTERVAL: Duration = Duration::from_secs(10);

    fn found(in_sync: &[bool]) -> OperationsState {
        let member = |in_sync: &bool| EtcdMember {
            name: format!("{in_sync}"),
            in_sync: Some(*in_sync),
            ..EtcdMember::default()
        };
        let etcd = EtcdStatus { healthy: true, members: in_sync.iter().map(member).collect() };
        OperationsState {
            is_due: false,
            updates_kubelets: true,
            has_data: true,
            unreachable: BTreeSet::new(),
            etcd: Some(Arc::new(etcd)),
            api_servers: BTreeMap::new(),
            read_at: Instant::now(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn etcd_is_good_while_all_members_are_in_sync_in_a_fresh_answer() {
        let answers = EtcdAnswers::default();
        let fault = |found: &OperationsState| answers.fault(true, Some(found), INTERVAL);
        let good = found(&[true, true, true]);
        assert_eq!(fault(&good), None);
        assert_eq!(fault(&found(&[true, false])).unwrap(), "these members are not in sync: false");
        let silent = OperationsState { etcd: None, ..good.clone() };
        assert_eq!(fault(&silent).unwrap(), "it does not answer");
        assert!(answers.fault(true, None, INTERVAL).is_some());
        assert!(answers.fault(false, Some(&good), INTERVAL).is_some(), "operations are off");
        tokio::time::advance(INTERVAL * FRESH_ANSWER_INTERVALS + Duration::from_millis(1)).await;
        assert_eq!(fault(&good).unwrap(), "the last read of its members is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn healthy_api_server_reboots_only_while_all_others_are_healthy() {
        let answers = EtcdAnswers::default();
        let servers = |b: bool| [("a", true), ("b", b)].map(|(at, up)| (at.to_owned(), up)).into();
        let gaps =
            |b: bool| answers.api_gaps(Some(&OperationsState { api_servers: servers(b), ..found(&[]) }));
        assert_eq!(gaps(true), BTreeMap::new());
        assert_eq!(gaps(false).keys().collect::<Vec<_>>(), ["a"], "b is down, and may reboot");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_from_before_the_end_of_a_reboot_does_not_count() {
        let mut answers = EtcdAnswers::default();
        let mut store = Store::new(&["a"], &["w"]);
        store.reboot(0, "a", RebootStatus::Rebooting);
        store.reboot(1, "w", RebootStatus::Rebooting);
        answers.follow(&store.state());
        tokio::time::advance(Duration::from_secs(1)).await;
        let before = found(&[true]);
        store.delete(&madako_domain::keys::reboot(1));
        answers.follow(&store.state());
        assert_eq!(answers.fault(true, Some(&before), INTERVAL), None, "a worker has no member");
        tokio::time::advance(Duration::from_secs(1)).await;
        store.delete(&madako_domain::keys::reboot(0));
        answers.follow(&store.state());
        assert!(answers.fault(true, Some(&before), INTERVAL).unwrap().ends_with("of a control plane node"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(answers.fault(true, Some(&found(&[true])), INTERVAL), None);
    }
}
