//! After the last fault, before everybody rests: people do what puts each promise to an operator to the test, so that no run
//! of some length depends on chance for that.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use madako_domain::keys;
use madako_domain::machine::MachineState;
use madako_faults::{Act, ClientKind, Scenario, Span};
use madako_judges::Fact;
use madako_protocol::feed::Task;

use super::inject::Injector;
use super::people::Stopped;
use crate::drains::Drains;
use crate::network::Endpoint;
use crate::world::{INTERVAL, PREFIX};

/// The shortest run, and the fewest machines, with a drill: a shorter one is a look at its faults alone.
const SHORTEST: Span = Span::seconds(20 * 60);
const FEWEST_MACHINES: u32 = 40;

/// How many machines are repaired side by side: more than may be at once.
const REPAIRED: usize = 5;

/// Of a rack, how many fail: one less than make it an event.
const OF_A_RACK: usize = 2;

/// How long machines stay broken whatever is done for them: the watch after the first step, and what is in turn before it.
const STUBBORN: Duration = Duration::from_secs(260);

/// Long enough for a plan to be on its way while the way to the leader is slow, and short enough for it not to have arrived.
const BETWEEN_CHANGES: Duration = Duration::from_millis(250);

/// How long the retired worker is waited for, and how often it is looked for: it retires, waits, and leaves with the next poll.
const LEAVES_WITHIN: Duration = Duration::from_secs(12 * 60);
const LOOK: Duration = Duration::from_secs(10);

/// Whether a run has a drill.
pub(super) fn is_held(scenario: &Scenario, length: Span) -> bool {
    let kinds = [ClientKind::Placement, ClientKind::EtcdWatch, ClientKind::Registry];
    length >= SHORTEST
        && scenario.world.machines >= FEWEST_MACHINES
        && scenario.world.places()
        && kinds.into_iter().all(|kind| super::has(scenario, kind))
}

struct Drill<'a> {
    injector: &'a mut Injector,
    people: &'a mut Stopped,
    drains: &'a Drains,
}

/// Does everything, one after the other; what people of placement do, beside it.
pub(super) async fn drill(injector: &mut Injector, people: &mut Stopped, drains: &Drains) {
    injector.world.history.note("drill", "begins");
    if let Some(registry) = &mut people.registry {
        registry.leave();
    }
    let mut placement = people.placement.take();
    let of_placement = async {
        if let Some(user) = &mut placement {
            user.drill().await;
        }
    };
    let mut drill = Drill { injector, people, drains };
    tokio::join!(of_placement, drill.of_machines());
    people.placement = placement;
    injector.world.history.note("drill", "ends");
}

impl Drill<'_> {
    fn note(&self, what: &str) {
        self.injector.world.history.note("drill", what);
    }

    async fn wait(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.injector.restart_those_that_ended().await;
    }

    async fn wait_seconds(&mut self, seconds: u64) {
        self.wait(Duration::from_secs(seconds)).await;
    }

    /// Addresses of the control plane nodes, and of the healthy workers, [`OF_A_RACK`] of each rack. Workers whose drain meets pods that may
    /// not go are first.
    fn nodes(&self) -> (Vec<String>, Vec<String>) {
        let Some(cluster) = self.injector.world.checker.cluster() else { return (Vec::new(), Vec::new()) };
        let machines = self.injector.world.registry.machines();
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
        let machines = registry.machines();
        if let Some(machine) = machines.iter().find(|machine| machine.address() == Some(address)) {
            let done = registry.set_state(&machine.spec.serial, state).is_ok();
            self.note(&format!("{address} is to be {state:?}: {done}"));
        }
    }

    async fn of_machines(&mut self) {
        // What faults and people left is over: the settings are the usual ones, and nothing is repaired.
        self.wait_seconds(1).await;
        let _ = self.people.operator.settle().await;
        let _ = self.people.queue.disable(keys::AUTO_REPAIR_DISABLED, true).await;
        let _ = self.people.queue.delete_all().await;
        self.wait_seconds(150).await;
        let _ = self.people.queue.disable(keys::REPAIRS_DISABLED, true).await;
        self.transactions().await;
        let (_, workers) = self.nodes();
        let mut workers = workers.into_iter();
        let repaired: Vec<String> = workers.by_ref().take(REPAIRED).collect();
        let retires = workers.next();
        // One that nobody asks for: only the registry could.
        let unasked = workers.next();
        if let Some(retires) = &retires {
            self.set_state(retires, MachineState::Retiring);
        }
        self.drains.forbid(true);
        for address in repaired.iter().chain(&unasked) {
            self.set_state(address, MachineState::Unhealthy);
        }
        for address in &repaired {
            let _ = self.people.queue.ask_for(address).await;
        }
        self.wait_seconds(10).await;
        self.note("disables the integration, and changes the template");
        let _ = self.people.operator.disable(true).await;
        self.wait_seconds(5).await;
        let _ = self.people.operator.change_template().await;
        self.wait_seconds(85).await;
        self.note("enables the repair queue");
        let stubborn = self.stay_broken(&repaired);
        let _ = self.people.queue.disable(keys::REPAIRS_DISABLED, false).await;
        self.wait_seconds(50).await;
        self.note("enables the integration");
        let _ = self.people.operator.disable(false).await;
        self.wait_seconds(70).await;
        self.control_plane().await;
        drop(stubborn);
        for _ in 0..LEAVES_WITHIN.as_secs() / LOOK.as_secs() {
            let workers = self.injector.world.checker.cluster();
            let is_there = |address: &String| {
                workers.iter().flat_map(|cluster| &cluster.nodes).any(|node| node.address == *address)
            };
            if !retires.as_ref().is_some_and(is_there) {
                break;
            }
            self.wait(LOOK).await;
        }
        self.slow_leader().await;
        self.drains.forbid(false);
        self.missing().await;
        self.silent_registry().await;
        for address in repaired.iter().chain(&unasked) {
            self.set_state(address, MachineState::Healthy);
        }
    }

    /// Keeps machines broken whatever is done for them, as long as it is not dropped.
    fn stay_broken(&self, addresses: &[String]) -> Task {
        let registry = self.injector.world.registry.clone();
        let addresses = addresses.to_vec();
        Task::start(async move {
            let until = tokio::time::Instant::now() + STUBBORN;
            while tokio::time::Instant::now() < until {
                for machine in registry.machines() {
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

    /// A control plane node does not answer any more.
    async fn control_plane(&mut self) {
        let (control_plane, _) = self.nodes();
        let Some(node) = control_plane.first().cloned() else { return };
        self.set_state(&node, MachineState::Unreachable);
        self.wait(INTERVAL * 2).await;
        self.set_state(&node, MachineState::Healthy);
    }

    /// The template changes while the plan of the change before is on its slow way.
    async fn slow_leader(&mut self) {
        let Some(name) = self.injector.leader() else { return };
        let place = Endpoint::Instance(crate::world::number(name));
        self.note("the leader's ways are slow, and the template changes twice");
        self.injector.tell(Act::Delay, place, true);
        self.injector.world.network.change(place, |condition| condition.slow += 1);
        self.wait_seconds(30).await;
        let _ = self.people.operator.change_template().await;
        self.wait(BETWEEN_CHANGES).await;
        let _ = self.people.operator.change_template().await;
        self.wait_seconds(60).await;
        self.injector
            .world
            .network
            .change(place, |condition| condition.slow = condition.slow.saturating_sub(1));
        self.injector.tell(Act::Delay, place, false);
    }

    /// Nodes are missing in the registry for less than three polls, and the template changes meanwhile.
    async fn missing(&mut self) {
        let (control_plane, workers) = self.nodes();
        let nodes = self.injector.world.checker.cluster().map_or(0, |cluster| cluster.nodes.len());
        let missing = &workers[workers.len().saturating_sub(nodes / 10 + 2)..];
        self.note(&format!("{missing:?} lose their addresses, of {} and {nodes}", control_plane.len()));
        let registry = self.injector.world.registry.clone();
        let mut lost = Vec::new();
        for machine in registry.machines() {
            if machine.address().is_some_and(|address| missing.iter().any(|missing| missing == address)) {
                let addresses: Vec<_> =
                    machine.spec.ipv4.iter().filter_map(|address| address.parse().ok()).collect();
                if registry.set_addresses(&machine.spec.serial, &[]).is_ok() {
                    lost.push((machine.spec.serial, addresses));
                }
            }
        }
        self.wait(INTERVAL + Duration::from_secs(10)).await;
        let _ = self.people.operator.change_template().await;
        self.wait_seconds(25).await;
        for (serial, addresses) in lost {
            let _gone = registry.set_addresses(&serial, &addresses);
        }
        self.wait(INTERVAL + Duration::from_secs(15)).await;
    }

    /// The registry does not answer, and the template changes when its last answer is too old.
    async fn silent_registry(&mut self) {
        self.note("the registry is gone");
        self.injector.tell(Act::Kill, Endpoint::Registry, true);
        self.injector.world.network.change(Endpoint::Registry, |condition| condition.down += 1);
        self.wait(INTERVAL * 3 + Duration::from_secs(20)).await;
        let _ = self.people.operator.change_template().await;
        self.wait_seconds(15).await;
        self.injector
            .world
            .network
            .change(Endpoint::Registry, |condition| condition.down = condition.down.saturating_sub(1));
        self.injector.tell(Act::Kill, Endpoint::Registry, false);
        self.wait(INTERVAL + Duration::from_secs(15)).await;
    }

    /// Transactions of which all conditions hold, or all but one.
    async fn transactions(&mut self) {
        let Ok(mut client) = self.injector.world.store.people().await else { return };
        let key = |name: &str| format!("{PREFIX}drill/{name}");
        let absent = |name: &str| Compare::create_revision(key(name), CompareOp::Equal, 0);
        let there = |name: &str| Compare::create_revision(key(name), CompareOp::Greater, 0);
        let cases = [
            (vec![absent("a"), absent("b")], true),
            (vec![there("a"), there("b")], false),
            (vec![there("a"), absent("b"), absent("a")], false),
            (vec![absent("a"), there("a")], false),
        ];
        for (conditions, held) in cases {
            let put = TxnOp::put(key("a"), "", None);
            if let Ok(done) = client.txn(Txn::new().when(conditions).and_then([put])).await {
                self.injector.world.facts.tell(&Fact::Transacted { held, written: done.succeeded() });
            }
        }
        let _ = client.delete(key("a"), None).await;
    }
}
