//! Simulated users of the repair queue. They write whole entries as ckecli does, sometimes based on an outdated state.

use std::collections::BTreeSet;

use etcd_client::{Compare, CompareOp, Error, GetOptions, GetResponse, Txn, TxnOp};
use madako_datacenter_sim::SimulatedRegistry;
use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_domain::repair::hold::Hold;
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_judges::workload::{ReadKey, add_repair, reset_back_off};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::repair::RepairJudge;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

/// Number of entries above which users delete instead of adding.
const FULL: usize = 12;

pub struct QueueUser {
    store: StoreProcess,
    registry: SimulatedRegistry,
    judge: RepairJudge,
    chance: ChaCha8Rng,
    /// Outdated values of entries.
    read: Vec<(String, Vec<u8>)>,
}

impl QueueUser {
    #[must_use]
    pub fn new(
        store: StoreProcess,
        registry: SimulatedRegistry,
        judge: RepairJudge,
        chance: ChaCha8Rng,
    ) -> Self {
        Self { store, registry, judge, chance, read: Vec::new() }
    }

    /// Does a random act of a user, and describes it.
    ///
    /// # Errors
    /// The store does not answer; the outcome of the act is unknown.
    pub async fn act_randomly(&mut self) -> Result<String, Error> {
        let entries = self.read_entries().await?;
        if entries.len() > FULL {
            return self.delete(&entries).await;
        }
        Ok(match self.chance.random_range(0..14_u32) {
            0..=4 => self.add_broken().await?,
            5 => self.add_control_plane().await?,
            6 => self.add("10.255.0.1", "iDRAC-9", "unreachable").await?,
            7 => self.add_unknown().await?,
            8 => self.overwrite_entry().await?,
            9 | 10 => self.delete(&entries).await?,
            11 => self.release().await?,
            12 => {
                let disabled = self.chance.random_range(0..3_u32) == 0;
                self.put(keys::AUTO_REPAIR_DISABLED, disabled.to_string().into_bytes()).await?;
                format!("disables requests of the registry: {disabled}")
            }
            _ => {
                let disabled = self.chance.random_range(0..3_u32) == 0;
                self.put(keys::REPAIRS_DISABLED, disabled.to_string().into_bytes()).await?;
                format!("disables repairs: {disabled}")
            }
        })
    }

    /// Enables the queue, whichever client disabled it.
    pub async fn enable_repairs(&mut self) -> Result<(), Error> {
        let key = format!("{PREFIX}{}", keys::REPAIRS_DISABLED);
        let answer = self.store.operator_client().await?.get(key, None).await?;
        if answer.kvs().first().is_some_and(|kv| kv.value() == b"true") {
            self.put(keys::REPAIRS_DISABLED, b"false".to_vec()).await?;
        }
        Ok(())
    }

    /// Switches the queue or automatic requests off or on.
    pub async fn set_disabled(&mut self, key: &'static str, disabled: bool) -> Result<(), Error> {
        self.put(key, disabled.to_string().into_bytes()).await
    }

    /// Requests the deletion of every entry.
    pub async fn delete_all(&mut self) -> Result<(), Error> {
        for (key, value) in self.read_entries().await? {
            let mut entry: RepairQueueEntry = serde_json::from_slice(&value).unwrap();
            entry.deleted = true;
            self.put_existing(&key, serde_json::to_vec(&entry).unwrap()).await?;
        }
        Ok(())
    }

    /// Requests the repair of an unreachable machine.
    pub async fn request_repair(&mut self, address: &str) -> Result<String, Error> {
        self.add(address, "iDRAC-9", "unreachable").await
    }

    /// Lets every entry end, and prevents new entries from reports.
    pub async fn settle(&mut self) -> Result<(), Error> {
        self.put(keys::AUTO_REPAIR_DISABLED, b"true".to_vec()).await?;
        self.release().await?;
        self.put(keys::REPAIRS_DISABLED, b"false".to_vec()).await?;
        let entries = self.read_entries().await?;
        let read = entries.iter().map(|(_, value)| serde_json::from_slice(value).unwrap()).collect();
        for ((key, value), entry) in entries.into_iter().zip(settled_entries(read)) {
            let settled = serde_json::to_vec(&entry).unwrap();
            if settled != value {
                self.put(&key, settled).await?;
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<GetResponse, Error> {
        let options = GetOptions::new().with_prefix();
        self.store.operator_client().await?.get(format!("{PREFIX}{prefix}"), Some(options)).await
    }

    async fn read_entries(&mut self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let answer = self.list(keys::REPAIRS).await?;
        let entry = |kv: &etcd_client::KeyValue| {
            (kv.key_str().unwrap().strip_prefix(PREFIX).unwrap().to_owned(), kv.value().to_vec())
        };
        let entries: Vec<_> = answer.kvs().iter().map(entry).collect();
        if self.read.is_empty() {
            self.read.clone_from(&entries);
        }
        Ok(entries)
    }

    /// Releases every rack; `madako repair-queue release` releases one.
    async fn release(&mut self) -> Result<String, Error> {
        let answer = self.list(keys::REPAIR_HOLDS).await?;
        let mut released = 0;
        for kv in answer.kvs() {
            let mut hold: Hold = serde_json::from_slice(kv.value()).unwrap();
            if !hold.release() {
                continue;
            }
            let write = ReadKey::from(kv).replace_with(serde_json::to_vec(&hold).unwrap());
            let done = self.store.operator_client().await?.txn(write.into()).await?;
            if done.succeeded() {
                self.judge.note_user_write(done.header().unwrap().revision(), None);
                released += 1;
            }
        }
        Ok(format!("releases {released} racks"))
    }

    async fn put(&mut self, key: &str, value: Vec<u8>) -> Result<(), Error> {
        let put = self.store.operator_client().await?.put(format!("{PREFIX}{key}"), value, None).await?;
        self.judge.note_user_write(put.header().unwrap().revision(), None);
        Ok(())
    }

    /// Adds an entry for one machine in any state, as `ckecli repair-queue add` does.
    pub async fn add_one(&mut self) -> Result<String, Error> {
        let machines = self.registry.list_machines();
        let machine = &machines[self.chance.random_range(0..machines.len())];
        let address = machine.address().unwrap_or_default().to_owned();
        let machine_type = machine.spec.bmc.bmc_type.clone();
        self.add(&address, &machine_type, "unreachable").await
    }

    /// Adds an entry for a random broken machine.
    pub async fn add_broken(&mut self) -> Result<String, Error> {
        let broken: Vec<_> = self
            .registry
            .list_machines()
            .into_iter()
            .filter(|machine| {
                let broken =
                    matches!(machine.status.state, MachineState::Unhealthy | MachineState::Unreachable);
                broken && machine.address().is_some()
            })
            .collect();
        if broken.is_empty() {
            return Ok("finds nothing to repair".to_owned());
        }
        let machine = &broken[self.chance.random_range(0..broken.len())];
        let operation = machine.status.state.name().to_ascii_lowercase();
        let address = machine.address().unwrap_or_default().to_owned();
        let machine_type = machine.spec.bmc.bmc_type.clone();
        self.add(&address, &machine_type, &operation).await
    }

    /// Breaks two control plane nodes, and adds entries for both at once.
    pub async fn add_control_plane(&mut self) -> Result<String, Error> {
        let answer =
            self.store.operator_client().await?.get(format!("{PREFIX}{}", keys::CLUSTER), None).await?;
        let Some(kv) = answer.kvs().first() else { return Ok("finds no cluster".to_owned()) };
        let cluster: Cluster = serde_json::from_slice(kv.value()).unwrap();
        let nodes: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        let mut lines = Vec::new();
        for node in nodes.iter().take(2) {
            // A broken machine takes the repair through all its steps.
            let serial =
                self.registry.list_machines().into_iter().find(|machine| machine.address() == Some(node));
            if let Some(machine) = serial {
                // The registry refuses this for a machine in setup; its repair finds the machine as it is.
                let _ = self.registry.set_state(&machine.spec.serial, MachineState::Unhealthy);
            }
            lines.push(self.add(node, "iDRAC-9", "unhealthy").await?);
        }
        Ok(lines.join("; "))
    }

    async fn add_unknown(&mut self) -> Result<String, Error> {
        self.add("10.255.0.2", "iDRAC-9", UNKNOWN).await
    }

    /// Writes the index and the entry in one transaction, as ckecli does.
    async fn add(&mut self, address: &str, machine_type: &str, operation: &str) -> Result<String, Error> {
        let counter = format!("{PREFIX}{}", keys::REPAIRS_WRITE_INDEX);
        let answer = self.store.operator_client().await?.get(counter.clone(), None).await?;
        let entry = RepairQueueEntry::new(operation, machine_type, address);
        let (index, writes) = add_repair(PREFIX, ReadKey::of_answer(&counter, &answer), entry).unwrap();
        let done = self.store.operator_client().await?.txn(writes.into()).await?;
        if done.succeeded() {
            self.judge.note_user_write(done.header().unwrap().revision(), Some(index));
        }
        Ok(format!("adds entry {index} for {address}, {operation}: {}", done.succeeded()))
    }

    async fn delete(&mut self, entries: &[(String, Vec<u8>)]) -> Result<String, Error> {
        if entries.is_empty() {
            return Ok("finds nothing to delete".to_owned());
        }
        let (key, value) = &entries[self.chance.random_range(0..entries.len())];
        let mut entry: RepairQueueEntry = serde_json::from_slice(value).unwrap();
        entry.deleted = true;
        self.put_existing(key, serde_json::to_vec(&entry).unwrap()).await?;
        Ok(format!("deletes entry {}", entry.index))
    }

    /// Writes an outdated value, as `ckecli repair-queue reset-backoff` may.
    async fn overwrite_entry(&mut self) -> Result<String, Error> {
        if self.read.is_empty() {
            return Ok("has read nothing yet".to_owned());
        }
        let at = self.chance.random_range(0..self.read.len());
        let (key, value) = self.read.swap_remove(at);
        let done = self.put_existing(&key, value).await?;
        Ok(format!("writes an older state over {key}: {done}"))
    }

    async fn put_existing(&mut self, key: &str, value: Vec<u8>) -> Result<bool, Error> {
        let key = format!("{PREFIX}{key}");
        let is_there = Compare::create_revision(key.clone(), CompareOp::Greater, 0);
        let put = TxnOp::put(key, value, None);
        let done =
            self.store.operator_client().await?.txn(Txn::new().when([is_there]).and_then([put])).await?;
        if done.succeeded() {
            self.judge.note_user_write(done.header().unwrap().revision(), None);
        }
        Ok(done.succeeded())
    }
}

/// An operation without a procedure.
const UNKNOWN: &str = "levitate";

/// Changes entries so that each of them ends soon.
fn settled_entries(mut entries: Vec<RepairQueueEntry>) -> Vec<RepairQueueEntry> {
    let begun = entries.iter().filter(|entry| entry.status == RepairStatus::Processing);
    let mut machines: BTreeSet<String> = begun.map(|entry| entry.address.clone()).collect();
    for entry in &mut entries {
        entry.deleted |= entry.operation == UNKNOWN;
        // An entry that waits for another repair of its machine would need as long again after it.
        if entry.status == RepairStatus::Queued && !entry.deleted {
            entry.deleted = !machines.insert(entry.address.clone());
        }
        reset_back_off(entry);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: i64, operation: &str, address: &str, status: RepairStatus) -> RepairQueueEntry {
        RepairQueueEntry {
            index,
            status,
            drain_backoff_count: 3,
            ..RepairQueueEntry::new(operation, "t", address)
        }
    }

    #[test]
    fn cleanup_leaves_one_known_repair_of_each_machine() {
        use RepairStatus::{Failed, Processing, Queued};
        let left = settled_entries(vec![
            entry(0, "o", "w", Queued),
            entry(1, "o", "w", Queued),
            entry(2, "o", "x", Failed),
            entry(3, "o", "x", Queued),
            entry(4, "o", "y", Queued),
            entry(5, "o", "y", Processing),
            entry(6, UNKNOWN, "z", Queued),
            entry(7, "o", "z", Queued),
        ]);
        let deleted: Vec<i64> = left.iter().filter(|entry| entry.deleted).map(|entry| entry.index).collect();
        assert_eq!(deleted, [1, 4, 6]);
        assert!(left.iter().all(|entry| entry.drain_backoff_count == 0));
    }
}
