//! The workflow of operations: it announces the first operation of a decision, starts its commands, and records their ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::certificate::NodeCertificate;
use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::keys;
use madako_domain::node_status::NodeStatus;
use madako_domain::repair::change::{RepairChange, RepairWrite};
use madako_domain::rollout::{Rollout, WatchEnd};
use madako_domain::state::ClusterState;
use madako_effects::{Action, AttemptEnd, Conclusion, Effect, EffectEvent, Evidence};
use madako_protocol::actors::{Mutation, OperationEnd};
use madako_protocol::event::Event;
use tokio::time::Instant;
use tracing::Span;

use super::execute::Basis;
use super::rest::KeptAnswers;
use super::{
    Inputs, RunnerState, collect, madako_operation_command_seconds, madako_operations_total, objects,
};
use crate::backing_off;
use crate::command::Command;
use crate::kubernetes::minor_upgrade::emptied_nodes;
use crate::kubernetes::operation::KubernetesOperationName;
use crate::kubernetes::versions::{PresentImages, UnseenComponents, present_images};
use crate::limits::COMMAND_LOST;
use crate::operation::{Operation, OperationName};
use crate::records::{self, AnnouncedStep, restoring};
use crate::restore;

/// A command of an operation with its basis.
#[derive(Clone)]
pub(crate) struct Announced {
    pub(super) step: AnnouncedStep,
    basis: Basis,
    span: Span,
}

impl Effect for Announced {
    type Outcome = OperationEnd;

    fn attempts(&self) -> u32 {
        1
    }

    fn attempt_limit(&self) -> Duration {
        COMMAND_LOST
    }

    fn pause_limit(&self) -> Duration {
        // There is no second attempt.
        Duration::ZERO
    }
}

impl RunnerState {
    /// Records the end of a command. Returns whether a change is under way.
    pub(super) fn settle_records(&mut self, inputs: &Inputs) -> bool {
        let state = &*inputs.state;
        self.resolve_announcement(state);
        let now = self.given.clock.now();
        if let Some((announced, conclusion)) = self.effects.conclusion() {
            let (step, basis, span) =
                (announced.step.clone(), announced.basis.clone(), announced.span.clone());
            let failure = failed_command(conclusion, &step.operation.targets);
            let failed = failure
                .as_ref()
                .map(|(nodes, why)| records::Failed { why: why.clone(), is_final: nodes.is_none() });
            if let Some((mut change, next)) = records::end(state, &step, failed.as_ref(), now) {
                if let Some(failure) =
                    failure.as_ref().filter(|_| component_of_wave(&step.operation).is_some())
                {
                    let (most, nodes) =
                        (self.given.settings.max_concurrent_updates, inputs.cluster.nodes.len());
                    let ends = failed_watches(&step.operation, failure);
                    let instant = Instant::now();
                    let load = self.load.reason(self.watch.age(instant), instant);
                    let end =
                        |rollout: &mut Rollout| rollout.end_watches(&ends, most, nodes, load.as_deref());
                    self.add_rollout(&mut change, state, end);
                }
                self.learn_outcome(&step, failure, next.is_some());
                let next = next.map(|step| Announced { step, basis, span });
                let action = self.effects.record(change, next, state.revision, Instant::now());
                self.perform_actions(action.into_iter().collect());
                return true;
            }
            self.effects.is_recorded();
        }
        let runs = self.effects.announced_effect().map(|announced| announced.step.record);
        let change = records::disown_interrupted_record(state, runs, now);
        match change.or_else(|| records::forget_restart(state, &inputs.cluster, now)) {
            Some(change) => self.send_change(change, state),
            None => false,
        }
    }

    /// Commits a change without an effect. Returns whether it is under way.
    pub(super) fn send_change(&mut self, change: RepairChange, state: &ClusterState) -> bool {
        let action = self.effects.send_change(change, state.revision, Instant::now());
        self.perform_actions(action.into_iter().collect());
        true
    }

    /// Ends the request of a restore that is refused, over or too old. Returns whether a change is under way.
    pub(super) fn settle_restore(&mut self, state: &ClusterState) -> bool {
        let etcd = self.collected.as_ref().and_then(|(_, collected)| collected.etcd.as_ref());
        let is_stale = |address: &str| state.restored.as_ref().is_some_and(|it| it.stale.contains(address));
        let address = state.restore.as_ref().map(|request| request.address.as_str());
        let is_done = address.is_some_and(|address| !is_stale(address) && restore::is_done(etcd, address));
        let now = self.given.clock.now();
        let refused = self.decision.as_ref().and_then(|decision| restoring::refuse_request(state, decision));
        match refused.or_else(|| restoring::forget_old_request(state, is_done, now)) {
            Some(change) if self.effects.announced_effect().is_none() => self.send_change(change, state),
            _ => false,
        }
    }

    /// Adds a change of the roll to the change of a record.
    fn add_rollout(&self, change: &mut RepairChange, state: &ClusterState, alter: impl FnOnce(&mut Rollout)) {
        let image = self.executor.images.kubernetes.as_str();
        let stored = state.rollout.as_deref();
        let mut rollout = stored.map_or_else(|| Rollout::new(image), |stored| stored.for_image(image));
        alter(&mut rollout);
        if stored != Some(&rollout) {
            change.conditions.push(state.require_unchanged(keys::ROLLOUT));
            change.writes.push(RepairWrite::Rollout(rollout));
        }
    }

    /// Stores what the newest look at the present wave showed. Returns whether a change is under way.
    pub(super) fn settle_rollout(&mut self, state: &ClusterState) -> bool {
        let Some(rollout) = self.rollout.take() else { return false };
        if state.rollout.as_deref() == Some(&rollout) || self.effects.announced_effect().is_some() {
            return false;
        }
        let change = RepairChange {
            what: "rollout",
            conditions: vec![state.require_unchanged(keys::ROLLOUT)],
            writes: vec![RepairWrite::Rollout(rollout)],
        };
        self.send_change(change, state)
    }

    /// Stores the drains that are requested or not wanted any more. Returns whether a change is under way.
    pub(super) fn settle_drains(&mut self, state: &ClusterState) -> bool {
        match self.drains.take() {
            Some(change) if self.effects.announced_effect().is_none() => self.send_change(change, state),
            _ => false,
        }
    }

    /// Takes the evidence of a newer state about an announcement whose commit was not answered.
    pub(super) fn resolve_announcement(&mut self, state: &ClusterState) {
        let Some(Announced { step, .. }) = self.effects.unconfirmed_announcement() else { return };
        let records = &state.repair.records;
        let evidence = match records.unfinished.get(&step.record) {
            Some(item) if step.is_announced_by(&item.value) => Evidence::Announced,
            None if !records.known.contains_key(&step.record) => Evidence::NotYet,
            // The first command of another operation, or an earlier command of this one, which the conclusion repeats.
            _ => Evidence::Never,
        };
        let actions = self.effects.observe(evidence, Instant::now());
        self.perform_actions(actions);
    }

    /// Counts a command, and leaves out the nodes on which it failed.
    fn learn_outcome(&mut self, step: &AnnouncedStep, failure: Option<FailedCommand>, goes_on: bool) {
        let operation = step.operation.name.name();
        let command = step.command();
        if matches!(
            step.operation.name,
            OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart)
        ) {
            self.serving_since.retain(|address, _| !step.operation.targets.contains(address));
        }
        // The collection before an effect does not describe the nodes after it, nor does its decision; the next one reads all
        // objects.
        self.kept = KeptAnswers::default();
        self.forget_object(command, failure.is_none());
        if let Some(decision) = self.decision.as_mut().filter(|_| !goes_on) {
            decision.operations.clear();
        }
        if let Command::Object(command) = command {
            objects::record_object_result(
                &mut self.objects,
                command,
                failure.as_ref(),
                self.given.clock.now(),
            );
        }
        let is_repeated = note_hold(&mut self.last_hold, (operation, goes_on), failure.as_ref());
        let (what, failed) = match failure {
            None if goes_on => (format!("{command} succeeded"), false),
            None => {
                self.note_starts(&step.operation);
                let of_nodes: Vec<String> = backing_off::names_on_targets(&step.operation).collect();
                let names = step.operation.targets.iter().chain(&of_nodes);
                self.backing_off.clear_failures(names.chain([&operation.to_owned()]));
                madako_operations_total(operation, "completed").increment(1);
                (format!("{command} succeeded, and the operation is complete"), false)
            }
            Some((nodes, why)) => {
                // An operation on an object backs off by its object.
                if let Some(nodes) =
                    nodes.filter(|_| !matches!(step.operation.name, OperationName::Object(_)))
                {
                    let nodes = backing_off::nodes_at_fault(&step.operation, command, &nodes);
                    let nodes =
                        backing_off::names_to_leave_out(&step.operation, self.nodes_of_cluster(nodes));
                    self.backing_off.record_failure(&nodes, &format!("{command}: {why}"), Instant::now());
                } else if is_repeated {
                    // The decision does not see the reason, and would begin the operation again in each pass.
                    let why = format!("{command}: {why}");
                    let left_out = backing_off::names_to_leave_out(&step.operation, Vec::new());
                    self.backing_off.record_failure(&left_out, &why, Instant::now());
                }
                madako_operations_total(operation, "cancelled").increment(1);
                (format!("{command} failed: {why}"), true)
            }
        };
        self.given.events.emit(Event::Operation { id: step.record, operation, what, failed });
    }

    /// Notes the starts of an operation, whose components may end soon or not become healthy.
    fn note_starts(&mut self, operation: &Operation) {
        let (now, Some(component)) = (Instant::now(), operation.started_component()) else { return };
        self.early_ends.note_starts(component, &operation.targets, now);
        if component == Component::ApiServer {
            let wanted = self.early_ends.wanted();
            for server in &operation.targets {
                // The time of a server that ends after each start counts from the first one with this wanted state.
                let first = self.started_servers.entry(server.clone());
                let first = first.or_insert_with(|| (now, wanted.clone()));
                if first.1 != *wanted {
                    *first = (now, wanted.clone());
                }
            }
        }
    }

    fn nodes_of_cluster(&self, addresses: &[String]) -> Vec<String> {
        let cluster = self.state.as_ref().and_then(|state| state.cluster.as_ref());
        let is_node = |address: &&String| {
            cluster.is_some_and(|cluster| cluster.value.nodes.iter().any(|node| node.address == **address))
        };
        addresses.iter().filter(is_node).cloned().collect()
    }

    /// Announces the first operation of the decision, unless a record is unfinished.
    pub(super) fn begin_operation(&mut self, inputs: &Inputs) {
        let Some(operation) = self.decision.as_ref().and_then(|decision| decision.operations.first()) else {
            return;
        };
        let now = self.given.clock.now();
        let Some((mut change, step)) = records::begin(&inputs.state, &Arc::new(operation.clone()), now)
        else {
            return;
        };
        if let Some(component) = component_of_wave(operation) {
            let nodes = &operation.targets;
            let begin = |rollout: &mut Rollout| rollout.begin_wave(component.name(), nodes);
            self.add_rollout(&mut change, &inputs.state, begin);
        }
        let span = tracing::info_span!("operation", operation = operation.name.name(), record = step.record);
        let basis = Basis {
            cluster: Arc::clone(&inputs.cluster),
            options: Arc::clone(&inputs.options),
            askable_nodes: collect::nodes_to_ask(&inputs.cluster, &inputs.state),
            certificates: Arc::new(self.target_certificates(operation)),
            kubernetes: inputs.kubernetes.as_ref().and_then(|read| read.as_ref().as_ref().ok().cloned()),
            kubelets: Arc::new(self.target_kubelets(operation)),
            component_images: Arc::new(self.component_images(&inputs.cluster)),
            unseen: Arc::new(self.unseen_components(&inputs.cluster)),
            emptied: emptied_nodes(
                self.given.settings.minor_upgrade,
                &inputs.state.repair.reboots,
                &inputs.cluster,
                self.collected.as_ref().and_then(|(_, found)| found.kubernetes.as_ref()?.registered.as_ref()),
            ),
            servers: self.servers_by_health(&inputs.cluster),
        };
        let (id, operation) = (step.record, operation.name.name());
        let gap = if is_gap(&step.operation, &inputs.cluster) {
            "; the API of Kubernetes does not answer meanwhile, since the cluster has one control plane node"
        } else {
            ""
        };
        let what = format!("begins on {}{gap}", step.operation.targets.join(", "));
        let keeps_collection = matches!(step.command(), Command::Object(_));
        let announced = Announced { step, basis, span };
        let action = self.effects.announce(change, announced, inputs.state.revision, Instant::now());
        if action.is_some() {
            self.given.events.emit(Event::Operation { id, operation, what, failed: false });
            if !keeps_collection {
                self.forget_collected();
            }
        }
        self.perform_actions(action.into_iter().collect());
    }

    fn target_certificates(
        &self,
        operation: &Operation,
    ) -> BTreeMap<String, BTreeMap<String, NodeCertificate>> {
        let nodes = self.collected.iter().flat_map(|(_, collected)| &collected.nodes);
        let targets = nodes.filter(|(address, _)| operation.targets.contains(address));
        targets.map(|(address, status)| (address.clone(), status.etcd_certificates.clone())).collect()
    }

    /// Addresses of API servers, healthy ones first.
    fn servers_by_health(&self, cluster: &Cluster) -> Vec<String> {
        let answers = self.collected.as_ref().and_then(|(_, collected)| collected.kubernetes.as_ref());
        let is_healthy = |address: &String| {
            answers.is_some_and(|answers| answers.is_healthy(Component::ApiServer, address))
        };
        let mut servers: Vec<String> = cluster.control_plane().map(|node| node.address.clone()).collect();
        servers.sort_by_key(|address| !is_healthy(address));
        servers
    }

    fn component_images(&self, cluster: &Cluster) -> PresentImages {
        let collected = self.collected.as_ref();
        collected.map(|(_, collected)| present_images(cluster, &collected.nodes)).unwrap_or_default()
    }

    fn unseen_components(&self, cluster: &Cluster) -> UnseenComponents {
        let collected = self.collected.as_ref();
        let unseen = collected.map(|(_, collected)| {
            UnseenComponents::new(cluster, &collected.nodes, collected.kubernetes.as_ref())
        });
        unseen.unwrap_or_default()
    }

    /// Configuration files of the kubelets that run on the targets.
    fn target_kubelets(&self, operation: &Operation) -> BTreeMap<String, String> {
        let nodes = self.collected.iter().flat_map(|(_, collected)| &collected.nodes);
        let targets = nodes.filter(|(address, _)| operation.targets.contains(address));
        let running = targets.filter(|(_, node)| node.runs(Component::Kubelet));
        let file = |node: &NodeStatus| node.configurations.get(&Component::Kubelet)?.clone();
        running.filter_map(|(address, node)| Some((address.clone(), file(node)?))).collect()
    }

    pub(super) fn perform_actions(&mut self, actions: Vec<Action<RepairChange, Announced>>) {
        for action in actions {
            match action {
                Action::Commit { number, change } => {
                    self.runner.commit(number, Mutation::Repair(Box::new(change)));
                }
                Action::Answered { result } => {
                    if let Err(error) = result {
                        let what = "operation";
                        self.given.events.emit(Event::CommitFailed { what, why: error.to_string() });
                    }
                }
                Action::Ask { number, effect } => effect.span.in_scope(|| self.runner.ask(number)),
                Action::Start { number, effect, .. } => self.start_command(number, effect),
                // No effect has a second attempt.
                Action::Pause { .. } | Action::Decide => {}
                Action::Abort => self.runner.abort(),
                Action::Record { effect, took } => {
                    let is_success = |(_, end): (_, &Conclusion<_>)| {
                        matches!(end, Conclusion::Ended(OperationEnd::Succeeded))
                    };
                    let failed = !self.effects.conclusion().is_none_or(is_success);
                    let outcome = if failed { "failed" } else { "succeeded" };
                    let command = effect.step.command().name();
                    madako_operation_command_seconds(command, outcome).record(took);
                }
                Action::Report { effect, left } => {
                    let record = effect.step.record;
                    tracing::warn!(record, ?left, "the next leader cancels the record of an operation");
                }
            }
        }
        self.runner.wake_at(self.effects.wake());
    }

    /// Executes a command. Each action in it takes a permit of its own.
    fn start_command(&mut self, number: u64, announced: Announced) {
        let executor = self.executor.clone();
        let Announced { step, basis, span } = announced;
        let _operation = span.entered();
        self.runner.carry_out(async move {
            let end = executor.execute(&step.operation, step.index, &basis).await;
            EffectEvent::Ended { number, end: AttemptEnd::Final(end) }
        });
    }
}

/// Notes the end of a command of an operation, which may go on. Returns whether the operation was held for the same reason the
/// last time.
pub(super) fn note_hold(
    last: &mut Option<(&'static str, String)>,
    (operation, goes_on): (&'static str, bool),
    failure: Option<&FailedCommand>,
) -> bool {
    if failure.is_none() && goes_on {
        return false;
    }
    let held = failure.filter(|(nodes, _)| nodes.is_none()).map(|(_, why)| (operation, why.clone()));
    let is_repeated = held.is_some() && *last == held;
    *last = held;
    is_repeated
}

/// True if no API server answers while the operation runs.
fn is_gap(operation: &Operation, cluster: &Cluster) -> bool {
    let restarts = OperationName::Kubernetes(KubernetesOperationName::KubeApiserverRestart);
    operation.name == restarts && cluster.control_plane().count() == 1
}

/// The nodes of a wave on which its operation failed. A wave that was held has restarted nothing; other nodes stay watched.
pub(super) fn failed_watches(
    operation: &Operation,
    (nodes, why): &FailedCommand,
) -> BTreeMap<String, WatchEnd> {
    let end = |target: &String| match nodes {
        None => Some(WatchEnd::Dropped),
        Some(nodes) => nodes.contains(target).then(|| WatchEnd::Failed(why.clone())),
    };
    operation.targets.iter().filter_map(|target| Some((target.clone(), end(target)?))).collect()
}

/// The component of a wave. A renewal that restarts a kubelet or proxy is a wave of one node.
pub(super) fn component_of_wave(operation: &Operation) -> Option<Component> {
    use KubernetesOperationName::{KubeProxyRestart, KubeletRestart};
    match operation.name {
        OperationName::Kubernetes(name @ (KubeletRestart | KubeProxyRestart)) => Some(name.component()),
        OperationName::KubernetesRenewCertificates => {
            operation.started_component().filter(|component| !component.is_of_control_plane())
        }
        _ => None,
    }
}

/// The failure of a command: the nodes on which it failed, or `None` if nothing backs off, and the reason.
pub(super) type FailedCommand = (Option<Vec<String>>, String);

/// The failure of a command. An operation that must be held leaves out no node.
fn failed_command(conclusion: &Conclusion<OperationEnd>, targets: &[String]) -> Option<FailedCommand> {
    match conclusion {
        Conclusion::Ended(OperationEnd::Succeeded) => None,
        Conclusion::Ended(OperationEnd::Failed { nodes, why }) => {
            Some((Some(nodes.iter().cloned().collect()), why.clone()))
        }
        Conclusion::Ended(OperationEnd::Held { why }) => Some((None, why.clone())),
        Conclusion::Withdrawn { why, .. } => Some((Some(Vec::new()), why.clone())),
        Conclusion::Unheard { limit } => Some((
            Some(targets.to_vec()),
            format!("outcome unknown: the command did not end within {limit:?}"),
        )),
    }
}
