//! After the last fault of a simulated run: clients provoke the situations of each promise to operators, so that every
//! sufficiently long run exercises each promise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_datacenter_sim::nodes::NodePlace;
use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_faults::{Act, ClientKind, Scenario, Span};
use madako_judges::Fact;
use madako_judges::workload::conditional_transactions;
use madako_protocol::feed::Task;

use super::inject::Injector;
use super::simulated_clients::StoppedClients;
use crate::drains::Drains;
use crate::network::Endpoint;
use crate::nodes::Nodes;
use crate::world::{INTERVAL, PREFIX};

/// Minimum length, and minimum number of machines, of a run with a drill: a shorter run tests only its faults.
const SHORTEST: Span = Span::from_seconds(20 * 60);
const FEWEST_MACHINES: u32 = 40;

/// Number of machines with concurrent requests for repairs: more than may run at once.
const REPAIRED: usize = 5;

/// Failing machines per rack: one less than count as one event.
const OF_A_RACK: usize = 2;

/// Time that machines stay broken in spite of repairs: the watch after the first step, and the repairs before it in the
/// queue.
const STUBBORN: Duration = Duration::from_secs(260);

/// Pause between two changes of the template: with slow connections of the leader, the first plan is under way by then,
/// and has not arrived yet.
const BETWEEN_CHANGES: Duration = Duration::from_millis(250);

/// Maximum time and interval of the wait for the retired worker: it retires, waits, and leaves with the next poll.
const LEAVES_WITHIN: Duration = Duration::from_secs(12 * 60);
const POLL: Duration = Duration::from_secs(10);

/// Maximum time until the requested repair of a control plane node begins: the repairs before it in the queue end.
const BEGINS_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Maximum time until etcd has the members that a changed control plane asks for: one operation after the other, each
/// within a minute, after the longest back-off of a node.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(20 * 60);

/// True if the run is long and large enough for a drill, and has the clients for it.
pub(super) fn is_held(scenario: &Scenario, length: Span) -> bool {
    let kinds = [ClientKind::Placement, ClientKind::EtcdWatch, ClientKind::Registry];
    length >= SHORTEST
        && scenario.world.machines >= FEWEST_MACHINES
        && scenario.world.places_applications()
        && kinds.into_iter().all(|kind| super::has_clients(scenario, kind))
}

struct PromiseDrill<'a> {
    injector: &'a mut Injector,
    clients: &'a mut StoppedClients,
    drains: &'a Drains,
}

/// Runs all parts in sequence, and concurrently those of placement's users.
pub(super) async fn provoke_all_promises(
    injector: &mut Injector,
    clients: &mut StoppedClients,
    drains: &Drains,
) {
    injector.world.history.note("drill", "begins");
    if let Some(registry) = &mut clients.registry {
        registry.restore_machines();
    }
    let mut placement = clients.placement.take();
    let of_placement = async {
        if let Some(user) = &mut placement {
            user.provoke_promises().await;
        }
    };
    let mut drill = PromiseDrill { injector, clients, drains };
    tokio::join!(of_placement, drill.provoke_machine_promises());
    clients.placement = placement;
    injector.world.history.note("drill", "ends");
}

impl PromiseDrill<'_> {
    fn note(&self, what: &str) {
        self.injector.world.history.note("drill", what);
    }

    async fn wait(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.injector.restart_ended_instances().await;
    }

    async fn wait_seconds(&mut self, seconds: u64) {
        self.wait(Duration::from_secs(seconds)).await;
    }

    /// Addresses of the control plane nodes, and of the healthy workers, at most [`OF_A_RACK`] per rack. Workers with
    /// pods that may not be evicted come first.
    fn nodes_by_role(&self) -> (Vec<String>, Vec<String>) {
        let Some(cluster) = self.injector.world.checker.current_cluster() else {
            return (Vec::new(), Vec::new());
        };
        let machines = self.injector.world.registry.list_machines();
        let mut racks: BTreeMap<i64, usize> = BTreeMap::new();
        let mut workers = Vec::new();
        let mut nodes: Vec<_> = cluster.workers().collect();
        nodes.sort_by_key(|node| !self.drains.is_forbidden_on(&node.address));
        for node in nodes {
            let machine = machines.iter().find(|machine| machine.address() == Some(&*node.address));
            let Some(machine) = machine.filter(|machine| machine.status.state == MachineState::Healthy)
            else {
                continue;
            };
            let of_rack = racks.entry(machine.spec.rack).or_default();
            *of_rack += 1;
            if *of_rack <= OF_A_RACK {
                workers.push(node.address.clone());
            }
        }
        (cluster.control_plane().map(|node| node.address.clone()).collect(), workers)
    }

    fn set_state(&self, address: &str, state: MachineState) {
        let registry = &self.injector.world.registry;
        let machines = registry.list_machines();
        if let Some(machine) = machines.iter().find(|machine| machine.address() == Some(address)) {
            let done = registry.set_state(&machine.spec.serial, state).is_ok();
            self.note(&format!("{address} is to be {state:?}: {done}"));
        }
    }

    async fn provoke_machine_promises(&mut self) {
        // Earlier faults and clients left changes: restore the usual settings, and end all repairs.
        self.wait_seconds(1).await;
        let _ = self.clients.operator.write_final_inputs().await;
        let _ = self.clients.queue.set_disabled(keys::AUTO_REPAIR_DISABLED, true).await;
        let _ = self.clients.queue.delete_all().await;
        self.drains.roll_out();
        self.wait_seconds(150).await;
        let _ = self.clients.queue.set_disabled(keys::REPAIRS_DISABLED, true).await;
        self.write_large_transactions().await;
        let (_, mut workers) = self.nodes_by_role();
        let deletes = workers.iter().position(|worker| self.drains.deletes_pods_on(worker));
        let first = deletes.map(|place| workers.remove(place));
        let mut workers = first.into_iter().chain(workers);
        let repaired: Vec<String> = workers.by_ref().take(REPAIRED).collect();
        let retires = workers.next();
        // No user requests the repair of this machine: only reports of the registry could.
        let unasked = workers.next();
        if let Some(retires) = &retires {
            self.set_state(retires, MachineState::Retiring);
        }
        self.drains.forbid_evictions(true);
        for address in repaired.iter().chain(&unasked) {
            self.set_state(address, MachineState::Unhealthy);
        }
        for address in &repaired {
            let _ = self.clients.queue.request_repair(address).await;
        }
        self.wait_seconds(10).await;
        self.note("disables the integration, and changes the template");
        let _ = self.clients.operator.set_disabled(true).await;
        self.wait_seconds(5).await;
        let _ = self.clients.operator.change_template().await;
        self.wait_seconds(85).await;
        self.note("enables the repair queue");
        let stubborn = self.keep_machines_broken(&repaired);
        let _ = self.clients.queue.set_disabled(keys::REPAIRS_DISABLED, false).await;
        self.wait_seconds(50).await;
        self.note("enables the integration");
        let _ = self.clients.operator.set_disabled(false).await;
        self.wait_seconds(70).await;
        self.cut_off_control_plane_node().await;
        drop(stubborn);
        for _ in 0..LEAVES_WITHIN.as_secs() / POLL.as_secs() {
            let workers = self.injector.world.checker.current_cluster();
            let is_there = |address: &String| {
                workers.iter().flat_map(|cluster| &cluster.nodes).any(|node| node.address == *address)
            };
            if !retires.as_ref().is_some_and(is_there) {
                break;
            }
            self.wait(POLL).await;
        }
        self.slow_down_leader().await;
        self.drains.forbid_evictions(false);
        self.lose_machines().await;
        self.silence_registry().await;
        self.break_members().await;
        self.break_majority().await;
        self.repair_control_plane().await;
        for address in repaired.iter().chain(&unasked) {
            self.set_state(address, MachineState::Healthy);
        }
    }

    /// Keeps machines broken in spite of repairs, for [`STUBBORN`] or until the task is dropped.
    fn keep_machines_broken(&self, addresses: &[String]) -> Task {
        let registry = self.injector.world.registry.clone();
        let addresses = addresses.to_vec();
        Task::start(async move {
            let until = tokio::time::Instant::now() + STUBBORN;
            while tokio::time::Instant::now() < until {
                for machine in registry.list_machines() {
                    let ours =
                        machine.address().is_some_and(|address| addresses.iter().any(|ours| ours == address));
                    if ours && machine.status.state == MachineState::Healthy {
                        let _refused = registry.set_state(&machine.spec.serial, MachineState::Unhealthy);
                    }
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    }

    /// Makes a control plane node unreachable for two polls.
    async fn cut_off_control_plane_node(&mut self) {
        let (control_plane, _) = self.nodes_by_role();
        let Some(node) = control_plane.first().cloned() else { return };
        self.set_state(&node, MachineState::Unreachable);
        self.wait(INTERVAL * 2).await;
        self.set_state(&node, MachineState::Healthy);
    }

    /// Changes the template while the plan of the previous change is still on its slow way.
    async fn slow_down_leader(&mut self) {
        let Some(name) = self.injector.find_leader() else { return };
        let place = Endpoint::Instance(crate::world::instance_number(name));
        self.note("the leader's ways are slow, and the template changes twice");
        self.injector.record_fault(Act::Delay, place, true);
        self.injector.world.network.change(place, |condition| condition.slow += 1);
        self.wait_seconds(30).await;
        let _ = self.clients.operator.change_template().await;
        self.wait(BETWEEN_CHANGES).await;
        let _ = self.clients.operator.change_template().await;
        self.wait_seconds(60).await;
        self.injector.world.network.change(place, |it| it.slow = it.slow.saturating_sub(1));
        self.injector.record_fault(Act::Delay, place, false);
    }

    /// Hides nodes in the registry for less than three polls, and changes the template meanwhile.
    async fn lose_machines(&mut self) {
        let (control_plane, workers) = self.nodes_by_role();
        let nodes = self.injector.world.checker.current_cluster().map_or(0, |cluster| cluster.nodes.len());
        let missing = &workers[workers.len().saturating_sub(nodes / 10 + 2)..];
        self.note(&format!("{missing:?} lose their addresses, of {} and {nodes}", control_plane.len()));
        let registry = self.injector.world.registry.clone();
        let mut lost = Vec::new();
        for machine in registry.list_machines() {
            if machine.address().is_some_and(|address| missing.iter().any(|missing| missing == address)) {
                let addresses: Vec<_> =
                    machine.spec.ipv4.iter().filter_map(|address| address.parse().ok()).collect();
                if registry.set_addresses(&machine.spec.serial, &[]).is_ok() {
                    lost.push((machine.spec.serial, addresses));
                }
            }
        }
        self.wait(INTERVAL + Duration::from_secs(10)).await;
        let _ = self.clients.operator.change_template().await;
        self.wait_seconds(25).await;
        for (serial, addresses) in lost {
            let _gone = registry.set_addresses(&serial, &addresses);
        }
        self.wait(INTERVAL + Duration::from_secs(15)).await;
    }

    /// Lets the control plane grow by two nodes and shrink again. Both lack members of etcd until operations have run.
    async fn break_members(&mut self) {
        let Some(nodes) = self.injector.world.nodes.clone() else { return };
        let wanted = self.clients.operator.wanted();
        for control_plane in [wanted.control_plane + 2, wanted.control_plane] {
            self.note(&format!("the control plane is to have {control_plane} nodes"));
            let _ = self.clients.operator.write_constraints(control_plane, wanted.workers, 0).await;
            self.wait_until_in_sync(&nodes, control_plane as usize).await;
        }
    }

    /// Takes the power of a majority of etcd's members for a while: afterwards they must have all acknowledged writes.
    async fn break_majority(&mut self) {
        let Some(nodes) = self.injector.world.nodes.clone() else { return };
        let (control_plane, _) = self.nodes_by_role();
        self.note("most members of etcd have no power");
        let lost: Vec<NodePlace> =
            control_plane.iter().take(control_plane.len() / 2 + 1).cloned().map(NodePlace::Address).collect();
        lost.iter().for_each(|place| nodes.begin(place, Act::Kill));
        self.wait(INTERVAL).await;
        lost.iter().for_each(|place| nodes.end(place, Act::Kill));
        self.wait_until_in_sync(&nodes, control_plane.len()).await;
    }

    /// Breaks two control plane nodes at once, and requests the repairs of both, unless a control plane node was under repair
    /// before: random acts of users may not have reached I8.
    async fn repair_control_plane(&mut self) {
        let history = self.injector.world.history.clone();
        let is_judged = || history.judgement_counts().get(&Id::I8).is_some_and(|count| *count > 0);
        if is_judged() {
            return;
        }
        self.note("two control plane nodes are to be repaired");
        let (control_plane, _) = self.nodes_by_role();
        let _ = self.clients.queue.add_control_plane().await;
        for _ in 0..BEGINS_WITHIN.as_secs() / POLL.as_secs() {
            self.wait(POLL).await;
            if is_judged() {
                break;
            }
        }
        for address in &control_plane {
            self.set_state(address, MachineState::Healthy);
        }
    }

    /// Waits until etcd has this number of members, or for [`FOLLOWS_WITHIN`].
    async fn wait_until_in_sync(&mut self, nodes: &Nodes, members: usize) {
        for _ in 0..FOLLOWS_WITHIN.as_secs() / POLL.as_secs() {
            self.wait(POLL).await;
            if self.count_members_in_sync(nodes).await == Some(members) {
                break;
            }
        }
    }

    /// Number of members of etcd, if they are the control plane nodes and in sync.
    async fn count_members_in_sync(&self, nodes: &Nodes) -> Option<usize> {
        let cluster = self.injector.world.checker.current_cluster()?;
        let addresses: BTreeSet<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        let members: Vec<String> = addresses.iter().cloned().collect();
        let status = nodes.nodes.etcd_port().status(&members).await.ok()?;
        let members: BTreeSet<String> =
            status.voting().filter(|it| it.is_in_sync()).map(|it| it.address().into_owned()).collect();
        (members == addresses && status.members.len() == members.len()).then_some(members.len())
    }

    /// Stops the registry, and changes the template when the last answer is too old.
    async fn silence_registry(&mut self) {
        self.note("the registry is gone");
        self.injector.record_fault(Act::Kill, Endpoint::Registry, true);
        self.injector.world.network.change(Endpoint::Registry, |condition| condition.down += 1);
        self.wait(INTERVAL * 3 + Duration::from_secs(20)).await;
        let _ = self.clients.operator.change_template().await;
        self.wait_seconds(15).await;
        self.injector.world.network.change(Endpoint::Registry, |it| it.down = it.down.saturating_sub(1));
        self.injector.record_fault(Act::Kill, Endpoint::Registry, false);
        self.wait(INTERVAL + Duration::from_secs(15)).await;
    }

    /// Sends transactions of which all conditions hold, or all but one.
    async fn write_large_transactions(&mut self) {
        let Ok(mut client) = self.injector.world.store.operator_client().await else { return };
        let prefix = format!("{PREFIX}drill/");
        for (transaction, held) in conditional_transactions(&prefix) {
            if let Ok(done) = client.txn(transaction).await {
                self.injector.world.facts.report(&Fact::Transacted { held, written: done.succeeded() });
            }
        }
        let _ = client.delete(format!("{prefix}a"), None).await;
    }
}
