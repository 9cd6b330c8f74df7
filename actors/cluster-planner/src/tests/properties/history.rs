//! Generates random data centers and their events, for property tests of the planner.

use madako_domain::machine::{Machine, MachineLabel, MachineState};
use madako_domain::plan::{Plan, PlanError};
use madako_domain::template::Template;
use proptest::prelude::*;

use crate::testing::{Site, machine, template};
use crate::{LeaderStage, max_plans};

const ROLES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Event {
    State { machine: usize, state: MachineState, seconds: f64 },
    Vanish(usize),
    Return(usize),
    Share { address_of: usize, serial: u8 },
    Lifetime { machine: usize, days: i64 },
    NewRole { machine: usize, role: usize },
    Taint { machine: usize, key: u8 },
    Untaint,
    Repair(usize),
    Repaired,
    BadLabel(usize),
    Constraints(u32, u32, u32),
    Template(TemplateKind),
    Leader,
}

#[derive(Debug, Clone)]
struct TemplateKind {
    control_plane: Option<usize>,
    /// Weights of the roles in tenths; if empty, one template for all machines.
    weights: [u8; 3],
    user: u8,
}

/// A random data center and its events.
#[derive(Debug, Clone)]
pub(super) struct History {
    machines: Vec<(i64, usize, MachineState, i64)>,
    constraints: (u32, u32, u32),
    template: TemplateKind,
    /// Events of each step; the planner comes to rest after a step.
    steps: Vec<Vec<Event>>,
}

fn state() -> impl Strategy<Value = MachineState> {
    prop_oneof![
        6 => Just(MachineState::Healthy),
        1 => prop::sample::select(MachineState::ALL.to_vec()),
        1 => Just(MachineState::Retired),
    ]
}

/// Constraints that may be stored: CKE's commands also accept a control plane of 0, and a maximum below the minimum.
fn constraints() -> impl Strategy<Value = (u32, u32, u32)> {
    let control_plane = prop_oneof![24 => 1..=5_u32, 1 => Just(0)];
    let room = prop_oneof![8 => Just(0), 12 => 0..=4_i64, 1 => -4..0_i64];
    (control_plane, 0..=7_u32, room, any::<bool>()).prop_map(|(control_plane, minimum, room, bounded)| {
        let maximum = u32::try_from(i64::from(minimum) + room).unwrap_or(0);
        (control_plane, minimum, if bounded { maximum } else { 0 })
    })
}

fn template_kind() -> impl Strategy<Value = TemplateKind> {
    let role = prop_oneof![2 => Just(None), 3 => (0..3_usize).prop_map(Some)];
    (role, prop_oneof![1 => Just([0; 3]), 4 => prop::array::uniform3(0..=30_u8)], 0..3_u8)
        .prop_map(|(control_plane, weights, user)| TemplateKind { control_plane, weights, user })
}

fn event() -> impl Strategy<Value = Event> {
    let machine = 0..30_usize;
    prop_oneof![
        6 => (machine.clone(), state(), prop_oneof![Just(0.0), Just(1e4)])
            .prop_map(|(machine, state, seconds)| Event::State { machine, state, seconds }),
        2 => machine.clone().prop_map(Event::Vanish),
        2 => machine.clone().prop_map(Event::Return),
        1 => (machine.clone(), any::<u8>()).prop_map(|(address_of, serial)| Event::Share { address_of, serial }),
        1 => (machine.clone(), -1_100..1_100_i64).prop_map(|(machine, days)| Event::Lifetime { machine, days }),
        1 => (machine.clone(), 0..3_usize).prop_map(|(machine, role)| Event::NewRole { machine, role }),
        2 => (machine, 0..4_u8).prop_map(|(machine, key)| Event::Taint { machine, key }),
        1 => Just(Event::Untaint),
        2 => (0..30_usize).prop_map(Event::Repair),
        1 => Just(Event::Repaired),
        1 => (0..30_usize).prop_map(Event::BadLabel),
        2 => constraints().prop_map(|(c, min, max)| Event::Constraints(c, min, max)),
        2 => template_kind().prop_map(Event::Template),
        1 => Just(Event::Leader),
    ]
}

pub(super) fn history() -> impl Strategy<Value = History> {
    let machine = (0..4_i64, 0..3_usize, state(), -1_100..1_100_i64);
    (
        prop::collection::vec(machine, 0..30),
        constraints(),
        template_kind(),
        prop::collection::vec(prop::collection::vec(event(), 1..4), 1..7),
    )
        .prop_map(|(machines, constraints, template, steps)| History {
            machines,
            constraints,
            template,
            steps,
        })
}

fn built(kind: &TemplateKind) -> Template {
    let weights: Vec<(&str, String)> = ROLES
        .into_iter()
        .zip(kind.weights)
        .filter(|(_, weight)| *weight > 0)
        .map(|(role, weight)| (role, format!("{:.1}", f64::from(weight) / 10.0)))
        .collect();
    let mut workers: Vec<(&str, &str)> = weights.iter().map(|(role, weight)| (*role, &**weight)).collect();
    if workers.is_empty() {
        workers.push(("", ""));
    }
    let mut cluster = template(kind.control_plane.map_or("", |role| ROLES[role]), &workers);
    for node in &mut cluster.nodes {
        node.user = format!("user{}", kind.user);
    }
    Template::new(cluster).unwrap()
}

/// A data center with its history, and machines that are temporarily out of the list.
struct World {
    site: Site,
    away: Vec<Machine>,
}

impl World {
    fn new(history: &History) -> Self {
        let machines = history.machines.iter().enumerate().map(|(index, (rack, role, state, days))| {
            let mut machine = machine(&format!("10.0.{rack}.{index}"), *rack, ROLES[*role]);
            machine.status.state = *state;
            machine.spec.retire_date += time::Duration::days(*days);
            machine
        });
        let (control_plane, minimum, maximum) = history.constraints;
        let mut site = Site::new(machines.collect()).with_constraints(control_plane, minimum, maximum);
        site.template = built(&history.template);
        Self { site, away: Vec::new() }
    }

    fn happens(&mut self, event: &Event) {
        let site = &mut self.site;
        let count = site.machines.len();
        let at = |index: usize| if count == 0 { None } else { Some(index % count) };
        match event {
            Event::State { machine, state, seconds } => {
                if let Some(index) = at(*machine) {
                    site.machines[index].status.state = *state;
                    site.machines[index].status.duration = *seconds;
                }
            }
            Event::Vanish(machine) => self.away.extend(at(*machine).map(|index| site.machines.remove(index))),
            Event::Return(machine) => {
                if !self.away.is_empty() {
                    site.machines.push(self.away.remove(machine % self.away.len()));
                }
            }
            Event::Share { address_of, serial } => {
                if let Some(index) = at(*address_of) {
                    let mut copy = site.machines[index].clone();
                    copy.spec.serial = format!("copy-{serial}");
                    copy.status.state = MachineState::ALL[usize::from(*serial) % 7];
                    site.machines.push(copy);
                }
            }
            Event::Lifetime { machine, days } => {
                if let Some(index) = at(*machine) {
                    site.machines[index].spec.retire_date =
                        crate::testing::now() + time::Duration::days(*days);
                }
            }
            Event::NewRole { machine, role } => {
                if let Some(index) = at(*machine) {
                    ROLES[*role].clone_into(&mut site.machines[index].spec.role);
                }
            }
            Event::Taint { machine, key } => {
                if let Some(index) = at(*machine) {
                    let address = site.machines[index].address().unwrap().to_owned();
                    let keys =
                        ["example.com/broken", "node.kubernetes.io/x", "cke.cybozu.com/state", "other"];
                    site.taint(&address, keys[usize::from(*key)]);
                }
            }
            Event::Untaint => site.node_taints.clear(),
            Event::Repair(machine) => {
                if let Some(index) = at(*machine) {
                    site.under_repair.extend(site.machines[index].address().map(str::to_owned));
                }
            }
            Event::Repaired => site.under_repair.clear(),
            Event::BadLabel(machine) => {
                if let Some(index) = at(*machine) {
                    let label = MachineLabel { name: "no label".to_owned(), value: String::new() };
                    site.machines[index].spec.labels.push(label);
                }
            }
            Event::Constraints(control_plane, minimum, maximum) => {
                site.constraints.control_plane_count = *control_plane;
                site.constraints.minimum_workers = *minimum;
                site.constraints.maximum_workers = *maximum;
            }
            Event::Template(kind) => {
                site.template = built(kind);
                site.template_changed = site.current.is_some();
            }
            Event::Leader => site.moment = LeaderStage::LeaderStart,
        }
    }
}

/// Runs a history and calls `check` with every plan before its commit.
pub(super) fn live(history: &History, mut check: impl FnMut(&Site, &Result<Plan, PlanError>)) {
    let mut world = World::new(history);
    let mut rest = |world: &mut World| {
        // One more for the first plan of a leader, and one that finds nothing to do.
        let nodes = world.site.current.as_ref().map_or(0, |cluster| cluster.nodes.len());
        let most = max_plans(world.site.machines.len(), nodes) + 2;
        for _ in 0..most {
            let planned = world.site.plan();
            check(&world.site, &planned);
            let starting = world.site.moment == LeaderStage::LeaderStart;
            world.site.moment = LeaderStage::Running;
            match planned {
                Ok(plan) if plan.action.is_some() => world.site.commit(&plan),
                // The rules follow the first plan of a leader.
                _ if starting => {}
                _ => return,
            }
        }
        panic!("still planning after {most} plans with unchanged inputs");
    };
    rest(&mut world);
    for step in &history.steps {
        step.iter().for_each(|event| world.happens(event));
        rest(&mut world);
    }
}
