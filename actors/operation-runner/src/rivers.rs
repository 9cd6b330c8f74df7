//! The row `rivers` of CKE's table of operations: the TCP proxy rivers runs on all nodes, and the rivers of etcd on
//! control plane nodes.

use madako_domain::containers::{Container, ServiceParams};
use madako_domain::status::OperationPhase;

use crate::command::RunMode;
use crate::decide::Row;
use crate::held::Held;
use crate::operation::{Operation, OperationName};
use crate::view::{NodeView, OperationNeed, View};
use crate::wanted;

pub(crate) fn rivers_row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let cluster = view.input.cluster;
    let mut operations =
        operations_for_outdated(view, Container::Rivers, &wanted::rivers_parameters(cluster), held);
    operations.extend(operations_for_outdated(
        view,
        Container::EtcdRivers,
        &wanted::etcd_rivers(cluster),
        held,
    ));
    (!operations.is_empty()).then_some((OperationPhase::Rivers, operations))
}

fn operations_for_outdated(
    view: &View<'_>,
    container: Container,
    builtin: &ServiceParams,
    held: &mut Vec<Held>,
) -> Vec<Operation> {
    let belongs = |node: &&NodeView<'_>| container == Container::Rivers || node.control_plane;
    let nodes = || view.nodes.iter().filter(belongs);
    let stopped = nodes().filter(|node| !node.status.runs(container));
    let outdated = nodes().filter(|node| view.is_outdated(node, container, builtin));
    let (start, restart) = match container {
        Container::EtcdRivers => (OperationName::EtcdRiversBootstrap, OperationName::EtcdRiversRestart),
        _ => (OperationName::RiversBootstrap, OperationName::RiversRestart),
    };
    let needs = [OperationNeed::Name(container)];
    let due = [
        (start, RunMode::Start, view.select_usable_nodes(start, &needs, stopped, held)),
        (restart, RunMode::Restart, view.select_usable_nodes(restart, &needs, outdated, held)),
    ];
    let most = view.input.settings.max_concurrent_updates;
    due.into_iter()
        .filter(|(.., targets)| !targets.is_empty())
        .map(|(name, run, mut targets)| {
            targets.truncate(most);
            view.command_maker().run_rivers(name, container, run, targets)
        })
        .collect()
}
