//! Validates the rules that relate several fields of a request, as Krake's types do.
//!
//! Assumes: each field has the right shape.
//! Does not: check TOSCA templates beyond Krake's own check.

mod kubeconfig;
mod manifest;
mod observer;

use super::infrastructure::{GlobalCloud, ImSpec};
use super::kubernetes::{ApplicationSpec, ClusterSpec};
use madako_json::input::Problems;
use madako_json::krake::free::{JsonObject, Tosca};
use madako_json::strict::tree::shown_text;
use madako_json::strict::walk::Path;

/// Requires a valid manifest, TOSCA template or CSAR archive.
pub(super) fn check_application(spec: &ApplicationSpec, path: Path<'_>, problems: &mut Problems) {
    let csar = spec.csar.as_deref().unwrap_or_default();
    if spec.manifest.is_empty() && spec.tosca.is_empty() && csar.is_empty() {
        problems.add(
            path.field("manifest"),
            "no \"manifest\", \"tosca\" or \"csar\"",
            "a manifest, a TOSCA template, or the address of a CSAR archive",
        );
    }
    match &spec.tosca {
        Tosca::Url(url) if !url.is_empty() && !has_suffix(url, &[".yaml", ".yml"]) => {
            problems.add(path.field("tosca"), shown_text(url), "an address that ends in .yaml or .yml");
        }
        Tosca::Template(template) if !template.is_empty() => {
            check_tosca(template, path.field("tosca"), problems)
        }
        _ => {}
    }
    // An empty address is wrong, as in Krake.
    if spec.csar.is_some() && !has_suffix(csar, &[".csar", ".zip"]) {
        problems.add(path.field("csar"), shown_text(csar), "an address that ends in .csar or .zip");
    }
    manifest::check_manifest(&spec.manifest, path.field("manifest"), problems);
    if !spec.manifest.is_empty() {
        observer::check_observer_schemas(
            &spec.observer_schema,
            &spec.manifest,
            path.field("observer_schema"),
            problems,
        );
    }
}

/// Requires a valid kubeconfig or TOSCA template.
pub(super) fn check_cluster(spec: &ClusterSpec, path: Path<'_>, problems: &mut Problems) {
    let kubeconfig = spec.kubeconfig.reveal();
    if kubeconfig.is_empty() && spec.tosca.is_empty() {
        problems.add(
            path.field("kubeconfig"),
            "no \"kubeconfig\" or \"tosca\"",
            "a kubeconfig, or a TOSCA template",
        );
    }
    if !kubeconfig.is_empty() {
        kubeconfig::check_kubeconfig(kubeconfig, path.field("kubeconfig"), problems);
    }
    if !spec.tosca.is_empty() {
        cluster_template_at(&spec.tosca, path.field("tosca"), problems);
    }
}

/// The problems of a template for new clusters; paths begin at the template.
#[must_use]
pub fn cluster_template(template: &JsonObject) -> Problems {
    let mut problems = Problems::default();
    cluster_template_at(template, Path::Root, &mut problems);
    problems
}

fn cluster_template_at(template: &JsonObject, path: Path<'_>, problems: &mut Problems) {
    let output = template.parse().ok().and_then(|template| {
        template.get("topology_template")?.get("outputs")?.get("kubeconfig").filter(|it| is_set(it)).cloned()
    });
    if output.is_none() {
        let path = path.field("topology_template");
        problems.add(path.field("outputs"), "no \"kubeconfig\"", "an output \"kubeconfig\"");
    }
    check_tosca(template, path, problems);
}

/// Requires a token, or a user and a password, for an Infrastructure Manager.
pub(super) fn check_im_spec(spec: &ImSpec, path: Path<'_>, problems: &mut Problems) {
    if spec.token.is_none() && (spec.username.is_none() || spec.password.is_none()) {
        problems.add(
            path.field("token"),
            "no \"token\", and no \"username\" with \"password\"",
            "a token, or a user with a password",
        );
    }
}

/// Requires that a global cloud refers only to global resources.
pub(super) fn check_global_cloud(cloud: &GlobalCloud, path: Path<'_>, problems: &mut Problems) {
    let path = path.field("spec");
    let path = path.field("openstack");
    if cloud.spec.value.infrastructure_provider().namespaced {
        let path = path.field("infrastructure_provider");
        problems.add(path.field("namespaced"), "true", "false: a global cloud has a global provider");
    }
    let path = path.field("metrics");
    for (index, metric) in cloud.spec.value.metrics().iter().enumerate() {
        if metric.namespaced {
            let path = path.item(index);
            problems.add(path.field("namespaced"), "true", "false: a global cloud has global metrics");
        }
    }
}

/// Requires the version, without which no TOSCA template can be read.
fn check_tosca(template: &JsonObject, path: Path<'_>, problems: &mut Problems) {
    const VERSION: &str = "tosca_definitions_version";
    match template.parse().map(|template| template.get(VERSION).cloned()) {
        Ok(Some(serde_json::Value::String(_))) => {}
        Ok(Some(other)) => problems.add(path.field(VERSION), describe_kind(&other), "a text"),
        Ok(None) => problems.add(path.field(VERSION), "", "the version of TOSCA"),
        // The request was parsed before, so no error is expected.
        Err(error) => problems.add(path, error.to_string(), "a TOSCA template"),
    }
}

fn has_suffix(url: &str, suffixes: &[&str]) -> bool {
    suffixes.iter().any(|suffix| url.ends_with(suffix))
}

/// The kind of a value, for messages that must not show the value.
fn describe_kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Python's truth value.
fn is_set(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}
