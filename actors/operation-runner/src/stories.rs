//! The content of the page `/nodes`, for `madako node`: containers, etcd member, certificates and failures of each
//! node.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::Node;
use madako_domain::containers::Container;
use madako_domain::state::ClusterState;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::certificates;
use crate::decide::Decision;
use crate::input::Input;
use crate::kubernetes::certificates::{CertificateSubject, unreadable_certificates};
use crate::outdated::reasons_to_restart;
use crate::view::{NodeView, View};
use crate::wanted::{self, InitialCluster};

pub type NodeStories = BTreeMap<String, NodeStory>;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStory {
    pub hostname: String,
    pub control_plane: bool,
    pub reachable: bool,
    /// Time since which this instance has found the node reachable, or unreachable.
    #[serde(with = "time::serde::rfc3339::option")]
    pub since: Option<OffsetDateTime>,
    /// The reason why its state is unknown.
    pub error: Option<String>,
    pub host_key: Option<PinnedStory>,
    pub containers: BTreeMap<String, ContainerStory>,
    pub etcd: Option<MemberStory>,
    /// Of etcd, by the name of the file; of Kubernetes, by its path, unless Kubernetes is left to CKE.
    pub certificates: BTreeMap<String, CertificateStory>,
    /// Files with certificates of programs that run, whose end is unknown: they are never renewed.
    pub unreadable_certificates: Vec<String>,
    /// The node may have data of before the last restore of etcd.
    pub stale: bool,
    pub backing_off: bool,
    pub held: Vec<HeldStory>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinnedStory {
    pub fingerprint: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub pinned_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerStory {
    pub running: bool,
    pub image: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    /// Another program made it.
    pub foreign: bool,
    /// Differences from the wanted container.
    pub outdated: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStory {
    /// Decimal, since JSON has no numbers of 64 bits.
    pub id: String,
    pub learner: bool,
    /// `None`: unknown.
    pub in_sync: Option<bool>,
    pub version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateStory {
    #[serde(with = "time::serde::rfc3339")]
    pub not_before: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldStory {
    pub what: String,
    pub reason: String,
    pub why: String,
}

/// Facts for stories that the states of nodes lack.
pub(crate) struct StoryContext<'a> {
    pub(crate) state: &'a ClusterState,
    pub(crate) decision: &'a Decision,
    /// Errors of nodes without a known state.
    pub(crate) errors: &'a BTreeMap<String, String>,
    pub(crate) since: &'a dyn Fn(&str, bool) -> Option<OffsetDateTime>,
}

pub(crate) fn describe_nodes(input: &Input<'_>, around: &StoryContext<'_>) -> NodeStories {
    let view = View::new(input);
    let mut held: BTreeMap<&str, Vec<HeldStory>> = BTreeMap::new();
    for it in &around.decision.held {
        let (what, reason, why) = (it.what.to_string(), it.reason.name().to_owned(), it.reason.to_string());
        let story = HeldStory { what, reason, why };
        // An operation that waits for the whole of etcd names its nodes as targets.
        let targets: BTreeSet<&str> = it.targets.iter().map(String::as_str).collect();
        targets.into_iter().for_each(|target| held.entry(target).or_default().push(story.clone()));
    }
    let rivers = (wanted::rivers_parameters(input.cluster), wanted::etcd_rivers(input.cluster));
    let nodes = input.cluster.nodes.iter().zip(&view.nodes);
    let story = |(node, node_view): (&Node, &NodeView<'_>)| {
        let member = view.members.iter().find(|member| member.address == node_view.address);
        let pinned = around.state.host_keys.get(&node.address);
        let story = NodeStory {
            hostname: node.hostname.clone(),
            control_plane: node.control_plane,
            reachable: node_view.status.reachable,
            since: (around.since)(node_view.address, node_view.status.reachable),
            error: around.errors.get(node_view.address).cloned(),
            host_key: pinned.map(|(pinned, _)| PinnedStory {
                fingerprint: pinned.host_key.fingerprint.clone(),
                pinned_at: pinned.pinned_at,
            }),
            containers: container_stories(&view, node_view, &rivers),
            etcd: member.map(|it| MemberStory {
                id: it.member.id.to_string(),
                learner: it.member.learner,
                in_sync: it.member.in_sync,
                version: it.member.version.as_ref().map(ToString::to_string),
            }),
            certificates: certificate_stories(&view, node_view),
            unreadable_certificates: list_unreadable_parts(&view, node_view),
            stale: view.is_stale(node_view.address),
            backing_off: node_view.backs_off,
            held: held.get(node_view.address).cloned().unwrap_or_default(),
        };
        (node.address.clone(), story)
    };
    nodes.map(story).collect()
}

fn container_stories(
    view: &View<'_>,
    node: &NodeView<'_>,
    (rivers, etcd_rivers): &(
        madako_domain::containers::ServiceParams,
        madako_domain::containers::ServiceParams,
    ),
) -> BTreeMap<String, ContainerStory> {
    let story = |container: Container| {
        let status = node.status.containers.get(container.name())?;
        let builtin = match container {
            Container::Rivers => rivers,
            Container::EtcdRivers => etcd_rivers,
            Container::Etcd => &wanted::etcd_parameters(node.address, InitialCluster::None),
        };
        let (options, images) = (view.input.options, &view.input.settings.images);
        let counts = status.running && !status.foreign;
        let found =
            if counts { reasons_to_restart(container, status, builtin, options, images) } else { Vec::new() };
        let story = ContainerStory {
            running: status.running,
            image: status.image.clone(),
            started_at: status.started_at,
            foreign: status.foreign,
            outdated: found.iter().map(ToString::to_string).collect(),
        };
        Some((container.name().to_owned(), story))
    };
    Container::ALL.into_iter().filter_map(story).collect()
}

fn list_unreadable_parts(view: &View<'_>, node: &NodeView<'_>) -> Vec<String> {
    let of_etcd = certificates::unreadable_certificates(node.status).filter(|_| node.control_plane);
    let of_kubernetes = unreadable_certificates(node.status).filter(|_| view.input.kubernetes.is_some());
    of_etcd.chain(of_kubernetes.map(CertificateSubject::path)).map(str::to_owned).collect()
}

fn certificate_stories(view: &View<'_>, node: &NodeView<'_>) -> BTreeMap<String, CertificateStory> {
    let kubernetes = node.status.kubernetes_certificates.iter().filter(|_| view.input.kubernetes.is_some());
    let known = node.status.etcd_certificates.iter().chain(kubernetes);
    let valid = known.filter_map(|(file, certificate)| {
        let validity = certificate.validity?;
        Some((file.clone(), CertificateStory { not_before: validity.from, not_after: validity.to }))
    });
    valid.collect()
}
