//! The versions of Kubernetes' components: from the images of their containers, and the versions of these images.

use std::collections::BTreeMap;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::node_status::NodeStatus;
use madako_domain::skew::{KubernetesVersion, Versions};

/// Images of components, by the addresses of their nodes.
pub type PresentImages = BTreeMap<Component, BTreeMap<String, String>>;

/// True if the cluster has the component on the node.
#[must_use]
pub fn is_component_of(component: Component, node: &Node) -> bool {
    node.control_plane || !component.is_of_control_plane()
}

/// The nodes with each component.
#[must_use]
pub fn nodes_by_component(cluster: &Cluster) -> BTreeMap<Component, Vec<String>> {
    let on = |component| {
        let nodes = cluster.nodes.iter().filter(move |node| is_component_of(component, node));
        nodes.map(|node| node.address.clone()).collect()
    };
    Component::ALL.into_iter().map(|component| (component, on(component))).collect()
}

/// The images of the components that count for the version policy: API servers, stopped ones too, and others that run.
/// Containers of other programs do not count.
#[must_use]
pub fn present_images(cluster: &Cluster, nodes: &BTreeMap<String, NodeStatus>) -> PresentImages {
    let mut images = PresentImages::new();
    for (component, address, image) in images_of_components(cluster, nodes) {
        images.entry(component).or_default().insert(address.to_owned(), image.to_owned());
    }
    images
}

/// The same images without copies: component, address and image.
pub fn images_of_components<'a>(
    cluster: &'a Cluster,
    nodes: &'a BTreeMap<String, NodeStatus>,
) -> impl Iterator<Item = (Component, &'a str, &'a str)> {
    let reachable = cluster.nodes.iter().filter_map(|node| {
        nodes.get(&node.address).filter(|status| status.reachable).map(|status| (node, status))
    });
    reachable.flat_map(|(node, status)| {
        let components = Component::ALL.into_iter().filter(|it| is_component_of(*it, node));
        components.filter_map(move |component| {
            let own = status.own_container(component);
            let own = own.filter(|own| own.running || component == Component::ApiServer)?;
            Some((component, node.address.as_str(), own.image.as_str()))
        })
    })
}

/// All images: component, address and image.
pub fn all_images(images: &PresentImages) -> impl Iterator<Item = (Component, &str, &str)> {
    images.iter().flat_map(|(component, nodes)| {
        nodes.iter().map(move |(address, image)| (*component, address.as_str(), image.as_str()))
    })
}

/// Each image once, with the address of a node that has it, and whether an API server has it.
#[must_use]
pub fn distinct_images(images: &PresentImages) -> BTreeMap<&str, (&str, bool)> {
    let mut distinct = BTreeMap::new();
    // API servers are the first component.
    for (component, nodes) in images {
        for (address, image) in nodes {
            let is_server = *component == Component::ApiServer;
            distinct.entry(image.as_str()).or_insert((address.as_str(), is_server));
        }
    }
    distinct
}

/// The versions of these images, as far as they are known.
#[must_use]
pub fn known_versions<'a>(
    images: impl Iterator<Item = (Component, &'a str, &'a str)>,
    known: &BTreeMap<String, KubernetesVersion>,
) -> Versions {
    let mut versions = Versions::default();
    for (component, address, image) in images {
        if let Some(version) = known.get(image) {
            versions.insert(component, address, version.clone());
        }
    }
    versions
}

#[cfg(test)]
mod tests {
    use madako_domain::node_status::ContainerStatus;

    use super::*;

    #[test]
    fn stopped_api_servers_count_and_other_stopped_components_do_not() {
        let node = |address: &str, control_plane| Node {
            address: address.to_owned(),
            control_plane,
            ..Node::default()
        };
        let cluster = Cluster { nodes: vec![node("a", true), node("w", false)], ..Cluster::default() };
        let container = |component: Component, image: &str, running, foreign| {
            let status =
                ContainerStatus { running, image: image.to_owned(), foreign, ..ContainerStatus::default() };
            (component.name().to_owned(), status)
        };
        let status = |containers: Vec<_>| NodeStatus {
            reachable: true,
            containers: containers.into_iter().collect(),
            ..NodeStatus::default()
        };
        let nodes = BTreeMap::from([
            (
                "a".to_owned(),
                status(vec![
                    container(Component::ApiServer, "k:1", false, false),
                    container(Component::Scheduler, "k:1", false, false),
                    container(Component::Kubelet, "k:2", true, false),
                    container(Component::Proxy, "k:3", true, true),
                ]),
            ),
            // An API server on a worker is about to be stopped, and serves no client.
            ("w".to_owned(), status(vec![container(Component::ApiServer, "k:0", true, false)])),
        ]);
        let images = present_images(&cluster, &nodes);
        assert_eq!(distinct_images(&images), BTreeMap::from([("k:1", ("a", true)), ("k:2", ("a", false))]));
        let known = BTreeMap::from([("k:2".to_owned(), "1.2".parse().unwrap())]);
        let versions = known_versions(images_of_components(&cluster, &nodes), &known);
        assert_eq!(versions.version_on(Component::Kubelet, "a").unwrap().to_string(), "1.2");
        assert_eq!(versions.version_on(Component::ApiServer, "a"), None);
    }
}
