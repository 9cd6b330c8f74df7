//! Restarts of members of etcd that an operator asked for (`madako etcd restart`).

use madako_domain::containers::Container;
use madako_domain::status::OperationPhase;

use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::limits::LEAST_MEMBERS_TO_RESTART;
use crate::operation::OperationName;
use crate::view::{OperationNeed, View};

const NAME: OperationName = OperationName::EtcdRestart;

/// Restarts one member that runs. The operator decided that etcd may stop, so neither other nodes nor the state of etcd
/// matter: a restart may be all that a member needs.
pub(crate) fn restart_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let requested = view
        .control_plane_nodes()
        .filter(|node| view.input.restarts.contains(node.address) && node.status.runs(Container::Etcd));
    let targets = view.select_usable_nodes(NAME, &[OperationNeed::Volume], requested, held);
    let target = targets.first()?.clone();
    if let Some(reason) = view.older_image() {
        held.push(Held { what: NAME, reason, targets });
        return None;
    }
    Some((OperationPhase::EtcdMaintain, vec![view.command_maker().asked_restart(target)]))
}

/// The reason against a restart without a request: etcd would stop.
pub(crate) fn needs_request(voting: usize, target: String) -> Option<BlockedBy> {
    (voting < LEAST_MEMBERS_TO_RESTART).then_some(BlockedBy::FewMembers { members: voting, target })
}
