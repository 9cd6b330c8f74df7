//! The state of all simulated nodes, and the events that change it at their times.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Taint;
use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::node_status::NodeStatus;
use madako_protocol::node::NodeAction;
use time::OffsetDateTime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::encryption::Encryption;
use super::etcd::{Clusters, Request};
use super::faults::{NetworkIsland, NodeFault, NodeFaults, NodePlace};
use super::kubernetes::ApiLoad;
use super::limits::{
    BOOT_TAKES, DELAY_FACTOR, ETCD_START_TAKES, LATENCY, MAX_SILENCE, PULL_TAKES, RUN_TAKES, SHORT_TAKES,
    STAGE_TAKES, STOP_TAKES,
};
use super::log::{Effect, EtcdFact, Log, NodeFact, Observed};
use super::machine::{ActionFailure, Content, Machine};
use super::objects::ObjectStore;
use crate::chance::{Kind, SeededChance};
use crate::kubernetes::SimulatedKubernetes;

#[derive(Debug)]
pub(crate) enum NodeRequest {
    Act(Box<NodeAction>, Effect),
    /// The status, where the text is the configured volume.
    Status(String),
}

#[derive(Debug)]
pub(crate) enum Answer {
    Acted(Result<String, ActionFailure>),
    Status(Box<NodeStatus>),
    EngineDown,
    /// The command was killed at the end of its permit.
    Killed,
}

/// An answer with the time at which it reaches its client.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) at: Instant,
}

#[derive(Debug)]
struct Command {
    address: String,
    request: NodeRequest,
    /// End of the permit; `None`: the command changes nothing.
    until: Option<Instant>,
    /// Number of the node's power losses when the command was sent.
    boots: u64,
    /// The command reached the node.
    has_arrived: bool,
    /// Time of the next step; `None`: the command waits for the end of a fault.
    due: Option<Instant>,
    reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
enum Event {
    Step(u64),
    Request(Box<Request>),
    StartMember {
        address: String,
        start: u64,
    },
    /// A node has started after a power loss.
    Started {
        address: String,
        boots: u64,
    },
}

#[derive(Debug)]
pub(crate) struct World {
    began: Instant,
    /// The wall clock of all nodes at the beginning; `None`: no node tells a time.
    pub(crate) clock: Option<OffsetDateTime>,
    pub(crate) now: Instant,
    chance: SeededChance,
    pub(crate) nodes: BTreeMap<String, Machine>,
    faults: NodeFaults,
    pub(crate) etcd: Clusters,
    /// Taints of the Node objects of Kubernetes, by name.
    pub(crate) registered: BTreeMap<String, Vec<Taint>>,
    pub(crate) objects: ObjectStore,
    pub(crate) encryption: Encryption,
    /// Times at which API servers were last seen to be healthy no more, by address.
    pub(crate) api_lost: BTreeMap<String, Instant>,
    /// Times at which a change made API servers healthy, by address.
    pub(crate) api_gained: BTreeMap<String, Instant>,
    /// The load of API servers, by address; without one, they answer at once.
    pub(crate) api_load: BTreeMap<String, ApiLoad>,
    /// Number of requests to API servers.
    pub(crate) api_requests: u64,
    /// Times at which effects restarted kubelets and proxies, by component and address.
    pub(crate) restarted: BTreeMap<(Component, String), Instant>,
    /// The pods that run on the nodes; `None`: they are of no account.
    pub(crate) pods: Option<SimulatedKubernetes>,
    /// Pods whose containers restarted with the kubelet of their node, by address, and the last time.
    pub(crate) restarted_pods: BTreeMap<String, (usize, Instant)>,
    events: BTreeMap<(Instant, u64), Event>,
    /// Times at which members end their catch-up.
    pub(crate) settles: BTreeSet<Instant>,
    commands: BTreeMap<u64, Command>,
    /// Number of choices about requests to etcd.
    requests: u32,
    next: u64,
    log: Log,
}

impl World {
    pub(crate) fn new(seed: u64, now: Instant) -> Self {
        Self {
            began: now,
            clock: None,
            now,
            chance: SeededChance::new(seed),
            nodes: BTreeMap::new(),
            faults: NodeFaults::default(),
            etcd: Clusters::new(),
            registered: BTreeMap::new(),
            objects: ObjectStore::default(),
            encryption: Encryption::default(),
            api_lost: BTreeMap::new(),
            api_gained: BTreeMap::new(),
            api_requests: 0,
            api_load: BTreeMap::new(),
            restarted: BTreeMap::new(),
            pods: None,
            restarted_pods: BTreeMap::new(),
            events: BTreeMap::new(),
            settles: BTreeSet::new(),
            commands: BTreeMap::new(),
            requests: 0,
            next: 0,
            log: Log::default(),
        }
    }

    pub(crate) fn next_event_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A time by the wall clock of the nodes.
    pub(crate) fn wall_time(&self, at: Instant) -> Option<OffsetDateTime> {
        Some(self.clock? + at.saturating_duration_since(self.began))
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn note(&mut self, what: Observed) {
        self.log.note(self.now - self.began, what);
    }

    pub(crate) fn facts_since(&self, number: u64) -> Vec<NodeFact> {
        self.log.facts_since(number)
    }

    /// Adds a node, unless it exists.
    pub(crate) fn add(&mut self, address: &str, rack: u32) {
        let index = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.entry(address.to_owned()).or_insert_with(|| Machine::new(index, rack));
    }

    /// A duration about a node, drawn around a mean.
    pub(crate) fn draw_duration(&mut self, address: &str, kind: Kind, mean: Duration) -> Duration {
        let Some(machine) = self.nodes.get_mut(address) else { return mean };
        machine.choices += 1;
        self.chance.draw_duration(kind, machine.index, machine.choices, mean)
    }

    /// The time of a message to or from a node: each node has its own mean.
    pub(crate) fn draw_latency(&mut self, address: &str) -> Duration {
        let index = self.nodes.get(address).map_or(0, |machine| machine.index);
        let mean = self.chance.draw_duration(Kind::NodeDistance, index, 0, LATENCY);
        let factor = if self.has_fault(address, NodeFault::Delay) { DELAY_FACTOR } else { 1 };
        self.draw_duration(address, Kind::NodeLatency, mean) * factor
    }

    pub(crate) fn has_fault(&self, address: &str, fault: NodeFault) -> bool {
        self.nodes.get(address).is_some_and(|machine| self.faults.has_fault(address, machine.rack, fault))
    }

    pub(crate) fn island_of(&self, address: &str) -> NetworkIsland {
        let rack = self.nodes.get(address).map_or(0, |machine| machine.rack);
        self.faults.island_of(address, rack)
    }

    /// True if programs on the node run.
    pub(crate) fn runs_programs(&self, address: &str) -> bool {
        self.nodes.get(address).is_some_and(|machine| machine.is_on)
            && !self.has_fault(address, NodeFault::Pause)
    }

    pub(crate) fn answers_requests(&self, address: &str) -> bool {
        self.runs_programs(address) && self.island_of(address) == NetworkIsland::Mainland
    }

    /// Carries out all events until a time.
    pub(crate) fn advance(&mut self, now: Instant) {
        loop {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let settle = self.settles.first().copied();
            let Some(at) = event.into_iter().chain(settle).min().filter(|at| *at <= now) else { break };
            self.now = self.now.max(at);
            if settle == Some(at) {
                self.settles.pop_first();
                self.settle();
            } else if let Some((_, event)) = self.events.pop_first() {
                self.apply_event(event);
            }
        }
        self.now = self.now.max(now);
    }

    fn schedule_event(&mut self, time: Instant, event: Event) {
        let number = self.next_event_number();
        self.events.insert((time, number), event);
    }

    fn apply_event(&mut self, event: Event) {
        match event {
            Event::Step(number) => self.step(number),
            Event::Request(request) => self.take_request(*request),
            Event::StartMember { address, start } => self.start_member(&address, start),
            Event::Started { address, boots } => {
                let is_dark = self.has_fault(&address, NodeFault::Kill);
                if let Some(machine) = self.nodes.get_mut(&address)
                    && machine.boots == boots
                    && !is_dark
                {
                    machine.is_on = true;
                    machine.connections += 1;
                }
                self.settle_silence();
            }
        }
    }

    /// Sends a request to etcd, which it reaches after a latency.
    pub(crate) fn schedule_request(&mut self, request: Request) -> Instant {
        self.requests += 1;
        let takes = self.chance.draw_duration(Kind::EtcdLatency, 0, self.requests, 2 * LATENCY);
        let slow = request.addresses.first().is_some_and(|address| self.has_fault(address, NodeFault::Delay));
        let at = self.now + takes * if slow { DELAY_FACTOR } else { 1 };
        if let Some(effect) = request.effect.clone() {
            self.note(Observed::Began(effect));
        }
        self.schedule_event(at, Event::Request(Box::new(request)));
        at
    }

    /// Sends a command to a node. Returns its number.
    pub(crate) fn send(
        &mut self,
        address: &str,
        request: NodeRequest,
        until: Option<Instant>,
        reply: oneshot::Sender<Reply>,
    ) -> u64 {
        if let NodeRequest::Act(_, effect) = &request {
            self.note(Observed::Began(effect.clone()));
        }
        let (number, due) = (self.next_event_number(), self.now + self.draw_latency(address));
        let boots = self.nodes.get(address).map_or(0, |machine| machine.boots);
        let address = address.to_owned();
        let (has_arrived, due_at) = (false, Some(due));
        let command = Command { address, request, until, boots, has_arrived, due: due_at, reply };
        self.commands.insert(number, command);
        self.schedule_event(due, Event::Step(number));
        number
    }

    /// The time of a command's next step; `None`: it has ended, or waits for the end of a fault.
    pub(crate) fn due_time_of(&self, command: u64) -> Option<Instant> {
        self.commands.get(&command)?.due
    }

    fn step(&mut self, number: u64) {
        let Some(mut command) = self.commands.remove(&number) else { return };
        let address = command.address.clone();
        let lives = self.nodes.get(&address).is_some_and(|node| node.is_on && node.boots == command.boots);
        if !lives {
            self.drop_effect(command.request, "the node lost its power");
            return;
        }
        let is_held = !self.runs_programs(&address)
            || self.has_fault(&address, NodeFault::EngineHangs)
            || (!command.has_arrived && self.island_of(&address) != NetworkIsland::Mainland);
        if is_held {
            command.due = None;
            self.commands.insert(number, command);
            return;
        }
        let is_first = !std::mem::replace(&mut command.has_arrived, true);
        let due =
            if is_first { self.now + self.request_duration(&address, &command.request) } else { self.now };
        let outlives = matches!(&command.request, NodeRequest::Act(_, effect) if effect.outlives_permit);
        // A pull begins before its permit ends, any other action ends before it does.
        let compared = match (outlives, is_first) {
            (true, true) => self.now,
            (true, false) => self.began,
            (false, _) => due,
        };
        if let Some(until) = command.until.filter(|until| compared > *until) {
            self.drop_effect(command.request, "the permit ended");
            // The caller may have dropped its future.
            let _ = command.reply.send(Reply { answer: Answer::Killed, at: until.max(self.now) });
        } else if is_first {
            command.due = Some(due);
            self.commands.insert(number, command);
            self.schedule_event(due, Event::Step(number));
        } else {
            let answer = self.carry_out(&address, command.request);
            let at = self.now + self.draw_latency(&address);
            let _ = command.reply.send(Reply { answer, at });
        }
    }

    fn drop_effect(&mut self, request: NodeRequest, why: &str) {
        if let NodeRequest::Act(_, effect) = request {
            self.note(Observed::Dropped { effect, why: why.to_owned() });
        }
    }

    /// The time of a command on its node.
    fn request_duration(&mut self, address: &str, request: &NodeRequest) -> Duration {
        let has = |image: &String| self.nodes.get(address).is_some_and(|node| node.images.contains(image));
        let action = if let NodeRequest::Act(action, _) = request { Some(&**action) } else { None };
        let (kind, mean) = match action {
            Some(NodeAction::PullImage { image }) if !has(image) => (Kind::PullTakes, PULL_TAKES),
            Some(NodeAction::StageSnapshot(_)) => (Kind::ActionTakes, STAGE_TAKES),
            Some(NodeAction::RunContainer { .. }) => (Kind::ActionTakes, RUN_TAKES),
            Some(NodeAction::StopContainer(_) | NodeAction::EndContainer { .. }) => {
                (Kind::ActionTakes, STOP_TAKES)
            }
            _ => (Kind::ActionTakes, SHORT_TAKES),
        };
        self.draw_duration(address, kind, mean)
    }

    fn carry_out(&mut self, address: &str, request: NodeRequest) -> Answer {
        let is_down = self.has_fault(address, NodeFault::EngineDown);
        match request {
            NodeRequest::Status(_) if is_down => Answer::EngineDown,
            NodeRequest::Status(volume) => {
                let status = self.nodes.get(address).map(|machine| machine.node_status(&volume));
                Answer::Status(Box::new(status.unwrap_or_default()))
            }
            NodeRequest::Act(_, effect) if is_down => {
                let failed = Some("the engine does not work".to_owned());
                self.note(Observed::Applied { effect, failed });
                Answer::EngineDown
            }
            NodeRequest::Act(action, effect) => {
                let data = self.data_to_remove(address, &action);
                let result = self.watch_kubernetes(&effect, &action, |world| {
                    world.watch_voters(&effect, |world| world.apply(address, &action))
                });
                if let Some((cluster, member)) = data.filter(|_| result.is_ok()) {
                    let is_voting = self.etcd.get(&cluster).is_some_and(|etcd| etcd.is_voting(member));
                    let effect = effect.clone();
                    self.note(Observed::Etcd(EtcdFact::DataRemoved { effect, cluster, member, is_voting }));
                }
                let failed = result.as_ref().err().map(|failure| failure.why.clone());
                self.note(Observed::Applied { effect, failed });
                Answer::Acted(result)
            }
        }
    }

    /// The cluster and the member whose data an action removes.
    fn data_to_remove(&self, address: &str, action: &NodeAction) -> Option<(u64, u64)> {
        let NodeAction::RemoveVolume { name } = action else { return None };
        match self.nodes.get(address)?.volumes.get(name)? {
            Content::Member(data) => Some((data.cluster, data.member)),
            Content::Empty => None,
        }
    }

    fn apply(&mut self, address: &str, action: &NodeAction) -> Result<String, ActionFailure> {
        let (start, full) = (self.next_event_number(), self.has_fault(address, NodeFault::DiskFull));
        let Some(machine) = self.nodes.get_mut(address) else { return Ok(String::new()) };
        let result = machine.apply(action, start, full);
        if let (NodeAction::UseSnapshot(restore), Ok(_)) = (action, &result) {
            self.use_snapshot(address, restore);
        }
        let started_at = self.wall_time(self.now);
        let Some(machine) = self.nodes.get_mut(address) else { return result };
        if let Some(ran) = machine.containers.values_mut().find(|ran| ran.start == start) {
            ran.since = Some(self.now);
            ran.status.started_at = started_at;
        }
        let etcd = machine.containers.get(Container::Etcd.name());
        if etcd.is_some_and(|ran| ran.start == start) {
            let at = self.now + self.draw_duration(address, Kind::EtcdStartTakes, ETCD_START_TAKES);
            self.schedule_event(at, Event::StartMember { address: address.to_owned(), start });
        }
        result
    }

    pub(crate) fn set_fault(&mut self, place: &NodePlace, fault: NodeFault, begins: bool) {
        self.note_api_servers(|world| world.change_fault(place, fault, begins));
    }

    fn change_fault(&mut self, place: &NodePlace, fault: NodeFault, begins: bool) {
        if begins {
            self.faults.begin(place.clone(), fault);
        } else {
            self.faults.end(place.clone(), fault);
        }
        for address in self.addresses_at(place) {
            let holds = self.has_fault(&address, fault);
            match fault {
                NodeFault::Kill => self.set_power(&address, !holds),
                NodeFault::EngineDown if holds => self.end_containers(&address),
                NodeFault::DiskFull if holds && self.runs_etcd(&address) => {
                    self.exit(&address, super::machine::NO_SPACE.to_owned());
                }
                _ => {}
            }
        }
        self.settle_silence();
    }

    fn runs_etcd(&self, address: &str) -> bool {
        self.nodes.get(address).is_some_and(|machine| machine.etcd_process().is_some())
    }

    pub(crate) fn addresses_at(&self, place: &NodePlace) -> Vec<String> {
        let is_there = |(address, machine): &(&String, &Machine)| match place {
            NodePlace::Address(other) => *address == other,
            NodePlace::Rack(rack) => machine.rack == *rack,
        };
        self.nodes.iter().filter(is_there).map(|(address, _)| address.clone()).collect()
    }

    fn set_power(&mut self, address: &str, has_power: bool) {
        let takes = self.draw_duration(address, Kind::NodeBootTakes, BOOT_TAKES);
        let Some(machine) = self.nodes.get_mut(address) else { return };
        if has_power {
            let (address, boots) = (address.to_owned(), machine.boots);
            self.schedule_event(self.now + takes, Event::Started { address, boots });
        } else {
            machine.is_on = false;
            machine.boots += 1;
            machine.end_containers();
        }
    }

    pub(crate) fn end_containers(&mut self, address: &str) {
        if let Some(machine) = self.nodes.get_mut(address) {
            machine.end_containers();
        }
    }

    /// Notes which nodes are silent, continues commands that a fault held, and settles etcd.
    pub(crate) fn settle_silence(&mut self) {
        for address in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let (answers, now) = (self.answers_requests(&address), self.now);
            let Some(machine) = self.nodes.get_mut(&address) else { continue };
            if !answers {
                machine.silent_since.get_or_insert(now);
            } else if let Some(since) = machine.silent_since.take()
                && since + MAX_SILENCE <= now
            {
                machine.connections += 1;
            }
        }
        let held = self.commands.iter().filter(|(_, command)| command.due.is_none());
        for number in held.map(|(number, _)| *number).collect::<Vec<_>>() {
            let Some(command) = self.commands.get_mut(&number) else { continue };
            let address = command.address.clone();
            let due = self.now + self.draw_latency(&address);
            if let Some(command) = self.commands.get_mut(&number) {
                command.due = Some(due);
            }
            self.schedule_event(due, Event::Step(number));
        }
        self.settle();
    }
}
