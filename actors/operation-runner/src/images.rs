//! The container images that a reconcile pass uses: chosen from the key `madako/images`, the configuration, and the
//! containers of control plane nodes.

use std::collections::BTreeMap;

use madako_domain::cluster::{Cluster, Node};
use madako_domain::component::Component;
use madako_domain::images::{ChosenImage, FoundImage, ImageName, Source, choose_image, list_found};
use madako_domain::keys;
use madako_domain::node_status::{ContainerStatus, FleetStatus, NodeStatus};
use madako_domain::state::ClusterState;

use crate::input::{KubernetesMode, Settings};
use crate::kubernetes::objects::decide::ConfiguredDnsImages;

/// Images that cannot be chosen, each with the reason.
pub type UnclearImages = BTreeMap<ImageName, String>;

/// Settings with the images of this pass.
#[must_use]
pub fn with_images(
    settings: &Settings,
    state: &ClusterState,
    cluster: &Cluster,
    status: &FleetStatus,
) -> Settings {
    let mut chosen = settings.clone();
    chosen.unclear_images.clear();
    let mut set = |name: ImageName, image: &mut String| {
        if let Some(why) = state.fault_of(keys::IMAGES) {
            chosen.unclear_images.insert(name, format!("the key {} cannot be read: {why}", keys::IMAGES));
            return;
        }
        match choose_image(
            name,
            &state.images,
            &settings.configured_images,
            &images_on_nodes(name, cluster, status),
        ) {
            ChosenImage::Image(_, Source::Default) if is_control_plane_silent(cluster, status) => {
                let why = "most control plane nodes do not answer, and none of the others has an image";
                chosen.unclear_images.insert(name, why.to_owned());
            }
            ChosenImage::Image(given, _) => *image = given,
            ChosenImage::Unclear(found) => {
                chosen.unclear_images.insert(name, list_found(&found));
            }
        }
    };
    set(ImageName::Etcd, &mut chosen.images.etcd);
    set(ImageName::Tools, &mut chosen.images.tools);
    if settings.kubernetes != KubernetesMode::Off {
        set(ImageName::Kubernetes, &mut chosen.images.kubernetes);
        let given =
            |name| state.images.0.get(&name).or_else(|| settings.configured_images.0.get(&name)).cloned();
        chosen.images.dns = ConfiguredDnsImages {
            coredns: given(ImageName::Coredns),
            unbound: given(ImageName::Unbound),
            unbound_exporter: given(ImageName::UnboundExporter),
        };
    }
    chosen
}

/// True if half of the control plane nodes or more do not answer: they may have another image than CKE's default.
fn is_control_plane_silent(cluster: &Cluster, status: &FleetStatus) -> bool {
    let answers = |node: &&Node| status.nodes.get(&node.address).is_some_and(|state| state.reachable);
    2 * cluster.control_plane().filter(answers).count() <= cluster.control_plane().count()
}

/// The images that containers of control plane nodes have: of those that run, or if none runs, of those that stopped, for
/// example after a power cycle. Containers of other programs do not count.
#[must_use]
pub fn images_on_nodes(name: ImageName, cluster: &Cluster, status: &FleetStatus) -> FoundImage {
    let running = nodes_using_image(name, cluster, status, |container| container.running);
    if running.is_empty() { nodes_using_image(name, cluster, status, |_| true) } else { running }
}

fn nodes_using_image(
    name: ImageName,
    cluster: &Cluster,
    status: &FleetStatus,
    counts: impl Fn(&ContainerStatus) -> bool,
) -> FoundImage {
    let mut found = FoundImage::new();
    for node in cluster.control_plane() {
        let Some(state) = status.nodes.get(&node.address).filter(|state| state.reachable) else { continue };
        for container in
            containers_with_image(name, state).filter(|container| !container.foreign && counts(container))
        {
            found.entry(container.image.clone()).or_default().insert(node.address.clone());
        }
    }
    found
}

fn containers_with_image(name: ImageName, state: &NodeStatus) -> impl Iterator<Item = &ContainerStatus> {
    state
        .containers
        .iter()
        .filter(move |(container, _)| match name {
            ImageName::Etcd => *container == "etcd",
            ImageName::Tools => ["rivers", "etcd-rivers"].contains(&container.as_str()),
            ImageName::Kubernetes => container.parse::<Component>().is_ok(),
            // Pods have these.
            ImageName::Pause | ImageName::Coredns | ImageName::Unbound | ImageName::UnboundExporter => false,
        })
        .map(|(_, status)| status)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use madako_domain::images::GivenImages;
    use madako_domain::node_status::ConfigVersion;

    use super::*;

    const NODES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

    fn cluster() -> Cluster {
        let node =
            |address: &str| Node { address: address.to_owned(), control_plane: true, ..Node::default() };
        Cluster { nodes: NODES.map(node).to_vec(), ..Cluster::default() }
    }

    /// The image of etcd on each node, and whether it runs.
    fn status(images: [Option<(&str, bool)>; 3]) -> FleetStatus {
        let node = |image: Option<(&str, bool)>| {
            let container = image.map(|(image, running)| {
                let status =
                    ContainerStatus { running, image: image.to_owned(), ..ContainerStatus::default() };
                ("etcd".to_owned(), status)
            });
            NodeStatus {
                reachable: true,
                containers: container.into_iter().collect(),
                ..NodeStatus::default()
            }
        };
        FleetStatus {
            config_version: ConfigVersion::Two,
            nodes: NODES
                .iter()
                .zip(images)
                .map(|(address, image)| ((*address).to_owned(), node(image)))
                .collect(),
            etcd: None,
            bootstrap: None,
            interrupted_removals: BTreeSet::new(),
            etcd_image_version: None,
            kubernetes: None,
        }
    }

    fn etcd(status: &FleetStatus, state: &ClusterState) -> Result<String, String> {
        let settings = with_images(&Settings::default(), state, &cluster(), status);
        match settings.unclear_images.get(&ImageName::Etcd) {
            None => Ok(settings.images.etcd),
            Some(why) => Err(why.clone()),
        }
    }

    #[test]
    fn nodes_that_run_one_image_keep_it_and_a_new_node_gets_it() {
        let state = ClusterState::default();
        let all = status([Some(("a:1", true)), Some(("a:1", true)), None]);
        assert_eq!(etcd(&all, &state).unwrap(), "a:1");
        let none = status([None, None, None]);
        assert_eq!(etcd(&none, &state).unwrap(), ImageName::Etcd.default_image());
    }

    #[test]
    fn the_default_is_not_chosen_while_most_nodes_may_have_another_image() {
        let mut state = ClusterState::default();
        let mut silent = status([Some(("a:1", true)), Some(("a:1", true)), None]);
        let mut silence = |address: &str| silent.nodes.get_mut(address).unwrap().reachable = false;
        silence("10.0.0.1");
        assert_eq!(etcd(&silent, &state).unwrap(), "a:1");
        silent.nodes.remove("10.0.0.2");
        let why = "most control plane nodes do not answer, and none of the others has an image";
        assert_eq!(etcd(&silent, &state).unwrap_err(), why);
        state.images = Arc::new(GivenImages::from_yaml("etcd: b:1").unwrap());
        assert_eq!(etcd(&silent, &state).unwrap(), "b:1", "a given image needs no node");
    }

    #[test]
    fn stopped_containers_count_only_while_none_runs() {
        let state = ClusterState::default();
        let one = status([Some(("a:1", true)), Some(("b:1", false)), None]);
        assert_eq!(etcd(&one, &state).unwrap(), "a:1");
        let stopped = status([Some(("a:1", false)), Some(("a:1", false)), None]);
        assert_eq!(etcd(&stopped, &state).unwrap(), "a:1", "after a power cycle");
    }

    #[test]
    fn nodes_with_different_images_are_listed() {
        let state = ClusterState::default();
        let differ = status([Some(("a:1", true)), Some(("b:1", true)), Some(("a:1", true))]);
        assert_eq!(etcd(&differ, &state).unwrap_err(), "a:1 on 10.0.0.1, 10.0.0.3; b:1 on 10.0.0.2");
    }

    #[test]
    fn an_unreadable_key_does_not_count_as_absent() {
        let mut state = ClusterState::default();
        state.faults.push(madako_domain::state::Fault { key: keys::IMAGES.to_owned(), why: "x".to_owned() });
        let all = status([Some(("a:1", true)), None, None]);
        assert_eq!(etcd(&all, &state).unwrap_err(), "the key madako/images cannot be read: x");
    }
}
