//! The objects on nodes, in etcd and in the store that the service would change, for `madako ops diff`.
//!
//! Guarantees: an empty list means that no operation is due, for these states; the reverse does not hold: a file that only
//! the next start of etcd would write is a difference without an operation.
//!
//! Does not: read Kubernetes objects, or the content of private keys, which no node reports.

use std::collections::BTreeMap;

use madako_domain::containers::{Container, ETCD_MARK, ServiceParams};
use madako_domain::keys;
use madako_domain::node_status::ConfigVersion;
use madako_domain::record::RecordStatus;
use serde::Serialize;

use crate::certificates;
use crate::input::Input;
use crate::outdated::reasons_to_restart;
use crate::view::{NodeView, View};
use crate::wanted::{self, InitialCluster};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Kind {
    Key,
    /// A node whose state is unknown.
    Node,
    Container,
    Volume,
    /// A certificate, with its private key.
    Certificate,
    File,
    Member,
}

/// An object that the service would change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// Address of the node; empty for an object of the whole cluster.
    pub node: String,
    pub kind: Kind,
    pub name: String,
    pub why: String,
}

/// The reasons to write files of etcd, by address, then by the name of the file.
pub type DueFiles = BTreeMap<String, BTreeMap<String, String>>;

/// All differences, in the order of the nodes.
#[must_use]
pub fn find_differences(input: &Input<'_>, due: &DueFiles) -> Vec<Difference> {
    let view = View::new(input);
    let mut found = Vec::new();
    let mut add = |node: &str, kind, name: &str, why: String| {
        found.push(Difference { node: node.to_owned(), kind, name: name.to_owned(), why });
    };
    if input.status.config_version != ConfigVersion::Two {
        add("", Kind::Key, keys::CONFIG_VERSION, "it becomes 2".to_owned());
    }
    let (rivers, etcd_rivers) =
        (wanted::rivers_parameters(input.cluster), wanted::etcd_rivers(input.cluster));
    for node in &view.nodes {
        if !node.status.reachable {
            let why = "it does not answer, and its state is unknown".to_owned();
            add(node.address, Kind::Node, node.address, why);
            continue;
        }
        for container in Container::ALL {
            let builtin = match container {
                Container::Rivers => &rivers,
                Container::EtcdRivers => &etcd_rivers,
                Container::Etcd => &wanted::etcd_parameters(node.address, InitialCluster::None),
            };
            for why in compare_container(&view, node, container, builtin) {
                add(node.address, Kind::Container, container.name(), why);
            }
        }
        let due = due.get(node.address);
        for (file, why) in due.into_iter().flatten() {
            let kind = if file.starts_with("ca-") { Kind::File } else { Kind::Certificate };
            add(node.address, kind, file, why.clone());
        }
        let is_told = |file: &&str| due.is_some_and(|due| due.contains_key(*file));
        for file in certificates::due_certificates(&view, node).filter(|file| !is_told(file)) {
            add(node.address, Kind::Certificate, file, "it is renewed: it ends soon".to_owned());
        }
        compare_volumes(&view, node, &mut add);
    }
    compare_members(&view, &mut add);
    found
}

fn compare_container(
    view: &View<'_>,
    node: &NodeView<'_>,
    container: Container,
    builtin: &ServiceParams,
) -> Vec<String> {
    let is_wanted = container == Container::Rivers || node.control_plane;
    let status = node.status.own_container(container);
    if node.status.is_foreign(container) {
        return if is_wanted { vec!["another program made it: it is held".to_owned()] } else { Vec::new() };
    }
    let is_etcd = container == Container::Etcd;
    match status.filter(|status| status.running) {
        Some(_) if is_etcd && view.is_stale(node.address) => {
            vec!["it is stopped: its data are older than the last restore".to_owned()]
        }
        Some(_) if !is_wanted => vec!["it is stopped: the node is not a control plane node".to_owned()],
        None if is_wanted => vec!["it is started".to_owned()],
        Some(status) => {
            let input = view.input;
            let found = reasons_to_restart(container, status, builtin, input.options, &input.settings.images);
            let mut why: Vec<String> = found.iter().map(|it| format!("it restarts: {it}")).collect();
            if is_etcd && input.restarts.contains(node.address) {
                why.push("it restarts: an operator asked for it".to_owned());
            }
            why
        }
        None => Vec::new(),
    }
}

/// Data of a former member whose removal did not end.
fn compare_volumes(view: &View<'_>, node: &NodeView<'_>, add: &mut impl FnMut(&str, Kind, &str, String)) {
    let is_left = !node.control_plane
        && view.input.status.interrupted_removals.contains(node.address)
        && !view.is_member(node.address);
    let volumes = [
        (node.status.etcd_data, view.input.options.etcd_volume.as_str()),
        (node.status.etcd_mark, ETCD_MARK),
    ];
    for (_, volume) in volumes.into_iter().filter(|(exists, _)| is_left && *exists) {
        add(node.address, Kind::Volume, volume, "it is removed: its member was removed".to_owned());
    }
}

fn compare_members(view: &View<'_>, add: &mut impl FnMut(&str, Kind, &str, String)) {
    if let Some(restore) = view.input.restore {
        let (address, path) = (&restore.request.address, &restore.request.path);
        add(address, Kind::Member, address, format!("it is restored from {path}: an operator asked for it"));
    }
    let bootstrap = view.input.status.bootstrap.as_ref();
    if bootstrap.is_some_and(|bootstrap| bootstrap.status != RecordStatus::Completed) {
        add("", Kind::Member, "etcd", "its bootstrap goes on: it was interrupted".to_owned());
    }
    if view.input.status.etcd.is_none() {
        add("", Kind::Member, "etcd", "it does not answer, and its members are unknown".to_owned());
        return;
    }
    for member in &view.members {
        let node = view.node_of_member(member).filter(|node| node.control_plane);
        let (address, name) = (&*member.address, &*member.address);
        let why = match node {
            None => Some("it is removed: its node is not a control plane node"),
            Some(_) if member.member.name.is_empty() => Some("it is added anew: it never started"),
            Some(_) if member.member.learner => Some("it gets its vote"),
            Some(_) if !member.member.is_in_sync() => Some("it is not in sync"),
            Some(_) => None,
        };
        if let Some(why) = why {
            add(address, Kind::Member, name, why.to_owned());
        }
        if node.is_some_and(|node| node.status.reachable && !node.status.etcd_mark) {
            add(address, Kind::Volume, ETCD_MARK, "it is created: the member is added".to_owned());
        }
    }
    for node in view.control_plane_nodes().filter(|node| !view.is_member(node.address)) {
        add(node.address, Kind::Member, node.address, "it is added".to_owned());
    }
}
