//! Simulated nodes behind the port [`NodeDriver`], and their etcd behind the port [`EtcdCluster`].
//!
//! For: the simulation, `madako rehearse`, and tests of actors that act on nodes.
//!
//! Guarantees: a history depends only on the seed and on the calls with their times. An action that was sent to a node
//! happens after its latency even if the caller drops its future, but not after the end of its permit; only an image
//! pull outlives the permit. A fault that holds an action in the network or on a paused node delays its effect. The
//! members of etcd follow from containers and volumes by etcd's rules. Each effect, and each change of etcd, is a fact
//! for judges.
//!
//! Assumes: paused tokio time; a node per address.
//!
//! Does not: check certificates or secrets (they may end, and a status shows that); simulate the rivers beyond their containers; choose among several leaders
//! of etcd; end a command whose future is dropped, as the real driver tries to.

mod backups;
mod driver;
mod encryption;
mod etcd;
mod faults;
mod kubernetes;
mod limits;
mod log;
mod machine;
mod members;
mod objects;
#[cfg(test)]
mod tests;
mod unsigned_authorities;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::containers::{Container, ContainerName};
use madako_domain::host_key::HostKey;
use madako_domain::node_status::ContainerStatus;
use madako_protocol::components::Components;
use madako_protocol::etcd::EtcdCluster;
use madako_protocol::kubernetes_secrets::KubernetesSecrets;
use madako_protocol::node::{FileContent, NodeDriver};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::backups::SimulatedBackups;
pub use self::faults::{NodeFault, NodePlace};
pub use self::kubernetes::{ApiLoad, BAD_ARGUMENT};
pub use self::limits::MAX_FACTS;
pub use self::log::{Effect, EtcdFact, KubernetesFact, NodeFact, Observed, Voter};
pub use self::machine::{Content, MemberData};
pub use self::members::AcknowledgedWrite;
pub use self::unsigned_authorities::UnsignedAuthorities;
use self::world::World;
use crate::kubernetes::SimulatedKubernetes;

/// The simulated nodes and their etcd. Clones share them.
///
/// Each call first carries out all events until the present time, so no background task is needed.
#[derive(Clone)]
pub struct SimulatedNodes {
    world: Arc<Mutex<World>>,
    /// Changes with each fault, which may end a wait.
    changes: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub is_on: bool,
    pub host_key: HostKey,
    pub containers: BTreeMap<String, ContainerStatus>,
    pub volumes: BTreeMap<String, Content>,
    pub images: BTreeSet<String>,
    pub files: BTreeMap<String, FileContent>,
}

impl SimulatedNodes {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let world = World::new(seed, Instant::now());
        Self { world: Arc::new(Mutex::new(world)), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// Sets the wall clocks of all nodes. Later starts of containers have a time.
    pub fn set_clock(&self, now: OffsetDateTime) {
        self.with_world(|world| world.clock = Some(now - world.began().elapsed()));
    }

    /// Adds a node with an empty disk. A node that exists stays.
    pub fn add(&self, address: &str, rack: u32) {
        self.with_world(|world| world.add(address, rack));
    }

    #[must_use]
    pub fn driver_port(&self) -> Arc<dyn NodeDriver> {
        Arc::new(self.clone())
    }

    #[must_use]
    pub fn etcd_port(&self) -> Arc<dyn EtcdCluster> {
        Arc::new(self.clone())
    }

    #[must_use]
    pub fn components_port(&self) -> Arc<dyn Components> {
        Arc::new(self.clone())
    }

    #[must_use]
    pub fn secrets_port(&self) -> Arc<dyn KubernetesSecrets> {
        Arc::new(self.clone())
    }

    /// The taints of the Node objects of Kubernetes, by name.
    #[must_use]
    pub fn registered_taints(&self) -> BTreeMap<String, Vec<Taint>> {
        self.with_world(|world| {
            world.register();
            world.registered.clone()
        })
    }

    /// Removes all taints of a Node object, as controllers do when its node is ready for pods.
    pub fn remove_taints(&self, node: &str) {
        self.with_world(|world| {
            world.register();
            world.registered.entry(node.to_owned()).and_modify(Vec::clear);
            world.objects.touch_node(node);
        });
    }

    /// Begins a fault. A fault with several causes ends with the last of them.
    pub fn begin(&self, place: &NodePlace, fault: NodeFault) {
        self.change_world(|world| world.set_fault(place, fault, true));
    }

    pub fn end(&self, place: &NodePlace, fault: NodeFault) {
        self.change_world(|world| world.set_fault(place, fault, false));
    }

    pub fn reset(&self, place: &NodePlace) {
        self.change_world(|world| {
            for address in world.addresses_at(place) {
                world.nodes.entry(address).and_modify(|node| node.connections += 1);
            }
        });
    }

    /// Installs a node anew: its disk is empty, and it has another host key.
    pub fn reinstall_node(&self, address: &str) {
        self.change_world(|world| {
            if let Some(machine) = world.nodes.get_mut(address) {
                machine.reinstall_machine();
            }
            world.settle();
        });
    }

    /// Ends a container as another program on the node would.
    pub fn end_container(&self, address: &str, container: impl Into<ContainerName>) {
        let container = container.into();
        self.change_world(|world| {
            world.note_api_servers(|world| {
                let machine = world.nodes.get_mut(address);
                if let Some(ran) = machine.and_then(|machine| machine.containers.get_mut(container.as_str()))
                {
                    ran.end();
                }
                world.settle();
            });
        });
    }

    /// Runs the pods of a cluster on the nodes. Their containers restart with a kubelet of another minor version.
    pub fn run_pods_of(&self, kubernetes: &SimulatedKubernetes) {
        self.with_world(|world| world.pods = Some(kubernetes.clone()));
    }

    /// Pods that a drain would have moved, and whose containers restarted with the kubelet of their node, by address.
    #[must_use]
    pub fn restarted_pods(&self) -> BTreeMap<String, usize> {
        self.with_world(|world| {
            let counts = world.restarted_pods.iter();
            counts.map(|(address, (count, _))| (address.clone(), *count)).collect()
        })
    }

    pub fn set_api_load(&self, address: &str, load: ApiLoad) {
        self.with_world(|world| world.api_load.insert(address.to_owned(), load));
    }

    /// The nodes that do not answer, with the time since which, counted from the beginning of the world.
    #[must_use]
    pub fn silent_nodes(&self) -> BTreeMap<String, Duration> {
        self.with_world(|world| {
            let began = world.began();
            let silent = world.nodes.iter().filter_map(|(address, machine)| {
                Some((address.clone(), machine.silent_since?.saturating_duration_since(began)))
            });
            silent.collect()
        })
    }

    /// Saves a snapshot of the etcd that the member at `member` belongs to, in a file of a node.
    pub fn save_snapshot(&self, member: &str, address: &str, path: &str) {
        self.change_world(|world| world.save_snapshot(member, address, path));
    }

    /// Damages a snapshot, so that its checksum is wrong.
    pub fn damage_snapshot(&self, address: &str, path: &str) {
        self.change_world(|world| {
            let machine = world.nodes.get_mut(address);
            if let Some(snapshot) = machine.and_then(|machine| machine.snapshots.get_mut(path)) {
                snapshot.is_damaged = true;
            }
        });
    }

    /// Replaces a container by one of another program.
    pub fn run_foreign(&self, address: &str, container: Container) {
        self.change_world(|world| {
            let start = world.next_event_number();
            if let Some(machine) = world.nodes.get_mut(address) {
                machine.run_foreign(container.name(), start);
            }
            world.settle();
        });
    }

    /// The kept facts from a number on, in order. At most [`MAX_FACTS`] are kept.
    #[must_use]
    pub fn facts_since(&self, number: u64) -> Vec<NodeFact> {
        self.with_world(|world| world.facts_since(number))
    }

    /// The state of a node; `None` if no node has the address.
    #[must_use]
    pub fn view_node(&self, address: &str) -> Option<NodeView> {
        self.with_world(|world| {
            let machine = world.nodes.get(address)?;
            let containers = machine.containers.iter();
            Some(NodeView {
                is_on: machine.is_on,
                host_key: machine.host_key(),
                containers: containers.map(|(name, ran)| (name.clone(), ran.status.clone())).collect(),
                volumes: machine.volumes.clone(),
                images: machine.images.clone(),
                files: machine.files.clone(),
            })
        })
    }

    /// The users of the cluster of etcd that the member at an address belongs to; `None` while authentication is off.
    #[must_use]
    pub fn etcd_users(&self, address: &str) -> Option<BTreeSet<String>> {
        self.with_world(|world| {
            let cluster = world.nodes.get(address)?.etcd_process()?.cluster;
            let cluster = world.etcd.get(&cluster)?;
            cluster.has_authentication.then(|| cluster.users.clone())
        })
    }

    /// Carries out the events until now, then reads or changes the world.
    fn with_world<R>(&self, act: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.lock();
        world.advance(Instant::now());
        act(&mut world)
    }

    /// As [`Self::with_world`], for changes that may end a wait.
    fn change_world(&self, act: impl FnOnce(&mut World)) {
        self.with_world(act);
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // No code panics while it holds the lock.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SimulatedNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedNodes").finish_non_exhaustive()
    }
}
