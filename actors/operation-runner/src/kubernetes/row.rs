//! The row `k8s-start` of CKE's table of operations: components of Kubernetes start, and restart when they are outdated.

use std::borrow::Cow;
use std::collections::BTreeMap;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::cluster::Node;
use madako_domain::component::Component;
use madako_domain::node_status::{KubernetesAnswers, NodeStatus};
use madako_domain::status::OperationPhase;

use super::certificates::CertificateSubject;
use super::command::KubernetesCommand;
use super::decide::{Due, KubernetesInput, decide};
use super::files::FileContext;
use super::held::KubernetesBlockedBy;
use super::objects::endpoints::{EndpointsPlan, states_of_control_plane};
use super::objects::operation::update_commands;
use super::objects::row::healthy_servers;
use super::operation::{KubernetesOperationName as Name, commands};
use super::options::KubernetesOptions;
use super::outdated::Wanted;
use super::status::{ComponentStatus, KubernetesNode, KubernetesStatus};
use super::versions::{UnseenComponents, images_of_components, known_versions};
use crate::command::Command;
use crate::decide::Row;
use crate::held::{BlockedBy, Held};
use crate::input::{Input, KubernetesMode, KubernetesPart};
use crate::operation::{Operation, OperationName};
use crate::view::View;

/// Starts and restarts the components. While Kubernetes is only observed, each due operation is held.
pub(crate) fn row(view: &View<'_>, held: &mut Vec<Held>) -> Row {
    let part = view.input.kubernetes?;
    let options = match part.options {
        Ok(options) => options,
        Err(why) => {
            held.push(held_as_unusable(
                Name::KubeApiserverRestart,
                why.to_owned(),
                view.control_plane.clone(),
            ));
            return None;
        }
    };
    let wanted = wanted(view.input, options);
    let status = &view.kubernetes;
    let decision = decide(&kubernetes_input(view, &part, wanted, status));
    held.extend(decision.held.into_iter().map(Held::from));
    let mut operations = Vec::new();
    for due in decision.operations {
        let Due { name, targets, .. } = due;
        match operation(&wanted, status, name, &targets) {
            Ok(mut operation) => {
                withdraw_endpoints(view.input, &mut operation);
                operations.push(operation);
            }
            Err(why) => held.push(held_as_unusable(name, why.to_string(), targets)),
        }
    }
    if view.input.settings.kubernetes != KubernetesMode::Act {
        held.extend(operations.into_iter().map(|operation| Held {
            what: operation.name,
            reason: BlockedBy::Kubernetes(KubernetesBlockedBy::Observed),
            targets: operation.targets,
        }));
        return None;
    }
    (!operations.is_empty()).then_some((OperationPhase::K8sStart, operations))
}

/// The input of a decision on components.
pub(crate) fn kubernetes_input<'a>(
    view: &'a View<'_>,
    part: &'a KubernetesPart<'_>,
    wanted: Wanted<'a>,
    status: &'a KubernetesStatus<'a>,
) -> KubernetesInput<'a> {
    KubernetesInput {
        now: view.input.now,
        wanted,
        status,
        is_etcd_in_sync: view.is_good(),
        busy: part.busy,
        settling: part.settling,
        ending: part.ending,
        backing_off: view.input.backing_off,
        max_concurrent_updates: view.input.settings.max_concurrent_updates,
        rollout: part.rollout,
        minor_upgrade: view.input.settings.minor_upgrade,
        reboots: part.reboots,
        reboot_ends: part.reboot_ends,
    }
}

fn held_as_unusable(what: Name, why: String, targets: Vec<String>) -> Held {
    let reason = BlockedBy::Kubernetes(KubernetesBlockedBy::UnusableOptions { why });
    Held { what: OperationName::Kubernetes(what), reason, targets }
}

/// The wanted state of all components.
pub(crate) fn wanted<'a>(input: &Input<'a>, options: &'a KubernetesOptions) -> Wanted<'a> {
    Wanted { cluster: input.cluster, options, image: &input.settings.images.kubernetes }
}

fn operation(
    wanted: &Wanted<'_>,
    status: &KubernetesStatus<'_>,
    name: Name,
    targets: &[String],
) -> Result<Operation, serde_json::Error> {
    let nodes = || wanted.cluster.nodes.iter().filter(|node| targets.contains(&node.address));
    let registered: Vec<String> = nodes()
        .filter(|node| status.registered.as_ref().is_some_and(|names| names.contains(node.name())))
        .map(|node| node.name().to_owned())
        .collect();
    let mut found = Vec::new();
    if let Some(node) = nodes().next() {
        let about = FileContext {
            cluster: wanted.cluster,
            options: wanted.options,
            node,
            running: None,
            unknown: wanted.unknown_fields(),
        };
        found = commands(name, wanted.image, &about, &registered)?;
    }
    let commands = found.into_iter().map(Command::Kubernetes).collect();
    Ok(Operation::new(OperationName::Kubernetes(name), targets.to_vec(), commands))
}

/// Lets clients leave the API server that an operation restarts: its endpoints become not ready, and the proxies follow,
/// before it stops. The decision on objects makes them ready again once the server is healthy.
///
/// Nothing is added if no other API server serves, or if this one does not: its endpoints are not ready already.
pub(super) fn withdraw_endpoints(input: &Input<'_>, operation: &mut Operation) {
    let stops = |command: &Command| {
        matches!(command, Command::Kubernetes(KubernetesCommand::StopContainer(Component::ApiServer)))
    };
    let (Some(place), Some(part)) = (operation.commands.iter().position(stops), input.kubernetes) else {
        return;
    };
    if is_planted(Canary::EndpointsLeftReady) {
        return;
    }
    let answers = input.status.kubernetes.as_ref();
    // A target may have left the control plane.
    let serves =
        |address: &String| answers.is_some_and(|answers| answers.is_healthy(Component::ApiServer, address));
    let healthy = healthy_servers(input);
    let is_target = |address: &str| operation.targets.iter().any(|target| target == address);
    if !operation.targets.iter().any(serves) || healthy.iter().all(|address| is_target(address)) {
        return;
    }
    let servers = states_of_control_plane(input.cluster, |address| {
        healthy.contains(address) && !is_target(address) && !part.objects.leaving.contains(address)
    });
    let mut added: Vec<Command> =
        update_commands(&EndpointsPlan::for_api_servers(&servers)).into_iter().map(Command::Object).collect();
    added.push(Command::Kubernetes(KubernetesCommand::WaitForProxies));
    operation.commands.splice(place..place, added);
}

/// The state of Kubernetes' containers, from the states of nodes and the answers of components. Components on nodes without a
/// known state have the versions that API servers report.
pub(crate) fn status<'a>(input: &Input<'a>) -> KubernetesStatus<'a> {
    let nothing = KubernetesAnswers::default();
    let answers = input.status.kubernetes.as_ref().unwrap_or(&nothing);
    let rotation = input.kubernetes.and_then(|part| part.rotation.ok()?);
    let nodes = input.cluster.nodes.iter().filter_map(|node| {
        let state = input.status.nodes.get(&node.address)?;
        let mut on_node = of_node(node, state, answers);
        if let Some(server) = on_node.components.get_mut(&Component::ApiServer) {
            server.has_earlier_keys = rotation.is_some_and(|it| it.has_earlier_keys(&node.address));
        }
        Some((node.address.clone(), on_node))
    });
    let objects = answers.objects.as_ref().and_then(|objects| objects.nodes.as_ref());
    let unready = objects.into_iter().flatten().filter(|node| !node.is_ready).map(|node| node.name.clone());
    let present = images_of_components(input.cluster, &input.status.nodes);
    let mut versions = known_versions(present, &answers.image_versions);
    versions.merge(UnseenComponents::new(input.cluster, &input.status.nodes, Some(answers)).versions);
    KubernetesStatus {
        nodes: nodes.collect(),
        registered: answers.registered.clone(),
        unready: unready.collect(),
        versions,
        wanted_version: answers.image_versions.get(&input.settings.images.kubernetes).cloned(),
    }
}

fn of_node<'a>(node: &Node, state: &'a NodeStatus, answers: &KubernetesAnswers) -> KubernetesNode<'a> {
    let health = answers.health.get(&node.address);
    let component = |component: Component| {
        let container = Cow::Borrowed(state.containers.get(component.name())?);
        let leads = answers.leaders.get(&component).is_some_and(|holder| is_on(holder, node));
        let status = ComponentStatus {
            container,
            file: state.configurations.get(&component).map(|file| file.as_deref().map(Cow::Borrowed)),
            health: health.and_then(|health| health.get(&component)).cloned(),
            leads,
            ..ComponentStatus::default()
        };
        Some((component, status))
    };
    let components: BTreeMap<_, _> = Component::ALL.into_iter().filter_map(component).collect();
    let certificate = |subject: CertificateSubject| {
        Some((subject, state.kubernetes_certificates.get(subject.path())?.validity?))
    };
    let certificates = CertificateSubject::ALL.into_iter().filter_map(certificate).collect();
    let restarted = answers.restarted.get(&node.address).cloned();
    KubernetesNode { reachable: state.reachable, components, certificates, restarted }
}

/// True if the holder of a lease runs on the node: its identity is the name of the host, and a random part.
fn is_on(holder: &str, node: &Node) -> bool {
    let host = holder.rsplit_once('_').map_or(holder, |(host, _)| host);
    host == node.name() || host == node.address
}

impl KubernetesCommand {
    /// True if the command may end an API server.
    pub(crate) fn may_end_api_server(&self) -> bool {
        matches!(
            self,
            Self::StopContainer(Component::ApiServer)
                | Self::KillContainers(Component::ApiServer)
                | Self::RunContainer { component: Component::ApiServer, restart: true }
        )
    }
}
