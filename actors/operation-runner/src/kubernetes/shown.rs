//! The state of each component on each node, for the output of commands.

pub mod certificates;

use madako_domain::cluster::Node;
use madako_domain::component::Component;
use madako_json::named;
use serde::Serialize;

use super::options::KubernetesOptions;
use super::outdated::{ComponentComparison, Wanted};
use super::row;
use super::status::{ComponentStatus, KubernetesStatus};
use super::versions::is_component_of;
use crate::input::Input;

/// The state of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum State {
    /// It is healthy and as wanted.
    Good,
    /// It does not answer to its health check.
    Unhealthy,
    /// It differs from the wanted one.
    Outdated,
    /// It does not run.
    Stopped,
    /// Another program has a container of its name.
    Foreign,
    /// It runs although the options disable it.
    Unwanted,
    /// Its node does not answer.
    Unreachable,
}

named!(State);

/// A component on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownComponent {
    pub node: String,
    pub component: &'static str,
    pub state: State,
    /// The image of its container.
    pub image: Option<String>,
    /// The failed health check, and the differences from the wanted component.
    pub why: Vec<String>,
}

/// All components, in the order of the nodes, then of their start.
#[must_use]
pub fn components(input: &Input<'_>, options: &KubernetesOptions) -> Vec<ShownComponent> {
    let (wanted, status) = (row::wanted(input, options), row::status(input));
    let on_node = |node| {
        let of_node = Component::ALL.into_iter().filter(|it| is_component_of(*it, node));
        of_node
            .filter_map(|component| component_on(&wanted, &status, options, node, component))
            .collect::<Vec<_>>()
    };
    input.cluster.nodes.iter().flat_map(on_node).collect()
}

/// `None`: it is disabled, and does not run.
fn component_on(
    wanted: &Wanted<'_>,
    status: &KubernetesStatus<'_>,
    options: &KubernetesOptions,
    node: &Node,
    component: Component,
) -> Option<ShownComponent> {
    let on_node = status.nodes.get(&node.address).filter(|on_node| on_node.reachable);
    let found = on_node.and_then(|on_node| on_node.components.get(&component));
    let is_disabled = component == Component::Proxy && options.is_proxy_disabled;
    let mut why = Vec::new();
    let state = match (on_node, found) {
        (None, _) => State::Unreachable,
        (_, found) if is_disabled && !found.is_some_and(ComponentStatus::runs) => return None,
        (_, None) => State::Stopped,
        (_, Some(found)) if found.container.foreign => State::Foreign,
        (_, Some(found)) if !found.runs() => State::Stopped,
        _ if is_disabled => State::Unwanted,
        (_, Some(found)) => {
            match wanted.compare_running_container(component, node, &found.container, found.file()) {
                ComponentComparison::Current => {}
                ComponentComparison::Outdated(found) => why = found.iter().map(ToString::to_string).collect(),
                ComponentComparison::OtherRuntime { has, wanted } => {
                    why.push(format!(
                        "the container runtime is {has}, not {wanted}: a restart would end its pods"
                    ));
                }
            }
            let has_differences = !why.is_empty();
            match &found.health {
                Some(Ok(())) if has_differences => State::Outdated,
                Some(Ok(())) => State::Good,
                Some(Err(reason)) => {
                    why.insert(0, reason.clone());
                    State::Unhealthy
                }
                None => {
                    why.insert(0, "its health check gave no answer".to_owned());
                    State::Unhealthy
                }
            }
        }
    };
    let image = found.map(|found| found.container.image.clone()).filter(|image| !image.is_empty());
    Some(ShownComponent { node: node.address.clone(), component: component.name(), state, image, why })
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use madako_domain::cluster::Cluster;
    use madako_domain::images::ImageName;
    use madako_domain::node_status::ContainerStatus;
    use madako_json::go::RawJson;

    use super::super::params::builtin_parameters;
    use super::super::status::KubernetesNode;
    use super::*;

    fn options(text: &str) -> KubernetesOptions {
        KubernetesOptions::read(&RawJson::from_text(text.to_owned()).unwrap()).unwrap()
    }

    /// The state of a proxy on a worker, and the number of differences.
    fn proxy(options_text: &str, change: impl Fn(&mut KubernetesNode<'_>)) -> Option<(State, usize)> {
        let options = options(options_text);
        let node = Node { address: "10.0.0.1".to_owned(), ..Node::default() };
        let cluster = Cluster { nodes: vec![node.clone()], ..Cluster::default() };
        let image = ImageName::Kubernetes.default_image();
        let container = ContainerStatus {
            running: true,
            image: image.to_owned(),
            builtin: builtin_parameters(Component::Proxy, &cluster, &options, &node),
            ..ContainerStatus::default()
        };
        let container = Cow::Owned(container);
        let running = ComponentStatus { container, health: Some(Ok(())), ..ComponentStatus::default() };
        let components = BTreeMap::from([(Component::Proxy, running)]);
        let mut on_node = KubernetesNode { reachable: true, components, ..KubernetesNode::default() };
        change(&mut on_node);
        let nodes = BTreeMap::from([(node.address.clone(), on_node)]);
        let status = KubernetesStatus { nodes, ..KubernetesStatus::default() };
        let wanted = Wanted { cluster: &cluster, options: &options, image };
        let shown = component_on(&wanted, &status, &options, &node, Component::Proxy)?;
        Some((shown.state, shown.why.len()))
    }

    #[test]
    fn each_state_of_a_component_is_described() {
        fn of<'n, 'a>(on_node: &'n mut KubernetesNode<'a>) -> &'n mut ComponentStatus<'a> {
            on_node.components.get_mut(&Component::Proxy).unwrap()
        }
        assert_eq!(proxy("{}", |_| {}), Some((State::Good, 0)));
        assert_eq!(proxy("{}", |node| of(node).health = None), Some((State::Unhealthy, 1)));
        let fails = |node: &mut KubernetesNode<'_>| of(node).health = Some(Err("silence".to_owned()));
        assert_eq!(proxy("{}", fails), Some((State::Unhealthy, 1)));
        assert_eq!(
            proxy("{}", |node| of(node).container.to_mut().image = "a:1".to_owned()),
            Some((State::Outdated, 1))
        );
        assert_eq!(
            proxy("{}", |node| of(node).container.to_mut().running = false),
            Some((State::Stopped, 0))
        );
        assert_eq!(proxy("{}", |node| of(node).container.to_mut().foreign = true), Some((State::Foreign, 0)));
        assert_eq!(proxy("{}", |node| node.components.clear()), Some((State::Stopped, 0)));
        assert_eq!(proxy("{}", |node| node.reachable = false), Some((State::Unreachable, 0)));
        let disabled = r#"{"kube-proxy": {"disable": true}}"#;
        assert_eq!(proxy(disabled, |_| {}), Some((State::Unwanted, 0)));
        assert_eq!(proxy(disabled, |node| node.components.clear()), None);
    }
}
