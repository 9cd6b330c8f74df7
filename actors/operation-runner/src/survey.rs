//! One read of the state of all nodes and of etcd without the actors of an instance, for `madako ops plan`. Changes
//! nothing, and pins no host key.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::authority::Authority;
use madako_domain::cluster::{Cluster, Node};
use madako_domain::containers::{
    Container, ContainerOptions, ETCD_CLIENT_CA, ETCD_PEER, ETCD_PEER_CA, ETCD_SERVER,
};
use madako_domain::node_status::FleetStatus;
use madako_domain::skew::KubernetesVersion;
use madako_domain::state::ClusterState;
use madako_protocol::authorities::{Authorities, AuthorityError, RenewalReason};
use madako_protocol::node::{NodeAction, NodeDriver, NodeTarget};
use madako_protocol::permit::Permit;

use crate::RunnerPorts;
use crate::actor::collect::{FleetQuestion, fleet_status};
use crate::actor::execute::read_version;
use crate::actor::kubernetes::version_question;
use crate::certificates;
use crate::difference::DueFiles;
use crate::images::with_images;
use crate::input::{KubernetesMode, Settings};
use crate::kubernetes::objects::apply::ReadResources;
use crate::kubernetes::versions::{UnseenComponents, distinct_images, present_images};

pub struct SurveyAccess {
    pub driver: Arc<dyn NodeDriver>,
    /// Login and host key of each node.
    pub targets: BTreeMap<String, NodeTarget>,
    /// Permission to run the program of an image for its version.
    pub permit: Permit,
}

/// Reads the state of all nodes and of etcd, each once, and the version of the image of etcd if a member does not run it.
/// Also returns the settings with the images of this state, and the errors of nodes without a known state and of a version
/// that cannot be read, each with its node or image. The driver bounds the time.
///
/// `None`: the form of the stored cluster is unknown.
pub async fn survey_fleet(
    access: &SurveyAccess,
    ports: RunnerPorts,
    (cluster, options): (&Cluster, &ContainerOptions),
    state: &ClusterState,
    configured: &Settings,
) -> Option<(FleetStatus, Settings, Vec<(String, String)>)> {
    let asks_kubernetes = configured.kubernetes != KubernetesMode::Off;
    let user = asks_kubernetes.then(|| ReadResources::new(&state.resources));
    let question = FleetQuestion::from_state(cluster, options, state, user.as_ref());
    let collected = question
        .ask(ports, |address, volume| {
            let (driver, target) = (Arc::clone(&access.driver), access.targets.get(&address).cloned());
            async move {
                let target = target.ok_or("it is not a node of the cluster")?;
                let connection = driver.connect(&target).await.map_err(|error| error.to_string())?;
                connection.status(&volume).await.map_err(|error| error.to_string())
            }
        })
        .await;
    let mut status = fleet_status(&collected, state, None)?;
    let mut errors: Vec<(String, String)> = collected.errors.into_iter().collect();
    let settings = with_images(configured, state, cluster, &status);
    let etcd_image = &settings.images.etcd;
    if requires_known_version(cluster, &status, etcd_image) {
        let read = image_version(access, cluster, &status, etcd_image).await.and_then(|output| {
            read_version(&output).ok_or_else(|| format!("it names no version of etcd: {output:.100}"))
        });
        match read {
            Ok(version) => status.etcd_image_version = Some(version),
            Err(why) => {
                let why = format!(
                    "the version of etcd in {etcd_image} is unknown, so an image that is too old is not noticed: {why}"
                );
                errors.push((etcd_image.clone(), why));
            }
        }
    }
    if asks_kubernetes {
        let wanted = &settings.images.kubernetes;
        let (versions, unread) = kubernetes_versions(access, cluster, &status, wanted).await;
        errors.extend(unread);
        if let Some(answers) = &mut status.kubernetes {
            answers.image_versions = versions;
        }
    }
    Some((status, settings, errors))
}

/// The versions of Kubernetes' images, and the errors of images that components have. The wanted image is asked for only on
/// nodes that have it already. Fleets with one image need no version, unless one of a component on a node without a known state
/// is known.
async fn kubernetes_versions(
    access: &SurveyAccess,
    cluster: &Cluster,
    status: &FleetStatus,
    wanted: &str,
) -> (BTreeMap<String, KubernetesVersion>, Vec<(String, String)>) {
    let (mut versions, mut errors) = (BTreeMap::new(), Vec::new());
    let present = present_images(cluster, &status.nodes);
    let images = distinct_images(&present);
    let unseen = UnseenComponents::new(cluster, &status.nodes, status.kubernetes.as_ref());
    if unseen.has_no_version() && images.keys().all(|image| *image == wanted) {
        return (versions, errors);
    }
    let read = |image: &str, output: String| {
        KubernetesVersion::from_output(&output)
            .ok_or_else(|| format!("the image {image} names no version of Kubernetes: {output:.100}"))
    };
    for (image, (address, _)) in images {
        let output = ask_node(access, address, &version_question(image)).await;
        match output.and_then(|output| read(image, output)) {
            Ok(version) => drop(versions.insert(image.to_owned(), version)),
            Err(why) => errors.push((address.to_owned(), why)),
        }
    }
    if !versions.contains_key(wanted) {
        let output = ask_control_plane(access, cluster, status, &version_question(wanted)).await;
        // A node that lacks the image is not an error: the first operation pulls it.
        if let Ok(version) = output.and_then(|output| read(wanted, output)) {
            versions.insert(wanted.to_owned(), version);
        }
    }
    (versions, errors)
}

async fn ask_node(access: &SurveyAccess, address: &str, action: &NodeAction) -> Result<String, String> {
    let target = access.targets.get(address).ok_or("it is not a node of the cluster")?;
    let connection = access.driver.connect(target).await.map_err(|error| error.to_string())?;
    connection.act(&access.permit, action).await.map_err(|error| error.to_string())
}

/// True if the image may start a member, and the version of a member is known.
fn requires_known_version(cluster: &Cluster, status: &FleetStatus, image: &str) -> bool {
    let runs_it = |node: &Node| {
        let own = status.nodes.get(&node.address).and_then(|node| node.own_container(Container::Etcd));
        own.is_some_and(|own| own.running && own.image == image)
    };
    let members = status.etcd.iter().flat_map(|etcd| &etcd.members);
    members.into_iter().any(|member| member.version.is_some()) && !cluster.control_plane().all(runs_it)
}

/// Runs the program of the image of etcd for its version. Pulls nothing.
async fn image_version(
    access: &SurveyAccess,
    cluster: &Cluster,
    status: &FleetStatus,
    image: &str,
) -> Result<String, String> {
    let action = NodeAction::ImageVersion { image: image.to_owned(), program: None, pull: false };
    ask_control_plane(access, cluster, status, &action).await
}

/// The answer of the first control plane node that can give one.
async fn ask_control_plane(
    access: &SurveyAccess,
    cluster: &Cluster,
    status: &FleetStatus,
    action: &NodeAction,
) -> Result<String, String> {
    let mut why = "no control plane node answers".to_owned();
    let is_reachable = |node: &&Node| status.nodes.get(&node.address).is_some_and(|node| node.reachable);
    for node in cluster.control_plane().filter(is_reachable) {
        match ask_node(access, &node.address, action).await {
            Ok(output) => return Ok(output),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The files of etcd that the service would write, with the reasons: certificates for members that run, which are renewed,
/// and the files that the next start of a member would write.
///
/// # Errors
/// An authority cannot be read.
pub async fn due_files(
    authorities: &dyn Authorities,
    cluster: &Cluster,
    status: &FleetStatus,
) -> Result<DueFiles, AuthorityError> {
    let mut due = DueFiles::new();
    for node in cluster.control_plane() {
        let Some(state) = status.nodes.get(&node.address).filter(|state| state.reachable) else { continue };
        let known =
            |file: &str| state.etcd_certificates.get(file).map(|certificate| certificate.text.as_str());
        let mut found = BTreeMap::new();
        for (file, request) in [
            (ETCD_SERVER, certificates::server_certificate_request(node)),
            (ETCD_PEER, certificates::peer_certificate_request(node)),
        ] {
            let issuer = authorities.certificate(request.authority).await?;
            let why = match authorities.due(known(file), &issuer, &request) {
                None => continue,
                Some(RenewalReason::Missing) => {
                    "it is issued at the next start of etcd: it is missing or cannot be read"
                }
                Some(RenewalReason::Foreign) => {
                    "it is issued anew at the next start of etcd: another authority issued it, or it lacks a name"
                }
                Some(RenewalReason::Old) => "it is renewed: it ends soon",
            };
            found.insert(file.to_owned(), why.to_owned());
        }
        for (file, authority) in
            [(ETCD_PEER_CA, Authority::EtcdPeer), (ETCD_CLIENT_CA, Authority::EtcdClient)]
        {
            let certificate = authorities.certificate(authority).await?;
            if known(file).map(str::trim) != Some(certificate.trim()) {
                let why =
                    "it is written at the next start of etcd: it has not the certificate of its authority";
                found.insert(file.to_owned(), why.to_owned());
            }
        }
        if !found.is_empty() {
            due.insert(node.address.clone(), found);
        }
    }
    Ok(due)
}
