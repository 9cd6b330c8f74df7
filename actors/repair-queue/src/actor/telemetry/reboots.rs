//! CKE's metrics of the reboot queue, from the entries in the store.
//!
//! Guarantees: names, labels and values are CKE's (its `docs/metrics.md` and `metrics/`); without a cluster there are
//! none. Does not count entries that cannot be read or whose status CKE does not know.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::reboot::RebootStatus;
use madako_domain::state::ClusterState;

use super::{
    StatusesByMachine, cke_node_reboot_status, cke_reboot_queue_enabled, cke_reboot_queue_entries,
    cke_reboot_queue_items, cke_reboot_queue_running, show_changed,
};

/// The statuses that CKE has.
const STATUSES: [RebootStatus; 4] =
    [RebootStatus::Queued, RebootStatus::Draining, RebootStatus::Rebooting, RebootStatus::Cancelled];

/// Values on display: only changed gauges are set.
#[derive(Default)]
pub(super) struct Reboots {
    of: Option<(BTreeMap<i64, i64>, i64)>,
    nodes: StatusesByMachine<RebootStatus>,
}

impl Reboots {
    pub(super) fn show(&mut self, state: &ClusterState) {
        let Some(cluster) = &state.cluster else { return };
        let queue = &state.repair;
        cke_reboot_queue_enabled().set(f64::from(!queue.reboots_disabled));
        cke_reboot_queue_running().set(f64::from(queue.reboots_running));
        let entries = queue.reboots.range(0..).map(|(index, item)| (*index, item.revision)).collect();
        let of = (entries, cluster.revision);
        if self.of.as_ref() == Some(&of) {
            return;
        }
        self.of = Some(of);
        cke_reboot_queue_entries().set(queue.requested_reboots().count() as f64);
        let statuses = || queue.requested_reboots().map(|(_, entry)| &entry.status);
        for status in &STATUSES {
            let count = statuses().filter(|of| *of == status).count();
            cke_reboot_queue_items(status.as_str().to_owned()).set(count as f64);
        }
        self.show_nodes(state);
    }

    /// Shows the cluster's nodes by name. A node that left shows 0, where CKE shows nothing.
    fn show_nodes(&mut self, state: &ClusterState) {
        let nodes = || state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
        let names: BTreeMap<&str, &str> = nodes().map(|node| (node.address.as_str(), node.name())).collect();
        let mut shown: StatusesByMachine<RebootStatus> =
            nodes().map(|node| (node.name().to_owned(), BTreeSet::new())).collect();
        for (_, entry) in state.repair.requested_reboots() {
            // An entry whose node left the cluster is not shown.
            let name = names.get(entry.node.as_str());
            if let Some(statuses) = name.and_then(|name| shown.get_mut(*name)) {
                statuses.insert(entry.status.clone());
            }
        }
        show_changed(&mut self.nodes, shown, &STATUSES, |node, status| {
            cke_node_reboot_status(node, status.as_str().to_owned())
        });
    }
}
