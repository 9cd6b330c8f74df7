//! The contents of the demo's live view as plain data, from the registry, the store's state and events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::placement::decision::Outcome;
use madako_domain::plan::{Part, Plan};
use madako_protocol::event::Event;

use super::placement::Landscape;
use super::tell::tell;

/// Kept events: more than any screen has lines.
const EVENTS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineCell {
    pub(crate) role: String,
    pub(crate) state: MachineState,
    pub(crate) part: Option<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActorLine {
    pub(crate) name: String,
    pub(crate) depth: usize,
    pub(crate) state: String,
    pub(crate) restarts: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) elapsed: Duration,
    pub(crate) http: String,
    pub(crate) etcd: String,
    pub(crate) placement: String,
    pub(crate) seed: u64,
    /// Minimum time between the retirement of a machine and the removal of its worker.
    pub(crate) retire_wait: Duration,
    /// Minimum time that an application stays on its cluster.
    pub(crate) reschedule_after: Duration,
    /// Time between metrics rounds.
    pub(crate) metrics_interval: Duration,
    /// The epoch, while the instance leads.
    pub(crate) epoch: Option<i64>,
    pub(crate) revision: i64,
    /// Machines of each rack, by their index in it.
    pub(crate) racks: BTreeMap<i64, Vec<MachineCell>>,
    pub(crate) control_plane: usize,
    pub(crate) workers: usize,
    pub(crate) last_plan: Option<Arc<Plan>>,
    pub(crate) landscape: Arc<Landscape>,
    /// Time of each application's last binding or move, by name.
    pub(crate) placed: BTreeMap<String, Duration>,
    /// Whether a screen with room for one panel shows the last plan instead of the clusters.
    pub(crate) plan_first: bool,
    pub(crate) actors: Vec<ActorLine>,
    pub(crate) events: VecDeque<(Duration, String)>,
    pub(crate) tally: Tally,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) machines: usize,
    pub(crate) commits: u64,
    pub(crate) plans: BTreeMap<&'static str, u64>,
    pub(crate) elections: u64,
    pub(crate) actor_restarts: u64,
    pub(crate) violations: u64,
    /// First bindings of applications.
    pub(crate) bindings: u64,
    pub(crate) moves: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, event: &Event) {
        match event {
            Event::Observed { machines, .. } => self.machines = *machines,
            Event::Committed { what: "cluster", .. } => self.commits += 1,
            Event::Planned { plan, .. } => {
                if let Some(action) = plan.action {
                    *self.plans.entry(action.name()).or_default() += 1;
                }
            }
            Event::Elected { .. } => self.elections += 1,
            Event::ActorRestarted { .. } => self.actor_restarts += 1,
            Event::Violated(violations) => self.violations += violations.len() as u64,
            Event::Decided { decision, .. } => match decision.outcome {
                Outcome::Bound { .. } => self.bindings += 1,
                Outcome::Moved { .. } => self.moves += 1,
                _ => {}
            },
            _ => {}
        }
    }
}

impl Picture {
    /// Takes in an event. Returns its line, if it is worth one.
    pub(crate) fn take(&mut self, event: &Event) -> Option<String> {
        self.tally.count(event);
        if let Event::Planned { plan, .. } = event {
            self.last_plan = Some(Arc::clone(plan));
        }
        if let Event::Decided { application, decision } = event
            && matches!(decision.outcome, Outcome::Bound { .. } | Outcome::Moved { .. })
        {
            self.placed.insert(application.name.clone(), self.elapsed);
        }
        let told = tell(event)?;
        self.remember(told.clone());
        Some(told)
    }

    /// Takes in that the demo itself killed an actor. Returns the line.
    pub(crate) fn note_fault(&mut self, actor: &str) -> String {
        let told = format!("the demo kills {actor}: an injected fault to show the restart");
        self.remember(told.clone());
        told
    }

    /// Adds a line about an event.
    pub(crate) fn remember(&mut self, told: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((self.elapsed, told));
    }

    /// Shows these machines with their parts in a cluster.
    pub(crate) fn show(&mut self, machines: &[Machine], cluster: Option<&Cluster>) {
        let parts: BTreeMap<&str, Part> = cluster
            .into_iter()
            .flat_map(|cluster| &cluster.nodes)
            .map(|node| {
                let part = if node.control_plane { Part::ControlPlane } else { Part::Worker };
                (node.address.as_str(), part)
            })
            .collect();
        self.control_plane = parts.values().filter(|part| **part == Part::ControlPlane).count();
        self.workers = parts.len() - self.control_plane;
        let mut racks: BTreeMap<i64, Vec<(i64, MachineCell)>> = BTreeMap::new();
        for machine in machines {
            let cell = MachineCell {
                role: machine.spec.role.clone(),
                state: machine.status.state,
                part: machine.address().and_then(|address| parts.get(address).copied()),
            };
            racks.entry(machine.spec.rack).or_default().push((machine.spec.index_in_rack, cell));
        }
        self.racks = racks
            .into_iter()
            .map(|(rack, mut cells)| {
                cells.sort_by_key(|(index, _)| *index);
                (rack, cells.into_iter().map(|(_, cell)| cell).collect())
            })
            .collect();
    }
}
