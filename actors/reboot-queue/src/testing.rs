use std::collections::BTreeMap;

use bytes::Bytes;
use madako_domain::cluster::{Cluster, Node};
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus, ReleasedReboots};
use madako_domain::repair::change::RepairChange;
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};
use madako_domain::state::ClusterState;
use madako_domain::store::{Condition, Entry, Write};
use madako_json::go::RawJson;
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::datetime;

pub(crate) const NOW: OffsetDateTime = datetime!(2026-01-02 03:04:05 UTC);

pub(crate) const REBOOT: &str =
    r#"{"reboot_command": ["reboot"], "boot_check_command": ["check"], "eviction_timeout_seconds": 60}"#;

/// A store in memory with the keys of reboots and repairs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) revision: i64,
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Store {
    /// A cluster of control plane nodes and workers, and the configuration above.
    pub(crate) fn new(control_plane: &[&str], workers: &[&str]) -> Self {
        let mut store = Self::default();
        store.configure(control_plane, workers, REBOOT);
        store
    }

    pub(crate) fn configure(&mut self, control_plane: &[&str], workers: &[&str], reboot: &str) {
        let node = |address: &&str, control_plane| Node {
            address: (*address).to_owned(),
            control_plane,
            ..Node::default()
        };
        let nodes = control_plane.iter().map(|address| node(address, true));
        let cluster = Cluster {
            nodes: nodes.chain(workers.iter().map(|address| node(address, false))).collect(),
            reboot: RawJson::from_text(reboot.to_owned()).unwrap(),
            ..Cluster::default()
        };
        self.put(keys::CLUSTER, &cluster);
    }

    fn put(&mut self, key: &str, value: &impl Serialize) {
        self.text(key, &serde_json::to_string(value).unwrap());
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        let value = Bytes::from(value.to_owned());
        self.write(&[Write::Put { key: key.to_owned(), value, lease: 0 }]);
    }

    /// An entry whose last transition is [`NOW`].
    pub(crate) fn reboot(&mut self, index: i64, node: &str, status: RebootStatus) {
        self.entry(&RebootQueueEntry {
            index,
            status,
            last_transition_time: Some(NOW),
            ..RebootQueueEntry::new(node)
        });
    }

    pub(crate) fn entry(&mut self, entry: &RebootQueueEntry) {
        self.put(&keys::reboot(entry.index), entry);
    }

    /// A repair whose health is watched.
    pub(crate) fn repair(&mut self, index: i64, address: &str) {
        self.repair_entry(&RepairQueueEntry {
            index,
            status: RepairStatus::Processing,
            step_status: RepairStepStatus::Watching,
            ..RepairQueueEntry::new("unreachable", "t", address)
        });
    }

    pub(crate) fn repair_entry(&mut self, entry: &RepairQueueEntry) {
        self.put(&keys::repair(entry.index), entry);
    }

    /// Ends the records that are unfinished, as a leader does at its start.
    pub(crate) fn end_records(&mut self, now: OffsetDateTime) {
        for item in self.state().repair.records.unfinished.values() {
            let mut record = item.value.clone();
            record.cancel(now, "outcome unknown: the leader that ran it is gone");
            self.put(&keys::record(record.id), &record);
        }
    }

    pub(crate) fn release(&mut self, entries: BTreeMap<i64, i64>) {
        self.put(keys::REBOOTS_RELEASED, &ReleasedReboots { entries });
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.write(&[Write::Delete { key: key.to_owned() }]);
    }

    fn write(&mut self, writes: &[Write]) {
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

    pub(crate) fn state(&self) -> ClusterState {
        ClusterState::decode(self.revision, &self.entries, None)
    }

    /// Commits a change as the leader does. Returns whether its conditions held.
    pub(crate) fn commit(&mut self, change: &RepairChange) -> bool {
        let holds = change.conditions.iter().all(|condition| match condition {
            Condition::Unchanged { key, revision } => {
                self.entries.get(key).map_or(0, |entry| entry.mod_revision) == *revision
            }
            other => panic!("{other:?}"),
        });
        if holds {
            let writes = change.encode_writes(&self.state().repair).unwrap();
            self.write(&writes);
        }
        holds
    }
}
