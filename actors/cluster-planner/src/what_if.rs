//! "What would happen if": plan after plan on inputs that an operator has changed.
//!
//! Machines are lost or removed, the clock stands still, and every plan is taken as carried out, until
//! nothing is left to do or a plan cannot be made. Nothing outside is asked or changed. The removal
//! guard of the running service is not applied: the operator wants to know what comes after it.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::str::FromStr;

use madako_messages::cluster::Cluster;
use madako_messages::machine::{Machine, MachineState, MachineStatus};
use madako_messages::plan::{Plan, PlanError};
use serde::{Serialize, Serializer};

use crate::{Moment, PlanInput, plan};

/// Plans made for one question. Each plan but a few settles one bad control plane node or one retired
/// worker, and each holds a whole cluster (about 2 KiB a node): 256 of 1,000 nodes are 500 MiB.
pub const MOST_PLANS: usize = 256;

/// Which machines an operator means: an address, `rack=N` or `role=R`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// The machine whose node would have this address.
    Address(Ipv4Addr),
    /// All machines of a rack.
    Rack(i64),
    /// All machines of a role.
    Role(String),
}

/// A selector that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not name machines: expected an IPv4 address, rack=NUMBER or role=ROLE")]
pub struct SelectorError {
    /// What was given.
    pub text: String,
}

impl FromStr for Selector {
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

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Rack(rack) => write!(f, "rack={rack}"),
            Self::Role(role) => write!(f, "role={role}"),
        }
    }
}

impl Selector {
    /// Whether it means this machine.
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

/// The answer to "what would happen if".
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// Every plan that does something, in order; each is made from the result of the one before.
    pub plans: Vec<Plan>,
    /// Why no further plan can be made; `None` when nothing is left to do. In JSON `{"kind", "message"}`.
    #[serde(serialize_with = "error_body")]
    pub end: Option<PlanError>,
    /// Set when the plans were cut off before either; left out of JSON otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// Selectors that no machine matches: most likely a slip of the pen.
    #[serde(skip)]
    pub unmatched: Vec<Selector>,
}

/// Why the plans were cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// There are more than [`MOST_PLANS`].
    Limit,
    /// The last plan led back to a cluster that was there before. That would be a fault of the planner.
    Loop,
}

fn error_body<S: Serializer>(end: &Option<PlanError>, serializer: S) -> Result<S::Ok, S::Error> {
    end.as_ref().map(PlanError::body).serialize(serializer)
}

/// Answers what would happen if machines were lost or removed. A machine that is both is removed.
#[must_use]
pub fn what_if(input: &PlanInput<'_>, lose: &[Selector], remove: &[Selector]) -> WhatIf {
    let mut answer = WhatIf { plans: Vec::new(), end: None, stopped: None, unmatched: Vec::new() };
    let matched = |selector: &&Selector| input.machines.iter().any(|machine| selector.matches(machine));
    answer.unmatched.extend(lose.iter().chain(remove).filter(|selector| !matched(selector)).cloned());

    let machines = without(input.machines, lose, remove);
    let mut current: Option<Cluster> = input.current.cloned();
    let mut template_changed = input.template_changed;
    let mut seen = BTreeSet::new();
    loop {
        let next = plan(&PlanInput {
            machines: &machines,
            current: current.as_ref(),
            template_changed,
            moment: Moment::Running,
            ..*input
        });
        let plan = match next {
            Ok(plan) => plan,
            Err(error) => {
                answer.end = Some(error);
                return answer;
            }
        };
        let Some(cluster) = &plan.cluster else { return answer };
        if answer.plans.len() == MOST_PLANS {
            answer.stopped = Some(Stopped::Limit);
            return answer;
        }
        let is_new = seen.insert(fingerprint(cluster));
        current = Some(cluster.clone());
        template_changed = false;
        answer.plans.push(plan);
        if !is_new {
            answer.stopped = Some(Stopped::Loop);
            return answer;
        }
    }
}

/// The machines after some were lost (unreachable since just now) and some removed from the list.
fn without(machines: &[Machine], lose: &[Selector], remove: &[Selector]) -> Vec<Machine> {
    let stays = |machine: &&Machine| !remove.iter().any(|selector| selector.matches(machine));
    let lost = |machine: &Machine| lose.iter().any(|selector| selector.matches(machine));
    let mut machines: Vec<Machine> = machines.iter().filter(stays).cloned().collect();
    for machine in machines.iter_mut().filter(|machine| lost(machine)) {
        machine.status = MachineStatus { state: MachineState::Unreachable, duration: 0.0 };
    }
    machines
}

/// What tells clusters apart that were planned from the same machines and the same template: who has which part.
fn fingerprint(cluster: &Cluster) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in &cluster.nodes {
        (&node.address, node.control_plane).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
