//! Reasons why a machine outside the cluster is not eligible as a node.

use std::fmt;

use madako_domain::cluster::Cluster;
use madako_domain::machine::{Machine, MachineState};
use madako_domain::plan::PlanReason;
use madako_domain::template::Template;

use crate::inventory::Inventory;
use crate::templates::Templates;

/// The first obstacle to a part for a machine, in the order in which the planner counts obstacles; or the parts that it can
/// get.
#[derive(Debug, Clone, PartialEq)]
pub enum Eligibility {
    /// Neither the control plane nor a worker template wants its role.
    RoleWithoutTemplate {
        role: Box<str>,
    },
    NotHealthy(MachineState),
    /// Its first address is missing or is not an IPv4 address.
    NoAddress,
    /// Several machines claim its address.
    SharedAddress,
    /// A property cannot become a label in Kubernetes.
    BadLabels(PlanReason),
    /// The planner may choose it, and no plan needed it so far.
    Spare {
        as_control_plane: bool,
        as_worker: bool,
    },
}

impl fmt::Display for Eligibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoleWithoutTemplate { role } => write!(f, "no node of the template has the role {role:?}"),
            Self::NotHealthy(state) => write!(f, "{}: only healthy machines are chosen", state.name()),
            Self::NoAddress => f.write_str("without an IPv4 address it cannot be a node"),
            Self::SharedAddress => f.write_str("several machines claim its address"),
            Self::BadLabels(reason) => reason.fmt(f),
            Self::Spare { as_control_plane, as_worker } => f.write_str(match (as_control_plane, as_worker) {
                (true, true) => "spare: fit for the control plane and as a worker",
                (true, false) => "spare: fit for the control plane",
                _ => "spare: fit as a worker",
            }),
        }
    }
}

/// The eligibility of each machine, in the order of the list. It says nothing about machines that are in the cluster.
#[must_use]
pub fn evaluate_eligibility(
    template: &Template,
    machines: &[Machine],
    current: Option<&Cluster>,
) -> Vec<Eligibility> {
    let inventory = Inventory::new(machines, current);
    let templates = Templates::new(template, &inventory);
    let evaluate = |machine: &Machine| {
        let role = machine.spec.role.as_str();
        let as_control_plane = templates.control_plane_role().is_none_or(|wanted| **wanted == *role);
        let Some(id) = machine.address().and_then(|address| inventory.find(address)) else {
            return Eligibility::NoAddress;
        };
        let entry = inventory.entry(id);
        // A shared address stands for one of its machines.
        let role_id = inventory.roles().iter().position(|known| *known == role);
        let as_worker = role_id.is_some_and(|role| templates.template_for_role(role).is_some());
        if !as_control_plane && !as_worker {
            Eligibility::RoleWithoutTemplate { role: role.into() }
        } else if machine.status.state != MachineState::Healthy {
            Eligibility::NotHealthy(machine.status.state)
        } else if entry.shared {
            Eligibility::SharedAddress
        } else if entry.ipv4.is_none() {
            Eligibility::NoAddress
        } else if !machine.has_good_labels() {
            Eligibility::BadLabels(PlanReason::NoSuchLabels(machine.bad_labels().into()))
        } else {
            Eligibility::Spare { as_control_plane, as_worker }
        }
    };
    machines.iter().map(evaluate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MachineWith as _, machine, template};

    #[test]
    fn each_machine_has_its_first_obstacle() {
        let template = Template::new(template("cs", &[("cs", "1"), ("ss", "1")])).unwrap();
        let mut nameless = machine("10.0.0.6", 0, "cs");
        nameless.spec.ipv4.clear();
        let mut mislabelled = machine("10.0.0.7", -1, "cs");
        mislabelled.spec.rack = -1;
        let machines = [
            machine("10.0.0.1", 0, "cs"),
            machine("10.0.0.2", 0, "ss"),
            machine("10.0.0.3", 0, "boot"),
            machine("10.0.0.4", 0, "cs").state(MachineState::Retired),
            machine("10.0.0.5", 0, "cs").serial("a"),
            machine("10.0.0.5", 0, "cs").serial("b"),
            nameless,
            mislabelled,
        ];
        let texts: Vec<String> =
            evaluate_eligibility(&template, &machines, None).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spare: fit for the control plane and as a worker",
                "spare: fit as a worker",
                "no node of the template has the role \"boot\"",
                "RETIRED: only healthy machines are chosen",
                "several machines claim its address",
                "several machines claim its address",
                "without an IPv4 address it cannot be a node",
                "the machine is not chosen, because its labels would be invalid: its rack -1",
            ]
        );
    }
}
