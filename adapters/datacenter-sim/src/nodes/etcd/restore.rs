//! Snapshots of the simulated etcd, and their restore as a cluster of one member.

use std::collections::BTreeMap;

use madako_protocol::node::SnapshotRestore;

use super::{Cluster, hash_to_id};
use crate::nodes::machine::{Content, MemberData, Snapshot};
use crate::nodes::world::World;

impl World {
    /// Saves a snapshot of the cluster that the member at `member` belongs to. Without a member that runs, nothing is
    /// saved.
    pub(crate) fn save_snapshot(&mut self, member: &str, address: &str, path: &str) {
        let Some(data) = self.nodes.get(member).and_then(|machine| machine.member_data()) else { return };
        let cluster = self.etcd.get(&data.cluster);
        let users = cluster.filter(|cluster| cluster.has_authentication).map(|cluster| cluster.users.clone());
        let snapshot = Snapshot { writes: data.writes, users, is_damaged: false };
        if let Some(machine) = self.nodes.get_mut(address) {
            machine.snapshots.insert(path.to_owned(), snapshot);
        }
    }

    /// Puts a restored snapshot in the place of the data of etcd, unless that happened before.
    pub(crate) fn use_snapshot(&mut self, address: &str, restore: &SnapshotRestore) {
        let Some(machine) = self.nodes.get_mut(address) else { return };
        let Some(snapshot) = machine.staged.remove(&restore.id) else { return };
        machine.swapped.insert(restore.id.clone());
        let token = format!("madako-restore-{}", restore.id);
        let own = BTreeMap::from([(restore.name.clone(), restore.peer_url.clone())]);
        let (cluster, mut formed) = Cluster::from_members(&own, &token);
        let member = hash_to_id(&[&restore.peer_url, &token]);
        let writes = snapshot.writes;
        formed.writes = writes;
        formed.initialised.insert(member);
        formed.has_authentication = snapshot.users.is_some();
        formed.users = snapshot.users.unwrap_or_default();
        let data = MemberData { cluster, member, writes, has_joined: true };
        machine.volumes.insert(restore.volume.clone(), Content::Member(data));
        self.etcd.insert(cluster, formed);
    }
}
