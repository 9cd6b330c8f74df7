//! The rules of a node and of its labels, annotations and taints.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cluster::{Node, Taint};
use crate::limits::MAX_ANNOTATIONS_BYTES;
use crate::rules::{ClusterForm, names, net};
use madako_json::input::Problems;
use madako_json::strict::tree::shown_text;
use madako_json::strict::walk::Path;

pub(super) fn check_node(node: &Node, form: ClusterForm, path: &Path<'_>, problems: &mut Problems) {
    match form {
        ClusterForm::Template if !node.address.is_empty() => {
            problems.add(path.field("address"), shown_text(&node.address), "no address in a template");
        }
        ClusterForm::Cluster if !net::is_address(&node.address) => {
            let got = if node.address.is_empty() { String::new() } else { shown_text(&node.address) };
            problems.add(path.field("address"), got, "an IP address");
        }
        _ => {}
    }
    if node.user.is_empty() {
        problems.add(path.field("user"), "", "the user for SSH");
    }
    let labels = path.field("labels");
    for (key, value) in &node.labels {
        if !names::is_qualified(key) {
            problems.add(labels, shown_text(key), format!("keys of {}", names::QUALIFIED));
        }
        if !names::is_label_value(value) {
            problems.add(labels.entry(key), shown_text(value), names::LABEL_VALUE);
        }
    }
    let annotations = path.field("annotations");
    let mut bytes = 0;
    for (key, value) in &node.annotations {
        bytes += key.len() + value.len();
        // Kubernetes ignores the case of annotation keys, including their prefix.
        if !names::is_qualified(key) && !names::is_qualified(&key.to_lowercase()) {
            problems.add(annotations, shown_text(key), format!("keys of {}", names::QUALIFIED));
        }
    }
    if bytes > MAX_ANNOTATIONS_BYTES {
        let expected = format!("at most {MAX_ANNOTATIONS_BYTES} bytes altogether");
        problems.add(annotations, format!("{bytes} bytes"), expected);
    }
    let taints = path.field("taints");
    for (index, taint) in node.taints.iter().enumerate() {
        check_taint(taint, &taints.item(index), problems);
    }
}

pub(crate) fn check_taint(taint: &Taint, path: &Path<'_>, problems: &mut Problems) {
    if !names::is_qualified(&taint.key) {
        let got = if taint.key.is_empty() { String::new() } else { shown_text(&taint.key) };
        problems.add(path.field("key"), got, names::QUALIFIED);
    }
    if !names::is_label_value(&taint.value) {
        problems.add(path.field("value"), shown_text(&taint.value), names::LABEL_VALUE);
    }
    if !matches!(taint.effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        let got = if taint.effect.is_empty() { String::new() } else { shown_text(&taint.effect) };
        problems.add(path.field("effect"), got, "NoSchedule, PreferNoSchedule or NoExecute");
    }
    if let Some(time) = &taint.time_added
        && OffsetDateTime::parse(time, &Rfc3339).is_err()
    {
        problems.add(path.field("timeAdded"), shown_text(time), "a time such as 2026-01-31T12:00:00Z");
    }
}
