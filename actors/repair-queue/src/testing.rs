use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use madako_domain::cluster::{Cluster, Node};
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_domain::store::{Condition, Entry, Write};
use madako_json::go::RawJson;
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::datetime;

pub(crate) const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

/// Two steps: one drains and watches for 100 s, the other does neither.
pub(crate) const REPAIR: &str = r#"{
    "max_concurrent_repairs": 2, "eviction_timeout_seconds": 60,
    "repair_procedures": [{"machine_types": ["t"], "repair_operations": [
        {"operation": "unreachable", "health_check_command": ["check"], "repair_steps": [
            {"repair_command": ["reset"], "need_drain": true, "watch_seconds": 100},
            {"repair_command": ["reinstall"]}]},
        {"operation": "plain", "health_check_command": ["check"], "success_command": ["celebrate"],
         "repair_steps": [{"repair_command": ["reset"], "watch_seconds": 100}]},
        {"operation": "empty", "health_check_command": ["check"]}]}]}"#;

/// A store in memory with the keys of repairs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) revision: i64,
    pub(crate) entries: BTreeMap<String, Entry>,
    last: RefCell<Option<Arc<ClusterState>>>,
}

impl Store {
    /// A cluster of control plane nodes and workers, and the configuration above.
    pub(crate) fn new(control_plane: &[&str], workers: &[&str]) -> Self {
        let mut store = Self::default();
        store.configure(control_plane, workers, REPAIR);
        store
    }

    pub(crate) fn configure(&mut self, control_plane: &[&str], workers: &[&str], repair: &str) {
        let node = |address: &&str, control_plane| Node {
            address: (*address).to_owned(),
            hostname: format!("node-{address}"),
            control_plane,
            ..Node::default()
        };
        let nodes = control_plane.iter().map(|address| node(address, true));
        let cluster = Cluster {
            nodes: nodes.chain(workers.iter().map(|address| node(address, false))).collect(),
            repair: RawJson::from_text(repair.to_owned()).unwrap(),
            ..Cluster::default()
        };
        self.put(keys::CLUSTER, &cluster);
    }

    pub(crate) fn rack(&mut self, address: &str, rack: &str) {
        let mut cluster = (*self.state().cluster.as_ref().unwrap().value).clone();
        for node in cluster.nodes.iter_mut().filter(|node| node.address == address) {
            node.labels.insert("cke.cybozu.com/rack".to_owned(), rack.to_owned());
        }
        self.put(keys::CLUSTER, &cluster);
    }

    pub(crate) fn put(&mut self, key: &str, value: &impl Serialize) {
        let value = serde_json::to_vec(value).unwrap();
        self.write(&[Write::Put { key: key.to_owned(), value: Bytes::from(value), lease: 0 }]);
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        let value = Bytes::from(value.to_owned());
        self.write(&[Write::Put { key: key.to_owned(), value, lease: 0 }]);
    }

    pub(crate) fn write(&mut self, writes: &[Write]) {
        self.revision += 1;
        for write in writes {
            match write {
                Write::Put { key, value, lease } => {
                    let created = self.entries.get(key).map_or(self.revision, |entry| entry.create_revision);
                    let entry = Entry {
                        value: value.clone(),
                        create_revision: created,
                        mod_revision: self.revision,
                        lease: *lease,
                    };
                    self.entries.insert(key.clone(), entry);
                }
                Write::Delete { key } => {
                    self.entries.remove(key);
                }
            }
        }
    }

    pub(crate) fn entry(&mut self, entry: &RepairQueueEntry) {
        self.put(&keys::repair(entry.index), entry);
    }

    pub(crate) fn reboot(&mut self, index: i64, node: &str, status: RebootStatus) {
        let reboot = RebootQueueEntry { index, status, ..RebootQueueEntry::new(node) };
        self.put(&format!("{}{index:016x}", keys::REBOOTS), &reboot);
    }

    pub(crate) fn state(&self) -> Arc<ClusterState> {
        let mut last = self.last.borrow_mut();
        let state = ClusterState::decode(self.revision, &self.entries, last.as_deref());
        Arc::clone(last.insert(Arc::new(state)))
    }

    pub(crate) fn holds(&self, conditions: &[Condition]) -> bool {
        conditions.iter().all(|condition| match condition {
            Condition::Unchanged { key, revision } => {
                self.entries.get(key).map_or(0, |entry| entry.mod_revision) == *revision
            }
            Condition::Created { key, revision } => {
                self.entries.get(key).is_some_and(|entry| entry.create_revision == *revision)
            }
            Condition::NoneSince { prefix, revision } => {
                let mut below = self.entries.iter().filter(|(key, _)| key.starts_with(prefix));
                below.all(|(_, entry)| entry.mod_revision <= *revision)
            }
        })
    }

    /// Commits a change as the leader does. Returns whether its conditions held.
    pub(crate) fn commit(&mut self, change: &RepairChange) -> bool {
        // A decision on an older state is late, not wrong.
        if !self.holds(&change.conditions) {
            return false;
        }
        let state = self.state();
        let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
        let violations =
            madako_domain::invariants::repair::check_repair_change(change, &state.repair, cluster, i64::MAX);
        assert_eq!(violations, [], "{change:?}");
        self.write(&change.encode_writes(&state.repair).unwrap());
        true
    }
}

pub(crate) fn queued(index: i64, address: &str, operation: &str) -> RepairQueueEntry {
    RepairQueueEntry { index, ..RepairQueueEntry::new(operation, "t", address) }
}

/// An entry in processing whose last transition is `ago` seconds before [`NOW`].
pub(crate) fn processing(
    index: i64,
    address: &str,
    step: u32,
    step_status: RepairStepStatus,
    ago: i64,
) -> RepairQueueEntry {
    RepairQueueEntry {
        status: RepairStatus::Processing,
        step,
        step_status,
        last_transition_time: Some(NOW - time::Duration::seconds(ago)),
        ..queued(index, address, "unreachable")
    }
}
