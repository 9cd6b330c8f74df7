//! Injects the faults of a schedule into the simulated world.
//!
//! A store that is down or whose disk is full refuses a compaction, and a machine in setup refuses to fail: such a
//! fault waits like one whose target is absent ([`madako_judges::player`]).

use std::collections::BTreeMap;
use std::time::Duration;

use madako_datacenter_sim::Fault;
use madako_domain::component::Component;
use madako_domain::invariants::Id;
use madako_faults::{Act, CLOCK_JUMP, Injection, InstanceTarget, Target};
use madako_judges::player::{FaultAttempt, FaultChange, FaultRefusal, InjectedFault, Player};
use madako_judges::{Exemption, Exemptions, Fact, FaultPlace as Part};
use madako_supervisor::http::{HTTP, PLACEMENT_API};
use madako_supervisor::instance::{LEADER, REIGN};
use madako_supervisor::nodes::{NODE, NODES, ROSTER, actor_id_of_node};
use madako_supervisor::tree::SupervisorRef;
use ractor::{ActorCell, ActorRef};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use super::machines::{Hardware, Machines};
use super::operations::Rollout;
use super::report::SkippedFault;
use crate::disk::ForgetfulDisk;
use crate::network::Endpoint;
use crate::nodes::Nodes;
use crate::serving::PanicMessage;
use crate::world::{NAMES, RunningInstance, World};

/// The metrics provider of every world.
const PROVIDER: &str = "prometheus";

/// The target of a fault after resolution, for example of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FaultVictim {
    Place(Endpoint),
    Machines(Hardware),
}

/// The world, and the faults in force.
pub(super) struct Injector {
    pub(super) world: World,
    pub(super) running: BTreeMap<&'static str, RunningInstance>,
    disk: ForgetfulDisk,
    chance: ChaCha8Rng,
    machines: Machines,
    began: BTreeMap<usize, (Act, FaultVictim)>,
    /// Numbers of faults in force that set a clock ahead, fill the store's disk, or corrupt answers.
    jumped: BTreeMap<Endpoint, u32>,
    full: u32,
    corrupt: BTreeMap<Endpoint, u32>,
    /// Time since which the store's disk is full, and whether the store failed for that reason.
    full_since: Duration,
    failed_while_full: bool,
    pub(super) exemptions: Exemptions,
    /// The planted panic: number of the injection, instance, and actor.
    planted: Option<(usize, u32, &'static str)>,
    pub(super) injected: u64,
    pub(super) skipped: Vec<SkippedFault>,
    /// `None` without operations on nodes.
    pub(super) rollout: Option<Rollout>,
    /// Members of etcd that restarted before the end of the faults.
    pub(super) restarted: u64,
    /// True if the store lost data that it had shown, or cannot be opened: the judges no longer know its history.
    pub(super) store_is_lost: bool,
}

fn instance_id(place: Endpoint) -> Option<&'static str> {
    match place {
        Endpoint::Instance(number) => NAMES.get(number as usize - 1).copied(),
        _ => None,
    }
}

impl Injector {
    pub(super) fn new(world: World, disk: ForgetfulDisk, chance: ChaCha8Rng) -> Self {
        let machines = Machines::new(world.registry.clone(), world.nodes.clone());
        Self {
            world,
            running: BTreeMap::new(),
            disk,
            chance,
            machines,
            began: BTreeMap::new(),
            jumped: BTreeMap::new(),
            full: 0,
            corrupt: BTreeMap::new(),
            full_since: Duration::ZERO,
            failed_while_full: false,
            exemptions: Exemptions::default(),
            planted: None,
            injected: 0,
            skipped: Vec::new(),
            rollout: None,
            restarted: 0,
            store_is_lost: false,
        }
    }

    /// Starts an instance. A clock fault in force applies to it.
    pub(super) async fn start(&mut self, name: &'static str) {
        let running = self.world.start(name).await;
        let place = Endpoint::Instance(crate::world::instance_number(name));
        if self.jumped.get(&place).is_some_and(|count| *count > 0) {
            running.clock.set_ahead(clock_lead());
        }
        self.running.insert(name, running);
    }

    /// The instance that reports that it leads; of several, the one with the latest term.
    pub(super) fn find_leader(&self) -> Option<&'static str> {
        let term = |running: &RunningInstance| {
            running.instance.view().reign.borrow().as_ref().map(|epoch| epoch.number)
        };
        let leads = |(name, running): (&&'static str, &RunningInstance)| Some((term(running)?, *name));
        self.running.iter().filter_map(leads).max().map(|(_, name)| name)
    }

    /// Makes an attempt, and passes its outcome to the player.
    pub(super) async fn make_attempt(&mut self, player: &mut Player<'_>, attempt: FaultAttempt<'_>) {
        let FaultAttempt { number, injection, begins, .. } = attempt;
        let outcome = if !begins || self.try_to_begin(number, injection).await {
            Ok(InjectedFault { on: injection.target.to_string(), dropped: None })
        } else {
            Err(FaultRefusal::NotYet)
        };
        if !begins {
            self.end_fault(number).await;
        }
        if let Some(outcome) = player.take_outcome(&attempt, outcome) {
            self.note_skipped(&attempt, outcome);
        }
    }

    /// Keeps a skipped fault. The history already has the other outcomes.
    pub(super) fn note_skipped(
        &mut self,
        FaultAttempt { number, injection, .. }: &FaultAttempt<'_>,
        change: FaultChange,
    ) {
        let Some(why) = change.why else { return };
        self.note(*number, format_args!("{} {}: {why}", injection.act, injection.target));
        let fault = format!("{} {} at {}", injection.act, injection.target, injection.begins);
        self.skipped.push(SkippedFault { injection: *number, fault, why });
    }

    async fn try_to_begin(&mut self, number: usize, injection: &Injection) -> bool {
        if let Target::Actor(actor) = injection.target {
            return self.end_actor(number, injection.act, actor).await;
        }
        let component = match injection.target {
            Target::Kubelet(address) => Some((Component::Kubelet, address)),
            Target::ApiServer(address) => Some((Component::ApiServer, address)),
            _ => None,
        };
        if let Some((component, address)) = component {
            self.end_component(number, component, &address.to_string());
            return true;
        }
        let Some(victim) = self.find_victim(&injection.target) else { return false };
        // Faults that can be refused are tried first, so that only injected faults are reported and counted.
        let mut compacted = None;
        match &victim {
            FaultVictim::Machines(hardware) if !self.machines.begin(hardware, injection.act) => return false,
            FaultVictim::Place(_) if injection.act == Act::Compact => {
                compacted = self.compact().await;
                if compacted.is_none() {
                    return false;
                }
            }
            _ => {}
        }
        self.note(number, format_args!("{} {} begins: {victim:?}", injection.act, injection.target));
        self.injected += 1;
        if let FaultVictim::Place(place) = &victim {
            self.inject_fault(injection.act, *place).await;
        }
        if let Some((revision, anew)) = compacted {
            self.world.history.note("store", format_args!("is compacted at {revision}: {anew}"));
        }
        if injection.ends.is_some() {
            self.began.insert(number, (injection.act, victim));
        }
        true
    }

    fn note(&self, number: usize, what: impl std::fmt::Display) {
        self.world.history.note("fault", format_args!("{number}: {what}"));
    }

    fn find_victim(&self, target: &Target) -> Option<FaultVictim> {
        let place = match target {
            Target::Rack(rack) => return Some(FaultVictim::Machines(Hardware::Rack(*rack))),
            Target::Address(address) => {
                return self.machines.hardware_at(&address.to_string()).map(FaultVictim::Machines);
            }
            Target::Instance(InstanceTarget::Number(number)) => Endpoint::Instance(*number),
            Target::Instance(InstanceTarget::Leader) => {
                Endpoint::Instance(crate::world::instance_number(self.find_leader()?))
            }
            Target::Store(_) => Endpoint::Store,
            Target::Registry => Endpoint::Registry,
            Target::Provider(name) => match &self.world.walk {
                Some(walk) => walk.endpoint_of(name)?,
                None if name == PROVIDER => Endpoint::Provider,
                None => return None,
            },
            Target::Actor(_) | Target::Kubelet(_) | Target::ApiServer(_) => return None,
        };
        Some(FaultVictim::Place(place))
    }

    /// Reports the beginning or the end of a fault as a fact.
    pub(super) fn record_fault(&self, act: Act, place: Endpoint, begins: bool) {
        let place = match place {
            Endpoint::Instance(number) => Part::Instance(NAMES[number as usize - 1].to_owned()),
            Endpoint::Store => Part::Store,
            Endpoint::Registry => Part::Registry,
            Endpoint::Provider | Endpoint::ProviderOf(_) => Part::Providers,
            Endpoint::People | Endpoint::Nodes => return,
        };
        match act {
            Act::Reset | Act::Compact => self.world.facts.report_strike(&place),
            _ => self.world.facts.report(&Fact::Troubled { place, clock: act == Act::ClockJump, begins }),
        }
    }

    async fn inject_fault(&mut self, act: Act, place: Endpoint) {
        self.record_fault(act, place, true);
        let network = self.world.network.clone();
        match act {
            Act::Kill => {
                network.change(place, |condition| condition.down += 1);
                if let Some(running) = instance_id(place).and_then(|name| self.running.remove(name)) {
                    let name = instance_id(place).unwrap_or_default();
                    self.world.dialers.lock().unwrap().remove(name);
                    self.world.pages.lock().unwrap().remove(name);
                    network.forget(place);
                    running.instance.kill().await;
                }
                if place == Endpoint::Store {
                    let forgotten = self.world.store.kill();
                    self.world.history.note("store", format_args!("is killed: {forgotten:?}"));
                }
            }
            Act::Pause | Act::Cut => network.change(place, |condition| condition.silent += 1),
            Act::Delay => network.change(place, |condition| condition.slow += 1),
            Act::Loss => network.change(place, |condition| condition.lossy += 1),
            Act::Reset => network.reset(place),
            Act::DiskFull => {
                if self.full == 0 {
                    self.full_since = self.world.history.now();
                }
                self.full += 1;
                self.disk.set_full(true);
            }
            Act::ClockJump => {
                *self.jumped.entry(place).or_default() += 1;
                self.set_clock(place);
            }
            Act::Corrupt => {
                *self.corrupt.entry(place).or_default() += 1;
                self.set_corrupt(place);
            }
            // Done before the report, because the store can refuse it.
            Act::Compact => {}
            Act::Panic => unreachable!("only actors panic, and they are not places"),
        }
    }

    async fn end_fault(&mut self, number: usize) {
        let Some((act, victim)) = self.began.remove(&number) else { return };
        self.note(number, format_args!("{act} ends: {victim:?}"));
        match victim {
            FaultVictim::Machines(hardware) => self.machines.end_fault(&hardware, act),
            FaultVictim::Place(place) => self.heal(act, place).await,
        }
    }

    async fn heal(&mut self, act: Act, place: Endpoint) {
        self.record_fault(act, place, false);
        let network = self.world.network.clone();
        let less = |count: &mut u32| *count = count.saturating_sub(1);
        match act {
            Act::Kill => {
                if place == Endpoint::Store && network.condition_of(place).down == 1 {
                    self.start_store().await;
                }
                network.change(place, |condition| less(&mut condition.down));
                let is_up = network.condition_of(place).down == 0;
                if let Some(name) =
                    instance_id(place).filter(|name| is_up && !self.running.contains_key(name))
                {
                    self.start(name).await;
                }
            }
            Act::Pause | Act::Cut => network.change(place, |condition| less(&mut condition.silent)),
            Act::Delay => network.change(place, |condition| less(&mut condition.slow)),
            Act::Loss => network.change(place, |condition| less(&mut condition.lossy)),
            Act::DiskFull => {
                less(&mut self.full);
                self.disk.set_full(self.full > 0);
                if self.full == 0 && std::mem::take(&mut self.failed_while_full) {
                    let lasted = self.world.history.now().saturating_sub(self.full_since);
                    self.exemptions.record_use(Exemption::FullDisk, lasted);
                }
                // A store that could not open on the full disk is started again.
                if network.condition_of(Endpoint::Store).down == 0 {
                    self.start_store().await;
                }
            }
            Act::ClockJump => {
                less(self.jumped.entry(place).or_default());
                self.set_clock(place);
            }
            Act::Corrupt => {
                less(self.corrupt.entry(place).or_default());
                self.set_corrupt(place);
            }
            Act::Panic | Act::Reset | Act::Compact => unreachable!("what strikes once does not end"),
        }
    }

    async fn start_store(&mut self) {
        match self.world.store.start() {
            Ok(()) => {
                self.world.history.note("store", "starts");
                self.store_is_lost |= !self.world.placement.note_store_start(&self.world.store).await;
            }
            Err(error) => {
                let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                self.world.history.note("store", format_args!("does not start: {error}: {why}"));
                // With room on its disk, a store opens after any crash.
                self.failed_while_full |= self.full > 0;
                if self.full == 0 {
                    let what = format!("the store cannot be opened after a crash: {error}: {why}");
                    self.world.placement.record_violation(Id::I9, what);
                    self.store_is_lost = true;
                }
            }
        }
    }

    fn set_clock(&self, place: Endpoint) {
        let is_ahead = self.jumped.get(&place).is_some_and(|count| *count > 0);
        match place {
            Endpoint::Registry => {
                let fault = Fault::ClockSet(i32::try_from(CLOCK_JUMP.as_secs()).expect("an hour fits"));
                let faults = self.world.registry.faults();
                if is_ahead { faults.set(fault) } else { faults.clear(&fault) }
            }
            _ => {
                if let Some(running) = instance_id(place).and_then(|name| self.running.get(name)) {
                    running.clock.set_ahead(if is_ahead { clock_lead() } else { time::Duration::ZERO });
                }
            }
        }
    }

    fn set_corrupt(&mut self, place: Endpoint) {
        let is_corrupt = self.corrupt.get(&place).is_some_and(|count| *count > 0);
        match place {
            Endpoint::Registry => self.world.corruption.set(is_corrupt),
            Endpoint::ProviderOf(number) => {
                if let Some(walk) = &self.world.walk {
                    walk.set_corrupt(number, is_corrupt);
                }
            }
            _ => {
                let seed: u64 = self.chance.random();
                self.world.prometheus.set_corruption(is_corrupt.then(|| super::seeded_generator(seed, 0)));
            }
        }
    }

    /// Compacts the store at its current revision, as `etcdctl compact` does. Returns the revision, and whether
    /// anything was left to compact; `None` if the store is down or refuses.
    async fn compact(&self) -> Option<(i64, bool)> {
        let mut client = self.world.store.connect_client().await?;
        let answer = client.get("none", None).await.ok()?;
        let revision = answer.header()?.revision();
        match client.compact(revision, None).await {
            Ok(_) => Some((revision, true)),
            // Without a write since the last compaction, the store is already compacted as requested.
            Err(error) if error.to_string().contains("has been compacted") => Some((revision, false)),
            Err(_) => None,
        }
    }

    /// Ends a component of Kubernetes as another program on its node would. The seed determines which nodes have an API server,
    /// so that a fault of a component that does not run is no reason to wait: it has no effect, and does not count.
    fn end_component(&mut self, number: usize, component: Component, address: &str) {
        let runs = |nodes: &&Nodes| {
            nodes.nodes.view_node(address).is_some_and(|node| {
                let container = node.containers.get(component.name());
                node.is_on && container.is_some_and(|container| container.running)
            })
        };
        let Some(nodes) = self.world.nodes.as_ref().filter(runs) else {
            self.note(number, format_args!("{component} does not run on {address}"));
            return;
        };
        nodes.nodes.end_container(address, component);
        self.note(number, format_args!("{component} on {address} is killed"));
        self.injected += 1;
    }

    async fn end_actor(&mut self, number: usize, act: Act, actor: &'static str) -> bool {
        let Some(name) = self.find_leader() else { return false };
        let Some(cell) = self.find_actor(name, actor).await else { return false };
        let instance = crate::world::instance_number(name);
        match act {
            Act::Kill => cell.kill(),
            _ if actor == HTTP || actor == PLACEMENT_API => {
                if ActorRef::<PanicMessage>::from(cell).cast(PanicMessage).is_err() {
                    return false;
                }
            }
            _ if self.planted.is_some() => return false,
            _ => {
                self.world.handling.plant_panic(instance, actor);
                self.planted = Some((number, instance, actor));
            }
        }
        self.note(number, format_args!("{act} {actor} of {name}"));
        self.injected += 1;
        true
    }

    async fn find_actor(&self, name: &str, actor: &str) -> Option<ActorCell> {
        let root = self.running.get(name)?.instance.root().clone();
        if matches!(actor, LEADER | HTTP | PLACEMENT_API) {
            return root.find_child(actor).await.ok()?;
        }
        let reign = SupervisorRef::from_cell(root.find_child(REIGN).await.ok()??)?;
        if !matches!(actor, ROSTER | NODE) {
            return reign.find_child(actor).await.ok()?;
        }
        let nodes = SupervisorRef::from_cell(reign.find_child(NODES).await.ok()??)?;
        if actor == ROSTER {
            return nodes.find_child(actor).await.ok()?;
        }
        let cluster = self.world.checker.current_cluster()?;
        let node = cluster.control_plane().next()?;
        nodes.find_child(&actor_id_of_node(&node.address)).await.ok()?
    }

    /// Upkeep: attempts late faults, restarts instances and a store that ended by themselves, and changes metric
    /// values.
    pub(super) async fn attempt_and_restart(&mut self, player: &mut Player<'_>, now: Duration) {
        self.judge_leaders();
        for attempt in player.overdue_attempts(now) {
            self.make_attempt(player, attempt).await;
        }
        self.move_panic().await;
        self.restart_ended_instances().await;
        self.roll_out(now).await;
        if let Some(failure) = self.world.store.failure_reason() {
            let text = format!("failed: {failure}");
            self.world.history.note("store", &text);
            // Only a full disk may make the store fail for good.
            self.failed_while_full |= self.full > 0;
            if self.full == 0 {
                self.world.unplanted.lock().unwrap().push(format!("the store {text}"));
            }
            self.world.store.kill();
        }
        if self.world.network.condition_of(Endpoint::Store).down == 0
            && self.world.store.running_etcd().is_none()
        {
            self.start_store().await;
        }
        self.world.prometheus.change_values_sometimes(&mut self.chance);
    }

    /// Restarts instances that ended by themselves, as a service manager does.
    pub(super) async fn restart_ended_instances(&mut self) {
        let up = |name: &str, injector: &Self| {
            injector.world.network.condition_of(Endpoint::Instance(crate::world::instance_number(name))).down
                == 0
        };
        let names: Vec<&'static str> = self.running.keys().copied().collect();
        for name in names {
            let ended =
                tokio::time::timeout(Duration::ZERO, self.running[name].instance.wait_for_end()).await;
            if let Ok(why) = ended {
                let text = format!("ended by itself: {why:?}");
                self.world.history.note(name, &text);
                self.world.unplanted.lock().unwrap().push(format!("{name} {text}"));
                self.running.remove(name);
                self.world.network.forget(Endpoint::Instance(crate::world::instance_number(name)));
                if up(name, self) {
                    self.start(name).await;
                }
            }
        }
    }

    /// Moves a planted panic to the new leader if the actor got no message before its instance lost the lead.
    async fn move_panic(&mut self) {
        let Some((number, instance, actor)) = self.planted else { return };
        if !self.world.handling.is_planted(instance) {
            self.planted = None;
            return;
        }
        let leads = self.find_leader().filter(|name| crate::world::instance_number(name) != instance);
        if let Some(name) = leads {
            let _moved = self.world.handling.clear(instance);
            let instance = crate::world::instance_number(name);
            self.world.handling.plant_panic(instance, actor);
            self.planted = Some((number, instance, actor));
        }
    }

    /// Number of syncs of the store's disk.
    pub(super) fn count_syncs(&self) -> u64 {
        self.disk.count_syncs()
    }

    /// Kills all instances and restarts none.
    pub(super) async fn stop_all(&mut self) {
        for (_, running) in std::mem::take(&mut self.running) {
            running.instance.kill().await;
        }
    }

    /// Passes the instances that report that they lead to a judge.
    fn judge_leaders(&self) {
        let Some(hosts) = &self.world.hosts else { return };
        let epoch = |running: &RunningInstance| {
            running.instance.view().reign.borrow().as_ref().map(|epoch| epoch.number)
        };
        let leaders = self.running.iter().filter_map(|(name, running)| Some((*name, epoch(running)?)));
        hosts.judge.judge_reported_leaders(&leaders.collect::<Vec<_>>());
    }

    /// True while a planted panic waits for a message of its actor.
    pub(super) fn awaits_panic(&self) -> bool {
        self.planted.is_some_and(|(_, instance, _)| self.world.handling.is_planted(instance))
    }

    /// Ends all faults in force.
    pub(super) async fn finish(&mut self) {
        let hosts = self.world.hosts.as_ref();
        self.restarted = hosts.map_or(0, |hosts| hosts.judge.counts().restarted);
        for number in self.began.keys().copied().collect::<Vec<_>>() {
            self.end_fault(number).await;
        }
        if let Some((number, instance, actor)) = self.planted.take()
            && self.world.handling.clear(instance)
        {
            self.injected -= 1;
            let why = "the actor handled no message until the faults stopped".to_owned();
            self.skipped.push(SkippedFault { injection: number, fault: format!("panic actor={actor}"), why });
        }
    }
}

fn clock_lead() -> time::Duration {
    time::Duration::try_from(CLOCK_JUMP).expect("an hour fits")
}
