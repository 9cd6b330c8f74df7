//! The plan of Kubernetes' components: what restarts and starts, in which order and in which waves, and how long it takes.
//!
//! The plan is the sequence of the runner's own decisions on a model of the fleet, in which each operation and each drain
//! succeeds. The model assumes that all obstacles that can go by themselves have gone: unhealthy components, busy nodes,
//! back-offs, etcd out of sync. The plan names those of the present beside the sequence.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::component::Component;
use madako_domain::encryption_rotation::RotationStage;
use madako_domain::node_status::{ContainerStatus, EtcdMember};
use madako_domain::reboot::config::RebootConfig;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::record::{Record, RecordStatus};
use madako_domain::repair::queue::{Item, Items};
use madako_domain::rollout::{Rollout, WatchEnd};
use madako_domain::skew::{KubernetesVersion, Skew, check_upgrade};
use serde::Serialize;
use time::OffsetDateTime;

use super::decide::{Due, KubernetesInput, decide};
use super::deprecated::RequestedApi;
use super::held::{KubernetesBlockedBy, KubernetesHeld};
use super::minor_upgrade::MinorUpgrade;
use super::operation::KubernetesOperationName as Name;
use super::options::KubernetesOptions;
use super::outdated::Wanted;
use super::params::builtin_parameters;
use super::row;
use super::shown::certificates::{CertificateState, certificates};
use super::shown::{State, components};
use super::status::{ComponentStatus, KubernetesNode, KubernetesStatus};
use super::versions::nodes_by_component;
use crate::early_ends::ComponentOnNode;
use crate::input::Input;
use crate::limits::{API_SETTLED, EXPECTED_OF_DRAINS, EXPECTED_OF_NODES, EXPECTED_OF_SERVERS, WAVE_GOOD};

static NO_REBOOTS: Items<RebootQueueEntry> = BTreeMap::new();
static NO_REBOOT_ENDS: BTreeMap<String, OffsetDateTime> = BTreeMap::new();
static NOTHING_ENDS: BTreeSet<ComponentOnNode> = BTreeSet::new();

/// Name of the steps in which the reboot queue drains nodes before their kubelets get another minor version.
pub const DRAIN: &str = "drain";

/// The seconds that operations took, by name, and those of a drain ([`DRAIN`]).
pub type Durations = BTreeMap<String, u64>;

/// A plan for all components.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ComponentsPlan {
    /// The image that all components get.
    pub image: String,
    /// The version of its program.
    pub version: Option<KubernetesVersion>,
    /// The version is a guess from the name of the image: no node has the image.
    pub is_guessed: bool,
    /// Components that change, in the order of the nodes.
    pub components: Vec<PlannedComponent>,
    /// Operations in their order.
    pub steps: Vec<Step>,
    /// Components that wait at present, and those that remain after all steps.
    pub held: Vec<PlannedHold>,
    /// Rules of the version policy that the image would break. With one, nothing of it is done.
    pub refused: Vec<Skew>,
    /// The sum of all steps and of the pauses after API servers and waves.
    pub expected_seconds: u64,
    /// Deprecated APIs that clients still request. The caller asks the API servers.
    pub deprecated_apis: Vec<RequestedApi>,
    /// Consequences that no step shows.
    pub notes: Vec<String>,
}

/// A component that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedComponent {
    pub node: String,
    pub component: &'static str,
    /// The state at present, as `madako kube status` shows it.
    pub state: &'static str,
    /// The image of its container.
    pub from_image: Option<String>,
    pub from_version: Option<KubernetesVersion>,
    pub to_image: String,
    pub to_version: Option<KubernetesVersion>,
    /// Differences from the wanted component.
    pub why: Vec<String>,
}

/// An operation of the plan, or the drain of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub number: usize,
    /// Name of the operation, or [`DRAIN`].
    pub operation: &'static str,
    pub nodes: Vec<String>,
    /// The number of the wave among the restarts of kubelets or proxies.
    pub wave: Option<usize>,
    /// No API server answers meanwhile.
    pub is_gap: bool,
    pub begins_after_seconds: u64,
    pub ends_after_seconds: u64,
}

/// Operations that wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedHold {
    pub operation: &'static str,
    pub reason: &'static str,
    pub nodes: Vec<String>,
    pub why: String,
    /// It remains after all steps: it does not go by itself.
    pub remains: bool,
}

impl ComponentsPlan {
    /// True if nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.components.is_empty() && self.steps.is_empty() && self.held.iter().all(|held| !held.remains)
    }

    /// Addresses of the nodes that are drained, in the order of the drains.
    #[must_use]
    pub fn drained_nodes(&self) -> Vec<String> {
        let drains = self.steps.iter().filter(|step| step.operation == DRAIN);
        drains.flat_map(|step| step.nodes.iter().cloned()).collect()
    }
}

/// The usual seconds of each operation: the median of the completed ones.
#[must_use]
pub fn usual_durations(records: &[Record]) -> Durations {
    let mut seconds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.status == RecordStatus::Completed) {
        let took = record.end_at.map(|end| (end - record.start_at).whole_seconds());
        if let Some(took) = took.and_then(|took| u64::try_from(took).ok()) {
            seconds.entry(record.operation.clone()).or_default().push(took);
        }
    }
    let median = |mut all: Vec<u64>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    seconds.into_iter().map(|(operation, all)| (operation, median(all))).collect()
}

/// Plans for the images of the input.
#[must_use]
pub fn plan(input: &Input<'_>, options: &KubernetesOptions, durations: &Durations) -> ComponentsPlan {
    let wanted = row::wanted(input, options);
    let mut status = row::status(input);
    let is_guessed = status.wanted_version.is_none();
    if is_guessed {
        status.wanted_version = KubernetesVersion::guess_from_image(wanted.image);
    }
    let version = status.wanted_version.clone();
    let refused = version
        .as_ref()
        .map(|version| check_upgrade(&status.versions, &nodes_by_component(input.cluster), version));
    let refused = refused.unwrap_or_default();
    let mut planner = Planner { input, wanted, durations, status, steps: Vec::new(), seconds: 0 };
    let components = planner.changed_components(options);
    let mut held = planner.held_at_present();
    if refused.is_empty() {
        held.extend(planner.play());
    }
    let notes = planner.notes(&components, is_guessed);
    ComponentsPlan {
        image: wanted.image.to_owned(),
        is_guessed: is_guessed && version.is_some(),
        version,
        components,
        steps: planner.steps,
        held,
        refused,
        expected_seconds: planner.seconds,
        deprecated_apis: Vec::new(),
        notes,
    }
}

/// The entry of a node that is drained for its kubelet.
fn drained_entry(index: i64, node: &str) -> Arc<Item<RebootQueueEntry>> {
    let value = RebootQueueEntry { index, status: RebootStatus::Drained, ..RebootQueueEntry::new(node) };
    Arc::new(Item { value, created: 0, revision: 0 })
}

struct Planner<'a> {
    input: &'a Input<'a>,
    wanted: Wanted<'a>,
    durations: &'a Durations,
    status: KubernetesStatus<'a>,
    steps: Vec<Step>,
    seconds: u64,
}

impl Planner<'_> {
    fn changed_components(&self, options: &KubernetesOptions) -> Vec<PlannedComponent> {
        let all = components(self.input, options).into_iter();
        // The container of a component on an unreachable node is not known: its operations are held.
        let changes = all.filter(|shown| {
            let is_other = shown.image.as_deref().is_some_and(|image| image != self.wanted.image);
            let is_unhealthy_only = shown.state == State::Unhealthy && shown.why.len() <= 1 && !is_other;
            !matches!(shown.state, State::Good | State::Unreachable) && !is_unhealthy_only
        });
        let planned = changes.map(|shown| {
            let component = shown.component.parse::<Component>().ok();
            let from_version =
                component.and_then(|it| self.status.versions.version_on(it, &shown.node)).cloned();
            PlannedComponent {
                node: shown.node,
                component: shown.component,
                state: shown.state.name(),
                from_image: shown.image,
                from_version,
                to_image: self.wanted.image.to_owned(),
                to_version: self.status.wanted_version.clone(),
                why: shown.why,
            }
        });
        planned.collect()
    }

    fn decision_input<'b>(
        &'b self,
        status: &'b KubernetesStatus<'b>,
        rollout: Result<Option<&'b Rollout>, &'b str>,
        nobody: &'b BTreeSet<String>,
        reboots: &'b Items<RebootQueueEntry>,
    ) -> KubernetesInput<'b> {
        KubernetesInput {
            now: self.input.now,
            wanted: self.wanted,
            status,
            is_etcd_in_sync: true,
            busy: nobody,
            settling: nobody,
            ending: &NOTHING_ENDS,
            backing_off: nobody,
            max_concurrent_updates: self.input.settings.max_concurrent_updates,
            rollout,
            minor_upgrade: self.input.settings.minor_upgrade,
            reboots,
            reboot_ends: self.input.kubernetes.map_or(&NO_REBOOT_ENDS, |part| part.reboot_ends),
        }
    }

    /// The entries of the reboot queue.
    fn reboots(&self) -> &Items<RebootQueueEntry> {
        self.input.kubernetes.map_or(&NO_REBOOTS, |part| part.reboots)
    }

    /// The operations that wait at present for another reason than their place in the order.
    fn held_at_present(&self) -> Vec<PlannedHold> {
        let nobody = BTreeSet::new();
        let busy = self.input.kubernetes.map_or(&nobody, |part| part.busy);
        let etcd = self.input.status.etcd.as_ref();
        let is_etcd_in_sync =
            etcd.is_some_and(|etcd| etcd.healthy && etcd.members.iter().all(EtcdMember::is_in_sync));
        let present = KubernetesInput {
            is_etcd_in_sync,
            busy,
            backing_off: self.input.backing_off,
            ..self.decision_input(
                &self.status,
                self.input.kubernetes.map_or(Ok(None), |part| part.rollout),
                &nobody,
                self.reboots(),
            )
        };
        let is_temporary = |reason: &KubernetesBlockedBy| {
            matches!(
                reason,
                KubernetesBlockedBy::ApiServersUnhealthy { .. }
                    | KubernetesBlockedBy::EtcdNotInSync
                    | KubernetesBlockedBy::ControlPlaneBusy { .. }
                    | KubernetesBlockedBy::BackingOff
                    | KubernetesBlockedBy::WaveWatched { .. }
                    | KubernetesBlockedBy::RollHalted { .. }
                    | KubernetesBlockedBy::RollPaused
                    | KubernetesBlockedBy::RollUnreadable { .. }
                    | KubernetesBlockedBy::DrainAborted { .. }
            )
        };
        let held = decide(&present).held.into_iter().filter(|held| is_temporary(&held.reason));
        held.map(|held| PlannedHold {
            operation: held.what.name(),
            reason: held.reason.name(),
            nodes: held.targets,
            why: held.reason.to_string(),
            remains: false,
        })
        .collect()
    }

    /// Plays the decisions until nothing is due. Returns what remains.
    fn play(&mut self) -> Vec<PlannedHold> {
        let mut model = self.status.clone();
        model.registered =
            Some(self.wanted.cluster.nodes.iter().map(|node| node.name().to_owned()).collect());
        for node in model.nodes.values_mut() {
            for component in node.components.values_mut() {
                component.health = component.runs().then_some(Ok(()));
            }
        }
        let nobody = BTreeSet::new();
        let (mut rollout, mut waves) = (Rollout::new(self.wanted.image), BTreeMap::<Name, usize>::new());
        let most = self.input.settings.max_concurrent_updates;
        // Each operation makes a component on a node as wanted, and each node is drained at most once.
        let bound = self.wanted.cluster.nodes.len() * (Component::ALL.len() + 1);
        // A drain that has not ended is a step of the plan. One whose kubelet is updated, or out of reach, has no further step.
        let mut reboots = self.reboots().clone();
        reboots.retain(|_, item| {
            let entry = &item.value;
            !entry.is_upgrade()
                || (entry.status == RebootStatus::Drained && self.has_old_kubelet(&entry.node))
        });
        let mut held = Vec::new();
        for _ in 0..=bound {
            let decision = decide(&self.decision_input(&model, Ok(Some(&rollout)), &nobody, &reboots));
            held = decision.held;
            let Some(due) = decision.operations.into_iter().next() else {
                let nodes = self.next_drained_nodes(&held, &reboots);
                if nodes.is_empty() {
                    break;
                }
                for (index, node) in (1..).zip(&nodes) {
                    reboots.insert(-index, drained_entry(-index, node));
                }
                self.add_step(DRAIN, nodes, None, false);
                continue;
            };
            let number = matches!(due.name, Name::KubeletRestart | Name::KubeProxyRestart).then(|| {
                let number = waves.entry(due.name).or_default();
                *number += 1;
                *number
            });
            if number.is_some() {
                rollout.begin_wave(due.name.component().name(), &due.targets);
                let good = due.targets.iter().map(|node| (node.clone(), WatchEnd::Good)).collect();
                rollout.end_watches(&good, most, self.wanted.cluster.nodes.len(), None);
            }
            self.carry_out(&mut model, &due);
            if due.name.component() == Component::Kubelet {
                let is_updated = |entry: &RebootQueueEntry| due.targets.contains(&entry.node);
                reboots.retain(|_, item| !item.value.is_upgrade() || !is_updated(&item.value));
            }
            self.add_step(due.name.name(), due.targets, number, due.is_gap);
        }
        let held = held.into_iter().map(|held| PlannedHold {
            operation: held.what.name(),
            reason: held.reason.name(),
            nodes: held.targets,
            why: held.reason.to_string(),
            remains: true,
        });
        held.collect()
    }

    /// True if the kubelet of the node runs with another image, as far as is known.
    fn has_old_kubelet(&self, address: &str) -> bool {
        let on_node = self.status.nodes.get(address).filter(|on_node| on_node.reachable);
        let kubelet = on_node.and_then(|on_node| on_node.components.get(&Component::Kubelet));
        kubelet.is_some_and(|kubelet| kubelet.container.image != self.wanted.image)
    }

    /// The nodes that the reboot queue drains at once for their kubelets: workers in its slots, then control plane nodes, one at
    /// a time. None while drained nodes wait for their kubelets.
    fn next_drained_nodes(&self, held: &[KubernetesHeld], reboots: &Items<RebootQueueEntry>) -> Vec<String> {
        if reboots.values().any(|item| item.value.is_upgrade()) {
            return Vec::new();
        }
        let is_drain = |held: &&KubernetesHeld| held.reason == KubernetesBlockedBy::DrainedFirst;
        let waiting: Vec<&String> = held.iter().filter(is_drain).flat_map(|held| &held.targets).collect();
        let cluster = self.wanted.cluster;
        let is_worker = |node: &&String| !cluster.control_plane().any(|member| member.address == **node);
        // The obstacles of the plan name a section that cannot be used.
        let slots = RebootConfig::read(&cluster.reboot).map_or(1, |config| config.max_concurrent);
        let slots =
            usize::try_from(slots).unwrap_or(usize::MAX).min(self.input.settings.max_concurrent_updates);
        let workers: Vec<&String> = waiting.iter().copied().filter(is_worker).collect();
        let next = if workers.is_empty() { (waiting, slots.min(1)) } else { (workers, slots) };
        next.0.into_iter().take(next.1).cloned().collect()
    }

    fn carry_out(&self, model: &mut KubernetesStatus<'_>, due: &Due) {
        let component = due.name.component();
        for node in self.wanted.cluster.nodes.iter().filter(|node| due.targets.contains(&node.address)) {
            let Some(KubernetesNode { components, .. }) = model.nodes.get_mut(&node.address) else {
                continue;
            };
            if due.name == Name::StopKubeProxy {
                components.remove(&component);
                continue;
            }
            let leads = components.get(&component).is_some_and(|present| present.leads);
            let (cluster, options) = (self.wanted.cluster, self.wanted.options);
            let container = ContainerStatus {
                running: true,
                image: self.wanted.image.to_owned(),
                builtin: builtin_parameters(component, cluster, options, node),
                extra: options.extra(component).clone(),
                ..ContainerStatus::default()
            };
            components.insert(
                component,
                ComponentStatus {
                    container: Cow::Owned(container),
                    health: Some(Ok(())),
                    leads,
                    ..ComponentStatus::default()
                },
            );
            if let Some(version) = &model.wanted_version {
                model.versions.insert(component, &node.address, version.clone());
            }
        }
    }

    fn add_step(&mut self, operation: &'static str, nodes: Vec<String>, wave: Option<usize>, is_gap: bool) {
        let name = operation.parse::<Name>().ok();
        let is_of_servers = name.is_some_and(|name| name.component() == Component::ApiServer);
        let guess = match name {
            None => EXPECTED_OF_DRAINS,
            Some(_) if is_of_servers => EXPECTED_OF_SERVERS,
            Some(_) => EXPECTED_OF_NODES,
        };
        let took = self.durations.get(operation).copied().unwrap_or(guess.as_secs());
        let begins = self.seconds;
        let pause = match (is_of_servers, wave) {
            (true, _) => API_SETTLED,
            (false, Some(_)) => WAVE_GOOD,
            (false, None) => Duration::ZERO,
        };
        self.seconds += took + pause.as_secs();
        self.steps.push(Step {
            number: self.steps.len() + 1,
            operation,
            nodes,
            wave,
            is_gap,
            begins_after_seconds: begins,
            ends_after_seconds: begins + took,
        });
    }

    fn notes(&self, components: &[PlannedComponent], is_guessed: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let image = self.wanted.image;
        match &self.status.wanted_version {
            None => notes.push(format!(
                "the version of {image} is not known, so that no rule about versions was asked: no node has the image, and its \
                 tag names no version"
            )),
            Some(version) if is_guessed && components.iter().any(|it| it.from_image.as_deref() != Some(image)) => {
                notes.push(format!(
                    "no node has the image {image}: its version {version} is a guess from its tag, and the leader asks its \
                     program before anything stops"
                ));
            }
            Some(_) => {}
        }
        let is_kubelet_of_other_minor = |it: &&PlannedComponent| {
            let versions = it.from_version.as_ref().zip(it.to_version.as_ref());
            it.component == Component::Kubelet.name()
                && versions.is_some_and(|(from, to)| !from.is_same_minor(to))
        };
        let kubelets = components.iter().filter(is_kubelet_of_other_minor).count();
        if kubelets > 0 {
            let treatment = match self.input.settings.minor_upgrade {
                MinorUpgrade::Drain => "each node is drained before, by the rules of the reboot queue",
                MinorUpgrade::InPlace => "no node is drained before",
                MinorUpgrade::OnReboot => "each restarts when its node boots",
            };
            notes.push(format!(
                "{kubelets} kubelets get another minor version, which may restart all containers on their nodes; {treatment}"
            ));
        }
        let stored = self.input.kubernetes.and_then(|part| part.rollout.ok()?);
        let of_image = stored.filter(|rollout| rollout.image == image && !self.steps.is_empty());
        if let Some((rollout, why)) = of_image.and_then(|rollout| Some((rollout, rollout.slowed.as_ref()?))) {
            notes.push(format!("a smaller wave follows (most nodes: {}): {why}", rollout.next_waves()));
        }
        let rotation = self.input.kubernetes.and_then(|part| part.rotation.ok()?);
        if let Some(rotation) = rotation.filter(|rotation| rotation.stage != RotationStage::Dropped) {
            notes.push(format!(
                "a rotation of the encryption key is under way (last step: {}): API servers restart after each further change of \
                 the keys",
                rotation.stage
            ));
        }
        notes.extend(self.due_certificates());
        if self.steps.iter().any(|step| step.is_gap) {
            notes.push("no API server answers while the only one restarts".to_owned());
        }
        notes
    }

    /// A note for each file of a certificate that ends soon on at least one node.
    fn due_certificates(&self) -> Vec<String> {
        let mut due: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for certificate in certificates(self.input) {
            if certificate.state == CertificateState::Due {
                due.entry(certificate.file).or_default().push(certificate.node);
            }
        }
        let note = |(file, nodes): (&str, Vec<String>)| {
            format!(
                "{file} ends soon on {} nodes, first {}: unless a step issues it anew, it is renewed after all steps \
                 (madako kube status shows how)",
                nodes.len(),
                nodes.first().map_or("", String::as_str)
            )
        };
        due.into_iter().map(note).collect()
    }
}
