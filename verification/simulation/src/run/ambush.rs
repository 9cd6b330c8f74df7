//! After the faults of a run with saboteurs: leaders end in each state of a repair, killed or in order, and a control plane node gets a
//! taint that it does not tolerate. No state depends on chance, as it does for the faults of a schedule.

use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::machine::MachineState;
use madako_domain::repair::RepairStatus::{Processing, Queued};
use madako_domain::repair::RepairStepStatus::{Draining, Waiting, Watching};
use madako_faults::{Act, Change, Event, Injection, InstanceTarget, Schedule, Span, Target};
use madako_judges::player::Player;

use super::inject::Injector;
use super::people::Stopped;
use crate::drains::Drains;
use crate::network::Endpoint;
use crate::repair::RepairJudge;
use crate::world::{INTERVAL, number};

/// How often the states of repairs are looked at, and for how long at most: a new leader is elected, and drains take their time.
const LOOK: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// How long a killed leader is away.
const AWAY: Span = Span::seconds(30);

/// Machines that are broken for each state: more than are repaired at once.
const BROKEN: usize = 5;

/// How long a tainted control plane node may stay: a look at Kubernetes, and a plan.
const REPLACED_WITHIN: Duration = Duration::from_secs(2 * INTERVAL.as_secs() + 30);

/// States in which a leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    Begun,
    Watched,
    Drained,
    Commanded,
}

impl State {
    const ALL: [Self; 5] = [Self::Queued, Self::Begun, Self::Watched, Self::Drained, Self::Commanded];

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

/// Says what did not happen though it should have.
pub(super) async fn ambush(
    injector: &mut Injector,
    people: &mut Stopped,
    (drains, repairs): (&Drains, &RepairJudge),
) -> Vec<String> {
    // A store that refuses this leaves no repair to wait for, which is told below.
    let _ = people.operator.settle().await;
    let _ = people.queue.settle().await;
    drains.heal();
    let mut missed = Vec::new();
    for in_order in [false, true] {
        for state in State::ALL {
            // A repair waits between its steps when a drain is given up.
            drains.forbid(state == State::Begun);
            break_machines(injector, people, drains).await;
            if !wait_for(injector, || state.is_there(repairs)).await {
                missed.push(format!("no repair came to be {state:?} while an instance led"));
            } else if in_order {
                stop_leader(injector).await;
            } else {
                kill_leader(injector).await;
            }
        }
    }
    drains.forbid(false);
    missed.extend(taint(injector, drains).await);
    missed
}

/// Machines of the cluster fail, and operators ask for their repairs.
async fn break_machines(injector: &mut Injector, people: &mut Stopped, drains: &Drains) {
    let Some(cluster) = injector.world.checker.cluster() else { return };
    let registry = injector.world.registry.clone();
    let machines = registry.machines();
    let machine = |address: &str| machines.iter().find(|machine| machine.address() == Some(address));
    let mut workers: Vec<_> = cluster.workers().collect();
    workers.sort_by_key(|node| !drains.is_forbidden_on(node.name()));
    let healthy = workers
        .into_iter()
        .filter_map(|node| machine(&node.address))
        .filter(|machine| machine.status.state == MachineState::Healthy);
    for machine in healthy.take(BROKEN) {
        let _refused = registry.set_state(&machine.spec.serial, MachineState::Unhealthy);
        let _ = people.queue.add_broken().await;
    }
}

/// Whether it came to that while an instance led.
async fn wait_for(injector: &mut Injector, is_there: impl Fn() -> bool) -> bool {
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        if is_there() && injector.leader().is_some() {
            return true;
        }
        tokio::time::sleep(LOOK).await;
        injector.restart_those_that_ended().await;
    }
    false
}

/// As a fault of a schedule.
async fn kill_leader(injector: &mut Injector) {
    let target = Target::Instance(InstanceTarget::Leader);
    let begins = Span::seconds(0);
    let injections = vec![Injection { fault: 0, act: Act::Kill, target, begins, ends: Some(AWAY) }];
    let event = |at, change| Event { at, change, injection: 0 };
    let events = vec![event(begins, Change::Begins), event(AWAY, Change::Ends)];
    let schedule = Schedule { injections, events, draws: Vec::new() };
    let mut player = Player::new(&schedule, AWAY, PATIENCE);
    for at in [begins, AWAY] {
        if let Some(attempt) = player.scheduled(at.duration()) {
            injector.make(&mut player, attempt).await;
        }
        if at == begins {
            tokio::time::sleep(AWAY.duration()).await;
        }
    }
}

/// As an operator restarts a service.
async fn stop_leader(injector: &mut Injector) {
    let Some(name) = injector.leader() else { return };
    let Some(running) = injector.running.remove(name) else { return };
    let place = Endpoint::Instance(number(name));
    injector.world.history.note("ambush", format_args!("{name} stops"));
    injector.tell(Act::Kill, place, true);
    running.instance.stop().await;
    injector.start(name).await;
    injector.tell(Act::Kill, place, false);
}

/// A taint that nobody tolerates moves the control plane away from its node.
async fn taint(injector: &mut Injector, drains: &Drains) -> Option<String> {
    let cluster = injector.world.checker.cluster()?;
    let node = cluster.control_plane().next()?.clone();
    let taint =
        |key: &str| Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let set = |taints: Vec<Taint>| {
        drains.kubernetes.with(|kubernetes| kubernetes.set_taints(node.name(), taints));
    };
    set(vec![taint("example.com/broken-disk")]);
    injector.world.history.note("ambush", format_args!("{} is tainted", node.name()));
    tokio::time::sleep(REPLACED_WITHIN).await;
    set(Vec::new());
    let cluster = injector.world.checker.cluster()?;
    let stays = cluster.control_plane().any(|other| other.address == node.address);
    stays.then(|| format!("{} is in the control plane with a taint that it does not tolerate", node.name()))
}
