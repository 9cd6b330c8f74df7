//! The rules of a valid cluster configuration: those of CKE's `Cluster.Validate` (release line 1.30) and of its
//! `docs/cluster.md`. Every violation is reported.
//!
//! Guarantees: CKE 1.30 accepts a configuration that passes (`docs/decisions/strict-input.md` says where these rules
//! are stricter).
//! Does not: enforce the documents' rule on reserved names; CKE does not either.

mod cni;
mod free_form;
pub(crate) mod names;
mod net;
mod node;
mod options;
mod selector;
mod warnings;

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::options::StoredOptions;
use crate::reboot::config::StoredReboot;
use crate::repair::config::Stored;
use madako_json::go::RawJson;
use madako_json::input::Problems;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{HasSchema as _, Path, Schema, SchemaWalk, UnknownFieldPolicy};

pub(crate) use node::check_taint;
pub(crate) use warnings::warnings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterForm {
    /// Nodes have addresses, all different.
    Cluster,
    /// Nodes have no addresses yet.
    Template,
}

/// Checks a configuration. Unknown fields are allowed.
pub(crate) fn check_configuration(cluster: &Cluster, form: ClusterForm, problems: &mut Problems) {
    if cluster.name.is_empty() {
        problems.add("name", "", "a name");
    }
    let mut addresses = BTreeSet::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        node::check_node(node, form, &Path::Root.field("nodes").item(index), problems);
        if form == ClusterForm::Cluster
            && !node.address.is_empty()
            && !addresses.insert(node.address.as_str())
        {
            problems.add(
                Path::Root.field("nodes").item(index).field("address"),
                shown_text(&node.address),
                "an address that no other node has",
            );
        }
    }
    for (index, key) in cluster.control_plane_tolerations.iter().enumerate() {
        if !names::is_qualified(key) {
            problems.add(
                Path::Root.field("control_plane_tolerations").item(index),
                shown_text(key),
                format!("the key of a taint: {}", names::QUALIFIED),
            );
        }
    }
    if !net::is_cidr(&cluster.service_subnet) {
        problems.add(
            "service_subnet",
            if cluster.service_subnet.is_empty() {
                String::new()
            } else {
                shown_text(&cluster.service_subnet)
            },
            "a subnet such as 10.68.0.0/16",
        );
    }
    for (index, server) in cluster.dns_servers.iter().enumerate() {
        if !net::is_address(server) {
            problems.add(Path::Root.field("dns_servers").item(index), shown_text(server), "an IP address");
        }
    }
    if !cluster.dns_service.is_empty() {
        let parts: Vec<&str> = cluster.dns_service.split('/').collect();
        if parts.len() != 2 || parts.iter().any(|part| part.is_empty()) {
            problems.add("dns_service", shown_text(&cluster.dns_service), "namespace/name of a service");
        }
    }

    let reboot = read_section(&cluster.reboot, "reboot", StoredReboot::SCHEMA, problems);
    selector::check_selector(&reboot, &Path::Root.field("reboot").field("protected_namespaces"), problems);
    let repair = read_section(&cluster.repair, "repair", Stored::SCHEMA, problems);
    selector::check_selector(&repair, &Path::Root.field("repair").field("protected_namespaces"), problems);
    let options = read_section(&cluster.options, "options", StoredOptions::SCHEMA, problems);
    options::check_options(&options, problems);
}

/// Parses a section that is kept as text. Returns its parts with the right shape; unknown fields are allowed.
fn read_section(raw: &RawJson, name: &str, schema: &'static Schema, problems: &mut Problems) -> Tree {
    let tree = match raw.text().map_or(Ok(Tree::Null), Tree::from_stored) {
        Ok(Tree::Null) => return Tree::Object(Vec::new()),
        Ok(tree) => tree,
        Err(error) => {
            problems.add(name, error.to_string(), "an object");
            return Tree::Object(Vec::new());
        }
    };
    let mut walk = SchemaWalk { root: schema, unknown: UnknownFieldPolicy::Keep, problems };
    walk.check_object(tree, schema, Path::Root.field(name))
}
