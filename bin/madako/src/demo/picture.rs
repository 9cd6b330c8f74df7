//! The contents of the demo's live view as plain data, from the registry, the store's state and events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::placement::decision::Outcome;
use madako_domain::plan::{Part, Plan};
use madako_domain::repair::{RepairQueueEntry, RepairStatus};
use madako_protocol::event::Event;

use super::KeyCommand;
use super::event_line::event_line;
use super::happenings::{HappeningClass, Happenings};
use super::placement::PlacementOverview;

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

#[derive(Debug, Clone, Default)]
pub(crate) struct ScreenState {
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
    /// The greatest revision so far: while the store's state is read anew, none is known.
    pub(crate) revision: i64,
    /// Machines of each rack, by their index in it.
    pub(crate) racks: BTreeMap<i64, Vec<MachineCell>>,
    pub(crate) control_plane: usize,
    pub(crate) workers: usize,
    pub(crate) last_plan: Option<Arc<Plan>>,
    pub(crate) landscape: Arc<PlacementOverview>,
    /// Time of each application's last binding or move, by name.
    pub(crate) placed: BTreeMap<String, Duration>,
    /// True if a screen with room for one panel shows the last plan instead of the clusters.
    pub(crate) plan_first: bool,
    pub(crate) actors: Vec<ActorLine>,
    /// Restarts of each actor under earlier supervisors, and under the present one.
    pub(crate) restarts: BTreeMap<String, (u64, u64)>,
    pub(crate) happenings: Happenings,
    /// The picture at the moment at which the user paused it. The service goes on, and its events are counted here.
    pub(crate) frozen: Option<Box<ScreenState>>,
    /// This is a frozen picture.
    pub(crate) is_paused: bool,
    /// Number of the line below the last shown one; `None`: the newest line is shown.
    pub(crate) scrolled_to: Option<usize>,
    /// True if the help lies over the picture.
    pub(crate) shows_help: bool,
    /// Lines of the help above its first shown one.
    pub(crate) help_scrolled: usize,
    pub(crate) tally: PlanTally,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct PlanTally {
    pub(crate) machines: usize,
    pub(crate) commits: u64,
    pub(crate) plans: BTreeMap<&'static str, u64>,
    pub(crate) elections: u64,
    pub(crate) actor_restarts: u64,
    pub(crate) violations: u64,
    /// First bindings of applications.
    pub(crate) bindings: u64,
    pub(crate) moves: u64,
    /// Results of finished repairs by the index of the entry; true: success.
    repairs: BTreeMap<i64, bool>,
}

impl PlanTally {
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

impl PlanTally {
    /// Notes the finished repairs of the queue: an event reports the end of a step, and not that of an entry.
    pub(crate) fn note_repairs<'a>(&mut self, entries: impl Iterator<Item = &'a RepairQueueEntry>) {
        let finished = entries.filter(|entry| entry.is_finished());
        self.repairs.extend(finished.map(|entry| (entry.index, entry.status == RepairStatus::Succeeded)));
    }

    /// Numbers of repairs that succeeded, and that failed.
    pub(crate) fn count_repairs(&self) -> (usize, usize) {
        let succeeded = self.repairs.values().filter(|succeeded| **succeeded).count();
        (succeeded, self.repairs.len() - succeeded)
    }
}

impl ScreenState {
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
        let line = event_line(event)?;
        self.happenings.add(self.elapsed, HappeningClass::of_event(event), line.clone());
        Some(line)
    }

    /// Takes in that the demo itself killed an actor. Returns the line.
    pub(crate) fn note_fault(&mut self, actor: &str) -> String {
        let line = format!("the demo kills {actor}: an injected fault to show the restart");
        self.happenings.add(self.elapsed, HappeningClass::for_injected_fault(Some(actor)), line.clone());
        line
    }

    /// Takes in what the user did, to an actor or to something else.
    pub(crate) fn note_action(&mut self, line: String, actor: Option<&str>) {
        self.happenings.add(self.elapsed, HappeningClass::for_injected_fault(actor), line);
    }

    /// The picture that the user sees.
    pub(crate) fn visible(&self) -> &Self {
        self.frozen.as_deref().unwrap_or(self)
    }

    /// Changes the visible picture as a key asks.
    pub(crate) fn apply_command(&mut self, command: KeyCommand) {
        if command != KeyCommand::Pause
            && let Some(frozen) = &mut self.frozen
        {
            return frozen.apply_command(command);
        }
        match command {
            KeyCommand::OtherPanel => self.plan_first = !self.plan_first,
            KeyCommand::Help => (self.shows_help, self.help_scrolled) = (!self.shows_help, 0),
            KeyCommand::Scroll(lines) if self.shows_help => {
                self.help_scrolled = self.help_scrolled.saturating_add_signed(-lines);
            }
            KeyCommand::Newest if self.shows_help => self.help_scrolled = usize::MAX,
            KeyCommand::Back => self.shows_help = false,
            KeyCommand::Pause => self.pause(),
            KeyCommand::Scroll(lines) => self.scroll_events(lines),
            KeyCommand::Newest => self.scroll_events(isize::MIN + 1),
            // They change the demo, not its picture.
            KeyCommand::End | KeyCommand::Act(_) => {}
        }
    }

    /// Keeps the help from scrolling beyond its last line, of which so many are above the shown ones then.
    pub(crate) fn limit_help(&mut self, most: usize) {
        if let Some(frozen) = &mut self.frozen {
            return frozen.limit_help(most);
        }
        self.help_scrolled = self.help_scrolled.min(most);
    }

    /// Adds a line about something that the demo or its user did.
    pub(crate) fn remember(&mut self, line: String) {
        self.happenings.add(self.elapsed, HappeningClass::for_injected_fault(None), line);
    }

    /// Stops the picture, or continues it with the newest line.
    pub(crate) fn pause(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            self.plan_first = frozen.plan_first;
            self.shows_help = frozen.shows_help;
            return;
        }
        self.scrolled_to = None;
        let scrolled_to = Some(self.happenings.count());
        self.frozen = Some(Box::new(Self { is_paused: true, scrolled_to, ..self.clone() }));
    }

    /// Shows older lines, or, with a negative number, newer ones. The newest line ends the scrolling.
    pub(crate) fn scroll_events(&mut self, lines: isize) {
        let count = self.happenings.count();
        let at = self.scrolled_to.unwrap_or(count);
        let to = at.saturating_add_signed(-lines).clamp(self.happenings.first_number() + 1, count.max(1));
        self.scrolled_to = (self.is_paused || to < count).then_some(to);
    }

    /// Shows these actors. Restarts are counted since the start, also where a new reign counts from none.
    pub(crate) fn show_actors(&mut self, mut actors: Vec<ActorLine>) {
        for actor in &mut actors {
            let (before, newest) = self.restarts.entry(actor.name.clone()).or_default();
            if actor.restarts < *newest {
                *before += *newest;
            }
            *newest = actor.restarts;
            actor.restarts += *before;
        }
        self.actors = actors;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(restarts: u64) -> Vec<ActorLine> {
        vec![ActorLine {
            name: "cluster-planner".to_owned(),
            depth: 1,
            state: "running".to_owned(),
            restarts,
        }]
    }

    #[test]
    fn the_shown_number_of_restarts_never_decreases() {
        let mut picture = ScreenState::default();
        let mut shown = Vec::new();
        for restarts in [0, 2, 2, 0, 1, 0] {
            picture.show_actors(actor(restarts));
            shown.push(picture.actors[0].restarts);
        }
        assert_eq!(shown, [0, 2, 2, 2, 3, 3], "a new reign counts from none");
    }

    #[test]
    fn each_finished_repair_counts_once() {
        let mut tally = PlanTally::default();
        let entry = |index: i64, status: RepairStatus| RepairQueueEntry {
            index,
            status,
            ..RepairQueueEntry::new("unreachable".to_owned(), "type".to_owned(), "10.0.0.1".to_owned())
        };
        let queue = [
            entry(1, RepairStatus::Succeeded),
            entry(2, RepairStatus::Failed),
            entry(3, RepairStatus::Processing),
        ];
        tally.note_repairs(queue.iter());
        tally.note_repairs(queue[1..].iter());
        assert_eq!(tally.count_repairs(), (1, 1));
    }

    #[test]
    fn a_user_scrolls_between_the_first_and_the_newest_line() {
        let mut picture = ScreenState::default();
        for number in 0..10 {
            picture.remember(format!("line {number}"));
        }
        picture.scroll_events(3);
        assert_eq!(picture.scrolled_to, Some(7));
        picture.scroll_events(100);
        assert_eq!(picture.scrolled_to, Some(1));
        picture.scroll_events(-100);
        assert_eq!(picture.scrolled_to, None);
        picture.pause();
        picture.remember("later".to_owned());
        picture.elapsed += Duration::from_secs(1);
        let frozen = picture.visible();
        assert_eq!(
            (frozen.happenings.count(), frozen.elapsed),
            (10, Duration::ZERO),
            "the picture stands still"
        );
        picture.apply_command(KeyCommand::Scroll(3));
        assert_eq!(picture.visible().scrolled_to, Some(7), "the frozen picture scrolls");
        picture.apply_command(KeyCommand::Pause);
        assert_eq!((picture.visible().scrolled_to, picture.visible().happenings.count()), (None, 11));
    }
}
