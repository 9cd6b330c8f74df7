//! Tests of the check of placement: a valid binding, and each kind of invalid one.

use serde_json::{Value, json};

use super::*;
use crate::observer::Change;

fn change(key: &str, value: Option<&Value>, revision: i64) -> Revision {
    let value = value.map(|value| value.to_string().into_bytes());
    let change = Change { key: key.to_owned(), value, created: 1, modified: revision, lease: 0 };
    Revision { revision, at: 0, changes: vec![change] }
}

fn metadata(name: &str, labels: Value) -> Value {
    json!({"name": name, "namespace": "n", "uid": "u", "labels": labels,
        "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"})
}

fn application(bound: Option<&str>) -> Value {
    let to =
        bound.map(|name| json!({"api": "kubernetes", "kind": "Cluster", "namespace": "n", "name": name}));
    json!({
        "metadata": metadata("a", json!({})),
        "spec": {"manifest": [], "constraints": {"cluster": {"labels": ["zone is a"]}}},
        "status": {"scheduled_to": to},
    })
}

fn cluster(zone: &str, state: &str) -> Value {
    json!({
        "metadata": metadata("c", json!({"zone": zone})),
        "spec": {"metrics": [{"name": "free", "weight": 1.0, "namespaced": false}]},
        "status": {"state": state},
    })
}

const APPLICATION: &str = "/kubernetes/applications/n/a";
const CLUSTER: &str = "/kubernetes/clusters/n/c";

/// Violations by binding an application to a cluster.
fn broken(cluster: Option<&Value>, after: &Value) -> Vec<String> {
    let mut revisions = vec![change(APPLICATION, Some(&application(None)), 3)];
    revisions.extend(cluster.map(|cluster| change(CLUSTER, Some(cluster), 4)));
    revisions.push(change(APPLICATION, Some(after), 5));
    let mut verdicts = Verdicts::default();
    judge_placement(&revisions, true, &mut verdicts);
    verdicts.0.into_iter().filter(|(_, verdict)| verdict.broken > 0).map(|(name, _)| name).collect()
}

#[test]
fn binding_to_a_matching_online_cluster_passes() {
    assert_eq!(broken(Some(&cluster("a", "ONLINE")), &application(Some("c"))), Vec::<String>::new());
}

#[test]
fn each_other_binding_is_found() {
    let bound = application(Some("c"));
    assert_eq!(broken(Some(&cluster("b", "ONLINE")), &bound), ["I11"], "another zone");
    assert_eq!(broken(Some(&cluster("a", "OFFLINE")), &bound), ["I11"], "it is offline");
    assert_eq!(broken(None, &bound), ["I11"], "there is no such cluster");
    assert_eq!(broken(None, &json!("nothing")), ["placement"], "it cannot be read");
}

#[test]
fn an_application_is_not_bound_from_its_first_version_on() {
    let mut verdicts = Verdicts::default();
    judge_placement(&[change(APPLICATION, Some(&application(Some("c"))), 3)], false, &mut verdicts);
    assert_eq!(verdicts.verdict_of("I9").broken + verdicts.verdict_of("I11").broken, 1);
}

#[test]
fn nothing_is_left_to_do_when_all_is_calm() {
    let mut deleted = application(Some("c"));
    deleted["metadata"]["deleted"] = json!("2026-01-01T00:00:01Z");
    let online = cluster("a", "ONLINE");
    assert_eq!(broken(Some(&online), &application(None)), ["I12"], "it fits, and is bound to nothing");
    assert_eq!(broken(Some(&online), &deleted), ["I12"], "it is still there");
    assert_eq!(
        broken(Some(&cluster("b", "ONLINE")), &application(None)),
        Vec::<String>::new(),
        "it fits nowhere"
    );
}
