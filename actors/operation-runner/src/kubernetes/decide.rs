//! The operations of CKE's phase `k8s-start`: API servers one at a time, then controller managers and schedulers, then
//! kubelets and proxies in waves.
//!
//! # Guarantees
//! - An operation takes a healthy API server away only if every other configured one is healthy for a while, etcd is in
//!   sync, and no control plane node drains, reboots or is repaired (invariants I13 and I8).
//! - Of the API servers that are not healthy, one with other arguments than the wanted ones restarts only while none with the
//!   wanted ones is among them: a bad argument costs one API server.
//! - An API server that ended for the reboot of its node starts after the reboot.
//! - A controller manager or scheduler starts only while an API server is healthy.
//! - No kubelet or proxy restarts with another image than the one that every running API server has, and none starts at another
//!   minor version than theirs. An API server on a node without a known state counts with the minor version with which it
//!   answers; without an answer it counts as one that is not healthy.
//! - While an API server has not passed its health checks within five minutes of a start, no healthy one restarts until it passes
//!   them after another start, or an operator resumes the roll.
//! - A component that ended soon after its last start waits before the next one, alone.
//! - A kubelet gets another minor version only on a node that is drained, or by `kubernetes.minor_upgrade` in place.
//! - A wave of restarts begins only after the nodes of the wave before it were good for a while.
//! - While the roll of kubelets and proxies is paused or halted, no API server restarts for the encryption keys alone.
//! - Nothing starts at a version that the policy of Kubernetes forbids (invariant I14), as far as versions are known.
//! - Each component that is due and in no operation is held, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Node;
use madako_domain::reboot::config::RebootConfig;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::queue::Items;
use madako_domain::rollout::Rollout;
use madako_domain::skew::{Skew, SkewRule, check_start};
use time::OffsetDateTime;

use super::held::{KubernetesBlockedBy as BlockedBy, KubernetesHeld};
use super::minor_upgrade::MinorUpgrade;
use super::operation::KubernetesOperationName as Name;
use super::outdated::{ComponentComparison, Wanted};
use super::status::{ComponentStatus, KubernetesStatus};
use crate::backing_off::name_on_node;
use crate::early_ends::ComponentOnNode;
use crate::limits::{GOES_DOWN, REBOOT_BEGINS};
use crate::outdated::Outdated;
use madako_domain::component::Component;

/// The inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub struct KubernetesInput<'a> {
    pub now: OffsetDateTime,
    pub wanted: Wanted<'a>,
    pub status: &'a KubernetesStatus<'a>,
    /// Every member of etcd is in sync.
    pub is_etcd_in_sync: bool,
    /// Addresses of nodes that drain, reboot or are repaired.
    pub busy: &'a BTreeSet<String>,
    /// Addresses of nodes whose API server is not known to be healthy for [`API_SETTLED`](crate::limits::API_SETTLED).
    pub settling: &'a BTreeSet<String>,
    /// Components whose next start waits, because they ended soon after each start.
    pub ending: &'a BTreeSet<ComponentOnNode>,
    /// Addresses of nodes whose last command failed a short time ago.
    pub backing_off: &'a BTreeSet<String>,
    /// Nodes on which one operation starts a component.
    pub max_concurrent_updates: usize,
    /// The roll of kubelets and proxies, or the reason why it cannot be read; `None`: the first wave is to come.
    pub rollout: Result<Option<&'a Rollout>, &'a str>,
    pub minor_upgrade: MinorUpgrade,
    /// The entries of the reboot queue, and the drains for upgrades.
    pub reboots: &'a Items<RebootQueueEntry>,
    /// Times at which the newest reboot command of each node ended, by address.
    pub reboot_ends: &'a BTreeMap<String, OffsetDateTime>,
}

/// An operation that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    pub name: Name,
    /// Addresses of the nodes.
    pub targets: Vec<String>,
    /// Reasons for the restart of a component, by address; empty for a start.
    pub why: BTreeMap<String, Vec<Outdated>>,
    /// No API server answers meanwhile: the cluster has one control plane node.
    pub is_gap: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesDecision {
    /// In the order in which they run, one after another.
    pub operations: Vec<Due>,
    pub held: Vec<KubernetesHeld>,
}

/// Decides on the next pass.
#[must_use]
pub fn decide(input: &KubernetesInput<'_>) -> KubernetesDecision {
    let mut pass = Pass { input, decision: KubernetesDecision::default() };
    pass.decide_api_servers();
    pass.decide_controllers_and_schedulers();
    pass.decide_kubelets();
    pass.decide_proxies();
    pass.decision
}

/// The components of one kind, by what is due.
#[derive(Debug, Default)]
struct NodesByState<'a> {
    stopped: Vec<&'a Node>,
    outdated: Vec<(&'a Node, Vec<Outdated>)>,
    /// Those on which nothing is due.
    current: Vec<&'a Node>,
}

struct Pass<'a> {
    input: &'a KubernetesInput<'a>,
    decision: KubernetesDecision,
}

impl<'a> Pass<'a> {
    fn nodes_with_component(&self, component: Component) -> impl Iterator<Item = &'a Node> + use<'a> {
        let all = &self.input.wanted.cluster.nodes;
        all.iter().filter(move |node| node.control_plane || !component.is_of_control_plane())
    }

    fn component_status(&self, component: Component, node: &Node) -> Option<&'a ComponentStatus<'a>> {
        self.input.status.nodes.get(&node.address)?.components.get(&component)
    }

    fn hold(&mut self, what: Name, reason: BlockedBy, targets: Vec<String>) {
        if !targets.is_empty() {
            self.decision.held.push(KubernetesHeld { what, reason, targets });
        }
    }

    /// Sorts the nodes of a component. Nodes on which nothing can be done are held.
    fn sort_nodes_by_state(
        &mut self,
        component: Component,
        (start, restart): (Name, Name),
    ) -> NodesByState<'a> {
        let mut sorted = NodesByState::default();
        let (mut unreachable, mut backs_off, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        let mut ends_early = Vec::new();
        let mut forbidden: BTreeMap<SkewRule, (Skew, Vec<String>)> = BTreeMap::new();
        for node in self.nodes_with_component(component) {
            let address = node.address.clone();
            let reachable = self.input.status.nodes.get(&address).is_some_and(|node| node.reachable);
            let state = self.component_status(component, node);
            if !reachable {
                unreachable.push(address);
                continue;
            }
            if state.is_some_and(|state| state.container.foreign) {
                foreign.push(address);
                continue;
            }
            let due = match state.filter(|state| state.runs()) {
                None => Some(None),
                Some(state) => {
                    match self.input.wanted.compare_running_container(
                        component,
                        node,
                        &state.container,
                        state.file(),
                    ) {
                        ComponentComparison::Current => None,
                        ComponentComparison::Outdated(why) => Some(Some(why)),
                        ComponentComparison::OtherRuntime { has, wanted } => {
                            self.hold(restart, BlockedBy::OtherRuntime { has, wanted }, vec![address]);
                            continue;
                        }
                    }
                }
            };
            if let Some(skew) = due.as_ref().and_then(|_| self.version_skew(component, node)) {
                forbidden.entry(skew.rule).or_insert_with(|| (skew, Vec::new())).1.push(address);
                continue;
            }
            match due {
                None => sorted.current.push(node),
                Some(None) if self.backs_off(start, &address) => backs_off.push(address),
                Some(Some(_)) if self.backs_off(restart, &address) => backs_off.push(address),
                Some(None) if self.input.ending.contains(&(address.clone(), component)) => {
                    ends_early.push(address);
                }
                Some(None) => sorted.stopped.push(node),
                Some(Some(why)) => sorted.outdated.push((node, why)),
            }
        }
        self.hold(start, BlockedBy::Unreachable, unreachable);
        self.hold(start, BlockedBy::ForeignContainer, foreign);
        self.hold(restart, BlockedBy::BackingOff, backs_off);
        self.hold(start, BlockedBy::EndsAfterStart, ends_early);
        for (rule, (skew, nodes)) in forbidden {
            // While API servers are updated, their number is the shorter reason.
            let older = self.older_api_servers().filter(|_| rule == SkewRule::NewerThanApiServer);
            self.hold(restart, older.unwrap_or(BlockedBy::VersionSkew { skew }), nodes);
        }
        sorted
    }

    /// True if the node backs off, or this operation on it.
    fn backs_off(&self, operation: Name, address: &str) -> bool {
        let backing_off = self.input.backing_off;
        backing_off.contains(address) || backing_off.contains(&name_on_node(operation.name(), address))
    }

    /// The rule that the wanted version of a component would break (invariant I14), as far as versions are known.
    fn version_skew(&self, component: Component, node: &Node) -> Option<Skew> {
        let status = self.input.status;
        let wanted = status.wanted_version.as_ref().filter(|_| !is_planted(Canary::KubeletFirst))?;
        check_start(&status.versions, component, &node.address, wanted)
    }

    fn start(&mut self, name: Name, nodes: &[&Node]) {
        if !nodes.is_empty() {
            let targets = node_addresses(nodes);
            self.decision.operations.push(Due { name, targets, why: BTreeMap::new(), is_gap: false });
        }
    }

    fn restart(&mut self, name: Name, nodes: Vec<(&Node, Vec<Outdated>)>, is_gap: bool) {
        if !nodes.is_empty() {
            let targets = nodes.iter().map(|(node, _)| node.address.clone()).collect();
            let why = nodes.into_iter().map(|(node, why)| (node.address.clone(), why)).collect();
            self.decision.operations.push(Due { name, targets, why, is_gap });
        }
    }

    /// Addresses of control plane nodes whose component is not known to be healthy.
    fn unhealthy_nodes(&self, component: Component) -> Vec<String> {
        let healthy = |node: &&Node| {
            self.component_status(component, node)
                .is_some_and(|state| self.is_reachable(node) && state.is_healthy())
        };
        self.nodes_with_component(component)
            .filter(|node| !healthy(node))
            .map(|node| node.address.clone())
            .collect()
    }

    fn is_reachable(&self, node: &Node) -> bool {
        self.input.status.nodes.get(&node.address).is_some_and(|node| node.reachable)
    }

    /// True while a reboot whose command has begun is not known to have ended a node's processes.
    fn is_about_to_reboot(&self, node: &Node) -> bool {
        if !self.component_status(Component::Kubelet, node).is_some_and(ComponentStatus::runs) {
            return false;
        }
        let config = RebootConfig::read(&self.input.wanted.cluster.reboot).ok();
        let attempts = |config: RebootConfig| {
            let attempt = config.reboot?.timeout.saturating_add(config.interval);
            Some(attempt.saturating_mul(config.attempts))
        };
        let command = config.and_then(attempts).unwrap_or_default();
        let passed_since = |at: OffsetDateTime| Duration::try_from(self.input.now - at).ok();
        let begins = |entry: &RebootQueueEntry| {
            let Some(at) = entry.last_transition_time.filter(|_| entry.node == node.address) else {
                return false;
            };
            // A command that failed at once leaves a healthy node without its API server for a minute, and not for its time limit.
            let end = self.input.reboot_ends.get(&node.address).filter(|end| **end >= at);
            let (since, most) = match end {
                Some(end) => (*end, GOES_DOWN),
                None => (at, REBOOT_BEGINS.saturating_add(command)),
            };
            entry.status == RebootStatus::Rebooting && passed_since(since).is_some_and(|passed| passed < most)
        };
        self.input.reboots.values().any(|item| begins(&item.value))
    }

    fn decide_api_servers(&mut self) {
        let name = Name::KubeApiserverRestart;
        let NodesByState { stopped, mut outdated, .. } =
            self.sort_nodes_by_state(Component::ApiServer, (name, name));
        let (rebooting, stopped): (Vec<_>, Vec<_>) =
            stopped.into_iter().partition(|node| self.is_about_to_reboot(node));
        self.hold(name, BlockedBy::Reboots, node_addresses(&rebooting));
        self.start(name, &stopped);
        if let Some(reason) = rotation_obstacle(self.input) {
            let (resting, due): (Vec<_>, Vec<_>) =
                outdated.into_iter().partition(|(_, why)| has_only_earlier_keys(why));
            self.hold(name, reason, outdated_addresses(&resting));
            outdated = due;
        }
        // A corrected argument reaches an API server that an argument keeps from serving.
        let known_unhealthy = |node: &Node| {
            let state = self.component_status(Component::ApiServer, node);
            state.is_some_and(|state| matches!(state.health, Some(Err(_))))
        };
        let (count, unhealthy) = (
            self.nodes_with_component(Component::ApiServer).count(),
            self.unhealthy_nodes(Component::ApiServer),
        );
        // An argument that keeps an API server from serving reaches no other one.
        let is_outdated = |node: &&Node| outdated.iter().any(|(other, _)| other.address == node.address);
        let has_failed = self
            .nodes_with_component(Component::ApiServer)
            .any(|node| unhealthy.contains(&node.address) && self.is_reachable(node) && !is_outdated(&node));
        let mut candidates = outdated.iter();
        if let Some(place) = candidates.position(|(node, _)| !has_failed && known_unhealthy(node)) {
            let first = outdated.remove(place);
            let reason = BlockedBy::OneByOne { nodes: vec![first.0.address.clone()] };
            self.restart(name, vec![first], false);
            self.hold(name, reason, outdated.iter().map(|(node, _)| node.address.clone()).collect());
            return;
        }
        if outdated.is_empty() {
            return;
        }
        if is_planted(Canary::ApiServersAtOnce) {
            self.restart(name, outdated, false);
            return;
        }
        let mut failed = failed_servers(self.input);
        // The next restart of a failed one may end its failure.
        let place = outdated.iter().position(|(node, _)| failed.contains(&node.address));
        let first = outdated.remove(place.unwrap_or_default());
        failed.retain(|address| *address != first.0.address);
        let others: Vec<String> =
            unhealthy.into_iter().filter(|address| *address != first.0.address).collect();
        let among = |some: &BTreeSet<String>| -> Vec<String> {
            let all = self.nodes_with_component(Component::ApiServer).map(|node| node.address.clone());
            all.filter(|address| some.contains(address)).collect()
        };
        let busy = among(self.input.busy);
        let mut settling = among(self.input.settling);
        settling.retain(|address| *address != first.0.address);
        let reason = if !others.is_empty() {
            Some(BlockedBy::ApiServersUnhealthy { nodes: others })
        } else if !failed.is_empty() {
            Some(BlockedBy::ApiServersFailed { nodes: failed })
        } else if !self.input.is_etcd_in_sync {
            Some(BlockedBy::EtcdNotInSync)
        } else if !busy.is_empty() {
            Some(BlockedBy::ControlPlaneBusy { nodes: busy })
        } else if !settling.is_empty() {
            Some(BlockedBy::ApiServersNew { nodes: settling })
        } else {
            None
        };
        let mut waiting: Vec<String> = outdated.iter().map(|(node, _)| node.address.clone()).collect();
        if let Some(reason) = reason {
            waiting.insert(0, first.0.address.clone());
            self.hold(name, reason, waiting);
        } else {
            self.hold(name, BlockedBy::OneByOne { nodes: vec![first.0.address.clone()] }, waiting);
            self.restart(name, vec![first], count == 1);
        }
    }

    /// Controller managers, then schedulers.
    fn decide_controllers_and_schedulers(&mut self) {
        let kinds = [
            (
                Component::ControllerManager,
                Name::KubeControllerManagerBootstrap,
                Name::KubeControllerManagerRestart,
            ),
            (Component::Scheduler, Name::KubeSchedulerBootstrap, Name::KubeSchedulerRestart),
        ];
        let mut before = Vec::new();
        for (component, start, restart) in kinds {
            let NodesByState { stopped, mut outdated, .. } =
                self.sort_nodes_by_state(component, (start, restart));
            // Before an API server has made its roles, these programs end, and no restart policy starts them again.
            match self.has_no_healthy_api_server() {
                Some(reason) => self.hold(start, reason, node_addresses(&stopped)),
                None => self.start(start, &stopped),
            }
            if outdated.is_empty() {
                continue;
            }
            outdated.sort_by_key(|(node, _)| {
                self.component_status(component, node).is_some_and(|state| state.leads)
            });
            let all: Vec<String> = outdated.iter().map(|(node, _)| node.address.clone()).collect();
            let first = outdated.remove(0);
            let others: Vec<String> = self
                .unhealthy_nodes(component)
                .into_iter()
                .filter(|address| *address != first.0.address)
                .collect();
            let reason = self.api_server_blocker().or_else(|| {
                let nodes = if before.is_empty() { others } else { before.clone() };
                (!nodes.is_empty()).then_some(BlockedBy::OneByOne { nodes })
            });
            before.extend(all.clone());
            if let Some(reason) = reason {
                self.hold(restart, reason, all);
            } else {
                self.hold(
                    restart,
                    BlockedBy::OneByOne { nodes: vec![first.0.address.clone()] },
                    all[1..].to_vec(),
                );
                self.restart(restart, vec![first], false);
            }
        }
    }

    /// The reason for which nothing may start that needs the API: no API server is healthy.
    fn has_no_healthy_api_server(&self) -> Option<BlockedBy> {
        let nodes = self.unhealthy_nodes(Component::ApiServer);
        let all = self.nodes_with_component(Component::ApiServer).count();
        (nodes.len() == all).then_some(BlockedBy::ApiServersUnhealthy { nodes })
    }

    /// The reason for which nothing else may restart: an API server is due or not healthy.
    fn api_server_blocker(&self) -> Option<BlockedBy> {
        let unhealthy = self.unhealthy_nodes(Component::ApiServer);
        if !unhealthy.is_empty() {
            return Some(BlockedBy::ApiServersUnhealthy { nodes: unhealthy });
        }
        let is_due = |node: &&Node| {
            self.component_status(Component::ApiServer, node).is_some_and(|state| {
                let verdict = self.input.wanted.compare_running_container(
                    Component::ApiServer,
                    node,
                    &state.container,
                    state.file(),
                );
                // Other components do not read the encryption keys.
                matches!(verdict, ComponentComparison::Outdated(why) if !has_only_earlier_keys(&why))
            })
        };
        let due = node_addresses(
            &self.nodes_with_component(Component::ApiServer).filter(is_due).collect::<Vec<_>>(),
        );
        (!due.is_empty()).then_some(BlockedBy::OneByOne { nodes: due })
    }

    /// The reason for which no kubelet or proxy may start: a running API server has another image, or serves with another minor
    /// version on a node without a known state.
    fn older_api_servers(&self) -> Option<BlockedBy> {
        if is_planted(Canary::KubeletFirst) {
            return None;
        }
        let status = self.input.status;
        let serves_other_minor = |node: &Node| {
            let served = status.versions.version_on(Component::ApiServer, &node.address);
            let versions = served.zip(status.wanted_version.as_ref());
            versions.is_some_and(|(served, wanted)| !served.is_same_minor(wanted))
        };
        let is_other = |node: &&Node| {
            self.component_status(Component::ApiServer, node)
                .is_some_and(|state| state.runs() && state.container.image != self.input.wanted.image)
                || (!self.is_reachable(node) && serves_other_minor(node))
        };
        let nodes = node_addresses(
            &self.nodes_with_component(Component::ApiServer).filter(is_other).collect::<Vec<_>>(),
        );
        (!nodes.is_empty()).then_some(BlockedBy::ApiServersFirst { nodes })
    }
}

/// The reason for which no wave may begin.
fn roll_obstacle(input: &KubernetesInput<'_>) -> Option<BlockedBy> {
    let addresses = |nodes: &BTreeMap<String, String>| nodes.keys().cloned().collect();
    let rollout = match input.rollout {
        Ok(rollout) => rollout?,
        Err(why) => return Some(BlockedBy::RollUnreadable { why: why.to_owned() }),
    };
    match rollout {
        rollout if rollout.paused => Some(BlockedBy::RollPaused),
        // Failures of another image do not count.
        rollout if rollout.image != input.wanted.image => None,
        rollout if rollout.halted => Some(BlockedBy::RollHalted { nodes: addresses(&rollout.failed) }),
        rollout if !rollout.watched.is_empty() => {
            let unchecked = input.status.unchecked_containers().cloned();
            Some(BlockedBy::WaveWatched { nodes: addresses(&rollout.watched), unchecked })
        }
        _ => None,
    }
}

/// Addresses of the API servers that failed after a start with the wanted image.
fn failed_servers(input: &KubernetesInput<'_>) -> Vec<String> {
    present_rollout(input).map(|rollout| rollout.failed_servers.keys().cloned().collect()).unwrap_or_default()
}

/// The roll to the wanted image. Failures of another image do not count.
fn present_rollout<'a>(input: &KubernetesInput<'a>) -> Option<&'a Rollout> {
    input.rollout.ok().flatten().filter(|rollout| rollout.image == input.wanted.image)
}

/// The reason for which a rotation of the encryption key stands still: an operator or failed nodes halt the roll of kubelets and
/// proxies.
pub(super) fn rotation_obstacle(input: &KubernetesInput<'_>) -> Option<BlockedBy> {
    roll_obstacle(input).filter(|reason| !matches!(reason, BlockedBy::WaveWatched { .. }))
}

/// True if a component is as wanted but for the encryption keys.
fn has_only_earlier_keys(why: &[Outdated]) -> bool {
    why.iter().all(|difference| *difference == Outdated::EncryptionKeys)
}

fn outdated_addresses(nodes: &[(&Node, Vec<Outdated>)]) -> Vec<String> {
    nodes.iter().map(|(node, _)| node.address.clone()).collect()
}

fn node_addresses(nodes: &[&Node]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

mod renewal;
#[cfg(test)]
mod tests;
mod waves;

pub use self::renewal::{Renewal, RenewalDecision, decide_renewal};
