//! The renewal of certificates, by the rule of etcd's certificates.
//!
//! # Guarantees
//! - One node at a time gets new certificates.
//! - Certificates that programs read anew are replaced while the programs run. Such a renewal waits for nothing: expired
//!   certificates may be the reason why a component is not healthy.
//! - A program that reads its certificate only at its start restarts, under the conditions of the roll. It needs a healthy
//!   API server in any case, and all others of the control plane unless its certificate has ended or it is not healthy.
//! - No API server restarts.

use madako_domain::certificate::Validity;
use madako_domain::cluster::Node;
use madako_domain::component::Component;
use madako_domain::skew::KubernetesVersion;

use super::{BlockedBy, KubernetesDecision, KubernetesInput, Pass};
use crate::kubernetes::certificates::{CertificateSubject, rereads_serving_certificate};
use crate::kubernetes::outdated::ComponentComparison;
use crate::limits::CLOCK_SKEW;

/// A renewal that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// Address of the node.
    pub target: String,
    /// Certificates to issue.
    pub subjects: Vec<CertificateSubject>,
    /// The component that restarts; `None`: none does.
    pub restart: Option<Component>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenewalDecision {
    pub renewal: Option<Renewal>,
    /// Nodes that wait for another reason than their turn.
    pub held: Vec<(BlockedBy, Vec<String>)>,
}

/// A component that restarts for its certificate.
struct DueRestart<'a> {
    node: &'a Node,
    component: Component,
    subjects: Vec<CertificateSubject>,
    /// Its certificate has ended, or it is not healthy: the restart takes nothing away.
    is_urgent: bool,
    leads: bool,
}

/// Decides on the next renewal.
#[must_use]
pub fn decide_renewal(input: &KubernetesInput<'_>) -> RenewalDecision {
    let pass = Pass { input, decision: KubernetesDecision::default() };
    let mut decision = RenewalDecision::default();
    pass.decide_files(&mut decision);
    for component in
        [Component::ControllerManager, Component::Scheduler, Component::Proxy, Component::Kubelet]
    {
        pass.decide_restarts(component, &mut decision);
    }
    decision
}

impl RenewalDecision {
    fn hold(&mut self, reason: BlockedBy, target: &str) {
        match self.held.iter_mut().find(|(held, _)| *held == reason) {
            Some((_, targets)) if targets.iter().any(|held| held == target) => {}
            Some((_, targets)) => targets.push(target.to_owned()),
            None => self.held.push((reason, vec![target.to_owned()])),
        }
    }
}

impl<'a> Pass<'a> {
    /// The certificate of a component that runs on a reachable node, if its end is known.
    fn certificate_in_use(&self, subject: CertificateSubject, node: &Node) -> Option<Validity> {
        let on_node = self.input.status.nodes.get(&node.address).filter(|on_node| on_node.reachable)?;
        on_node.components.get(&subject.component()).filter(|state| state.runs())?;
        on_node.certificates.get(&subject).copied()
    }

    /// Certificates that programs read anew. Another image or argument of the component does not matter.
    fn decide_files(&self, decision: &mut RenewalDecision) {
        for node in &self.input.wanted.cluster.nodes {
            let is_due = |subject: &CertificateSubject| {
                let validity =
                    self.certificate_in_use(*subject, node).filter(|_| !subject.is_in_kubeconfig());
                validity.is_some_and(|validity| validity.must_renew(self.input.now))
            };
            let subjects: Vec<_> = CertificateSubject::ALL.into_iter().filter(is_due).collect();
            if subjects.is_empty() {
                continue;
            }
            if self.input.backing_off.contains(&node.address) {
                decision.hold(BlockedBy::BackingOff, &node.address);
            } else if decision.renewal.is_none() {
                decision.renewal = Some(Renewal { target: node.address.clone(), subjects, restart: None });
            }
        }
    }

    fn decide_restarts(&self, component: Component, decision: &mut RenewalDecision) {
        let nodes = self.nodes_with_component(component);
        let mut due: Vec<DueRestart<'_>> =
            nodes.filter_map(|node| self.restart_for_certificate(component, node)).collect();
        due.sort_by_key(|due| (!due.is_urgent, due.leads));
        for DueRestart { node, component, subjects, is_urgent, .. } in due {
            let address = &node.address;
            let backs_off = self.input.backing_off.contains(address).then_some(BlockedBy::BackingOff);
            let has_turn = decision.renewal.is_none();
            let other = || has_turn.then(|| self.restart_obstacle(component, node, is_urgent)).flatten();
            let obstacle = backs_off.or_else(other);
            match obstacle {
                Some(reason) => decision.hold(reason, address),
                None if !has_turn => {}
                None => {
                    let restart = Some(component);
                    decision.renewal = Some(Renewal { target: address.clone(), subjects, restart });
                }
            }
        }
    }

    /// The restart of a component that is otherwise as wanted. The roll restarts the others.
    fn restart_for_certificate(&self, component: Component, node: &'a Node) -> Option<DueRestart<'a>> {
        let subject = CertificateSubject::ALL.into_iter().find(|subject| subject.component() == component)?;
        let validity = self.certificate_in_use(subject, node)?;
        let state = self.component_status(component, node)?;
        let now = self.input.now;
        let subjects = if subject.is_in_kubeconfig() {
            validity.must_renew(now).then(|| vec![subject])?
        } else {
            // The file has the new certificate already.
            self.serves_earlier_certificate(node, validity).then(Vec::new)?
        };
        let compared =
            self.input.wanted.compare_running_container(component, node, &state.container, state.file());
        (compared == ComponentComparison::Current).then(|| DueRestart {
            node,
            component,
            subjects,
            is_urgent: validity.to <= now || matches!(state.health, Some(Err(_))),
            leads: state.leads,
        })
    }

    /// True if the certificate in the file of a kubelet was issued after its start, and it does not read it anew. A node whose
    /// clock is behind the authority's has a start that seems to be earlier.
    fn serves_earlier_certificate(&self, node: &Node, validity: Validity) -> bool {
        let Some(kubelet) = self.component_status(Component::Kubelet, node) else { return false };
        let known = self.input.status.versions.version_on(Component::Kubelet, &node.address).cloned();
        let version = known.or_else(|| KubernetesVersion::guess_from_image(&kubelet.container.image));
        let started = kubelet.container.started_at;
        !rereads_serving_certificate(version.as_ref())
            && started.is_some_and(|started| started + CLOCK_SKEW < validity.from)
    }

    /// The reason for which a component may not restart now.
    fn restart_obstacle(&self, component: Component, node: &Node, is_urgent: bool) -> Option<BlockedBy> {
        let skew = || Some(BlockedBy::VersionSkew { skew: self.version_skew(component, node)? });
        if let Some(reason) = self.has_no_healthy_api_server().or_else(skew) {
            return Some(reason);
        }
        if !component.is_of_control_plane() {
            return super::roll_obstacle(self.input);
        }
        let control_plane = self.input.wanted.cluster.control_plane().map(|node| &node.address);
        let busy: Vec<String> =
            control_plane.filter(|address| self.input.busy.contains(*address)).cloned().collect();
        if !busy.is_empty() {
            return Some(BlockedBy::ControlPlaneBusy { nodes: busy });
        }
        if is_urgent {
            return None;
        }
        self.api_server_blocker().or_else(|| {
            let mut nodes = self.unhealthy_nodes(component);
            nodes.retain(|address| *address != node.address);
            (!nodes.is_empty()).then_some(BlockedBy::OneByOne { nodes })
        })
    }
}
