//! The row `etcd-maintain` of CKE's table of operations: the control plane nodes become the members of etcd, and each
//! member runs with the wanted image and parameters.
//!
//! The rules are tried in order, and the first that applies counts, even if its operation is held.

use madako_domain::containers::Container;
use madako_domain::status::OperationPhase;

use crate::command::{Command, Volume};
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::operation::{Operation, OperationName, single_command_operation};
use crate::restart;
use crate::view::{MemberView, NodeView, OperationNeed, View};
use crate::wanted::{self, InitialCluster};

/// An operation on members that a rule asks for.
struct DueMaintenance<'v> {
    name: OperationName,
    /// Never empty. An operation on one member takes the first whose node has no obstacle.
    members: Vec<ConcernedMember<'v>>,
}

/// A member, or a node that becomes one.
#[derive(Clone)]
struct ConcernedMember<'v> {
    address: String,
    id: Option<u64>,
    node: Option<&'v NodeView<'v>>,
}

type Rule = for<'v> fn(&'v View<'v>) -> Option<DueMaintenance<'v>>;

/// Rules that apply in any state.
const ALWAYS: [Rule; 6] = [
    |view| members_outside_cluster(view, true),
    |view| members_off_control_plane(view, true),
    without_data,
    members_never_started,
    learners_to_promote,
    nodes_without_mark,
];
/// Rules that apply while all members are in sync.
const IN_SYNC: [Rule; 5] = [
    new_nodes,
    |view| members_outside_cluster(view, false),
    |view| members_off_control_plane(view, false),
    outdated_members,
    find_leftover_data,
];

pub(crate) fn maintenance_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let first = |rules: &[Rule]| rules.iter().find_map(|rule| rule(view));
    let (always, in_sync) = (first(&ALWAYS), first(&IN_SYNC));
    if let Some(due) = always.as_ref().or(in_sync.as_ref())
        && view.lacks_control_plane(due.name, held)
    {
        return None;
    }
    let operation = match (always, in_sync) {
        (Some(due), _) => operation_unless_held(view, &due, held),
        (None, Some(due)) if view.is_good() => operation_unless_held(view, &due, held),
        (None, _) => {
            for due in IN_SYNC.iter().filter_map(|rule| rule(view)) {
                let reason = BlockedBy::NotInSync { members: view.out_of_sync() };
                held.push(Held { what: due.name, reason, targets: due.target_addresses() });
            }
            None
        }
    };
    operation.map(|operation| (OperationPhase::EtcdMaintain, vec![operation]))
}

/// Members that are not nodes of the cluster. A member whose state is unknown counts to those that are not known to be
/// out of sync.
fn members_outside_cluster<'v>(view: &'v View<'v>, out_of_sync: bool) -> Option<DueMaintenance<'v>> {
    let is_stranger = |member: &MemberView<'_>| view.node_of_member(member).is_none();
    due_for_members(view, OperationName::EtcdRemoveMember, |member| {
        (member.member.in_sync == Some(false)) == out_of_sync && is_stranger(member)
    })
}

/// Members on nodes outside of the control plane.
fn members_off_control_plane<'v>(view: &'v View<'v>, out_of_sync: bool) -> Option<DueMaintenance<'v>> {
    due_for_members(view, OperationName::EtcdDestroyMember, |member| {
        (member.member.in_sync == Some(false)) == out_of_sync
            && view.node_of_member(member).is_some_and(|node| !node.control_plane)
    })
}

/// Members that started before and whose data are gone. They are added anew by a later rule.
fn without_data<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    let is_gone = |node: &NodeView<'_>| {
        let status = node.status;
        status.reachable
            && !status.has_data()
            && !status.etcd_other_volume
            && !status.containers.get(Container::Etcd.name()).is_some_and(|container| container.running)
    };
    due_for_members(view, OperationName::EtcdRemoveMember, |member| {
        let started = !member.member.name.is_empty();
        started && !member.member.is_in_sync() && control_plane_node(view, member).is_some_and(is_gone)
    })
}

fn members_never_started<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    due_for_members(view, OperationName::EtcdAddMember, |member| {
        member.member.name.is_empty() && control_plane_node(view, member).is_some()
    })
}

fn learners_to_promote<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    due_for_members(view, OperationName::EtcdPromoteMember, |member| {
        member.member.learner && control_plane_node(view, member).is_some()
    })
}

fn nodes_without_mark<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    due_for_members(view, OperationName::EtcdMarkMember, |member| {
        let node = control_plane_node(view, member).filter(|node| node.status.reachable);
        member.member.is_in_sync() && node.is_some_and(|node| !node.status.etcd_mark)
    })
}

fn new_nodes<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    due_for_nodes(view, OperationName::EtcdAddMember, |node| {
        node.control_plane && !view.is_member(node.address)
    })
}

fn outdated_members<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    due_for_nodes(view, OperationName::EtcdRestart, |node| {
        node.control_plane
            && view.is_outdated(
                node,
                Container::Etcd,
                &wanted::etcd_parameters(node.address, InitialCluster::None),
            )
    })
}

/// Former members whose removal did not end: their data are still there.
fn find_leftover_data<'v>(view: &'v View<'v>) -> Option<DueMaintenance<'v>> {
    let interrupted = &view.input.status.interrupted_removals;
    due_for_nodes(view, OperationName::EtcdDestroyMember, |node| {
        !node.control_plane
            && (node.status.etcd_data || node.status.etcd_mark)
            && interrupted.contains(node.address)
            && !view.is_member(node.address)
    })
}

fn control_plane_node<'v>(view: &'v View<'v>, member: &MemberView<'_>) -> Option<&'v NodeView<'v>> {
    view.node_of_member(member).filter(|node| node.control_plane)
}

/// The members that a rule concerns, in the order of their addresses.
fn due_for_members<'v>(
    view: &'v View<'v>,
    name: OperationName,
    concerns: impl Fn(&MemberView<'_>) -> bool,
) -> Option<DueMaintenance<'v>> {
    let concerned = view.members.iter().filter(|member| concerns(member)).map(|member| ConcernedMember {
        address: member.address.to_string(),
        id: Some(member.member.id),
        node: view.node_of_member(member),
    });
    DueMaintenance::new(name, concerned.collect())
}

/// The nodes that a rule concerns, in the order of the configuration.
fn due_for_nodes<'v>(
    view: &'v View<'v>,
    name: OperationName,
    concerns: impl Fn(&NodeView<'_>) -> bool,
) -> Option<DueMaintenance<'v>> {
    let concerned = view.nodes.iter().filter(|node| concerns(node)).map(|node| ConcernedMember {
        address: node.address.to_owned(),
        id: None,
        node: Some(node),
    });
    DueMaintenance::new(name, concerned.collect())
}

impl<'v> DueMaintenance<'v> {
    fn new(name: OperationName, members: Vec<ConcernedMember<'v>>) -> Option<Self> {
        (!members.is_empty()).then_some(Self { name, members })
    }

    /// The targets of the operation, if nothing is in its way.
    fn target_addresses(&self) -> Vec<String> {
        let is_single = matches!(self.name, OperationName::EtcdAddMember | OperationName::EtcdRestart);
        let most = if is_single { 1 } else { self.members.len() };
        self.members.iter().take(most).map(|member| member.address.clone()).collect()
    }

    fn member_ids(&self) -> Vec<u64> {
        self.members.iter().filter_map(|member| member.id).collect()
    }
}

fn operation_unless_held(
    view: &View<'_>,
    due: &DueMaintenance<'_>,
    held: &mut Vec<Held>,
) -> Option<Operation> {
    if let Some(reason) = obstacle_to_all_members(view, due) {
        held.push(Held { what: due.name, reason, targets: due.target_addresses() });
        return None;
    }
    let operation = operation_on_member(view, due, held)?;
    if let Some(reason) = view.quorum_obstacle(&operation) {
        held.push(Held { what: due.name, reason, targets: operation.targets });
        return None;
    }
    Some(operation)
}

/// Obstacles that concern the whole cluster of etcd.
fn obstacle_to_all_members(view: &View<'_>, due: &DueMaintenance<'_>) -> Option<BlockedBy> {
    let etcd = view.input.status.etcd.as_ref()?;
    let voting = etcd.voting().count();
    match due.name {
        OperationName::EtcdRestart => {
            let first = due.members.first()?.address.clone();
            restart::needs_request(voting, first).or_else(|| view.older_image())
        }
        OperationName::EtcdAddMember => view.older_image(),
        OperationName::EtcdRemoveMember | OperationName::EtcdDestroyMember if !etcd.has_majority() => {
            let in_sync = etcd.voting().filter(|member| member.is_in_sync()).count();
            let violation = format!("{in_sync} of {voting} voting members of etcd are known to run in sync");
            Some(BlockedBy::Quorum { violation, needed: view.out_of_sync() })
        }
        _ => None,
    }
}

/// The operation on the members whose nodes have no obstacle.
fn operation_on_member(view: &View<'_>, due: &DueMaintenance<'_>, held: &mut Vec<Held>) -> Option<Operation> {
    let maker = view.command_maker();
    match due.name {
        OperationName::EtcdAddMember | OperationName::EtcdRestart => {
            let needs = [OperationNeed::Name(Container::Etcd), OperationNeed::Volume];
            let nodes = due.members.iter().filter_map(|member| member.node);
            let target = view.select_usable_nodes(due.name, &needs, nodes, held).into_iter().next()?;
            if due.name == OperationName::EtcdRestart {
                return Some(maker.restart(target));
            }
            // A learner is added anew, with another id.
            let mut known = view.members.iter().filter(|member| !member.member.learner);
            let id = known.find(|member| member.address == target).map(|member| member.member.id);
            Some(maker.add_member(target, id))
        }
        OperationName::EtcdDestroyMember => remove_members_and_data(view, due, held),
        OperationName::EtcdPromoteMember => {
            let member = due.members.first()?;
            let promote = Command::PromoteEtcdMember { id: member.id };
            Some(single_command_operation(due.name, vec![member.address.clone()], promote))
        }
        OperationName::EtcdMarkMember => Some(single_command_operation(
            due.name,
            due.target_addresses(),
            Command::VolumeCreate(Volume::Mark),
        )),
        _ => Some(single_command_operation(
            due.name,
            due.target_addresses(),
            Command::RemoveEtcdMember { ids: due.member_ids() },
        )),
    }
}

/// Removes all concerned members, and their data from the nodes that are ready. A member whose name another program
/// uses on its node is left out. A former member waits for its node.
fn remove_members_and_data(
    view: &View<'_>,
    due: &DueMaintenance<'_>,
    held: &mut Vec<Held>,
) -> Option<Operation> {
    let is_ready =
        |member: &&ConcernedMember<'_>| member.id.is_none() || member.node.is_some_and(NodeView::is_ready);
    let nodes = due.members.iter().filter(is_ready).filter_map(|member| member.node);
    let targets = view.select_usable_nodes(due.name, &[OperationNeed::Name(Container::Etcd)], nodes, held);
    let concerned =
        due.members.iter().filter(|member| !is_ready(member) || targets.contains(&member.address));
    let ids: Vec<u64> = concerned.filter_map(|member| member.id).collect();
    (!ids.is_empty() || !targets.is_empty()).then(|| view.command_maker().destroy_members(targets, ids))
}
