use madako_domain::placement::kind::Kind;
use madako_domain::placement::metadata::ReasonCode;
use madako_domain::placement::metrics::MetricKey;
use madako_domain::placement::object_value::Object;
use serde_json::json;

use super::store::{Store, cluster, global, metadata, metric, object, of, prometheus, reference};
use crate::catalog::{DefinitionCatalog, ProviderKey};

fn catalog(objects: Vec<Object>) -> DefinitionCatalog {
    let (mut store, mut catalog) = (Store::default(), DefinitionCatalog::default());
    for object in objects {
        catalog.apply(&store.put(object));
    }
    catalog
}

fn wanted(catalog: &DefinitionCatalog) -> Vec<MetricKey> {
    catalog.wanted_metrics().into_iter().collect()
}

#[test]
fn clusters_clouds_and_projects_refer_to_metrics_of_their_namespace_or_global_metrics() {
    let metrics = json!([reference("own", true), reference("all", false)]);
    let openstack = json!({ "type": "openstack", "openstack": {
        "url": "", "auth": { "type": "password", "password": {
            "user": { "username": "", "password": "" }, "project": { "name": "" } } },
        "metrics": metrics, "infrastructure_provider": { "name": "" } } });
    let project = json!({ "url": "", "template": "", "metrics": metrics, "auth": { "type": "password", "password": {
        "user": { "id": "", "password": "" }, "project": { "id": "" } } } });
    let at = |kind: Kind, spec: &serde_json::Value| {
        let namespace = kind.namespaced().then_some("n");
        wanted(&catalog(vec![object(kind, &json!({ "metadata": metadata(namespace, "x"), "spec": spec }))]))
    };
    let both = vec![global("all"), of("n", "own")];
    assert_eq!(wanted(&catalog(vec![cluster("n", "x", metrics.as_array().unwrap())])), both);
    assert_eq!(at(Kind::Cloud, &openstack), both);
    assert_eq!(at(Kind::Project, &project), both);
    // A resource without a namespace cannot refer to a namespaced metric.
    assert_eq!(at(Kind::GlobalCloud, &openstack), vec![global("all")]);
    assert_eq!(at(Kind::MagnumCluster, &json!({ "metrics": metrics })), vec![]);
}

#[test]
fn metric_is_fetched_until_its_last_reference_is_removed() {
    let (mut store, mut catalog) = (Store::default(), DefinitionCatalog::default());
    let load = [reference("load", false)];
    assert!(catalog.apply(&store.put(cluster("n", "a", &load))));
    assert!(!catalog.apply(&store.put(cluster("n", "b", &load))), "it was wanted before");
    assert!(!catalog.apply(&store.put(cluster("n", "b", &load))), "nothing changed");
    let key = |name: &str| cluster("n", name, &[]).key();
    assert!(!catalog.apply(&store.delete(&key("a"))), "another one refers to it");
    assert_eq!(wanted(&catalog), vec![global("load")]);
    assert!(catalog.apply(&store.put(cluster("n", "b", &[reference("heat", false)]))));
    assert_eq!(wanted(&catalog), vec![global("heat")]);
    assert!(catalog.apply(&store.delete(&key("b"))));
    assert!(!catalog.apply(&store.delete(&key("b"))));
    assert_eq!(wanted(&catalog), vec![]);
}

#[test]
fn constraints_want_the_metrics_defined_by_their_name() {
    let app = |constraints: &[&str]| {
        let spec = json!({ "manifest": [], "constraints": { "cluster": { "metrics": constraints } } });
        object(Kind::Application, &json!({ "metadata": metadata(Some("n"), "app"), "spec": spec }))
    };
    let (mut store, mut catalog) = (Store::default(), DefinitionCatalog::default());
    catalog.apply(&store.put(app(&["load > 5", "heat lt 3", "this cannot be read"])));
    assert_eq!(wanted(&catalog), vec![]);
    assert!(catalog.apply(&store.put(metric(&global("load"), "p", "l", 0.0, 1.0))));
    catalog.apply(&store.put(metric(&of("n", "load"), "p", "l", 0.0, 1.0)));
    catalog.apply(&store.put(metric(&of("other", "load"), "p", "l", 0.0, 1.0)));
    assert_eq!(wanted(&catalog), vec![global("load"), of("n", "load")]);
    assert!(catalog.apply(&store.put(app(&[]))));
    assert_eq!(wanted(&catalog), vec![]);

    let spec = json!({ "constraints": { "cloud": { "metrics": ["load is 1"] } } });
    let cluster = object(Kind::Cluster, &json!({ "metadata": metadata(Some("n"), "c"), "spec": spec }));
    catalog.apply(&store.put(cluster));
    assert_eq!(wanted(&catalog), vec![global("load"), of("n", "load")]);
}

#[test]
fn a_namespaced_metric_has_a_provider_of_its_namespace_and_a_global_one_a_global_one() {
    let all = catalog(vec![
        metric(&global("m"), "p", "there", 0.0, 1.0),
        metric(&of("n", "m"), "p", "there", 0.0, 1.0),
        prometheus(None, "p", "http://global"),
        prometheus(Some("n"), "p", "http://n"),
        prometheus(Some("o"), "p", "http://o"),
    ]);
    for (key, namespace, revision) in [(global("m"), None, 3), (of("n", "m"), Some("n"), 4)] {
        let source = all.resolve(&key).unwrap();
        assert_eq!(
            source.provider,
            ProviderKey { namespace: namespace.map(str::to_owned), name: "p".to_owned() }
        );
        assert_eq!((source.provider_revision, source.name_at_provider()), (revision, "there"));
    }
}

#[test]
fn undefined_and_invalid_metrics_have_krakes_codes() {
    let all = catalog(vec![
        metric(&global("homeless"), "nowhere", "m", 0.0, 1.0),
        metric(&global("flat"), "p", "m", 5.0, 5.0),
        metric(&of("n", "global"), "p", "m", 0.0, 1.0),
        prometheus(None, "p", "http://p"),
    ]);
    for (key, code, words) in [
        (global("absent"), ReasonCode::UnknownMetric, "no metric absent is defined"),
        (of("n", "flat"), ReasonCode::UnknownMetric, "no metric n/flat is defined"),
        (global("homeless"), ReasonCode::UnknownMetricsProvider, "no metrics provider nowhere is defined"),
        (of("n", "global"), ReasonCode::UnknownMetricsProvider, "no metrics provider n/p is defined"),
        (global("flat"), ReasonCode::InvalidMetric, "its minimum 5 is not below its maximum 5"),
    ] {
        let undefined = all.resolve(&key).unwrap_err();
        assert_eq!(undefined.reason.code, code, "{key}");
        assert!(undefined.reason.message.contains(words), "{}", undefined.reason.message);
    }
    let revisions =
        |key| all.resolve(&key).map_err(|undefined| (undefined.metric_revision, undefined.provider_revision));
    assert_eq!(revisions(global("absent")).unwrap_err(), (0, 0));
    assert_eq!(revisions(global("homeless")).unwrap_err(), (1, 0));
    assert_eq!(revisions(global("flat")).unwrap_err(), (2, 4));
}
