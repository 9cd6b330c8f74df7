//! After the faults of a run with saboteurs: kills or stops the leader in each state of a repair, and gives a control
//! plane node a taint that it does not tolerate. Unlike with the faults of a schedule, no state depends on chance.

use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::machine::MachineState;
use madako_domain::repair::RepairStatus::{Processing, Queued};
use madako_domain::repair::RepairStepStatus::{Draining, Waiting, Watching};
use madako_faults::{Act, Event, Injection, InjectionChange, InstanceTarget, Schedule, Span, Target};
use madako_judges::player::Player;
use strum::VariantArray as _;

use super::inject::Injector;
use super::simulated_clients::StoppedClients;
use crate::drains::Drains;
use crate::network::Endpoint;
use crate::repair::RepairJudge;
use crate::world::{INTERVAL, instance_number};

/// Interval and maximum time of the wait for a state of a repair: a new leader must be elected, and drains take time.
const POLL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Time until a killed leader starts again.
const AWAY: Span = Span::from_seconds(30);

/// Number of machines that break for each state: more than are repaired at once.
const BROKEN: usize = 5;

/// Maximum time until a tainted control plane node is replaced: a read of Kubernetes, and a plan.
const REPLACED_WITHIN: Duration = Duration::from_secs(2 * INTERVAL.as_secs() + 30);

/// States of a repair in which a leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
enum State {
    Queued,
    Begun,
    Watched,
    Drained,
    Commanded,
}

impl State {
    fn is_there(self, repairs: &RepairJudge) -> bool {
        match self {
            Self::Queued => repairs.is_somewhere(&Queued, &Waiting),
            Self::Begun => repairs.is_somewhere(&Processing, &Waiting),
            Self::Watched => repairs.is_somewhere(&Processing, &Watching),
            Self::Drained => repairs.is_somewhere(&Processing, &Draining),
            Self::Commanded => repairs.is_running(),
        }
    }
}

/// Returns the required events that did not happen.
pub(super) async fn end_leaders(
    injector: &mut Injector,
    clients: &mut StoppedClients,
    (drains, repairs): (&Drains, &RepairJudge),
) -> Vec<String> {
    // If the store refuses this, no repair begins, which is reported below.
    let _ = clients.operator.write_final_inputs().await;
    let _ = clients.queue.settle().await;
    drains.heal();
    let mut missed = Vec::new();
    for in_order in [false, true] {
        for &state in State::VARIANTS {
            // A repair waits between its steps after its drain is given up.
            drains.forbid_evictions(state == State::Begun);
            break_machines(injector, clients, drains).await;
            if !wait_for(injector, || state.is_there(repairs)).await {
                missed.push(format!("no repair came to be {state:?} while an instance led"));
            } else if in_order {
                stop_leader(injector).await;
            } else {
                kill_leader(injector).await;
            }
        }
    }
    drains.forbid_evictions(false);
    missed.extend(taint_drained_node(injector, drains).await);
    missed
}

/// Breaks machines of the cluster, and requests their repairs as an operator.
async fn break_machines(injector: &mut Injector, clients: &mut StoppedClients, drains: &Drains) {
    let Some(cluster) = injector.world.checker.current_cluster() else { return };
    let registry = injector.world.registry.clone();
    let machines = registry.list_machines();
    let machine = |address: &str| machines.iter().find(|machine| machine.address() == Some(address));
    let mut workers: Vec<_> = cluster.workers().collect();
    workers.sort_by_key(|node| !drains.is_forbidden_on(node.name()));
    let healthy = workers
        .into_iter()
        .filter_map(|node| machine(&node.address))
        .filter(|machine| machine.status.state == MachineState::Healthy);
    for machine in healthy.take(BROKEN) {
        let _refused = registry.set_state(&machine.spec.serial, MachineState::Unhealthy);
        let _ = clients.queue.add_broken().await;
    }
}

/// Returns true when an instance leads in this state, false after [`PATIENCE`].
async fn wait_for(injector: &mut Injector, is_there: impl Fn() -> bool) -> bool {
    for _ in 0..PATIENCE.as_millis() / POLL.as_millis() {
        if is_there() && injector.find_leader().is_some() {
            return true;
        }
        tokio::time::sleep(POLL).await;
        injector.restart_ended_instances().await;
    }
    false
}

/// Kills the leader as a fault of a schedule does.
async fn kill_leader(injector: &mut Injector) {
    let target = Target::Instance(InstanceTarget::Leader);
    let begins = Span::from_seconds(0);
    let injections = vec![Injection { fault: 0, act: Act::Kill, target, begins, ends: Some(AWAY) }];
    let event = |at, change| Event { at, change, injection: 0 };
    let events = vec![event(begins, InjectionChange::Begins), event(AWAY, InjectionChange::Ends)];
    let schedule = Schedule { injections, events, draws: Vec::new() };
    let mut player = Player::new(&schedule, AWAY, PATIENCE);
    for at in [begins, AWAY] {
        if let Some(attempt) = player.next_scheduled(at.duration()) {
            injector.make_attempt(&mut player, attempt).await;
        }
        if at == begins {
            tokio::time::sleep(AWAY.duration()).await;
        }
    }
}

/// Restarts the leader as an operator restarts a service.
async fn stop_leader(injector: &mut Injector) {
    let Some(name) = injector.find_leader() else { return };
    let Some(running) = injector.running.remove(name) else { return };
    let place = Endpoint::Instance(instance_number(name));
    injector.world.history.note("ambush", format_args!("{name} stops"));
    injector.record_fault(Act::Kill, place, true);
    running.instance.stop().await;
    injector.start(name).await;
    injector.record_fault(Act::Kill, place, false);
}

/// Taints a control plane node, which must then leave the control plane. Returns a finding if it stays.
async fn taint_drained_node(injector: &mut Injector, drains: &Drains) -> Option<String> {
    let cluster = injector.world.checker.current_cluster()?;
    let node = cluster.control_plane().next()?.clone();
    let taint =
        |key: &str| Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let set = |taints: Vec<Taint>| {
        drains.kubernetes.with_cluster(|kubernetes| kubernetes.set_taints(node.name(), taints));
    };
    set(vec![taint("example.com/broken-disk")]);
    injector.world.history.note("ambush", format_args!("{} is tainted", node.name()));
    tokio::time::sleep(REPLACED_WITHIN).await;
    set(Vec::new());
    let cluster = injector.world.checker.current_cluster()?;
    let stays = cluster.control_plane().any(|other| other.address == node.address);
    stays.then(|| format!("{} is in the control plane with a taint that it does not tolerate", node.name()))
}
