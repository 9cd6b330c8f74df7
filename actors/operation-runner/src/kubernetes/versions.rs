//! The versions of Kubernetes' components: from the images of their containers, and the versions of these images. Components on
//! nodes without a known state have the versions that API servers report.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::node_status::{KubernetesAnswers, NodeStatus};
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

/// The components on nodes without a known state: a node whose container engine hangs, or that does not answer over SSH, may
/// serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnseenComponents {
    /// Addresses of the control plane nodes among these nodes.
    pub servers: BTreeSet<String>,
    /// Versions of the API servers that answered (major and minor), and of the kubelets that report to one.
    pub versions: Versions,
}

impl UnseenComponents {
    /// The components on all nodes of the cluster that are not reachable.
    #[must_use]
    pub fn new(
        cluster: &Cluster,
        nodes: &BTreeMap<String, NodeStatus>,
        answers: Option<&KubernetesAnswers>,
    ) -> Self {
        let is_unseen = |node: &&Node| nodes.get(&node.address).is_none_or(|status| !status.reachable);
        let unseen: Vec<&Node> = cluster.nodes.iter().filter(is_unseen).collect();
        let servers = unseen.iter().filter(|node| node.control_plane);
        let mut found = Self {
            servers: servers.map(|node| node.address.clone()).collect(),
            versions: Versions::default(),
        };
        let Some(answers) = answers.filter(|_| !unseen.is_empty()) else { return found };
        found.add_servers(&answers.server_versions);
        let by_name: BTreeMap<&str, &Node> = unseen.into_iter().map(|node| (node.name(), node)).collect();
        let objects = answers.objects.as_ref().and_then(|objects| objects.nodes.as_ref());
        for object in objects.into_iter().flatten() {
            if let (Some(node), Some(version)) = (by_name.get(object.name.as_str()), &object.kubelet_version)
            {
                found.versions.insert(Component::Kubelet, &node.address, version.clone());
            }
        }
        found
    }

    /// Adds the versions of the API servers among these answers, by address. A text that is no version is left out.
    pub fn add_servers(&mut self, answers: &BTreeMap<String, String>) {
        for (address, text) in answers.iter().filter(|(address, _)| self.servers.contains(*address)) {
            if let Ok(version) = text.parse::<KubernetesVersion>() {
                self.versions.insert(Component::ApiServer, address, version);
            }
        }
    }

    /// True if no version of an unseen component is known.
    #[must_use]
    pub fn has_no_version(&self) -> bool {
        self.versions.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::node_status::ContainerStatus;
    use madako_domain::objects::{NodeObject, ObjectAnswers};

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

    #[test]
    fn components_on_nodes_without_a_known_state_have_the_versions_that_api_servers_report() {
        let node = |address: &str, control_plane| Node {
            address: address.to_owned(),
            control_plane,
            ..Node::default()
        };
        let nodes = ["a", "b", "c"].map(|address| node(address, true)).into_iter();
        let nodes = nodes.chain([node("v", false), node("w", false)]).collect();
        let cluster = Cluster { nodes, ..Cluster::default() };
        let status = |reachable| NodeStatus { reachable, ..NodeStatus::default() };
        let states = [("a", true), ("b", false), ("v", true)];
        let states = states.map(|(address, reachable)| (address.to_owned(), status(reachable))).into();
        let object = |(name, version): (&str, &str)| NodeObject {
            name: name.to_owned(),
            kubelet_version: version.parse().ok(),
            ..NodeObject::default()
        };
        let objects = [("a", "v1.33.1"), ("b", "v1.33.1"), ("c", ""), ("v", "v1.32.1"), ("w", "v1.31.1")];
        let objects = ObjectAnswers { nodes: Some(objects.map(object).into()), ..ObjectAnswers::default() };
        // The API server of the dead node `c` does not answer, and the one on a worker is no configured one.
        let servers = [("a", "1.34"), ("b", "1.33+"), ("w", "1.30")];
        let answers = KubernetesAnswers {
            server_versions: servers.map(|(address, text)| (address.to_owned(), text.to_owned())).into(),
            objects: Some(objects),
            ..KubernetesAnswers::default()
        };
        let unseen = UnseenComponents::new(&cluster, &states, Some(&answers));
        assert_eq!(unseen.servers, ["b", "c"].map(str::to_owned).into());
        let mut expected = Versions::default();
        expected.insert(Component::ApiServer, "b", "1.33".parse().unwrap());
        expected.insert(Component::Kubelet, "b", "1.33.1".parse().unwrap());
        expected.insert(Component::Kubelet, "w", "1.31.1".parse().unwrap());
        assert_eq!(unseen.versions, expected);
        assert!(UnseenComponents::new(&cluster, &states, None).has_no_version());
    }
}
