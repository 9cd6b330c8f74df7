//! The row `stop-control-plane` of CKE's table of operations: containers of the control plane are stopped on all other
//! nodes.

use madako_domain::component::Component;
use madako_domain::containers::Container;
use madako_domain::status::OperationPhase;

use crate::command::Command;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::operation::{Operation, OperationName, single_command_operation};
use crate::view::{NodeView, View};

pub(crate) fn stop_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let mut operations = Vec::new();
    operations.extend(stop(view, Container::Etcd, held).and_then(|stop| allow_stop(view, stop, held)));
    operations.extend(stop(view, Container::EtcdRivers, held));
    (!operations.is_empty()).then_some((OperationPhase::StopControlPlane, operations))
}

fn stop(view: &View<'_>, container: Container, held: &mut Vec<Held>) -> Option<Operation> {
    let name = match container {
        Container::EtcdRivers => OperationName::StopEtcdRivers,
        _ => OperationName::StopEtcd,
    };
    // Without these rivers, an API server that still waits for its own stop would lose etcd.
    let serves = |node: &NodeView<'_>| {
        view.input.kubernetes.is_some()
            && container == Container::EtcdRivers
            && node.status.runs(Component::ApiServer)
    };
    let has = |node: &&NodeView<'_>| !node.control_plane && node.status.runs(container) && !serves(node);
    let targets = view.select_usable_nodes(name, &[], view.nodes.iter().filter(has), held);
    (!targets.is_empty()).then(|| single_command_operation(name, targets, Command::KillContainers(container)))
}

/// The stop of etcd, if all members are in sync, and enough of them stay. It is not due before each control plane node is a
/// member: an addition that is held must not cost etcd a member first.
fn allow_stop(view: &View<'_>, stop: Operation, held: &mut Vec<Held>) -> Option<Operation> {
    if view.is_good() && !view.control_plane_nodes().all(|node| view.is_member(node.address)) {
        return None;
    }
    let reason = if view.is_good() {
        view.quorum_obstacle(&stop)
    } else {
        Some(BlockedBy::NotInSync { members: view.out_of_sync() })
    };
    match reason {
        None => Some(stop),
        Some(reason) => {
            held.push(Held { what: stop.name, reason, targets: stop.targets });
            None
        }
    }
}
