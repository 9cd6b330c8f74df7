//! The row `stop-control-plane` for components of Kubernetes: they end on nodes that left the control plane.
//!
//! Guarantees: one API server of such nodes ends at a time, and only while every configured one is healthy.

use madako_domain::component::Component;
use madako_domain::status::OperationPhase;

use super::command::KubernetesCommand;
use super::held::KubernetesBlockedBy;
use super::operation::KubernetesOperationName as Name;
use super::row::withdraw_endpoints;
use crate::backing_off::name_on_node;
use crate::command::Command;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::input::KubernetesMode;
use crate::operation::{OperationName, single_command_operation};
use crate::view::{NodeView, View};

/// Their order is CKE's.
const STOPS: [Name; 3] = [Name::StopKubeApiserver, Name::StopKubeControllerManager, Name::StopKubeScheduler];

pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    view.input.kubernetes?;
    let mut operations = Vec::new();
    for stop in STOPS {
        let (name, component) = (OperationName::Kubernetes(stop), stop.component());
        let has = |node: &&NodeView<'_>| !node.control_plane && node.status.runs(component);
        let mut targets = view.select_usable_nodes(name, &[], view.nodes.iter().filter(has), held);
        if targets.is_empty() {
            continue;
        }
        if component == Component::ApiServer && targets.len() > 1 {
            // A node whose stop failed does not hold the stops of the others back while it backs off.
            targets.sort_by_key(|node| view.input.backing_off.contains(&name_on_node(name.name(), node)));
            // I13 counts each of them.
            let others = targets.split_off(1);
            let reason = KubernetesBlockedBy::OneByOne { nodes: targets.clone() };
            held.push(Held { what: name, reason: BlockedBy::Kubernetes(reason), targets: others });
        }
        match find_obstacle(view, component) {
            Some(reason) => held.push(Held { what: name, reason: BlockedBy::Kubernetes(reason), targets }),
            None => {
                let mut operation = single_command_operation(name, targets, command(component));
                // Clients leave an API server before, and it completes their requests.
                withdraw_endpoints(view.input, &mut operation);
                operations.push(operation);
            }
        }
    }
    (!operations.is_empty()).then_some((OperationPhase::StopControlPlane, operations))
}

fn command(component: Component) -> Command {
    Command::Kubernetes(match component {
        Component::ApiServer => KubernetesCommand::StopContainer(component),
        _ => KubernetesCommand::KillContainers(component),
    })
}

fn find_obstacle(view: &View<'_>, component: Component) -> Option<KubernetesBlockedBy> {
    if view.input.settings.kubernetes != KubernetesMode::Act {
        return Some(KubernetesBlockedBy::Observed);
    }
    let answers = view.input.status.kubernetes.as_ref();
    let serves =
        |address: &str| answers.is_some_and(|answers| answers.is_healthy(Component::ApiServer, address));
    let nodes: Vec<String> = view.control_plane.iter().filter(|address| !serves(address)).cloned().collect();
    (component == Component::ApiServer && !nodes.is_empty())
        .then_some(KubernetesBlockedBy::ApiServersUnhealthy { nodes })
}
