//! Warnings about valid configurations that are probably mistakes.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, LABEL_WEIGHT};
use crate::rules::{ClusterForm, free_form};
use madako_json::input::Warning;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::{Path, unknown_names};

/// The modes of mount propagation in container engines.
const PROPAGATIONS: [&str; 7] = ["", "shared", "slave", "private", "rshared", "rslave", "rprivate"];

/// Characters besides ASCII letters and digits that mean themselves in every shell.
const PLAIN: &str = "-_=./:,@%+";

pub(crate) fn warnings(cluster: &Cluster, form: ClusterForm) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if !cluster.dns_servers.is_empty() && !cluster.dns_service.is_empty() {
        warnings
            .push(Warning::new("dns_service", "dns_servers is given too; the documents want one of the two"));
    }
    for (index, node) in cluster.nodes.iter().enumerate() {
        let path = Path::Root.field("nodes");
        let path = path.item(index);
        let mut effects = BTreeMap::new();
        for (index, taint) in node.taints.iter().enumerate() {
            if effects.insert((&taint.key, &taint.effect), index).is_some() {
                let message = "Kubernetes refuses a second taint with the same key and effect";
                warnings.push(Warning::new(path.field("taints").item(index), message));
            }
        }
        if form == ClusterForm::Template {
            if !node.hostname.is_empty() {
                let message = "a template's host name has no effect";
                warnings.push(Warning::new(path.field("hostname"), message));
            }
            if node.control_plane && node.labels.contains_key(LABEL_WEIGHT) {
                let message = "a weight has no effect on the control plane";
                warnings.push(Warning::new(path.field("labels").entry(LABEL_WEIGHT), message));
            }
        }
    }
    // A valid part can be parsed; the rules refused any other.
    let read = |text: Option<&str>| text.and_then(|text| Tree::from_stored(text).ok()).unwrap_or(Tree::Null);
    warn_about_repair(&read(cluster.repair.text()), &mut warnings);
    warn_about_options(&read(cluster.options.text()), &mut warnings);
    warnings
}

fn warn_about_repair(repair: &Tree, warnings: &mut Vec<Warning>) {
    let mut known = BTreeMap::new();
    for (index, procedure) in list_items(repair.get("repair_procedures")).iter().enumerate() {
        for machine_type in list_items(procedure.get("machine_types")).iter().filter_map(Tree::text) {
            let first = *known.entry(machine_type).or_insert(index);
            if first != index {
                let path = Path::Root.field("repair");
                let path = path.field("repair_procedures");
                let path = path.item(index);
                let shown = shown_text(machine_type);
                let message =
                    format!("machine type {shown} has a procedure already ({first}), which is used");
                warnings.push(Warning::new(path.field("machine_types"), message));
            }
        }
    }
}

fn warn_about_options(options: &Tree, warnings: &mut Vec<Warning>) {
    let root = Path::Root.field("options");
    for (component, parameters) in options.fields() {
        let path = root.field(component);
        warn_about_shell(parameters, &path, warnings);
        let path = path.field("extra_binds");
        for (index, mount) in list_items(parameters.get("extra_binds")).iter().enumerate() {
            for (name, known) in [("propagation", &PROPAGATIONS[..]), ("selinux_label", &["", "z", "Z"])] {
                if let Some(value) = mount.get(name).and_then(Tree::text)
                    && !known.contains(&value)
                {
                    let message = format!("{} is none of {}", shown_text(value), known[1..].join(", "));
                    warnings.push(Warning::new(path.item(index).field(name), message));
                }
            }
        }
    }
    for (component, kind) in free_form::COMPONENTS {
        let Some(config) = options.get(component).and_then(|parameters| parameters.get("config")) else {
            continue;
        };
        let path = root.field(component);
        unknown_names(config, kind.schema, path.field("config"), &mut |path, near| {
            let perhaps = near.map_or_else(String::new, |near| format!("; a similar field is {near}"));
            let message = format!("{} of Kubernetes 1.30 has no such field{perhaps}", kind.kind);
            warnings.push(Warning::new(path, message));
        });
    }
    let file = options.get("kubelet").and_then(|kubelet| kubelet.get("cni_conf_file"));
    if let Some(name) = file.and_then(|file| file.get("name")).and_then(Tree::text)
        && !name.is_empty()
        && ![".conf", ".conflist"].iter().any(|extension| name.ends_with(extension))
    {
        let message = "container runtimes read files that end in .conf or .conflist";
        warnings.push(Warning::new("options.kubelet.cni_conf_file.name", message));
    }
}

/// Warns about parameters that the shell of a node changes, because CKE joins the words of a command without quotes.
/// Each may be a secret, and is not shown.
fn warn_about_shell(parameters: &Tree, path: &Path<'_>, warnings: &mut Vec<Warning>) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    let args = path.field("extra_args");
    for (index, arg) in list_items(parameters.get("extra_args")).iter().enumerate() {
        let Some(text) = arg.text() else { continue };
        if text.is_empty() {
            warnings.push(Warning::new(args.item(index), "CKE drops an empty argument"));
        } else if !text.chars().all(is_plain) {
            warnings.push(Warning::new(args.item(index), "CKE gives the argument to a shell without quotes"));
        }
    }
    let env = path.field("extra_env");
    for (name, value) in parameters.get("extra_env").into_iter().flat_map(Tree::fields) {
        if value.text().is_some_and(|text| !text.chars().all(is_plain)) {
            let message = "CKE gives the value to a shell without quotes";
            warnings.push(Warning::new(env.entry(name), message));
        }
    }
}

fn list_items(tree: Option<&Tree>) -> &[Tree] {
    tree.map_or(&[], Tree::items)
}
