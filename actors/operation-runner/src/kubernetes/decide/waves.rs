//! Kubelets and proxies: starts, and restarts in waves.

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Node;
use madako_domain::component::Component;
use time::Duration;

use super::{
    BlockedBy, Name, NodesByState, Pass, node_addresses, outdated_addresses, present_rollout, roll_obstacle,
};
use crate::kubernetes::minor_upgrade;
use crate::kubernetes::status::ComponentStatus;
use crate::limits::REGISTERED;
use crate::outdated::Outdated;

impl Pass<'_> {
    /// True if the wanted version is of the minor version of each API server.
    fn has_minor_version_of_servers(&self) -> bool {
        let status = self.input.status;
        let is_same = |node: &Node| {
            let running = status.versions.version_on(Component::ApiServer, &node.address);
            running.zip(status.wanted_version.as_ref()).is_some_and(|(one, other)| one.is_same_minor(other))
        };
        self.nodes_with_component(Component::ApiServer).all(is_same)
    }

    pub(super) fn decide_kubelets(&mut self) {
        let (start, restart) = (Name::KubeletBootstrap, Name::KubeletRestart);
        let NodesByState { stopped, outdated, current } =
            self.sort_nodes_by_state(Component::Kubelet, (start, restart));
        // A kubelet whose Node object is gone registers only at its start.
        let lost: Vec<&Node> = match &self.input.status.registered {
            None => Vec::new(),
            Some(registered) => {
                let is_lost = |node: &&Node| !registered.contains(node.name()) && !self.is_registering(node);
                current.into_iter().filter(is_lost).collect()
            }
        };
        let backs_off = |node: &&Node| self.backs_off(restart, &node.address);
        let (resting, lost): (Vec<&Node>, Vec<&Node>) = lost.into_iter().partition(backs_off);
        self.hold(restart, BlockedBy::BackingOff, node_addresses(&resting));
        // A kubelet that did not register after its restart takes no wave from the others.
        let has_failed = |node: &&Node| !outdated.is_empty() && self.has_failed_in_roll(node);
        let (failed, lost): (Vec<&Node>, Vec<&Node>) = lost.into_iter().partition(has_failed);
        self.hold(restart, BlockedBy::Wave, node_addresses(&failed));
        match self.older_api_servers() {
            Some(reason) => self.hold(restart, reason, node_addresses(&lost)),
            None => self.add_wave(restart, lost.into_iter().map(|node| (node, Vec::new())).collect()),
        }
        // Without an API server no boot taint can be put onto a node that is registered (invariant I18).
        let is_blind =
            self.input.status.registered.is_none() && !self.input.wanted.options.boot_taints.is_empty();
        if is_blind {
            let nodes = self.unhealthy_nodes(Component::ApiServer);
            self.hold(start, BlockedBy::ApiServersUnhealthy { nodes }, node_addresses(&stopped));
        } else {
            self.add_starts(start, stopped);
        }
        let outdated =
            if self.is_roll_open() { self.hold_minor_upgrades(restart, outdated) } else { outdated };
        self.add_restarts_in_waves(restart, outdated);
    }

    fn has_failed_in_roll(&self, node: &Node) -> bool {
        present_rollout(self.input).is_some_and(|rollout| rollout.failed.contains_key(&node.address))
    }

    /// True if nothing but the present wave holds kubelets of another image: else, no node is drained for them yet.
    fn is_roll_open(&self) -> bool {
        self.older_api_servers().is_none()
            && self.api_server_blocker().is_none()
            && matches!(roll_obstacle(self.input), None | Some(BlockedBy::WaveWatched { .. }))
    }

    /// Holds the kubelets that would get another minor version on a node with pods, and returns the others.
    fn hold_minor_upgrades<'n>(
        &mut self,
        name: Name,
        nodes: Vec<(&'n Node, Vec<Outdated>)>,
    ) -> Vec<(&'n Node, Vec<Outdated>)> {
        let mut ready = Vec::new();
        let mut waiting: Vec<(BlockedBy, Vec<String>)> = Vec::new();
        for (node, why) in nodes {
            let changes = self.changes_minor_version(node);
            let obstacle = changes.then(|| minor_upgrade::obstacle(self.input, node)).flatten();
            let Some(reason) = obstacle else {
                ready.push((node, why));
                continue;
            };
            match waiting.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, nodes)) => nodes.push(node.address.clone()),
                None => waiting.push((reason, vec![node.address.clone()])),
            }
        }
        for (reason, nodes) in waiting {
            self.hold(name, reason, nodes);
        }
        ready
    }

    /// True if the kubelet runs at another minor version than the wanted one. The versions of images are not known at once
    /// after the start of a leader: a drain of an earlier leader tells, too, and the command that restarts a kubelet asks.
    fn changes_minor_version(&self, node: &Node) -> bool {
        let running = self.input.status.versions.version_on(Component::Kubelet, &node.address);
        match running.zip(self.input.status.wanted_version.as_ref()) {
            Some((running, wanted)) => !running.is_same_minor(wanted),
            None => self.input.reboots.range(..0).any(|(_, item)| item.value.node == node.address),
        }
    }

    /// True if the kubelet started a short time ago. Clocks of nodes may differ: a start in the future counts as old.
    fn is_registering(&self, node: &Node) -> bool {
        let started =
            self.component_status(Component::Kubelet, node).and_then(|state| state.container.started_at);
        started.is_some_and(|started| (Duration::ZERO..REGISTERED).contains(&(self.input.now - started)))
    }

    pub(super) fn decide_proxies(&mut self) {
        let (start, restart) = (Name::KubeProxyBootstrap, Name::KubeProxyRestart);
        if self.input.wanted.options.is_proxy_disabled {
            let runs = |node: &&Node| {
                let state = self.component_status(Component::Proxy, node).filter(|_| self.is_reachable(node));
                state.is_some_and(ComponentStatus::runs)
                    && !self.backs_off(Name::StopKubeProxy, &node.address)
            };
            let unwanted: Vec<&Node> = self
                .nodes_with_component(Component::Proxy)
                .filter(runs)
                .take(self.input.max_concurrent_updates)
                .collect();
            self.start(Name::StopKubeProxy, &unwanted);
            return;
        }
        let NodesByState { stopped, outdated, .. } =
            self.sort_nodes_by_state(Component::Proxy, (start, restart));
        self.add_starts(start, stopped);
        self.add_restarts_in_waves(restart, outdated);
    }

    /// Starts components. Those of another minor version than that of each API server wait for all API servers.
    fn add_starts(&mut self, name: Name, mut nodes: Vec<&Node>) {
        if let Some(reason) = self.older_api_servers().filter(|_| !self.has_minor_version_of_servers()) {
            self.hold(name, reason, node_addresses(&nodes));
            return;
        }
        let later = nodes.split_off(nodes.len().min(self.input.max_concurrent_updates));
        self.start(name, &nodes);
        self.hold(name, BlockedBy::Wave, node_addresses(&later));
    }

    /// Restarts outdated components. Another image waits for all API servers, and other differences only for those that
    /// run: a dead control plane node does not keep an argument from the others.
    fn add_restarts_in_waves(&mut self, name: Name, nodes: Vec<(&Node, Vec<Outdated>)>) {
        if let Some(reason) = self.older_api_servers() {
            self.hold(name, reason, outdated_addresses(&nodes));
            return;
        }
        let changes_image =
            |why: &[Outdated]| why.iter().any(|difference| matches!(difference, Outdated::Image { .. }));
        let (images, mut ready): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|(_, why)| changes_image(why));
        let waits = !images.is_empty() && !is_planted(Canary::KubeletFirst);
        match self.api_server_blocker().filter(|_| waits) {
            Some(reason) => self.hold(name, reason, outdated_addresses(&images)),
            None => ready.extend(images),
        }
        match self.has_no_healthy_api_server() {
            Some(reason) => self.hold(name, reason, outdated_addresses(&ready)),
            None => self.add_wave(name, ready),
        }
    }

    fn add_wave(&mut self, name: Name, mut nodes: Vec<(&Node, Vec<Outdated>)>) {
        if let Some(reason) = roll_obstacle(self.input) {
            self.hold(name, reason, outdated_addresses(&nodes));
            return;
        }
        // A node that is not Ready now may not be Ready after its restart either, and would count as failed. A node that failed
        // in this roll may fail again, and would end the wave of the others.
        nodes.sort_by_key(|(node, _)| {
            (self.has_failed_in_roll(node), self.input.status.unready.contains(node.name()))
        });
        let wave =
            self.input.rollout.ok().flatten().map_or(1, |rollout| rollout.wave_size(name.component().name()));
        let later = nodes.split_off(nodes.len().min(wave.min(self.input.max_concurrent_updates)));
        self.hold(name, BlockedBy::Wave, outdated_addresses(&later));
        self.restart(name, nodes, false);
    }
}
