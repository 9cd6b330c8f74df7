//! Faults made real: signals, the network board, and the data center's control door.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use http::Method;
use madako_faults::{Act, CLOCK_JUMP, Injection, InstanceTarget, Target};
use madako_messages::machine::MachineState;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::datacenter::{Clocked, Corrupted, Powered, Stated};
use crate::network::{Node, with_causes};
use crate::observer::Observer;
use crate::watcher::Leaders;
use crate::web::{self, Ask};
use crate::world::World;

/// Time for a request to a control door, and for one to the store.
const DONE_WITHIN: Duration = Duration::from_secs(5);
/// Time for a server of the data center to open its door.
const STARTED_WITHIN: Duration = Duration::from_secs(10);
/// Time for a member to compact its history, once.
const COMPACTED_WITHIN: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(20);

/// Why a fault could not be injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible(pub String);

/// Why a fault is not injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undone {
    /// It cannot be.
    Impossible(Impossible),
    /// Its target is not there at present: nobody leads, or a member does not take what it is asked for.
    NotYet,
}

impl From<Impossible> for Undone {
    fn from(impossible: Impossible) -> Self {
        Self::Impossible(impossible)
    }
}

fn impossible(why: impl std::fmt::Display) -> Impossible {
    Impossible(why.to_string())
}

/// What holds of a process, each as often as it was begun and not ended yet.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    killed: u32,
    paused: u32,
}

/// What holds at a data center's server, which forgets it when it is killed.
#[derive(Debug, Clone, Copy, Default)]
struct Spoiled {
    corrupt: u32,
    clock: u32,
}

/// Injects the faults of a run.
pub(crate) struct Injector {
    observer: Observer,
    leaders: Leaders,
    seed: u64,
    held: BTreeMap<Node, Held>,
    spoiled: BTreeMap<Node, Spoiled>,
    dark: BTreeMap<Target, u32>,
    /// What the registry was told of these: whether they are gone.
    told: BTreeMap<Target, bool>,
    full: BTreeMap<Node, u32>,
    /// Who was the leader when a fault began.
    leader_of: BTreeMap<usize, u32>,
    /// Packets that were lost around its node before a fault began.
    lost_before: BTreeMap<usize, u64>,
}

/// What was injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Whom it happened to.
    pub(crate) on: String,
    /// Packets that were lost around it meanwhile, for what is over and loses packets, where they are counted.
    pub(crate) dropped: Option<u64>,
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
            told: BTreeMap::new(),
            full: BTreeMap::new(),
            leader_of: BTreeMap::new(),
            lost_before: BTreeMap::new(),
        }
    }

    /// Begins a fault, lets it strike, or ends what was begun.
    pub(crate) async fn inject(
        &mut self,
        world: &mut World,
        (number, injection): (usize, &Injection),
        begins: bool,
    ) -> Result<Done, Undone> {
        if matches!(injection.target, Target::Rack(_) | Target::Address(_)) {
            return Ok(Done { on: self.machines(world, injection, begins).await?, dropped: None });
        }
        let node = self.node(number, injection)?;
        if begins && let Some(lost) = lost(world, &node, injection.act).await? {
            self.lost_before.insert(number, lost);
        }
        if injection.act == Act::Compact {
            self.compact(world, &node).await?;
        } else {
            self.change(world, &node, injection, begins).await?;
        }
        let mut dropped = None;
        if !begins && let Some(before) = self.lost_before.remove(&number) {
            dropped = lost(world, &node, injection.act).await?.map(|lost| lost.saturating_sub(before));
        }
        Ok(Done { on: node.to_string(), dropped })
    }

    fn node(&mut self, number: usize, injection: &Injection) -> Result<Node, Undone> {
        Ok(match &injection.target {
            Target::Instance(InstanceTarget::Number(number)) => Node::Instance(*number),
            Target::Instance(InstanceTarget::Leader) => {
                if let Some(leader) = self.leader_of.get(&number) {
                    return Ok(Node::Instance(*leader));
                }
                let leader = self.observer.leader().and_then(|epoch| self.leaders.of(epoch));
                let leader = leader.ok_or(Undone::NotYet)?;
                self.leader_of.insert(number, leader);
                Node::Instance(leader)
            }
            Target::Store(number) => Node::Store(*number),
            Target::Registry => Node::Registry,
            Target::Provider(name) => Node::Provider(name.clone()),
            Target::Actor(name) => {
                let why = format_args!("the actor {name} is inside a process: only a simulation reaches it");
                return Err(impossible(why).into());
            }
            Target::Rack(_) | Target::Address(_) => {
                return Err(impossible("machines are no processes").into());
            }
        })
    }

    async fn change(
        &mut self,
        world: &mut World,
        node: &Node,
        injection: &Injection,
        begins: bool,
    ) -> Result<(), Impossible> {
        match injection.act {
            Act::Kill | Act::Pause => self.hold(world, node, injection.act, begins).await,
            Act::Cut | Act::Delay | Act::Loss | Act::Reset => {
                world.network.fail(node, injection.act, begins).await.map_err(|error| told(&error))
            }
            Act::Corrupt => {
                count(&mut self.spoiled.entry(node.clone()).or_default().corrupt, begins);
                self.spoil(world, node).await
            }
            Act::ClockJump if *node == Node::Registry => {
                count(&mut self.spoiled.entry(node.clone()).or_default().clock, begins);
                self.spoil(world, node).await
            }
            Act::ClockJump => self.jump(world, node, begins),
            Act::DiskFull => self.fill(world, node, begins).await,
            Act::Panic | Act::Compact => Err(impossible(format_args!("{} is none of {node}", injection.act))),
        }
    }

    /// Sets an instance's clock ahead, or right again.
    fn jump(&mut self, world: &World, node: &Node, begins: bool) -> Result<(), Impossible> {
        let spoiled = self.spoiled.entry(node.clone()).or_default();
        count(&mut spoiled.clock, begins);
        let by = if spoiled.clock > 0 { CLOCK_JUMP } else { Duration::ZERO };
        let Node::Instance(number) = node else { return Err(impossible("only instances have a clock")) };
        let clock = world.instances.get(number).and_then(|instance| instance.clock.as_ref());
        let clock = clock.ok_or_else(|| impossible(format_args!("{node} has no clock of its own")))?;
        let clock = clock.as_ref().map_err(impossible)?;
        clock.ahead(by).map_err(|error| told(&error))
    }

    /// Fills the disk of a member, or gives it room again; then one that ended for want of it is started again.
    async fn fill(&mut self, world: &mut World, node: &Node, begins: bool) -> Result<(), Impossible> {
        let full = self.full.entry(node.clone()).or_default();
        count(full, begins);
        let full = *full > 0;
        let Node::Store(number) = node else { return Err(impossible("only the store has a disk")) };
        let member = world.members.get_mut(number).ok_or_else(|| impossible("there is no such member"))?;
        let disk = member.disk.as_ref().ok_or_else(|| impossible("it has no disk of its own"))?;
        let disk = disk.as_ref().map_err(impossible)?;
        if full {
            return if begins { disk.fill().map_err(|error| told(&error)) } else { Ok(()) };
        }
        disk.clear().map_err(|error| told(&error))?;
        if member.process.check().is_err() {
            let process = &mut member.process;
            process.kill().await.map_err(|error| told(&error))?;
            process.start_again().map_err(|error| told(&error))?;
            world.network.runs(node, process.id());
        }
        Ok(())
    }

    /// Kills or stops a process, or undoes it when nothing else holds it so.
    async fn hold(
        &mut self,
        world: &mut World,
        node: &Node,
        act: Act,
        begins: bool,
    ) -> Result<(), Impossible> {
        let held = self.held.entry(node.clone()).or_default();
        count(if act == Act::Kill { &mut held.killed } else { &mut held.paused }, begins);
        let (killed, paused) = (held.killed > 0, held.paused > 0);
        let process = world.process(node).ok_or_else(|| impossible(format_args!("there is no {node}")))?;
        let mut restarted = None;
        if killed {
            process.kill().await.map_err(|error| told(&error))?;
        } else if process.is_down() {
            process.start_again().map_err(|error| told(&error))?;
            restarted = Some(process.id());
        }
        let goes_on = process.is_stopped() && !paused;
        if process.is_stopped() != paused {
            process.stop(paused).map_err(|error| told(&error))?;
        }
        if let Some(id) = restarted {
            world.network.runs(node, id);
        }
        if goes_on || restarted.is_some() {
            // What happened to it meanwhile.
            if matches!(node, Node::Registry | Node::Provider(_)) {
                self.spoil(world, node).await?;
            }
            if *node == Node::Registry {
                self.darken(world).await?;
            }
        }
        Ok(())
    }

    /// Tells a server of the data center what is wrong with it, as far as it runs.
    async fn spoil(&mut self, world: &mut World, node: &Node) -> Result<(), Impossible> {
        let spoiled = self.spoiled.get(node).copied().unwrap_or_default();
        let server = match node {
            Node::Provider(_) => world.provider.as_ref(),
            _ => Some(&world.registry),
        };
        let server = server.ok_or_else(|| impossible(format_args!("there is no {node}")))?;
        // Who is down or stands still learns it when it runs again.
        if server.process.is_down() || server.process.is_stopped() {
            return Ok(());
        }
        let corrupted = Corrupted { seed: (spoiled.corrupt > 0).then_some(self.seed) };
        let ahead = i32::try_from(CLOCK_JUMP.as_secs()).unwrap_or(i32::MAX);
        let clocked = Clocked { seconds: if spoiled.clock > 0 { ahead } else { 0 } };
        control(server.control, "/corrupt", &corrupted).await?;
        control(server.control, "/clock", &clocked).await
    }

    /// The machines of a rack, or one: killed or cut off.
    async fn machines(
        &mut self,
        world: &World,
        injection: &Injection,
        begins: bool,
    ) -> Result<String, Impossible> {
        count(self.dark.entry(injection.target.clone()).or_default(), begins);
        self.darken(world).await?;
        Ok(injection.target.to_string())
    }

    /// Lets the registry show machines that are gone as unreachable, and no others, as far as it runs.
    async fn darken(&mut self, world: &World) -> Result<(), Impossible> {
        let registry = &world.registry;
        // Who is down or stands still learns it when it runs again.
        if registry.process.is_down() || registry.process.is_stopped() {
            return Ok(());
        }
        for (target, dark) in &self.dark {
            let gone = *dark > 0;
            if self.told.get(target).copied().unwrap_or_default() == gone {
                continue;
            }
            match target {
                Target::Rack(rack) => {
                    control(registry.control, "/power", &Powered { rack: *rack, on: !gone }).await?;
                }
                target => {
                    let Target::Address(address) = target else { return Err(impossible("no machine")) };
                    let state = if gone { MachineState::Unreachable } else { MachineState::Healthy };
                    let stated = Stated { machine: address.to_string(), state, held: gone };
                    control(registry.control, "/state", &stated).await?;
                }
            }
            self.told.insert(target.clone(), gone);
        }
        Ok(())
    }

    /// Others wait meanwhile, so it is tried shortly, and again while a majority or the member itself is away.
    async fn compact(&self, world: &World, node: &Node) -> Result<(), Undone> {
        let Node::Store(number) = node else { return Err(impossible("only the store has a history").into()) };
        let member = world.members.get(number).ok_or_else(|| impossible("there is no such member"))?;
        let held = self.held.get(node).is_some_and(|held| held.killed + held.paused > 0);
        let full = self.full.get(node).is_some_and(|full| *full > 0);
        if held || full {
            return Err(Undone::NotYet);
        }
        let compacting = async {
            let options = ConnectOptions::new().with_connect_timeout(COMPACTED_WITHIN);
            let mut client = Client::connect([format!("http://{}", member.client)], Some(options)).await?;
            let present = client.get("none", None).await?;
            let revision = present.header().map_or(0, etcd_client::ResponseHeader::revision);
            // What the observer did not see yet would be lost to it.
            while self.observer.last() < revision {
                sleep(GLANCE).await;
            }
            client.compact(revision, None).await
        };
        match timeout(COMPACTED_WITHIN, compacting).await {
            Ok(Ok(_)) => Ok(()),
            // Somebody else compacted just then: it is as asked for.
            Ok(Err(error)) if error.to_string().contains("has been compacted") => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Undone::NotYet),
        }
    }
}

fn count(holds: &mut u32, begins: bool) {
    *holds = if begins { *holds + 1 } else { holds.saturating_sub(1) };
}

/// Packets that were lost around a node so far, for a fault that loses them.
async fn lost(world: &World, node: &Node, act: Act) -> Result<Option<u64>, Impossible> {
    world.network.dropped(node, act).await.map_err(|error| told(&error))
}

fn told(error: &dyn std::error::Error) -> Impossible {
    Impossible(with_causes(error))
}

/// Says something to a control door: again until it is open, for a server that has just been started.
async fn control(
    at: std::net::SocketAddr,
    path: &str,
    body: &(impl Serialize + Sync),
) -> Result<(), Impossible> {
    let body = json!(body);
    let began = Instant::now();
    let answer = loop {
        match web::ask(at, Ask::send(&Method::POST, path, &body, DONE_WITHIN)).await {
            Err(web::Unanswered::NotSent(..)) if began.elapsed() < STARTED_WITHIN => sleep(GLANCE).await,
            answer => break answer.map_err(|error| told(&error))?,
        }
    };
    if answer.status.is_success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    Err(impossible(format_args!("the control door said {}: {said}", answer.status)))
}
