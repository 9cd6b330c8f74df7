//! The row `etcd-boot` of CKE's table of operations: nodes without data of etcd get a cluster of etcd, once.
//!
//! The newest record of a bootstrap decides. An interrupted bootstrap is resumed with its targets, since each of its
//! commands may run twice. Where data could be initialised a second time, an operator must decide.

use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::containers::Container;
use madako_domain::node_status::{Bootstrap, NodeStatus};
use madako_domain::record::RecordStatus;
use madako_domain::status::OperationPhase;

use crate::decide::Row;
use crate::held::{BlockedBy, DataContradiction, Held};
use crate::operation::OperationName;
use crate::view::{NodeView, OperationNeed, View};

enum State {
    /// etcd has data: the following rows count.
    Done,
    /// A bootstrap begins, or goes on, with these targets.
    Due(Vec<String>),
    Unclear(DataContradiction),
}

pub(crate) fn bootstrap_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    if view.control_plane.is_empty() {
        return None;
    }
    let name = OperationName::EtcdBootstrap;
    let aborted = Some((OperationPhase::EtcdBootAborted, Vec::new()));
    let state = bootstrap_state(view);
    if matches!(state, State::Done) {
        return None;
    }
    // Other nodes may have data that decide.
    let is_absent = view.lacks_control_plane(name, held);
    // A living cluster needs the other rows more than the end of its bootstrap.
    let aborted = if view.is_healthy() { None } else { aborted };
    if is_absent {
        return aborted;
    }
    match state {
        State::Done => None,
        State::Unclear(unclear) => {
            let nodes = view.control_plane_nodes().map(describe_found_data).collect();
            let targets = view.control_plane.clone();
            held.push(Held { what: name, reason: BlockedBy::UnclearBootstrap { unclear, nodes }, targets });
            aborted
        }
        State::Due(targets) => {
            let nodes = view.control_plane_nodes();
            let needs = [OperationNeed::Name(Container::Etcd), OperationNeed::Volume];
            let is_usable =
                view.select_usable_nodes(name, &needs, nodes, held).len() == view.control_plane.len();
            if !is_usable {
                return aborted;
            }
            Some((OperationPhase::EtcdBoot, vec![view.command_maker().bootstrap(targets)]))
        }
    }
}

fn bootstrap_state(view: &View<'_>) -> State {
    let has_data = view.control_plane_nodes().any(|node| node.status.has_data());
    let lacks_data = view.control_plane_nodes().any(|node| !node.status.has_data());
    if lacks_data && is_planted(Canary::BootstrapRepeated) {
        return State::Due(view.control_plane.clone());
    }
    match &view.input.status.bootstrap {
        Some(record) if record.status != RecordStatus::Completed => {
            state_of_interrupted_bootstrap(view, record)
        }
        record => {
            let marked = view.nodes.iter().filter(|node| node.status.has_data() && node.status.etcd_mark);
            let marked: Vec<String> = marked.map(|node| node.address.to_owned()).collect();
            let is_done = match record {
                Some(_) => has_data,
                None => (has_data && !marked.is_empty()) || !view.members.is_empty(),
            };
            if view.is_healthy() || is_done {
                State::Done
            } else if view.control_plane_nodes().any(|node| node.status.etcd_other_volume) {
                // Never begins: the volume is held.
                State::Due(view.control_plane.clone())
            } else if record.is_some() {
                State::Unclear(DataContradiction::CompletedWithoutData)
            } else if has_data {
                State::Unclear(DataContradiction::DataWithoutMark)
            } else if !marked.is_empty() {
                State::Unclear(DataContradiction::DataElsewhere(marked))
            } else {
                State::Due(view.control_plane.clone())
            }
        }
    }
}

/// A bootstrap that did not reach its end, or whose end is unknown.
fn state_of_interrupted_bootstrap(view: &View<'_>, record: &Bootstrap) -> State {
    let targets: Vec<&NodeView<'_>> =
        record.targets.iter().filter_map(|address| view.node(address)).collect();
    let is_target = |address: &str| record.targets.iter().any(|target| target == address);
    let in_control_plane: BTreeSet<&str> =
        targets.iter().filter(|node| node.control_plane).map(|node| node.address).collect();
    let left = record.targets.iter().filter(|target| !in_control_plane.contains(target.as_str()));
    let left: Vec<String> = left.cloned().collect();
    let has_data = |node: &&NodeView<'_>| node.status.has_data();
    if !view.is_healthy()
        && !targets.iter().copied().chain(view.control_plane_nodes()).any(|node| has_data(&node))
    {
        // Nothing was initialised: without all targets, the bootstrap begins anew.
        let whole = left.is_empty() && !record.targets.is_empty();
        return State::Due(if whole { record.targets.clone() } else { view.control_plane.clone() });
    }
    let elsewhere = view.control_plane_nodes().filter(has_data).filter(|node| !is_target(node.address));
    let elsewhere: Vec<String> = elsewhere.map(|node| node.address.to_owned()).collect();
    // All volumes are created before the first member starts.
    let gone = targets.iter().filter(|node| !node.status.etcd_data && node.status.reachable);
    let gone: Vec<String> = gone.map(|node| node.address.to_owned()).collect();
    let unclear = if !left.is_empty() || record.targets.is_empty() {
        DataContradiction::TargetsLeft(left)
    } else if !elsewhere.is_empty() {
        DataContradiction::DataElsewhere(elsewhere)
    } else if !gone.is_empty() && targets.iter().any(|node| has_begun(node.status)) {
        DataContradiction::DataGone(gone)
    } else {
        return State::Due(record.targets.clone());
    };
    if view.is_healthy() { State::Done } else { State::Unclear(unclear) }
}

/// True if a member was started on the data of the node.
fn has_begun(node: &NodeStatus) -> bool {
    node.has_data() && (node.etcd_empty == Some(false) || node.own_container(Container::Etcd).is_some())
}

/// The data, mark and container of a node, as text for an operator.
fn describe_found_data(node: &NodeView<'_>) -> String {
    let status = node.status;
    let data = match (status.etcd_data, status.etcd_empty) {
        (false, _) => "no data",
        (true, Some(true)) => "an empty volume",
        (true, _) => "data",
    };
    let mark = if status.etcd_mark { "a mark" } else { "no mark" };
    let etcd = match status.own_container(Container::Etcd) {
        Some(container) if container.running => "etcd runs",
        Some(_) => "etcd is stopped",
        None => "no etcd",
    };
    format!("{} {data}, {mark}, {etcd}", node.address)
}
