use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::{Cluster, LABEL_ROLE, LABEL_WEIGHT, Node, Taint};
use madako_domain::constraints::Constraints;
use madako_domain::machine::{Bmc, Machine, MachineSpec, MachineState, MachineStatus};
use madako_domain::plan::{Action, Outcome, Plan, PlanError, PlanReason, Reason};
use madako_domain::template::Template;
use time::OffsetDateTime;

use crate::node::NodeMaker;
use crate::{DEFAULT_RETIRE_WAIT, LeaderStage, PlanInput, WhatIf, WhatIfEnd, plan};

/// The time of plans in tests: 2023-11-14T22:13:20Z.
pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap()
}

/// A healthy machine whose retire date is now, so that its lifetime gives no points. Its serial is its address.
pub(crate) fn machine(address: &str, rack: i64, role: &str) -> Machine {
    Machine {
        spec: MachineSpec {
            serial: address.to_owned(),
            labels: Vec::new(),
            rack,
            index_in_rack: 1,
            role: role.to_owned(),
            ipv4: vec![address.to_owned()],
            register_date: now() - time::Duration::days(400),
            retire_date: now(),
            bmc: Bmc::default(),
        },
        status: MachineStatus { state: MachineState::Healthy, duration: 1_000.0 },
    }
}

pub(crate) trait MachineWith {
    fn state(self, state: MachineState) -> Self;
    fn lasting(self, seconds: f64) -> Self;
    fn serial(self, serial: &str) -> Self;
    fn due_in(self, lifetime: time::Duration) -> Self;
}

impl MachineWith for Machine {
    fn state(mut self, state: MachineState) -> Self {
        self.status.state = state;
        self
    }

    fn lasting(mut self, seconds: f64) -> Self {
        self.status.duration = seconds;
        self
    }

    fn serial(mut self, serial: &str) -> Self {
        serial.clone_into(&mut self.spec.serial);
        self
    }

    fn due_in(mut self, lifetime: time::Duration) -> Self {
        self.spec.retire_date = now() + lifetime;
        self
    }
}

/// A template node; an empty role means none.
pub(crate) fn template_node(control_plane: bool, role: &str, weight: Option<&str>) -> Node {
    let mut node = Node { user: "cybozu".to_owned(), control_plane, ..Node::default() };
    if !role.is_empty() {
        node.labels.insert(LABEL_ROLE.to_owned(), role.to_owned());
    }
    if let Some(weight) = weight {
        node.labels.insert(LABEL_WEIGHT.to_owned(), weight.to_owned());
    }
    node
}

/// A template with a control plane role, and roles and weights of workers; an empty role means none.
pub(crate) fn template(control_plane: &str, workers: &[(&str, &str)]) -> Cluster {
    let worker =
        |(role, weight): &(&str, &str)| template_node(false, role, (!weight.is_empty()).then_some(*weight));
    Cluster {
        name: "cluster".to_owned(),
        service_subnet: "10.68.0.0/16".to_owned(),
        nodes: std::iter::once(template_node(true, control_plane, None))
            .chain(workers.iter().map(worker))
            .collect(),
        ..Cluster::default()
    }
}

/// The owned input of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) template: Template,
    pub(crate) constraints: Constraints,
    pub(crate) machines: Vec<Machine>,
    pub(crate) current: Option<Cluster>,
    pub(crate) node_taints: BTreeMap<String, Vec<Taint>>,
    pub(crate) under_repair: BTreeSet<String>,
    pub(crate) retire_wait: Duration,
    pub(crate) template_changed: bool,
    pub(crate) moment: LeaderStage,
}

impl Site {
    /// No cluster yet, and any machine fits any part.
    pub(crate) fn new(machines: Vec<Machine>) -> Self {
        Self {
            template: Template::new(template("", &[("", "")])).unwrap(),
            constraints: Constraints::default(),
            machines,
            current: None,
            node_taints: BTreeMap::new(),
            under_repair: BTreeSet::new(),
            retire_wait: DEFAULT_RETIRE_WAIT,
            template_changed: false,
            moment: LeaderStage::Running,
        }
    }

    pub(crate) fn with_template(mut self, control_plane: &str, workers: &[(&str, &str)]) -> Self {
        self.template = Template::new(template(control_plane, workers)).unwrap();
        self
    }

    /// `control-plane-count`, `minimum-workers`, `maximum-workers`.
    pub(crate) fn with_constraints(mut self, control_plane: u32, minimum: u32, maximum: u32) -> Self {
        self.constraints.control_plane_count = control_plane;
        self.constraints.minimum_workers = minimum;
        self.constraints.maximum_workers = maximum;
        self
    }

    /// A cluster of these addresses, as the planner makes it from the template.
    pub(crate) fn with_cluster(mut self, control_plane: &[&str], workers: &[&str]) -> Self {
        let nodes = control_plane
            .iter()
            .map(|address| self.node(address, true))
            .chain(workers.iter().map(|address| self.node(address, false)))
            .collect();
        self.current = Some(Cluster { nodes, ..self.template.cluster().clone() });
        self
    }

    fn node(&self, address: &str, control_plane: bool) -> Node {
        let machine = self.machines.iter().find(|machine| machine.address() == Some(address));
        let Some(machine) = machine else {
            return Node { address: address.to_owned(), control_plane, ..Node::default() };
        };
        let mut roles = self.template.workers().iter();
        let fits = |role: &Option<String>| role.as_ref().is_none_or(|role| *role == machine.spec.role);
        let worker = roles.find(|worker| fits(&worker.role)).unwrap_or(&self.template.workers()[0]);
        let template =
            if control_plane { self.template.control_plane() } else { self.template.worker_node(worker) };
        NodeMaker::new(template).make_node(machine, address, machine.has_good_labels())
    }

    pub(crate) fn taint(&mut self, address: &str, key: &str) {
        let taint = Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        self.node_taints.entry(address.to_owned()).or_default().push(taint);
    }

    pub(crate) fn machine(&mut self, address: &str) -> &mut Machine {
        self.machines.iter_mut().find(|machine| machine.address() == Some(address)).unwrap()
    }

    pub(crate) fn remove(&mut self, address: &str) {
        self.machines.retain(|machine| machine.address() != Some(address));
    }

    pub(crate) fn input(&self) -> PlanInput<'_> {
        PlanInput {
            template: &self.template,
            constraints: &self.constraints,
            machines: &self.machines,
            current: self.current.as_ref(),
            node_taints: &self.node_taints,
            under_repair: &self.under_repair,
            now: now(),
            retire_wait: self.retire_wait,
            template_changed: self.template_changed,
            moment: self.moment,
        }
    }

    pub(crate) fn plan(&self) -> Result<Plan, PlanError> {
        plan(&self.input())
    }

    pub(crate) fn step(&mut self) -> Plan {
        let plan = self.plan().unwrap();
        self.commit(&plan);
        plan
    }

    pub(crate) fn commit(&mut self, plan: &Plan) {
        if let Some(cluster) = &plan.cluster {
            self.current = Some(cluster.clone());
            self.template_changed = false;
        }
    }

    pub(crate) fn what_if(&self, lose: &[&str], remove: &[&str]) -> (Vec<Plan>, WhatIfEnd) {
        let selectors = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let mut answer = WhatIf::new(&self.input(), &selectors(lose), &selectors(remove)).unwrap();
        let mut plans = Vec::new();
        loop {
            match answer.next_plan() {
                Ok(plan) => plans.push(plan.clone()),
                Err(end) => return (plans, end),
            }
        }
    }
}

pub(crate) fn outcome(plan: &Plan) -> (Action, Vec<&str>, Vec<&str>) {
    let cluster = plan.cluster.as_ref().unwrap();
    (plan.action.unwrap(), addresses(cluster.control_plane()), addresses(cluster.workers()))
}

pub(crate) fn addresses<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<&'a str> {
    nodes.map(|node| node.address.as_str()).collect()
}

pub(crate) fn reasons_of(reasons: &[Reason], rule: Action) -> Vec<&Reason> {
    reasons.iter().filter(|reason| reason.rule == rule).collect()
}

/// Reasons that a rule did not fire; asserts that it did not.
pub(crate) fn why_not(plan: &Plan, rule: Action) -> Vec<&PlanReason> {
    let reasons = reasons_of(&plan.reasons, rule);
    assert!(reasons.iter().all(|reason| reason.outcome == Outcome::NotFired), "{rule:?}: {reasons:?}");
    reasons.into_iter().map(|reason| &reason.why).collect()
}

/// Columns as wide as their widest cells.
pub(crate) fn layout(rows: Vec<Vec<String>>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}  ", width(column)));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}
