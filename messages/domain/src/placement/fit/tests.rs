use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use time::macros::datetime;

use super::*;
use crate::placement::infrastructure::GlobalCloud;
use crate::placement::metadata::ReasonCode;
use crate::placement::metrics::{MetricKey, MetricState, Trust, Value};
use crate::placement::object_value::{Object, Resource};
use crate::placement::openstack::Project;

fn read<T: Resource>(value: &serde_json::Value) -> T {
    let object = Object::from_stored(T::KIND, &value.to_string()).unwrap();
    T::from_object(&object).unwrap().clone()
}

fn metadata(name: &str, labels: serde_json::Value) -> serde_json::Value {
    json!({"name": name, "namespace": "n", "uid": "u", "labels": labels,
        "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"})
}

fn application(constraints: serde_json::Value) -> Application {
    read(&json!({
        "api": "kubernetes", "kind": "Application", "metadata": metadata("a", json!({})),
        "spec": {"manifest": [], "constraints": {"cluster": constraints}},
    }))
}

fn cluster(labels: serde_json::Value, metrics: serde_json::Value) -> Cluster {
    read(&json!({
        "api": "kubernetes", "kind": "Cluster", "metadata": metadata("c", labels),
        "spec": {"kubeconfig": {}, "custom_resources": ["crontabs.stable.example.com"], "metrics": metrics},
        "status": {"state": "ONLINE"},
    }))
}

fn cloud(labels: serde_json::Value, metrics: serde_json::Value) -> GlobalCloud {
    let mut metadata = metadata("o", labels);
    metadata["namespace"] = json!(null);
    read(&json!({
        "api": "infrastructure", "kind": "GlobalCloud", "metadata": metadata,
        "spec": {"type": "openstack", "openstack": {
            "url": "http://localhost", "metrics": metrics, "infrastructure_provider": {"name": "im"},
            "auth": {"type": "password", "password": {
                "user": {"username": "u", "password": "p"}, "project": {"name": "p"}}},
        }},
    }))
}

fn state(raw: f64) -> MetricState {
    let at = datetime!(2026-01-01 0:00 UTC);
    MetricState {
        metric_revision: 1,
        provider_revision: 1,
        value: Some(Value { raw, normalized: raw / 10.0, at }),
        reason: None,
        undefined: false,
        note: None,
        trust: Trust { since: at, range: None, turns: 0 },
    }
}

fn values(of: &[(Option<&str>, &str, f64)]) -> BTreeMap<MetricKey, MetricState> {
    of.iter()
        .map(|(namespace, name, raw)| {
            (MetricKey { namespace: namespace.map(str::to_owned), name: (*name).to_owned() }, state(*raw))
        })
        .collect()
}

/// The messages of all unmet requirements. Asserts that `met_by` agrees with `unmet`.
fn judged(constraints: serde_json::Value, offer: &Offer<'_>) -> Vec<String> {
    let application = application(constraints);
    let wants = Requirements::from(&application);
    let unmet = wants.unmet_requirements(offer);
    assert_eq!(wants.are_met_by(offer), unmet.is_empty(), "{unmet:?}");
    unmet.iter().map(ToString::to_string).collect()
}

#[test]
fn each_unmet_constraint_names_its_reason() {
    let cluster = cluster(
        json!({"location": "DE"}),
        json!([
            {"name": "load", "weight": 2.0},
            {"name": "gone", "weight": 1.0},
            {"name": "new", "weight": 1.0},
        ]),
    );
    let mut values = values(&[(None, "load", 5.0), (None, "gone", 1.0)]);
    values.values_mut().next().unwrap().value = None;
    let offer = Offer::from_cluster(&cluster, None, &values, ComparedMetrics::Value);
    let fits = json!({
        "labels": ["location in (DE, SK)"],
        "custom_resources": ["crontabs.stable.example.com"],
        "metrics": ["load greater than 4"],
    });
    assert_eq!(judged(fits, &offer), Vec::<String>::new());
    let unmet = judged(
        json!({
            "labels": ["location is not DE", "zone is not a", "location is (", "location is DE"],
            "custom_resources": ["other.example.com"],
            "metrics": ["load is 4", "gone is not 1", "new is not 1", "other is not 1", "load > nan"],
        }),
        &offer,
    );
    let expected = [
        "location is not DE: the label is DE",
        "zone is not a: it has no such label",
        "location is (: the constraint is not valid at column 13",
        "it does not have the custom resource other.example.com",
        "load is 4: the metric is 5",
        "gone is not 1: the metric has no value",
        "new is not 1: the metric was never fetched",
        "other is not 1: it does not refer to this metric",
        "load > nan: the constraint is not valid at column 8",
    ];
    assert_eq!(unmet.len(), expected.len(), "{unmet:#?}");
    for (unmet, expected) in unmet.iter().zip(expected) {
        assert!(unmet.starts_with(expected), "{unmet} is not: {expected}");
    }
}

#[test]
fn a_global_cloud_has_no_metric_of_a_namespace_nor_the_global_one_of_its_name() {
    let cloud = cloud(json!({}), json!([{"name": "load", "weight": 1.0, "namespaced": true}]));
    let values = values(&[(None, "load", 5.0), (Some("testing"), "load", 5.0)]);
    for compared in [ComparedMetrics::Value, ComparedMetrics::Weighted] {
        let offer = Offer::from_cloud(AnyCloud::Global(&cloud), &values, compared);
        assert_eq!(offer.metrics()[0].invalid_reference().unwrap().code, ReasonCode::InvalidMetric);
        let unmet = judged(json!({"metrics": ["load is not 1"]}), &offer);
        assert_eq!(unmet.len(), 1);
        assert!(
            unmet[0].starts_with("load is not 1: the metric has no value: INVALID_METRIC: "),
            "{unmet:?}"
        );
    }
}

#[test]
fn a_cluster_that_is_offline_or_deleted_takes_nothing() {
    let mut cluster = cluster(json!({}), json!([]));
    let application = application(json!({}));
    let none = BTreeMap::new();
    let judge = |cluster: &Cluster| {
        unmet_requirements(
            &application,
            cluster,
            &Offer::from_cluster(cluster, None, &none, ComparedMetrics::Value),
        )
    };
    assert_eq!(judge(&cluster), []);
    for state in ClusterState::ALL.iter().filter(|state| **state != ClusterState::Online) {
        cluster.status.state = *state;
        assert_eq!(judge(&cluster), [UnmetConstraint::NotOnline { state: *state }]);
    }
    cluster.status.state = ClusterState::Online;
    cluster.metadata.deleted = Some(cluster.metadata.created.clone());
    assert_eq!(judge(&cluster), [UnmetConstraint::Deleted]);
}

#[test]
fn metrics_are_compared_by_their_value_or_weighted_as_krake_does() {
    let cluster = cluster(json!({}), json!([{"name": "load", "weight": 4.0}]));
    let values = values(&[(None, "load", 5.0)]);
    let by = |compared| {
        let offer = Offer::from_cluster(&cluster, None, &values, compared);
        offer.compared_value("load").ok()
    };
    assert_eq!((by(ComparedMetrics::Value), by(ComparedMetrics::Weighted)), (Some(5.0), Some(2.0)));
}

#[test]
fn last_of_two_references_by_one_name_counts_and_each_has_its_own_namespace() {
    let cluster = cluster(
        json!({}),
        json!([{"name": "load", "weight": 1.0}, {"name": "load", "weight": 1.0, "namespaced": true}]),
    );
    let values = values(&[(None, "load", 1.0), (Some("n"), "load", 2.0), (Some("m"), "load", 3.0)]);
    let offer = Offer::from_cluster(&cluster, None, &values, ComparedMetrics::Value);
    assert_eq!(offer.compared_value("load"), Ok(2.0));
    assert_eq!(offer.metrics().len(), 2);
}

#[test]
fn cluster_inherits_by_its_flags_and_constraints() {
    let cloud = cloud(
        json!({"location": "SK", "tier": "gold"}),
        json!([{"name": "load", "weight": 1.0}, {"name": "green", "weight": 3.0}]),
    );
    let values = values(&[(None, "load", 1.0), (None, "green", 2.0)]);
    let mut cluster = cluster(json!({"location": "DE"}), json!([{"name": "load", "weight": 1.0}]));
    let observe = |cluster: &Cluster| {
        let offer =
            Offer::from_cluster(cluster, Some(AnyCloud::Global(&cloud)), &values, ComparedMetrics::Value);
        let labels = ["location", "tier"].map(|name| offer.label(name).map(str::to_owned));
        (labels, offer.metrics().iter().map(|metric| (metric.key.name.clone(), metric.inherited)).collect())
    };
    let some = |text: &str| Some(text.to_owned());
    let own: Vec<(String, bool)> = vec![("load".into(), false)];
    assert_eq!(observe(&cluster), ([some("DE"), None], own.clone()));

    cluster.spec.constraints.cloud.labels = Some(vec!["tier is gold".parse().unwrap()]);
    assert_eq!(observe(&cluster), ([some("DE"), some("gold")], own));

    cluster.spec.constraints.cloud.metrics = Some(vec!["green > 1".parse().unwrap()]);
    let both: Vec<(String, bool)> = vec![("load".into(), false), ("green".into(), true)];
    assert_eq!(observe(&cluster).1, both);

    cluster.spec.constraints = Default::default();
    cluster.metadata.inherit_labels = true;
    cluster.spec.inherit_metrics = true;
    assert_eq!(observe(&cluster), ([some("SK"), some("gold")], both));
}

#[test]
fn a_magnum_cluster_goes_only_to_a_project_with_its_labels() {
    let cluster = |constraints: serde_json::Value| -> MagnumCluster {
        read(&json!({"api": "openstack", "kind": "MagnumCluster", "metadata": metadata("m", json!({})),
            "spec": {"constraints": constraints}}))
    };
    let picky = cluster(json!({"project": {"labels": ["location is DE"]}}));
    for (location, fits) in [("DE", true), ("SK", false)] {
        let project = read::<Project>(&json!({"api": "openstack", "kind": "Project",
            "metadata": metadata("p", json!({"location": location})),
            "spec": {"url": "http://localhost", "template": "t", "auth": {"type": "application_credential",
                "application_credential": {"id": "i", "secret": "s"}}}}));
        let values = BTreeMap::new();
        let offer = Offer::from_project(&project, &values, ComparedMetrics::Value);
        assert_eq!(Requirements::from(&picky).are_met_by(&offer), fits, "{location}");
        assert!(Requirements::from(&cluster(json!(null))).are_met_by(&offer), "{location}");
    }
}

#[test]
fn unmet_constraints_survive_json() {
    let cause = MetricFault { code: "UNKNOWN_METRIC".into(), message: "there is none".into() };
    let all = vec![
        UnmetConstraint::NotOnline { state: ClusterState::Offline },
        UnmetConstraint::Label { constraint: "a is b".into(), got: None },
        UnmetConstraint::MetricMissing {
            constraint: "m > 1".into(),
            lack: MissingValue::NoValue { reason: Some(cause) },
        },
        UnmetConstraint::Metric { constraint: "m > 1".into(), got: 0.5 },
    ];
    let kept = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Vec<UnmetConstraint>>(&kept).unwrap(), all);
    assert!(kept.contains(r#"{"unmet":"not_online","state":"OFFLINE"}"#), "{kept}");
}

#[test]
fn unmet_constraints_are_shown_in_canonical_form() {
    let cluster = cluster(json!({"loc": "SK"}), json!([]));
    let known = std::collections::BTreeMap::new();
    let offer = Offer::from_cluster(&cluster, None, &known, ComparedMetrics::Value);
    let application = application(json!({"labels": ["loc  ==DE"], "metrics": ["load=>5"]}));
    let reported: Vec<String> =
        Requirements::from(&application).unmet_requirements(&offer).iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        ["loc is DE: the label is SK", "load greater than or equal 5: it does not refer to this metric",]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// For all constraints and offers, `met_by` agrees with the list of `unmet`, and a constraint on an absent label or
    /// metric is never met.
    #[test]
    fn quick_fit_check_agrees_with_the_full_check(
        labels in prop::collection::btree_map("[a-c]", "[x-z]", 0..3),
        metrics in prop::collection::vec(("[a-c]", 0.0..3.0, any::<bool>()), 0..4),
        known in prop::collection::btree_map("[a-c]", -1.0..4.0, 0..3),
        wanted in prop::collection::vec("[a-d] (is|is not) [x-z]", 0..3),
        measured in prop::collection::vec("[a-d] (is not|>|<=) [0-3]", 0..3),
        weighted in any::<bool>(),
    ) {
        let metrics: Vec<_> = metrics
            .iter()
            .map(|(name, weight, namespaced)| json!({"name": name, "weight": weight, "namespaced": namespaced}))
            .collect();
        let cluster = cluster(json!(labels), json!(metrics));
        let known = known
            .into_iter()
            .map(|(name, raw)| (MetricKey { namespace: None, name }, state(raw)))
            .collect();
        let compared = if weighted { ComparedMetrics::Weighted } else { ComparedMetrics::Value };
        let offer = Offer::from_cluster(&cluster, None, &known, compared);
        let application = application(json!({"labels": wanted, "metrics": measured}));
        let wants = Requirements::from(&application);
        let unmet = wants.unmet_requirements(&offer);
        prop_assert_eq!(wants.are_met_by(&offer), unmet.is_empty());
        let lacking = wanted.iter().filter(|wanted| !labels.contains_key(&wanted[..1])).count()
            + measured.iter().filter(|wanted| offer.compared_value(&wanted[..1]).is_err()).count();
        prop_assert!(unmet.len() >= lacking, "{:?}", unmet);
    }
}
