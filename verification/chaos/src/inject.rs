//! Injects the faults of a chaos run: signals to processes, rules of the network, and requests to the data center's
//! control API.
//!
//! Guarantees: a fault that would have no effect does not begin, such as corrupt answers of a registry that is down.
//! Before a fault hides that a process ended by itself, that end is recorded.

mod datacenter;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_faults::{Act, CLOCK_JUMP, Injection, InstanceTarget, Target};
use madako_judges::Exemptions;
use madako_judges::player::{FaultRefusal, ImpossibleFault, InjectedFault};
use madako_protocol::causes::error_with_causes;
use tokio::time::Instant;

use crate::network::Node;
use crate::observer::Observer;
use crate::process::Process;
use crate::watcher::Leaders;
use crate::world::World;

fn impossible_fault(why: impl std::fmt::Display) -> ImpossibleFault {
    ImpossibleFault(why.to_string())
}

#[derive(Debug, Clone, Copy, Default)]
struct ActiveFaults {
    killed: u32,
    paused: u32,
}

/// Active faults of a data center's server, counted: a killed server forgets them.
#[derive(Debug, Clone, Copy, Default)]
struct ServerFaults {
    corrupt: u32,
    clock: u32,
}

pub(crate) struct Injector {
    observer: Observer,
    leaders: Leaders,
    seed: u64,
    held: BTreeMap<Node, ActiveFaults>,
    spoiled: BTreeMap<Node, ServerFaults>,
    dark: BTreeMap<Target, u32>,
    /// Machines reported to the registry, with whether they are gone.
    sent_states: BTreeMap<Target, bool>,
    /// Faults that fill the disk of a member, and the beginning of the first of them.
    full: BTreeMap<Node, (u32, Instant)>,
    /// The instance that led when the fault began, by injection.
    leader_of: BTreeMap<usize, u32>,
    /// Packets dropped around the node before the fault began, by injection.
    lost_before: BTreeMap<usize, u64>,
    looked: ProcessChecks,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProcessChecks {
    /// Number of checks of processes that should run.
    pub(crate) times: u64,
    pub(crate) ended: BTreeSet<String>,
    /// Ends that a full disk excuses.
    pub(crate) exemptions: Exemptions,
}

impl Injector {
    pub(crate) fn new(observer: Observer, leaders: Leaders, seed: u64) -> Self {
        Self {
            observer,
            leaders,
            seed,
            held: BTreeMap::new(),
            spoiled: BTreeMap::new(),
            dark: BTreeMap::new(),
            sent_states: BTreeMap::new(),
            full: BTreeMap::new(),
            leader_of: BTreeMap::new(),
            lost_before: BTreeMap::new(),
            looked: ProcessChecks::default(),
        }
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn process_checks(&self) -> ProcessChecks {
        self.looked.clone()
    }

    /// True if the process of a node runs as it should. Records a process that ended by itself; a member with a full
    /// disk may: [`madako_judges::Exemption::FullDisk`].
    pub(crate) fn check_process(&mut self, world: &mut World, node: &Node) -> bool {
        let may_end = self.full.get(node).is_some_and(|(full, _)| *full > 0);
        let Some(process) = world.process_mut(node).filter(|process| !may_end && !process.is_down()) else {
            return true;
        };
        self.looked.times += 1;
        let Err(error) = process.check() else { return true };
        self.looked.ended.insert(error_with_causes(&error));
        false
    }

    /// Begins a fault, strikes, or ends a fault.
    pub(crate) async fn inject(
        &mut self,
        world: &mut World,
        (number, injection): (usize, &Injection),
        begins: bool,
    ) -> Result<InjectedFault, FaultRefusal> {
        let machines = matches!(injection.target, Target::Rack(_) | Target::Address(_));
        // A fault of machines is a change of the registry.
        let node = if machines { Node::Registry } else { self.target_node(number, injection)? };
        // The end of a process must be recorded before a kill and restart hide it.
        self.check_process(world, &node);
        let act = if machines { None } else { Some(injection.act) };
        if begins && !would_have_effect(world, &node, act) {
            // Another instance may lead at a later attempt.
            self.leader_of.remove(&number);
            return Err(FaultRefusal::NotYet);
        }
        if machines {
            return Ok(InjectedFault {
                on: self.switch_machines(world, injection, begins).await?,
                dropped: None,
            });
        }
        if begins && let Some(lost) = count_lost(world, &node, injection.act).await? {
            self.lost_before.insert(number, lost);
        }
        if injection.act == Act::Compact {
            self.compact(world, &node).await?;
        } else {
            self.change(world, &node, injection, begins).await?;
        }
        let mut dropped = None;
        if !begins && let Some(before) = self.lost_before.remove(&number) {
            dropped = count_lost(world, &node, injection.act).await?.map(|lost| lost.saturating_sub(before));
        }
        Ok(InjectedFault { on: node.to_string(), dropped })
    }

    fn target_node(&mut self, number: usize, injection: &Injection) -> Result<Node, FaultRefusal> {
        Ok(match &injection.target {
            Target::Instance(InstanceTarget::Number(number)) => Node::Instance(*number),
            Target::Instance(InstanceTarget::Leader) => {
                if let Some(leader) = self.leader_of.get(&number) {
                    return Ok(Node::Instance(*leader));
                }
                let leader =
                    self.observer.current_leader().and_then(|epoch| self.leaders.leader_of_epoch(epoch));
                let leader = leader.ok_or(FaultRefusal::NotYet)?;
                self.leader_of.insert(number, leader);
                Node::Instance(leader)
            }
            Target::Store(number) => Node::Store(*number),
            Target::Registry => Node::Registry,
            Target::Provider(name) => Node::Provider(name.clone()),
            Target::Actor(name) => {
                let why = format_args!("the actor {name} is inside a process: only a simulation reaches it");
                return Err(impossible_fault(why).into());
            }
            Target::Kubelet(_) | Target::ApiServer(_) => {
                let why = "a component of Kubernetes runs on a node: only a simulation has nodes";
                return Err(impossible_fault(why).into());
            }
            Target::Rack(_) | Target::Address(_) => {
                return Err(impossible_fault("the fault needs a process, and a machine is none").into());
            }
        })
    }

    async fn change(
        &mut self,
        world: &mut World,
        node: &Node,
        injection: &Injection,
        begins: bool,
    ) -> Result<(), ImpossibleFault> {
        match injection.act {
            Act::Kill | Act::Pause => self.hold_process(world, node, injection.act, begins).await,
            Act::Cut | Act::Delay | Act::Loss | Act::Reset => world
                .network
                .fail(node, injection.act, begins)
                .await
                .map_err(|error| impossible_because(&error)),
            Act::Corrupt => {
                count_cause(&mut self.spoiled.entry(node.clone()).or_default().corrupt, begins);
                self.send_faults(world, node).await
            }
            Act::ClockJump if *node == Node::Registry => {
                count_cause(&mut self.spoiled.entry(node.clone()).or_default().clock, begins);
                self.send_faults(world, node).await
            }
            Act::ClockJump => self.set_clock_ahead(world, node, begins),
            Act::DiskFull => self.fill_disk(world, node, begins).await,
            Act::Panic | Act::Compact => {
                Err(impossible_fault(format_args!("the fault {} does not strike {node}", injection.act)))
            }
        }
    }

    /// Sets an instance's clock ahead, or back.
    fn set_clock_ahead(&mut self, world: &World, node: &Node, begins: bool) -> Result<(), ImpossibleFault> {
        let spoiled = self.spoiled.entry(node.clone()).or_default();
        count_cause(&mut spoiled.clock, begins);
        let by = if spoiled.clock > 0 { CLOCK_JUMP } else { Duration::ZERO };
        let Node::Instance(number) = node else {
            return Err(impossible_fault("only the clock of an instance can be set"));
        };
        let clock = world.instances.get(number).and_then(|instance| instance.clock.as_ref());
        let clock = clock.ok_or_else(|| impossible_fault(format_args!("{node} has no clock of its own")))?;
        let clock = clock.as_ref().map_err(impossible_fault)?;
        clock.set_ahead(by).map_err(|error| impossible_because(&error))
    }

    /// Kills or stops a process, or undoes that unless another fault still holds.
    async fn hold_process(
        &mut self,
        world: &mut World,
        node: &Node,
        act: Act,
        begins: bool,
    ) -> Result<(), ImpossibleFault> {
        let held = self.held.entry(node.clone()).or_default();
        count_cause(if act == Act::Kill { &mut held.killed } else { &mut held.paused }, begins);
        let (killed, paused) = (held.killed > 0, held.paused > 0);
        let process =
            world.process_mut(node).ok_or_else(|| impossible_fault(format_args!("there is no {node}")))?;
        let mut restarted = None;
        if killed {
            process.kill().await.map_err(|error| impossible_because(&error))?;
        } else if process.is_down() {
            process.start_again().map_err(|error| impossible_because(&error))?;
            restarted = Some(process.id());
        }
        let goes_on = process.is_stopped() && !paused;
        if process.is_stopped() != paused {
            process.stop(paused).map_err(|error| impossible_because(&error))?;
        }
        if let Some(id) = restarted {
            world.network.register_process(node, id);
        }
        if goes_on || restarted.is_some() {
            // Catches up on faults that changed while the server was down.
            if matches!(node, Node::Registry | Node::Provider(_)) {
                self.send_faults(world, node).await?;
            }
            if *node == Node::Registry {
                self.cut_power(world).await?;
            }
        }
        Ok(())
    }
}

/// True if a fault would have an effect on a node now; `act` is `None` for faults of machines.
fn would_have_effect(world: &mut World, node: &Node, act: Option<Act>) -> bool {
    let connected = world.network.is_connected(node);
    // A member with a full disk has ended. Ends of other processes were recorded before.
    let is = |process: &mut Process| (process.is_down() || process.check().is_err(), process.is_stopped());
    // A missing process is reported later, with the reason.
    let (down, stopped) = world.process_mut(node).map_or((false, false), is);
    would_affect_process(act, down, stopped, connected)
}

/// [`would_have_effect`] by the state of the process.
fn would_affect_process(act: Option<Act>, down: bool, stopped: bool, connected: bool) -> bool {
    match act {
        // A process that is killed twice is down until both faults are over.
        Some(Act::Kill) => true,
        Some(Act::Reset) => !down && connected,
        Some(Act::Pause | Act::Cut | Act::Delay | Act::Loss) => !down,
        // These acts change the work of the process, and it does none.
        _ => !down && !stopped,
    }
}

fn count_cause(holds: &mut u32, begins: bool) {
    *holds = if begins { *holds + 1 } else { holds.saturating_sub(1) };
}

/// Packets dropped around a node so far, for a fault that drops packets.
async fn count_lost(world: &World, node: &Node, act: Act) -> Result<Option<u64>, ImpossibleFault> {
    world.network.count_dropped_packets(node, act).await.map_err(|error| impossible_because(&error))
}

fn impossible_because(error: &(dyn std::error::Error + 'static)) -> ImpossibleFault {
    ImpossibleFault(error_with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_without_effect_waits() {
        const RUNS: [bool; 3] = [false, false, true];
        const DOWN: [bool; 3] = [true, false, false];
        const STOPPED: [bool; 3] = [false, true, true];
        const ALONE: [bool; 3] = [false, false, false];
        for (act, states) in [
            (Some(Act::Kill), vec![RUNS, DOWN, STOPPED, ALONE]),
            (Some(Act::Pause), vec![RUNS, STOPPED, ALONE]),
            (Some(Act::Cut), vec![RUNS, STOPPED, ALONE]),
            (Some(Act::Reset), vec![RUNS, STOPPED]),
            (Some(Act::Corrupt), vec![RUNS, ALONE]),
            (Some(Act::ClockJump), vec![RUNS, ALONE]),
            (Some(Act::DiskFull), vec![RUNS, ALONE]),
            (None, vec![RUNS, ALONE]),
        ] {
            for state in [RUNS, DOWN, STOPPED, ALONE] {
                let [down, stopped, connected] = state;
                assert_eq!(
                    would_affect_process(act, down, stopped, connected),
                    states.contains(&state),
                    "{act:?} {state:?}"
                );
            }
        }
    }
}
