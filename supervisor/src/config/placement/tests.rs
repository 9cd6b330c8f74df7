//! Tests of the section `placement` of the configuration file: texts with their meaning or their errors.

use std::path::Path;

use super::super::{Config, ConfigError};
use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("c.yml"), Some(0o100_600))
}

fn placement(text: &str) -> Placement {
    parse(text).unwrap().placement.unwrap()
}

fn refusal(text: &str) -> String {
    parse(text).map(|config| panic!("{text:?} gave {config:?}")).unwrap_err().to_string()
}

#[test]
fn without_the_section_there_is_no_placement() {
    assert!(parse("").unwrap().placement.is_none());
}

#[test]
#[allow(clippy::float_cmp, reason = "a default is itself")]
fn an_empty_section_means_the_defaults() {
    let Placement { controllers, api, scheduler, metrics, encryption } = placement("placement:\n");
    assert!(controllers && api.listen.is_none() && api.tls.is_none() && !api.insecure);
    assert_eq!(api.settings.authorization, Authorization::Rbac);
    assert!(!api.settings.allow_anonymous);
    assert_eq!((api.settings.retry_transactions, api.settings.body_bytes), (1, 1 << 20));
    assert_eq!(api.authentication, Authentication::default());
    assert_eq!((scheduler.reschedule_after, scheduler.stickiness), (Duration::from_secs(60), 0.1));
    assert_eq!(scheduler.debounce, Duration::ZERO);
    assert_eq!(scheduler.cluster_creation.deletion_retention, Duration::from_secs(600));
    assert_eq!(metrics.interval, Duration::from_secs(15));
    assert_eq!(encryption.key_ids().count(), 0);
}

#[test]
#[allow(clippy::float_cmp, reason = "what was written is read")]
fn files_of_krake_are_taken_as_they_are() {
    let config = parse(
        "placement:
  api:
    host: 127.0.0.1
    port: 8443
    etcd: {host: 10.0.0.1, port: 2379, retry_transactions: 3}
    tls: {enabled: false, cert: /none, key: /none, client_ca: /none}
    authentication:
      allow_anonymous: true
      strategy:
        keystone: {enabled: false, endpoint: nowhere}
        keycloak: {enabled: true, endpoint: 'http://127.0.0.1:9080', realm: test}
        static: {enabled: true, name: system:admin}
      cors-origin: 'http://localhost:9000'
    authorization: always-allow
    docs: {problem_base_url: 'http://problems'}
    default_roles: []
    default_role_bindings: []
    log: {version: 1}
  scheduler:
    api_endpoint: localhost:8080
    worker_count: 5
    debounce: 1.0
    reschedule_after: 90
    stickiness: 0.5
    tls: {enabled: false}
    automatic_cluster_creation: {deletion_retention: 30}
    log: {version: 1}
",
    )
    .unwrap();
    let Placement { api, scheduler, .. } = config.placement.unwrap();
    assert_eq!(api.listen.as_deref(), Some("127.0.0.1:8443"));
    assert_eq!((api.settings.retry_transactions, api.settings.allow_anonymous), (3, true));
    assert_eq!(api.settings.cors_origin, "http://localhost:9000");
    assert_eq!(api.settings.authorization, Authorization::AlwaysAllow);
    assert_eq!(api.settings.problem_base_url, "http://problems");
    let strategies = Authentication {
        keystone: None,
        keycloak: Some(("http://127.0.0.1:9080".to_owned(), "test".to_owned())),
        fixed: Some("system:admin".to_owned()),
    };
    assert_eq!(api.authentication, strategies);
    assert_eq!(scheduler.reschedule_after, Duration::from_secs(90));
    assert_eq!((scheduler.stickiness, scheduler.debounce), (0.5, Duration::from_secs(1)));
    let ignored: Vec<&String> =
        config.warnings.iter().filter(|warning| warning.starts_with("keys of Krake")).collect();
    assert_eq!(ignored.len(), 1, "{:?}", config.warnings);
    for name in ["placement.api.etcd.host", "placement.api.log", "placement.scheduler.worker_count"] {
        assert!(ignored[0].contains(&format!("`{name}`")), "{name} in {}", ignored[0]);
    }
}

#[test]
fn first_strategy_in_krakes_order_counts_and_a_warning_names_the_others() {
    let keystone = Strategy::Keystone("http://localhost:5000/v3");
    let keycloak = Strategy::Keycloak("http://localhost:9080", "krake");
    for (on, counts, told) in [
        (&["static"][..], Strategy::Static("system"), None),
        (&["keystone"], keystone, None),
        (&["keycloak"], keycloak, None),
        (
            &["keystone", "static"],
            Strategy::Static("system"),
            Some("Madako uses `static` and ignores `keystone`:"),
        ),
        (&["keycloak", "keystone"], keystone, Some("Madako uses `keystone` and ignores `keycloak`:")),
        (
            &["keycloak", "keystone", "static"],
            Strategy::Static("system"),
            Some("Madako uses `static` and ignores `keystone`, `keycloak`:"),
        ),
    ] {
        let strategy: Vec<String> = on.iter().map(|name| format!("{name}: {{enabled: true}}")).collect();
        let strategy = strategy.join(", ");
        let config =
            parse(&format!("placement: {{api: {{authentication: {{strategy: {{{strategy}}}}}}}}}")).unwrap();
        assert_eq!(config.placement.unwrap().api.authentication.strategy(), Some(counts), "{on:?}");
        let of_strategies = |warning: &&String| warning.contains("authentication.strategy");
        let warnings: Vec<&String> = config.warnings.iter().filter(of_strategies).collect();
        assert_eq!(warnings.len(), usize::from(told.is_some()), "{on:?}: {warnings:?}");
        assert!(told.is_none_or(|told| warnings[0].contains(told)), "{on:?}: {warnings:?}");
    }
}

#[test]
fn metric_value_counts_for_three_rounds_by_default() {
    for (text, seconds) in [
        ("placement: {}", (15, 45)),
        ("placement: {metrics_interval: 20s}", (20, 60)),
        ("placement: {metrics_interval: 20s, metric_max_age: 5m}", (20, 300)),
        ("placement: {metric_max_age: 15s}", (15, 15)),
    ] {
        let metrics = placement(text).metrics;
        assert_eq!((metrics.interval.as_secs(), metrics.max_age.as_secs()), seconds, "{text}");
    }
    for wrong in ["14s", "25h", "0", "soon"] {
        let message = refusal(&format!("placement: {{metric_max_age: {wrong:?}}}"));
        assert!(message.contains("placement.metric_max_age"), "{message}");
    }
}

#[test]
fn a_host_or_a_port_makes_a_listener_of_its_own() {
    for (api, listen) in
        [("host: 127.0.0.1", "127.0.0.1:8080"), ("port: 9000", "0.0.0.0:9000"), ("host: '::1'", "[::1]:8080")]
    {
        assert_eq!(placement(&format!("placement: {{api: {{{api}}}}}")).api.listen.as_deref(), Some(listen));
    }
}

#[test]
fn every_wrong_field_is_named() {
    let message = refusal(
        "placement:
  controllers: maybe
  metrics_interval: 1ms
  api:
    port: 70000
    authorization: rbac
    autorization: RBAC
    tls: {enabled: true}
    authentication: {cors_origin: a, cors-origin: b, strategy: {keystone: {enabled: true, endpoint: x}}}
  scheduler: {stickiness: -1, reschedule_after: soon, clusters: some, max_moves: {percent: 101}}
",
    );
    for field in [
        "placement.controllers",
        "placement.metrics_interval",
        "placement.api.port",
        "placement.api.authorization",
        "placement.api.autorization",
        "placement.api.tls.cert",
        "placement.api.tls.key",
        "placement.api.authentication.cors_origin",
        "placement.api.authentication.strategy.keystone.endpoint",
        "placement.scheduler.stickiness",
        "placement.scheduler.reschedule_after",
        "placement.scheduler.clusters",
        "placement.scheduler.max_moves.percent",
    ] {
        assert!(message.contains(field), "{field} in\n{message}");
    }
}

#[test]
fn only_loopback_may_allow_all_clients() {
    let loopback: SocketAddr = "127.0.0.1:80".parse().unwrap();
    let outside: SocketAddr = "10.0.0.1:80".parse().unwrap();
    let any: SocketAddr = "0.0.0.0:80".parse().unwrap();
    let api = |text: &str| placement(&format!("placement: {{api: {{{text}}}}}")).api;
    for open in ["authorization: always-allow", "authentication: {allow_anonymous: true}"] {
        assert_eq!(api(open).reason_not_to_serve(loopback), None);
        for address in [outside, any] {
            assert!(api(open).reason_not_to_serve(address).unwrap().contains("placement.api.insecure: true"));
            assert_eq!(api(&format!("{open}, insecure: true")).reason_not_to_serve(address), None);
        }
    }
    assert_eq!(api("authorization: always-deny").reason_not_to_serve(outside), None);
    assert_eq!(api("").reason_not_to_serve(outside), None);
}

#[test]
fn a_template_that_is_not_there_is_a_warning_and_a_wrong_one_an_error() {
    let text = |path: &str| {
        format!("placement: {{scheduler: {{automatic_cluster_creation: {{tosca_file: {path}}}}}}}")
    };
    let config = parse(&text("/nonexistent/cluster.yaml")).unwrap();
    assert!(config.warnings[0].contains("/nonexistent/cluster.yaml"), "{:?}", config.warnings);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.yaml");
    let version = "tosca_definitions_version: tosca_simple_yaml_1_0\n";
    let outputs = "topology_template: {outputs: {kubeconfig: {value: it}}}\n";
    std::fs::write(&path, format!("{version}{outputs}")).unwrap();
    let creation = placement(&text(path.to_str().unwrap())).scheduler.cluster_creation;
    assert!(creation.tosca.unwrap().text().contains("tosca_simple_yaml_1_0"));
    for (wrong, what) in [
        ("- 1\n", ""),
        ("{}\n", "topology_template.outputs"),
        (version, "`topology_template.outputs` is no \"kubeconfig\""),
        (outputs, "`tosca_definitions_version` is nothing"),
        (
            &format!("{version}topology_template: {{outputs: {{kubeconfig: null}}}}\n"),
            "topology_template.outputs",
        ),
    ] {
        std::fs::write(&path, wrong).unwrap();
        let message = refusal(&text(path.to_str().unwrap()));
        let field = "placement.scheduler.automatic_cluster_creation.tosca_file";
        assert!(message.contains(field) && message.contains(what), "{wrong}: {message}");
    }
}
