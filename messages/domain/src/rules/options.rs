//! CKE's rules for the field `options` of a cluster configuration: etcd, rivers, and the components of Kubernetes.

use crate::cluster::Taint;
use crate::rules::{cni, free_form, node};
use madako_json::input::Problems;
use madako_json::strict::tree::{Tree, shown_text};
use madako_json::strict::walk::Path;
use madako_json::strict::yaml;

/// Components whose mounts must have absolute paths. CKE does not check those of the rivers, where a name without a
/// slash means a volume.
const WITH_ABSOLUTE_MOUNTS: [&str; 6] =
    ["etcd", "kube-api", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];

/// Checks options that have the right shape.
pub(super) fn check_options(options: &Tree, problems: &mut Problems) {
    let root = Path::Root.field("options");
    for component in WITH_ABSOLUTE_MOUNTS {
        let path = root.field(component);
        let path = path.field("extra_binds");
        let binds = options.get(component).and_then(|parameters| parameters.get("extra_binds"));
        for (index, mount) in binds.map_or(&[][..], Tree::items).iter().enumerate() {
            for end in ["source", "destination"] {
                let given = mount.get(end).and_then(Tree::text).unwrap_or_default();
                if !given.starts_with('/') {
                    let got = if given.is_empty() { String::new() } else { shown_text(given) };
                    problems.add(path.item(index).field(end), got, "an absolute path");
                }
            }
        }
    }
    if let Some(kubelet) = options.get("kubelet") {
        check_kubelet(kubelet, &root.field("kubelet"), problems);
    }
    if let Some(api_server) = options.get("kube-api") {
        check_api_server(api_server, &root.field("kube-api"), problems);
    }
    for (component, kind) in free_form::COMPONENTS {
        if let Some(config) = options.get(component).and_then(|parameters| parameters.get("config")) {
            kind.check(config, &root.field(component).field("config"), problems);
        }
    }
}

fn check_kubelet(kubelet: &Tree, path: &Path<'_>, problems: &mut Problems) {
    // An absent endpoint gets the default before anything is stored.
    if kubelet.get("cri_endpoint").and_then(Tree::text) == Some("") {
        problems.add(
            path.field("cri_endpoint"),
            "\"\"",
            "the path of the runtime's socket, or no such field",
        );
    }
    if let Some(file) = kubelet.get("cni_conf_file") {
        cni::check_file(file, &path.field("cni_conf_file"), problems);
    }
    let path = path.field("boot_taints");
    for (index, taint) in kubelet.get("boot_taints").map_or(&[][..], Tree::items).iter().enumerate() {
        let text = |name| taint.get(name).and_then(Tree::text).map(str::to_owned);
        let taint = Taint {
            key: text("key").unwrap_or_default(),
            value: text("value").unwrap_or_default(),
            effect: text("effect").unwrap_or_default(),
            time_added: text("timeAdded"),
            ..Taint::default()
        };
        node::check_taint(&taint, &path.item(index), problems);
    }
}

fn check_api_server(api_server: &Tree, path: &Path<'_>, problems: &mut Problems) {
    let policy = api_server.get("audit_log_policy").and_then(Tree::text).unwrap_or_default();
    let path = path.field("audit_log_policy");
    if policy.is_empty() {
        if api_server.get("audit_log_enabled") == Some(&Tree::Bool(true)) {
            problems.add(path, "", "a policy, since audit_log_enabled is true");
        }
        return;
    }
    // As in CKE, the API server's own rules are not checked here.
    match yaml::is_lenient_object(policy) {
        Ok(true) => {}
        Ok(false) => problems.add(path, shown_text(policy), "YAML of an audit policy: an object"),
        Err(why) => problems.add(path, why, "YAML of an audit policy"),
    }
}
