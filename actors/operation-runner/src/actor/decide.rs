//! The decision on a collection, with the settings, records and failures that count for it.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::images::ImageName;
use madako_domain::keys;
use madako_domain::node_status::{EtcdVersion, KubernetesAnswers};
use madako_domain::reboot::RebootStatus;
use madako_domain::rollout::{Rollout, WatchEnd};
use madako_domain::state::ClusterState;
use madako_protocol::actors::Collected;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::collect::fleet_status;
use super::objects::with_failures;
use super::wave_watch::WaveWatch;
use super::{Inputs, RunnerState, madako_operations_decide_seconds};
use crate::early_ends::ComponentOnNode;
use crate::images::with_images;
use crate::input::{Input, KubernetesMode, KubernetesPart, ObjectsPart, RequestedRestore, Settings};
use crate::kubernetes::minor_upgrade::{
    MinorUpgrade, emptied_nodes, nodes_with_wanted_minor, request_drains,
};
use crate::kubernetes::rollout::{ReadyNodes, WatchedState, is_rolled_out, watched_state};
use crate::kubernetes::row;
use crate::limits::{API_SETTLED, GATE_DEADLINE};
use crate::stories::{StoryContext, describe_nodes};

/// The roll of kubelets and proxies. An unreadable key is not an absent key.
fn read_rollout(state: &ClusterState) -> Result<Option<&Rollout>, &str> {
    state.fault_of(keys::ROLLOUT).map_or(Ok(state.rollout.as_deref()), Err)
}

/// The rotation of the encryption key, in the same way.
fn read_rotation(state: &ClusterState) -> Result<Option<&EncryptionRotation>, &str> {
    state.fault_of(keys::ENCRYPTION_ROTATION).map_or(Ok(state.encryption_rotation.as_deref()), Err)
}

/// True if the roll may change. An image that is not known would end the roll and forget its halt.
fn has_roll(input: &Input<'_>) -> bool {
    let settings = input.settings;
    settings.kubernetes == KubernetesMode::Act
        && !settings.unclear_images.contains_key(&ImageName::Kubernetes)
}

impl RunnerState {
    pub(super) fn decide(&mut self, inputs: &Inputs, collected: &Collected) {
        let Some(mut status) = fleet_status(collected, &inputs.state, None) else {
            self.decision = None;
            self.drains = None;
            return;
        };
        let cluster = &*inputs.cluster;
        let settings = with_images(&self.given.settings, &inputs.state, cluster, &status);
        self.executor.images.clone_from(&settings.images);
        let version: Option<EtcdVersion> = {
            let versions = self.executor.versions.lock().unwrap_or_else(PoisonError::into_inner);
            versions.get(&settings.images.etcd).cloned()
        };
        status.etcd_image_version = version;
        if let Some(answers) = &mut status.kubernetes {
            let versions = self.executor.kubernetes_versions.lock().unwrap_or_else(PoisonError::into_inner);
            answers.image_versions.clone_from(&versions);
        }
        self.backing_off.retain(|address| cluster.nodes.iter().any(|node| node.address == address));
        let started = Instant::now();
        let now = self.given.clock.now();
        let valid = inputs.state.restarts.iter().filter(|(_, request)| request.is_valid(now));
        let restarts = valid.map(|(address, _)| address.clone()).collect();
        let is_under_way = inputs.state.is_restoring();
        let requested = inputs.state.restore.as_ref();
        let requested = requested.filter(|request| is_under_way || request.is_valid(now));
        let nothing = BTreeSet::new();
        let busy = inputs.state.repair.machines_under_way().map(str::to_owned).collect();
        let leaving = inputs.state.repair.leaving_machines().map(str::to_owned).collect();
        let reboot_ends = inputs.state.repair.records.reboot_ends();
        let settling = self.settling_nodes(cluster, collected);
        let ending = self.note_early_ends(inputs, &settings, collected);
        let is_removal_agreed = self.note_surplus(cluster, collected);
        let input = Input {
            cluster,
            options: &inputs.options,
            status: &status,
            now,
            backing_off: &self.backing_off.nodes_backing_off(started),
            restarts: &restarts,
            restore: requested.map(|request| RequestedRestore { request, is_under_way }),
            stale: inputs.state.restored.as_ref().map_or(&nothing, |restored| &restored.stale),
            authorities: collected
                .authorities
                .as_ref()
                .and_then(|ready| ready.as_ref().err())
                .map(String::as_str),
            kubernetes: inputs.kubernetes.as_ref().map(|read| KubernetesPart {
                options: read.as_ref().as_ref().map(|options| &**options).map_err(String::as_str),
                busy: &busy,
                settling: &settling,
                ending: &ending,
                rollout: read_rollout(&inputs.state),
                reboots: &inputs.state.repair.reboots,
                reboot_ends: &reboot_ends,
                rotation: read_rotation(&inputs.state),
                objects: ObjectsPart {
                    user: &inputs.resources,
                    leaving: &leaving,
                    is_guarded: inputs.state.guard.is_some(),
                    is_removal_agreed,
                    ..ObjectsPart::default()
                },
            }),
            settings: &settings,
        };
        if let Some(part) = input.kubernetes.filter(|_| settings.minor_upgrade == MinorUpgrade::InPlace) {
            let watched = part.rollout.ok().flatten().map(|rollout| &rollout.watched);
            let before = std::mem::take(&mut self.same_minor);
            self.same_minor = nodes_with_wanted_minor(cluster, &row::status(&input), watched, &before);
        }
        self.rollout = self.watch_wave(&input);
        if self.rollout.is_none() {
            // Without a roll, nothing wakes the actor for it.
            self.watch = WaveWatch::default();
        }
        let waves = self.rollout.take();
        self.rollout = self.watch_servers(&input, collected, waves);
        let decision = self.decide_on_objects(input, collected);
        let input = with_failures(input, self.objects.failed());
        self.drains = request_drains(&input, &decision.held, &inputs.state);
        madako_operations_decide_seconds().record(started.elapsed());
        let is_reachable = |address: &&String| status.nodes.get(*address).is_some_and(|node| node.reachable);
        let addresses = || cluster.nodes.iter().map(|node| &node.address);
        self.reachable_since.note(addresses().filter(is_reachable).cloned(), now.unix_timestamp());
        let unreachable = addresses().filter(|address| !is_reachable(address)).cloned();
        self.unreachable_since.note(unreachable, now.unix_timestamp());
        let since = |address: &str, is_reachable: bool| {
            let since = if is_reachable { &self.reachable_since } else { &self.unreachable_since };
            OffsetDateTime::from_unix_timestamp(since.time_of(&address.to_owned())?).ok()
        };
        let around = StoryContext {
            state: &inputs.state,
            decision: &decision,
            errors: &collected.errors,
            since: &since,
        };
        self.stories = Arc::new(describe_nodes(&input, &around));
        self.decision = Some(decision);
    }

    /// The roll after the newest look at the nodes of its present wave. `None`: there is no roll, or it is only observed.
    fn watch_wave(&mut self, input: &Input<'_>) -> Option<Rollout> {
        let part = input.kubernetes.filter(|_| has_roll(input))?;
        let (stored, options) = (part.rollout.ok()??, part.options.ok()?);
        let (wanted, status) = (row::wanted(input, options), row::status(input));
        let mut rollout = stored.for_image(wanted.image);
        let answers = input.status.kubernetes.as_ref().and_then(|answers| answers.objects.as_ref());
        let nodes = answers.and_then(|objects| objects.nodes.as_ref());
        let ready: Option<ReadyNodes<'_>> = nodes.map(|nodes| {
            let ready = nodes.iter().filter(|node| node.is_ready);
            ready.map(|node| (node.name.as_str(), node.reported_at)).collect()
        });
        let emptied = emptied_nodes(
            input.settings.minor_upgrade,
            part.reboots,
            input.cluster,
            status.registered.as_ref(),
        );
        // A node that is away for another reason is no failure of the roll.
        let requested = part.reboots.range(0..).map(|(_, item)| &item.value);
        let rebooting = requested.filter(|entry| entry.status == RebootStatus::Rebooting);
        let away: BTreeSet<&str> = rebooting.map(|entry| entry.node.as_str()).collect();
        let watched = input.cluster.nodes.iter().filter(|node| !away.contains(node.address.as_str()));
        let watched = watched.filter_map(|node| {
            let component: Component = rollout.watched.get(&node.address)?.parse().ok()?;
            let may_restart = match &emptied {
                Some(emptied) => emptied.contains(&node.address),
                // In place, containers may restart with another minor version alone.
                None => !self.same_minor.contains(&node.address),
            };
            let state = watched_state(&wanted, &status, ready.as_ref(), (component, node), may_restart);
            Some((node.address.clone(), state))
        });
        let states = watched.collect();
        let now = Instant::now();
        let ends = self.watch.note(rollout.watched.keys(), &states, now);
        let most = self.given.settings.max_concurrent_updates;
        let load = self.load.reason(self.watch.age(now), now);
        rollout.end_watches(&ends, most, input.cluster.nodes.len(), load.as_deref());
        for component in [Component::Kubelet, Component::Proxy] {
            let is_calm = rollout.waves.contains_key(component.name()) && rollout.watched.is_empty();
            if is_calm && is_rolled_out(&wanted, &status, component) {
                rollout.end_roll(component.name());
            }
        }
        // During a roll, each failed node counts for its halt. Afterwards, a node is no failure once it is good.
        let is_over = rollout.waves.is_empty() && rollout.watched.is_empty() && !rollout.halted;
        let failed = input.cluster.nodes.iter().filter(|node| rollout.failed.contains_key(&node.address));
        let components = [Component::Kubelet, Component::Proxy];
        let wanted_components = || components.into_iter().take(if options.is_proxy_disabled { 1 } else { 2 });
        let state = |node| {
            let of = |component| watched_state(&wanted, &status, ready.as_ref(), (component, node), true);
            wanted_components()
                .map(of)
                .find(|state| *state != WatchedState::Good)
                .unwrap_or(WatchedState::Good)
        };
        let states = failed.map(|node| (node.address.clone(), state(node))).collect();
        let recovered = self.recovering.note(rollout.failed.keys().filter(|_| is_over), &states, now);
        rollout
            .failed
            .retain(|node, _| states.contains_key(node) && recovered.get(node) != Some(&WatchEnd::Good));
        Some(rollout)
    }

    /// Adds to the roll the API servers that did not pass the gate in time after their start, and removes those that passed it
    /// after a later one.
    fn watch_servers(
        &mut self,
        input: &Input<'_>,
        collected: &Collected,
        waves: Option<Rollout>,
    ) -> Option<Rollout> {
        let part = input.kubernetes.filter(|_| has_roll(input))?;
        let (stored, image) = (part.rollout.ok()?, &input.settings.images.kubernetes);
        let before = waves.or_else(|| stored.map(|stored| stored.for_image(image)));
        let mut after = before.clone().unwrap_or_else(|| Rollout::new(image));
        let is_server = |address: &String| input.cluster.control_plane().any(|node| node.address == *address);
        let health = collected.kubernetes.as_ref().map(|answers| &answers.health);
        let fault = |address: &String| {
            let of_node = health.and_then(|health| health.get(address)?.get(&Component::ApiServer));
            let why = of_node.and_then(|checked| checked.as_ref().err());
            why.cloned().unwrap_or_else(|| "it does not run, or its node does not answer".to_owned())
        };
        let serving = &self.serving_since;
        self.started_servers.retain(|address, (since, _)| {
            let (passed, is_late) = (serving.contains_key(address), since.elapsed() >= GATE_DEADLINE);
            if passed {
                after.failed_servers.remove(address);
            } else if is_late {
                after.failed_servers.insert(address.clone(), fault(address));
            }
            !passed && !is_late && is_server(address)
        });
        after.failed_servers.retain(|address, _| is_server(address));
        (before.is_some() || !after.failed_servers.is_empty()).then_some(after)
    }

    /// The components whose next start waits.
    fn note_early_ends(
        &mut self,
        inputs: &Inputs,
        settings: &Settings,
        collected: &Collected,
    ) -> BTreeSet<ComponentOnNode> {
        let now = Instant::now();
        let revision = inputs.state.cluster.as_ref().map_or(0, |cluster| cluster.revision);
        if !settings.unclear_images.contains_key(&ImageName::Kubernetes) {
            self.early_ends.note_wanted(revision, &settings.images.kubernetes);
        }
        self.early_ends.retain(|address| inputs.cluster.nodes.iter().any(|node| node.address == address));
        let runs = |address: &str, component: Component| {
            let node = collected.nodes.get(address).filter(|node| node.reachable);
            node.map(|node| node.runs(component))
        };
        self.early_ends.note_states(runs, now);
        self.early_ends.pausing(now)
    }

    /// Nodes whose API server is not known to be healthy for [`API_SETTLED`].
    fn settling_nodes(&mut self, cluster: &Cluster, collected: &Collected) -> BTreeSet<String> {
        let now = Instant::now();
        let mut settling = BTreeSet::new();
        for node in cluster.control_plane() {
            let serves =
                |answers: &KubernetesAnswers| answers.is_healthy(Component::ApiServer, &node.address);
            if collected.kubernetes.as_ref().is_some_and(serves) {
                let since = *self.serving_since.entry(node.address.clone()).or_insert(now);
                if now - since < API_SETTLED {
                    settling.insert(node.address.clone());
                }
            } else {
                self.serving_since.remove(&node.address);
                settling.insert(node.address.clone());
            }
        }
        self.serving_since.retain(|address, _| cluster.control_plane().any(|node| node.address == *address));
        settling
    }
}
