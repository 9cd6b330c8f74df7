//! The state of a node of a wave of kubelets or proxies: it is good while it is Ready, with the restarted component as wanted
//! and healthy, and no container of a pod has restarted with its kubelet.

use std::collections::BTreeMap;

use madako_domain::cluster::Node;
use madako_domain::component::Component;
use time::OffsetDateTime;

use super::outdated::{ComponentComparison, Wanted};
use super::status::{ComponentStatus, KubernetesStatus};
use crate::limits::MOST_CONTAINERS_SHOWN;

/// The begin of the reason for which a node does not count as good.
const UNCHECKED: &str = "no API server told whether containers restarted with the kubelet";

/// The state of a node of the present wave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchedState {
    Good,
    /// The component differs from the wanted one: it did not restart.
    NotRestarted,
    Bad(String),
    /// No API server reports whether containers restarted with the kubelet, for this reason; the node is good otherwise.
    Unchecked(String),
    /// No API server reports whether the node is Ready.
    Unknown,
}

/// The Ready nodes, each with the time of its last report.
pub(crate) type ReadyNodes<'a> = BTreeMap<&'a str, Option<OffsetDateTime>>;

/// The state of a component on a node of the present wave. `ready`: `None` if no API server tells. `may_restart`: containers on
/// the node may restart with its kubelet, because it was drained or because operators accept it.
pub(crate) fn watched_state(
    wanted: &Wanted<'_>,
    status: &KubernetesStatus<'_>,
    ready: Option<&ReadyNodes<'_>>,
    (component, node): (Component, &Node),
    may_restart: bool,
) -> WatchedState {
    let bad = |why: &str| WatchedState::Bad(why.to_owned());
    let Some(on_node) = status.nodes.get(&node.address).filter(|on_node| on_node.reachable) else {
        return bad("the node does not answer");
    };
    let Some(found) = on_node.components.get(&component).filter(|found| found.runs()) else {
        return WatchedState::Bad(format!("{component} does not run"));
    };
    let compared = wanted.compare_running_container(component, node, &found.container, found.file());
    match (&found.health, ready) {
        _ if matches!(compared, ComponentComparison::Outdated(_)) => WatchedState::NotRestarted,
        (Some(Err(why)), _) => WatchedState::Bad(why.clone()),
        (None, _) => bad("its health check gave no answer"),
        // A proxy counts by its health and its image, whatever makes the kubelet fail.
        _ if component != Component::Kubelet => WatchedState::Good,
        (_, None) => WatchedState::Unknown,
        (_, Some(ready)) if !ready.contains_key(node.name()) => bad("the node is not Ready"),
        // Kubernetes counts a node as Ready for most of a minute after its last report.
        (_, Some(ready)) if is_before(ready[node.name()], found) => {
            bad("the kubelet has not reported since its start")
        }
        _ if may_restart => WatchedState::Good,
        // Kubelets report each restart within some seconds, and caches of API servers follow within a second. The last of the looks
        // that make a wave good comes 30 s after the first one, which follows the start.
        _ => match &on_node.restarted {
            Some(Ok(containers)) if !containers.is_empty() => {
                let shown =
                    containers.iter().take(MOST_CONTAINERS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
                let count = containers.len();
                WatchedState::Bad(format!(
                    "{count} containers restarted with the kubelet, among them {shown}"
                ))
            }
            Some(Ok(_)) => WatchedState::Good,
            Some(Err(why)) => WatchedState::Unchecked(format!("{UNCHECKED}: {why}")),
            // Without the time of the start, no restart can be told from earlier ones.
            None if found.container.started_at.is_none() => WatchedState::Good,
            None => WatchedState::Unchecked(format!("{UNCHECKED}: none was asked yet")),
        },
    }
}

/// True if a report is of an earlier start of the component. Reports have whole seconds.
fn is_before(report: Option<OffsetDateTime>, component: &ComponentStatus<'_>) -> bool {
    let started = component.container.started_at;
    report.zip(started).is_some_and(|(report, started)| report.unix_timestamp() < started.unix_timestamp())
}

/// True if no kubelet, or no proxy, that runs differs from the wanted one.
pub(crate) fn is_rolled_out(
    wanted: &Wanted<'_>,
    status: &KubernetesStatus<'_>,
    component: Component,
) -> bool {
    wanted.cluster.nodes.iter().all(|node| {
        let found = status.nodes.get(&node.address).and_then(|on_node| on_node.components.get(&component));
        found.filter(|found| ComponentStatus::runs(found)).is_none_or(|found| {
            let compared = wanted.compare_running_container(component, node, &found.container, found.file());
            !matches!(compared, ComponentComparison::Outdated(_))
        })
    })
}
