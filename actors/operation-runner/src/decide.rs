//! Decides on the operations of a reconcile pass by the rows of CKE's table of operations: the first row with an
//! operation is the phase of the pass.

use madako_domain::containers::{ETCD_PEER, ETCD_SERVER};
use madako_domain::node_status::{ConfigVersion, NodeStatus};
use madako_domain::status::OperationPhase;
use serde::Serialize;

use crate::backing_off::names_on_targets;
use crate::held::{BlockedBy, Held};
use crate::input::Input;
use crate::operation::{Operation, OperationName};
use crate::view::View;
use crate::{bootstrap, certificates, kubernetes, maintain, restart, restore, rivers, start, stop};

/// The next reconcile pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    pub phase: OperationPhase,
    /// In the order in which they run, one after another.
    pub operations: Vec<Operation>,
    /// Operations of this row and of the rows before it that wait.
    pub held: Vec<Held>,
}

/// The operations of a row, and the phase; `None`: the next row counts.
pub(crate) type Row = Option<(OperationPhase, Vec<Operation>)>;

/// The rows in order. The rows of the queues (at the end) do not exist yet.
const ROWS: [fn(&View<'_>, &mut Vec<Held>) -> Row; 16] = [
    restore::stop_stale_members,
    upgrade,
    rivers::rivers_row,
    restore::restore_row,
    bootstrap::bootstrap_row,
    start::start_row,
    restart::restart_row,
    start::wait_row,
    kubernetes::row::row,
    maintain::maintenance_row,
    certificates::renewal_row,
    kubernetes::renewal::row,
    kubernetes::objects::row::row,
    // In its phase, the objects have been decided on.
    kubernetes::rotation::row,
    kubernetes::stop::row,
    stop::stop_row,
];

/// Decides on the next pass.
#[must_use]
pub fn decide(input: &Input<'_>) -> Decision {
    let view = View::new(input);
    let mut held = Vec::new();
    let given = ROWS.iter().find_map(|row| split_ready_and_held(&view, row(&view, &mut held)?, &mut held));
    let (phase, operations) = given.unwrap_or((OperationPhase::Completed, Vec::new()));
    Decision { phase, operations, held }
}

/// A row without the operations that back off or lack the authorities; `None` if no other is in it. While the bootstrap of
/// etcd or the wait for it is held, no later row counts.
fn split_ready_and_held(
    view: &View<'_>,
    (phase, due): (OperationPhase, Vec<Operation>),
    held: &mut Vec<Held>,
) -> Row {
    let was_empty = due.is_empty();
    let mut ready = Vec::new();
    for operation in due {
        match obstacle_to_operation(view, &operation) {
            Some(reason) => held.push(Held { what: operation.name, reason, targets: operation.targets }),
            None => ready.push(operation),
        }
    }
    match phase {
        OperationPhase::EtcdBoot if ready.is_empty() => Some((OperationPhase::EtcdBootAborted, ready)),
        OperationPhase::EtcdWait => Some((phase, ready)),
        _ => (was_empty || !ready.is_empty()).then_some((phase, ready)),
    }
}

/// Reason against a due operation, whatever its targets are.
fn obstacle_to_operation(view: &View<'_>, operation: &Operation) -> Option<BlockedBy> {
    let authorities = view.input.authorities.filter(|_| lacks_certificates(view, operation));
    let authorities = authorities.map(|why| BlockedBy::Authorities { why: why.to_owned() });
    let backing_off = view.input.backing_off;
    let backs_off = backing_off.contains(operation.name.name())
        || names_on_targets(operation).any(|name| backing_off.contains(&name));
    let unclear = view.input.settings.unclear_images.iter().find(|(name, _)| operation.needs_image(**name));
    let unclear = unclear.map(|(image, why)| BlockedBy::UnclearImage { image: *image, why: why.clone() });
    unclear.or(authorities).or(backs_off.then_some(BlockedBy::BackingOff))
}

/// A member that has its certificates starts without the authorities.
fn lacks_certificates(view: &View<'_>, operation: &Operation) -> bool {
    let is_valid = |status: &NodeStatus, file: &str| {
        let validity = status.etcd_certificates.get(file).and_then(|certificate| certificate.validity);
        validity.is_some_and(|validity| !validity.must_renew(view.input.now))
    };
    let has_both = |address: &String| {
        let node = view.node(address);
        node.is_some_and(|node| [ETCD_SERVER, ETCD_PEER].iter().all(|file| is_valid(node.status, file)))
    };
    let starts_with_own =
        operation.name == OperationName::EtcdStart && operation.targets.iter().all(has_both);
    operation.needs_certificates() && !starts_with_own
}

/// The upgrade needs all control plane nodes. Without data of etcd it makes no marks: they would make an interrupted
/// bootstrap look like added members.
fn upgrade(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    if view.input.status.config_version == ConfigVersion::Two {
        return None;
    }
    if view.lacks_control_plane(OperationName::Upgrade, held) {
        return Some((OperationPhase::UpgradeAborted, Vec::new()));
    }
    let marks = view.control_plane_nodes().any(|node| node.status.has_data());
    Some((OperationPhase::Upgrade, vec![view.command_maker().upgrade(marks)]))
}
