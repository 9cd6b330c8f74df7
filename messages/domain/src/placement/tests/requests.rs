//! Tests of invalid requests with their messages, and of unusual but valid requests.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::krake;
use crate::placement::infrastructure::CloudBinding;
use crate::placement::kind::Kind;
use crate::placement::kubernetes::{ApplicationComplete, Cluster};
use crate::placement::object_value::{Object, Resource};
use madako_json::input::InputError;
use madako_json::krake::document::{RequestError, RequestedDocument, from_request};
use madako_json::krake::json::MAX_JSON_DEPTH;

fn right(kind: Kind) -> Value {
    let mut examples = krake::examples().into_iter();
    let example =
        examples.find(|example| example.kind == kind && example.minimal).expect("each kind has one");
    serde_json::from_str(example.given).unwrap()
}

fn request(kind: Kind, document: &Value) -> Result<RequestedDocument<Object>, RequestError> {
    Object::from_request(kind, &document.to_string())
}

fn refused(kind: Kind, text: &str) -> InputError {
    match Object::from_request(kind, text) {
        Err(RequestError::Invalid(error)) => error,
        other => panic!("{text}: {other:?}"),
    }
}

/// The document with values inserted at JSON pointers.
fn with(kind: Kind, values: &[(&str, Value)]) -> Value {
    let mut document = right(kind);
    for (pointer, value) in values {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
        match parent {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
            parent => parent[name.replace("~1", "/")] = value.clone(),
        }
    }
    document
}

fn said(cases: &[(Kind, &[(&str, Value)])]) -> String {
    let mut all = String::new();
    for (kind, values) in cases {
        for (pointer, value) in *values {
            writeln!(all, "{kind} {pointer} = {value}").unwrap();
        }
        for problem in refused(*kind, &with(*kind, values).to_string()).problems {
            let got = if problem.got.is_empty() { "nothing" } else { &problem.got };
            writeln!(all, "  {}: got {got}, expected {}", problem.field, problem.expected).unwrap();
        }
    }
    all
}

#[test]
fn every_wrong_field_is_named_with_its_value_and_the_expectation() {
    use Kind::{Application, Cluster, GlobalMetric, MetricsProvider, Role};
    insta::assert_snapshot!(said(&[
        (Application, &[("/api", json!("core")), ("/kind", json!(1)), ("/spec/backof", json!(1))]),
        (Application, &[("/metadata", json!([]))]),
        (Application, &[("/metadata", json!(null)), ("/spec", json!("it"))]),
        (Application, &[("/metadata/name", json!(null)), ("/metadata/labels", json!(null))]),
        (
            Application,
            &[
                ("/spec/hooks", json!(["a", 1, null])),
                ("/spec/constraints/migration", json!("yes")),
                ("/spec/backoff", json!(1.5)),
                ("/spec/backoff_delay", json!("1 s")),
                ("/spec/backoff_limit", json!(u64::MAX)),
                ("/spec/shutdown_grace_time", json!("")),
            ]
        ),
        (Application, &[("/spec/manifest", json!("kind: Secret"))]),
        (Application, &[("/spec/manifest", json!([1, "kind: Secret"]))]),
        (
            Role,
            &[("/rules", json!([{"api": "core", "resources": [], "namespaces": [""], "verbs": ["read"]}]))]
        ),
        (Cluster, &[("/spec/metrics", json!([{"name": "a", "weight": -1}, {"name": "b", "weight": "nan"}]))]),
        (
            Cluster,
            &[("/spec/metrics", json!([{"name": "a", "weight": "-0.5"}, {"weight": "Infinity", "nam": 1}]))]
        ),
        (
            GlobalMetric,
            &[
                ("/spec/min", json!("1e400")),
                ("/spec/max", json!(true)),
                ("/spec/allowed_values", json!([1.5]))
            ]
        ),
        (MetricsProvider, &[("/spec", json!({"type": "oracle"}))]),
        (MetricsProvider, &[("/spec", json!({"static": {"metrics": {}}}))]),
        (MetricsProvider, &[("/spec", json!({"type": "static", "prometheus": {"url": "it"}}))]),
        (
            MetricsProvider,
            &[("/spec", json!({"type": "static", "static": {"metrics": {"a.b": "x"}}, "other": {}}))]
        ),
    ]));
}

#[test]
fn names_and_labels_follow_krakes_patterns() {
    for good in ["a", "_", "system:admin", "a.b-c_d:e", "9", &"n".repeat(255)] {
        request(Kind::Cluster, &with(Kind::Cluster, &[("/metadata/name", json!(good))])).unwrap();
    }
    insta::assert_snapshot!(said(&[
        (Kind::Cluster, &[("/metadata/name", json!("")), ("/metadata/namespace", json!("a/b"))]),
        (Kind::Cluster, &[("/metadata/name", json!("-a")), ("/metadata/namespace", json!("a "))]),
        (Kind::Cluster, &[("/metadata/name", json!("n".repeat(256))), ("/metadata/namespace", json!("ä"))]),
        (Kind::Cluster, &[("/metadata/labels", json!({"a": "", "b c": "d", "e/f/g": "h i", "x\ny": "z"}))]),
        (Kind::Cluster, &[("/metadata/labels", json!({"a": 1, "b": null}))]),
    ]));
}

#[test]
fn a_constraint_is_refused_at_its_column() {
    insta::assert_snapshot!(said(&[
        (
            Kind::Application,
            &[(
                "/spec/constraints/cluster",
                json!({"labels": ["location is DE", "location iss DE", ""], "metrics": ["load > nan", "load is 5"]}),
            )]
        ),
        (Kind::Cluster, &[("/spec/constraints/cloud", json!({"labels": "location is DE", "metrics": [7]}))]),
        (Kind::MagnumCluster, &[("/spec/constraints", json!({"project": {"labels": ["a in ()"]}}))]),
    ]));
}

#[test]
fn parts_of_a_resource_must_be_consistent() {
    let config = |path: &str, value: Value| {
        let mut config = super::documents::kubeconfig();
        *config.pointer_mut(path).unwrap() = value;
        config
    };
    let manifest = json!([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}}]);
    let observed = |schema: Value| json!([schema]);
    let length = |least: i64, most: i64| json!({"observer_schema_list_min_length": least, "observer_schema_list_max_length": most});
    let pod =
        |rest: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it"}, "spec": rest});
    let schema =
        |schema: Value| [("/spec/manifest", manifest.clone()), ("/spec/observer_schema", observed(schema))];
    insta::assert_snapshot!(said(&[
        (Kind::Application, &[("/spec/manifest", json!([]))]),
        (Kind::Application, &[("/spec/manifest", json!([{"kind": "Pod"}, {"metadata": []}]))]),
        (
            Kind::Application,
            &[("/spec/tosca", json!("https://example.com/it.json")), ("/spec/csar", json!(""))]
        ),
        (Kind::Application, &[("/spec/tosca", json!({"topology_template": {}}))]),
        (Kind::Application, &schema(json!({"kind": "Pod"}))),
        (
            Kind::Application,
            &schema(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}}))
        ),
        (
            Kind::Application,
            &schema(pod(json!({"a": 1, "b": [], "c": [null], "d": [{"e": 2}, length(-1, 1)]})))
        ),
        (Kind::Application, &schema(pod(json!([null, null, length(0, 1)])))),
        (Kind::Application, &schema(pod(json!([null, length(3, 2)])))),
        (Kind::Cluster, &[("/spec/kubeconfig", json!({}))]),
        (Kind::Cluster, &[("/spec/kubeconfig", json!({"apiVersion": "v1"}))]),
        (Kind::Cluster, &[("/spec/kubeconfig", config("/current-context", json!("gone")))]),
        (Kind::Cluster, &[("/spec/kubeconfig", config("/clusters/0/name", json!("gone")))]),
        (Kind::Cluster, &[("/spec/kubeconfig", config("/users", json!([])))]),
        (Kind::Cluster, &[("/spec/tosca", json!({"tosca_definitions_version": 1}))]),
        (Kind::InfrastructureProvider, &[("/spec/im", json!({"url": "it", "username": "me"}))]),
        (
            Kind::GlobalCloud,
            &[
                ("/spec/openstack/infrastructure_provider", json!({"name": "it", "namespaced": true})),
                ("/spec/openstack/metrics", json!([{"name": "heat", "weight": 1, "namespaced": true}])),
            ]
        ),
    ]));
    // A list may have no maximum length, and a schema may observe one of two resources.
    let open = pod(json!([null, {"a": null}, length(2, 0)]));
    request(Kind::Application, &with(Kind::Application, &schema(open))).unwrap();
}

#[test]
fn kubeconfig_must_define_its_user_and_cluster_even_if_empty() {
    let sent = |path: &str, value: Value| {
        let mut config = super::documents::kubeconfig();
        *config.pointer_mut(path).unwrap() = value;
        with(Kind::Cluster, &[("/spec/kubeconfig", config)])
    };
    for (path, value, field) in [
        ("/users/0", json!({"name": "me"}), "spec.kubeconfig.users[0].user"),
        ("/users/0/user", json!(null), "spec.kubeconfig.users[0].user"),
        ("/clusters/0", json!({"name": "here"}), "spec.kubeconfig.clusters[0].cluster"),
        ("/clusters/0/cluster", json!(null), "spec.kubeconfig.clusters[0].cluster"),
    ] {
        let error = refused(Kind::Cluster, &sent(path, value.clone()).to_string());
        let fields: Vec<&str> = error.problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, [field], "{path}: {value}");
    }
    for (path, value) in [
        ("/users/0/user", json!({})),
        ("/clusters/0/cluster", json!({})),
        // No context refers to this user.
        ("/users/0", json!({"name": "another"})),
        ("/contexts/0/context", json!({"cluster": "here"})),
    ] {
        request(Kind::Cluster, &sent(path, value)).unwrap();
    }
}

#[test]
fn errors_never_contain_secrets() {
    let hidden = json!("hunter2");
    for (kind, pointer) in [
        (Kind::Cluster, "/spec/kubeconfig"),
        (Kind::Cluster, "/spec/kubeconfig/users"),
        (Kind::Application, "/spec/manifest"),
        (Kind::Project, "/spec/auth/password"),
        (Kind::Cloud, "/spec/openstack/auth/password"),
        (Kind::MetricsProvider, "/spec/prometheus"),
    ] {
        let error = refused(kind, &with(kind, &[(pointer, hidden.clone())]).to_string());
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    for (kind, pointer) in [
        (Kind::InfrastructureProvider, "/spec/im/token"),
        (Kind::InfrastructureProvider, "/spec/im/password"),
        (Kind::Cloud, "/spec/openstack/auth/password/user/password"),
        (Kind::Project, "/spec/auth/password/user/password"),
    ] {
        for hidden in [json!(4711), json!(["4711"]), json!({"4711": "4711"})] {
            let error = refused(kind, &with(kind, &[(pointer, hidden)]).to_string());
            assert!(!error.to_string().contains("4711"), "{error}");
        }
    }
}

#[test]
fn numbers_may_come_as_decimal_strings_and_are_numbers_from_then_on() {
    let cluster = with(
        Kind::Cluster,
        &[
            ("/spec/backoff", json!("2")),
            ("/spec/backoff_limit", json!("-1")),
            ("/spec/backoff_delay", json!(3.0)),
            ("/spec/metrics", json!([{"name": "heat", "weight": "0.25"}])),
        ],
    );
    let object = request(Kind::Cluster, &cluster).unwrap().value;
    let spec = &Cluster::from_object(&object).unwrap().spec;
    assert_eq!((spec.backoff, spec.backoff_limit, spec.backoff_delay), (2, -1, 3));
    let text = object.to_json();
    for number in [r#""backoff": 2, "backoff_delay": 3, "backoff_limit": -1"#, r#""weight": 0.25"#] {
        assert!(text.contains(number), "{text}");
    }
}

#[test]
fn custom_resources_are_opaque_and_a_metric_may_be_named_twice() {
    let metrics = json!([{"name": "heat", "weight": 1}, {"name": "heat", "weight": 2}]);
    let resources = json!(["crontabs.stable.example.com", "", "was/auch immer ✓", "a", "a"]);
    let cluster = with(Kind::Cluster, &[("/spec/custom_resources", resources), ("/spec/metrics", metrics)]);
    let object = request(Kind::Cluster, &cluster).unwrap().value;
    let spec = &Cluster::from_object(&object).unwrap().spec;
    assert_eq!(spec.custom_resources.len(), 5);
    assert_eq!(spec.custom_resources[2], "was/auch immer ✓");
    assert_eq!(spec.metrics.iter().map(|metric| metric.weight).collect::<Vec<_>>(), [1.0, 2.0]);
}

#[test]
fn service_owned_fields_of_a_request_are_ignored_with_any_value() {
    let plain = request(Kind::Application, &right(Kind::Application)).unwrap().value;
    for value in [json!(null), json!("it"), json!(7), json!({"state": 1})] {
        let sent = with(
            Kind::Application,
            &[
                ("/status", value.clone()),
                ("/metadata/uid", value.clone()),
                ("/metadata/created", value.clone()),
                ("/metadata/modified", value.clone()),
                ("/metadata/deleted", value),
            ],
        );
        let requested = request(Kind::Application, &sent).unwrap();
        assert_eq!((requested.value, requested.passed_over), (plain.clone(), vec![]));
    }
    let mut absent = right(Kind::Application);
    for name in ["uid", "created", "modified"] {
        absent["metadata"].as_object_mut().unwrap().remove(name);
    }
    assert_eq!(request(Kind::Application, &absent).unwrap().value, plain);
}

#[test]
fn misplaced_fields_of_krakectl_are_ignored_and_reported() {
    let sent =
        with(Kind::Cloud, &[("/metadata/password", json!("it")), ("/metadata/constraints", json!({}))]);
    let requested = request(Kind::Cloud, &sent).unwrap();
    assert_eq!(requested.passed_over, ["metadata.constraints", "metadata.password"]);
    assert!(!requested.value.to_json().contains("\"constraints\""));
}

#[test]
fn non_numbers_are_refused_in_every_field() {
    let text = with(
        Kind::Cluster,
        &[
            ("/spec/metrics", json!([{"name": "heat", "weight": 123_456}])),
            ("/spec/kubeconfig/users/0/user", json!({"a": [654_321]})),
        ],
    )
    .to_string();
    for none in ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400"] {
        let error = refused(Kind::Cluster, &text.replace("123456", none));
        assert_eq!(error.problems[0].field, "spec.metrics[0].weight");
        // The message names the original text of the number only.
        let named = if none.contains('1') { format!("the number {none}") } else { none.to_owned() };
        assert_eq!(error.problems[0].got, named);
        let error = refused(Kind::Cluster, &text.replace("654321", none));
        assert_eq!(error.problems[0].field, "spec.kubeconfig");
    }
}

#[test]
fn a_duplicate_field_is_refused() {
    let text = right(Kind::Application).to_string().replacen(
        '{',
        r#"{"kind":"Application","kind":"Application","#,
        1,
    );
    let error = refused(Kind::Application, &text);
    assert_eq!((&*error.problems[0].field, &*error.problems[0].expected), ("kind", "it once"));
    // The rule also applies within objects with a foreign schema.
    let text = right(Kind::Application)
        .to_string()
        .replace(r#""apiVersion":"v1""#, r#""apiVersion":"v1","apiVersion":"v2""#);
    assert_eq!(refused(Kind::Application, &text).problems[0].field, "spec.manifest[0]");
}

#[test]
fn nesting_is_bounded_and_nothing_overflows() {
    // The manifest itself is at the fifth level.
    let nested = |levels: usize| {
        let inner = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let text = with(Kind::Application, &[("/spec/manifest/0/data", json!("here"))]).to_string();
        text.replace("\"here\"", &inner)
    };
    Object::from_request(Kind::Application, &nested(MAX_JSON_DEPTH - 4)).unwrap();
    for levels in [MAX_JSON_DEPTH - 3, 1_000, 200_000] {
        let error = refused(Kind::Application, &nested(levels));
        assert_eq!((&*error.problems[0].field, &*error.problems[0].expected), ("", "at most 100 levels"));
        refused(Kind::Application, &"[".repeat(levels + MAX_JSON_DEPTH));
    }
}

#[test]
fn malformed_json_and_invalid_bodies_are_distinguished() {
    for text in ["", "{", "nope", "{}{}", "{\"a\":}", "\u{feff}{}", "[1 2]", "{'a': 1}"] {
        let error = Object::from_request(Kind::Role, text).unwrap_err();
        assert!(matches!(error, RequestError::NotJson(_)), "{text}: {error}");
    }
    for text in ["null", "[]", "1", "\"it\"", "{}"] {
        refused(Kind::Role, text);
    }
}

#[test]
fn no_request_makes_an_endless_error() {
    let document = with(Kind::Cluster, &[("/spec/custom_resources", json!(vec![1; 10_000]))]);
    let error = refused(Kind::Cluster, &document.to_string());
    assert_eq!(error.problems.len(), 100);
    let name = "n".repeat(1_000_000);
    let document =
        with(Kind::Cluster, &[("/metadata/labels", json!({&name: &name})), ("/spec/tosca", json!(name))]);
    assert!(refused(Kind::Cluster, &document.to_string()).to_string().len() < 2_000);
}

#[test]
fn requests_without_metadata_are_read_alike() {
    let token = from_request::<ApplicationComplete>("Complete", r#"{"token": "it"}"#).unwrap().value.token;
    assert_eq!(token.as_ref().map(|token| token.reveal()), Some("it"));
    assert!(from_request::<ApplicationComplete>("Complete", "{}").unwrap().value.token.is_none());
    let binding =
        r#"{"kind": "CloudBinding", "cloud": {"api": "infrastructure", "kind": "Cloud", "nam": "it"}}"#;
    let RequestError::Invalid(error) = from_request::<CloudBinding>("CloudBinding", binding).unwrap_err()
    else {
        panic!("it is JSON");
    };
    let fields: Vec<_> = error.problems.iter().map(|problem| &*problem.field).collect();
    assert_eq!(fields, ["cloud.nam", "cloud.name"]);
}
