//! CKE's metrics of the reboot queue, from the entries in the store. This crate reboots nothing: the metrics show
//! which reboots wait and block repairs.
//!
//! Guarantees: names, labels and values are CKE's (its `docs/metrics.md` and `metrics/`); without a cluster there are
//! none. Does not count entries that cannot be read or whose status CKE does not know.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::reboot::RebootStatus;
use madako_domain::state::ClusterState;
use metrics::{describe_gauge, gauge};

pub(super) fn describe_metrics() {
    describe_gauge!("cke_reboot_queue_enabled", "1 if the reboot queue is enabled.");
    describe_gauge!("cke_reboot_queue_running", "1 if CKE reports that it processes the reboot queue.");
    describe_gauge!("cke_reboot_queue_entries", "Entries of the reboot queue.");
    describe_gauge!("cke_reboot_queue_items", "Entries of the reboot queue, by status.");
    describe_gauge!("cke_node_reboot_status", "1 if a node has an entry of this status in the reboot queue.");
}

/// Values on display: only changed gauges are set.
#[derive(Default)]
pub(super) struct Reboots {
    of: Option<(BTreeMap<i64, i64>, i64)>,
    nodes: BTreeMap<String, BTreeSet<RebootStatus>>,
}

impl Reboots {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(super) fn show(&mut self, state: &ClusterState) {
        let Some(cluster) = &state.cluster else { return };
        let queue = &state.repair;
        let one_if = |it: bool| if it { 1.0 } else { 0.0 };
        gauge!("cke_reboot_queue_enabled").set(one_if(!queue.reboots_disabled));
        gauge!("cke_reboot_queue_running").set(one_if(queue.reboots_running));
        let entries = queue.reboots.iter().map(|(index, item)| (*index, item.revision)).collect();
        let of = (entries, cluster.revision);
        if self.of.as_ref() == Some(&of) {
            return;
        }
        self.of = Some(of);
        gauge!("cke_reboot_queue_entries").set(queue.reboots.len() as f64);
        let statuses = || queue.reboots.values().map(|item| &item.value.status);
        for status in RebootStatus::ALL {
            let count = statuses().filter(|of| *of == status).count();
            gauge!("cke_reboot_queue_items", "status" => status.as_str().to_owned()).set(count as f64);
        }
        self.show_nodes(state);
    }

    /// Shows the cluster's nodes by name. A node that left shows 0, where CKE shows nothing.
    fn show_nodes(&mut self, state: &ClusterState) {
        let nodes = || state.cluster.iter().flat_map(|cluster| &cluster.value.nodes);
        let names: BTreeMap<&str, &str> = nodes().map(|node| (node.address.as_str(), node.name())).collect();
        let mut shown: BTreeMap<String, BTreeSet<RebootStatus>> =
            nodes().map(|node| (node.name().to_owned(), BTreeSet::new())).collect();
        for item in state.repair.reboots.values() {
            // An entry whose node left the cluster is not shown.
            let name = names.get(item.value.node.as_str());
            if let Some(statuses) = name.and_then(|name| shown.get_mut(*name)) {
                statuses.insert(item.value.status.clone());
            }
        }
        let none = BTreeSet::new();
        let gone: Vec<String> =
            self.nodes.keys().filter(|name| !shown.contains_key(*name)).cloned().collect();
        for (name, statuses) in shown.iter().chain(gone.iter().map(|name| (name, &none))) {
            if self.nodes.get(name) == Some(statuses) {
                continue;
            }
            for status in RebootStatus::ALL {
                let has = if statuses.contains(status) { 1.0 } else { 0.0 };
                let (node, status) = (name.clone(), status.as_str().to_owned());
                gauge!("cke_node_reboot_status", "node" => node, "status" => status).set(has);
            }
        }
        self.nodes = shown;
    }
}
