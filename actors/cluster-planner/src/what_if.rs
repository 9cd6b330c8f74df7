//! Simulated plans for `madako what-if`: consecutive plans on inputs that an operator changes. Machines are lost or
//! removed, the clock stands still, and each plan counts as carried out, until no action is left or a plan fails.
//! Nothing outside is read or changed. The removal guard of the running service is not applied: the simulation begins
//! after the operator has confirmed the removal.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use madako_domain::cluster::Node;
use madako_domain::machine::{Machine, MachineState, MachineStatus};
use madako_domain::plan::{Plan, PlanError};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::{LeaderStage, PlanInput, plan};

/// Selects machines: an address, `rack=N` or `role=R`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineSelector {
    /// The machine whose node has this address.
    Address(Ipv4Addr),
    Rack(i64),
    Role(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name machines: expected an IPv4 address, rack=NUMBER or role=ROLE")]
pub struct SelectorError {
    pub text: String,
}

impl FromStr for MachineSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let selector = match text.split_once('=') {
            Some(("rack", rack)) => rack.parse().ok().map(Self::Rack),
            Some(("role", role)) if !role.is_empty() => Some(Self::Role(role.to_owned())),
            Some(_) => None,
            None => text.parse().ok().map(Self::Address),
        };
        selector.ok_or_else(|| SelectorError { text: text.to_owned() })
    }
}

impl fmt::Display for MachineSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Rack(rack) => write!(f, "rack={rack}"),
            Self::Role(role) => write!(f, "role={role}"),
        }
    }
}

impl MachineSelector {
    #[must_use]
    pub fn matches(&self, machine: &Machine) -> bool {
        match self {
            Self::Address(wanted) => {
                machine.address().and_then(|address| address.parse().ok()) == Some(*wanted)
            }
            Self::Rack(rack) => machine.spec.rack == *rack,
            Self::Role(role) => machine.spec.role == *role,
        }
    }
}

/// Upper bound of the number of plans until no action is left.
///
/// Machines, constraints and clock are constant, which bounds the number of each action:
/// - initialize, remove-non-existent-nodes, increase-control-plane, taint-nodes and regenerate: once each, as later
///   plans preserve their results;
/// - decrease-control-plane and replace-control-plane: once for each node of the control plane, as no plan adds nodes
///   beyond `control-plane-count` or bad nodes, and a bad node never returns;
/// - decrease-workers: once for each node, as a retired machine is never chosen again;
/// - increase-workers adds a healthy machine each time. A healthy machine leaves only from the control plane, so this
///   happens at most once for each machine, and once more for each plan of the second kind.
///
/// With `c` control plane nodes before, that is at most 5 + (c + c) + nodes + (machines + c + c), and `c` is at most
/// `nodes`. A planner that cycles soon reaches the bound.
#[must_use]
pub fn max_plans(machines: usize, nodes: usize) -> usize {
    /// The actions of the first kind.
    const ONCE: usize = 5;
    /// Two of the second kind, one removal, two that come back.
    const PER_NODE: usize = 5;
    ONCE + machines + PER_NODE * nodes
}

/// Selectors without a matching machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no machine in the list matches {}: name an IPv4 address, rack or role of the list", join_selectors(.0))]
pub struct UnmatchedSelectors(pub Vec<MachineSelector>);

fn join_selectors(selectors: &[MachineSelector]) -> String {
    selectors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Clone, PartialEq)]
pub enum WhatIfEnd {
    /// No action is left.
    AtRest,
    NoPlan(PlanError),
    /// The bound was exceeded. This is a bug of the planner.
    NeverAtRest {
        plans: usize,
    },
}

impl Serialize for WhatIfEnd {
    /// `null`, or `{"kind", "message"}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AtRest => serializer.serialize_none(),
            Self::NoPlan(error) => error.response_body().serialize(serializer),
            Self::NeverAtRest { plans } => {
                let mut end = serializer.serialize_struct("End", 2)?;
                end.serialize_field("kind", "never-at-rest")?;
                end.serialize_field("message", &describe_endless_planning(*plans))?;
                end.end()
            }
        }
    }
}

pub(crate) fn describe_endless_planning(plans: usize) -> String {
    format!(
        "the planner still changes the cluster after {plans} plans, more than any input needs; report this \
         defect of the planner"
    )
}

/// Consecutive plans, produced one at a time: each holds a whole cluster, and there may be as many as nodes.
#[derive(Debug)]
pub struct WhatIf<'a> {
    input: PlanInput<'a>,
    machines: Vec<Machine>,
    template_changed: bool,
    /// The last plan; its cluster is the input of the next one.
    last: Option<Plan>,
    made: usize,
    most: usize,
}

impl<'a> WhatIf<'a> {
    /// Prepares the question for lost and removed machines. A machine that is both counts as removed.
    ///
    /// # Errors
    /// The selectors that match no machine.
    pub fn new(
        input: &PlanInput<'a>,
        lose: &[MachineSelector],
        remove: &[MachineSelector],
    ) -> Result<Self, UnmatchedSelectors> {
        let matched =
            |selector: &&MachineSelector| input.machines.iter().any(|machine| selector.matches(machine));
        let unmatched: Vec<MachineSelector> =
            lose.iter().chain(remove).filter(|selector| !matched(selector)).cloned().collect();
        if !unmatched.is_empty() {
            return Err(UnmatchedSelectors(unmatched));
        }
        let machines = remove_machines(input.machines, lose, remove);
        let most = max_plans(machines.len(), input.current.map_or(0, |cluster| cluster.nodes.len()));
        let template_changed = input.template_changed;
        Ok(Self { input: *input, machines, template_changed, last: None, made: 0, most })
    }

    #[must_use]
    pub fn count_plans(&self) -> usize {
        self.made
    }

    /// The expected number of plans: one that removes lost nodes, one for each bad control plane node, and one for each worker
    /// that `minimum-workers` lacks. Retired workers may cost more plans. `None`: nothing is known of them.
    #[must_use]
    pub fn estimate_plans(&self) -> Option<usize> {
        let current = self.input.current?;
        let of_state = |is_it: fn(MachineState) -> bool| -> BTreeSet<&str> {
            let machines = self.machines.iter().filter(|machine| is_it(machine.status.state));
            machines.filter_map(Machine::address).collect()
        };
        let (listed, healthy) = (of_state(|_| true), of_state(|state| state == MachineState::Healthy));
        let is_listed = |node: &&Node| listed.contains(node.address.as_str());
        let is_healthy = |node: &&Node| healthy.contains(node.address.as_str());
        let bad = current.control_plane().filter(is_listed).filter(|node| !is_healthy(node)).count();
        let lost = current.nodes.iter().filter(|node| !is_listed(node)).count();
        // The removal of lost nodes chooses their successors, too.
        let workers = current.workers().filter(|node| is_healthy(node) || !is_listed(node)).count();
        let spare = healthy.len() - current.nodes.iter().filter(is_healthy).count().min(healthy.len());
        let wanted = usize::try_from(self.input.constraints.minimum_workers).unwrap_or(usize::MAX);
        let plans = usize::from(lost > 0) + bad + wanted.saturating_sub(workers).min(spare);
        (plans > 0).then_some(plans)
    }

    /// Makes the next plan, with the previous one carried out.
    ///
    /// # Errors
    /// The end of the series; further calls return the same.
    pub fn next_plan(&mut self) -> Result<&Plan, WhatIfEnd> {
        let current = self.last.as_ref().map_or(self.input.current, |plan| plan.cluster.as_ref());
        let plan = plan(&PlanInput {
            machines: &self.machines,
            current,
            template_changed: self.template_changed,
            moment: LeaderStage::Running,
            ..self.input
        })
        .map_err(WhatIfEnd::NoPlan)?;
        if plan.cluster.is_none() {
            return Err(WhatIfEnd::AtRest);
        }
        if self.made == self.most {
            return Err(WhatIfEnd::NeverAtRest { plans: self.made });
        }
        self.made += 1;
        self.template_changed = false;
        Ok(self.last.insert(plan))
    }
}

/// The machines, of which some are lost (unreachable as of now) and some removed from the list.
fn remove_machines(
    machines: &[Machine],
    lose: &[MachineSelector],
    remove: &[MachineSelector],
) -> Vec<Machine> {
    let stays = |machine: &&Machine| !remove.iter().any(|selector| selector.matches(machine));
    let lost = |machine: &Machine| lose.iter().any(|selector| selector.matches(machine));
    let mut machines: Vec<Machine> = machines.iter().filter(stays).cloned().collect();
    for machine in machines.iter_mut().filter(|machine| lost(machine)) {
        machine.status = MachineStatus { state: MachineState::Unreachable, duration: 0.0 };
    }
    machines
}

#[cfg(test)]
mod tests;
