//! Tests of the placement commands that krakectl does not have: states of clusters, metrics without a value, and the
//! address of the API.

use serde_json::{Value, json};

use crate::krakectl::{Server, json_said};
use crate::program::{free_port, madako};

fn cluster(state: &str) -> Value {
    json!({"metadata": {"name": "munich", "namespace": "testing"}, "spec": {"kubeconfig": {}}, "status": {"state": state}})
}

#[tokio::test]
async fn the_state_of_a_cluster_is_written_as_its_observer_writes_it() {
    let read = |state| (200, "ETag: \"7\"\r\n", cluster(state).to_string());
    let answers = [
        read("PENDING"),
        json_said(200, &cluster("ONLINE")),
        read("ONLINE"),
        read("ONLINE"),
        read("OFFLINE"),
    ];
    let server = Server::answering(answers).await;
    let set = ["kube", "cluster", "set-state", "munich"];
    let shown = server.run(&[&set[..], &["online", "-n", "testing"]].concat()).await.calm();
    assert!(shown.contains("ONLINE"), "{shown}");
    let asked = server.asked();
    let path = "/kubernetes/namespaces/testing/clusters/munich";
    assert_eq!(server.lines(), [format!("GET {path}"), format!("PUT {path}/status")]);
    assert_eq!(asked[1].if_match.as_deref(), Some("\"7\""));
    assert_eq!(asked[1].body, cluster("ONLINE"), "all else as it was read");
    // A cluster with this state already is not written.
    server.run(&[&set[..], &["online", "-n", "testing"]].concat()).await.calm();
    assert_eq!(server.lines()[2..], [format!("GET {path}")]);
    server.run(&[&set[..], &["offline", "-n", "testing"]].concat()).await.calm();
    assert_eq!(server.asked()[4].body["status"]["state"], "OFFLINE");
    let message = server.run(&[&set[..], &["pending"]].concat()).await.refused_after_notes(2);
    assert!(message.contains("online, offline"), "{message}");
}

#[tokio::test]
async fn a_metric_that_could_have_no_value_is_refused() {
    let metric = json!({"metadata": {"name": "heat"}, "spec": {
        "min": 0.0, "max": 1.0, "allowed_values": [], "provider": {"name": "p", "metric": "heat"}}});
    let absent = json!({"title": "NOT_FOUND_ERROR", "detail": "no"});
    let server = Server::answering([
        json_said(404, &absent),
        json_said(200, &metric),
        json_said(200, &metric),
        json_said(404, &absent),
        json_said(403, &json!({"detail": "403: Forbidden"})),
        json_said(201, &metric),
    ])
    .await;
    let create = ["core", "gm", "create", "heat", "--gmp-name", "p", "--min"];
    let message = server.run(&[&create[..], &["1", "--max", "0"]].concat()).await.refused(2);
    assert!(message.contains("least value 1 is above its greatest value 0"), "{message}");
    assert!(server.lines().is_empty(), "nothing is asked about what cannot be");

    let message = server.run(&[&create[..], &["0", "--max", "1"]].concat()).await.refused(2);
    assert!(message.contains("there is no GlobalMetricsProvider p; madako core gmp create"), "{message}");
    assert_eq!(server.lines(), ["GET /core/globalmetricsproviders/p"]);

    let update = ["core", "metric", "update", "heat", "-n", "testing"];
    let message = server.run(&[&update[..], &["--min", "2"]].concat()).await.refused(2);
    assert!(message.contains("least value 2 is above its greatest value 1"), "{message}");
    let message = server.run(&[&update[..], &["--mp-name", "q"]].concat()).await.refused(2);
    assert!(message.contains("there is no MetricsProvider testing/q"), "{message}");
    assert_eq!(
        server.lines()[1..],
        [
            "GET /core/namespaces/testing/metrics/heat",
            "GET /core/namespaces/testing/metrics/heat",
            "GET /core/namespaces/testing/metricsproviders/q",
        ]
    );
    // A user whose role allows only metrics gets a warning, and the command goes on.
    let answer = server.run(&[&create[..], &["0", "--max", "1"]].concat()).await;
    assert!(
        answer.code == 0 && answer.err.contains("it is unknown whether the metrics provider exists"),
        "{answer:?}"
    );
    assert_eq!(server.lines()[5], "POST /core/globalmetrics");
}

#[tokio::test]
async fn the_address_that_is_typed_counts_before_that_of_the_file() {
    let server = Server::answering((0..5).map(|_| json_said(200, &json!({"items": []})))).await;
    let elsewhere = format!("api_url: http://127.0.0.1:{}\nuser: somebody\n", free_port());
    let config = server.files.write("elsewhere.yaml", elsewhere);
    let url = format!("http://127.0.0.1:{}", server.port);
    for args in [
        &["kube", "cluster", "list"][..],
        &["core", "metric", "list"],
        &["infra", "cloud", "list"],
        &["os", "project", "list"],
    ] {
        madako(&[args, &["--config", &config, "--api-url", &url]].concat()).await.calm();
    }
    madako(&["kube", "--api-url", &url, "--config", &config, "cluster", "list"]).await.calm();
    assert_eq!(
        server.lines(),
        [
            "GET /kubernetes/namespaces/somebody/clusters",
            "GET /core/namespaces/somebody/metrics",
            "GET /infrastructure/namespaces/somebody/clouds",
            "GET /openstack/namespaces/somebody/projects",
            "GET /kubernetes/namespaces/somebody/clusters",
        ]
    );
    let message =
        madako(&["kube", "app", "list", "--config", &config, "--api-url", "ftp://a"]).await.refused(2);
    assert!(message.contains("--api-url: "), "{message}");
}

#[tokio::test]
async fn explanation_names_a_remedy_for_clusters_that_are_not_online() {
    let candidate = |name: &str, state: &str| {
        json!({
            "target": {"kind": "Cluster", "namespace": "testing", "name": name}, "current": false, "metrics": [],
            "dropped": {"reason": "unmet", "unmet": [{"unmet": "not_online", "state": state}]}, "base": null, "score": null,
        })
    };
    let decision = json!({
        "at": "2026-01-01T00:00:00Z", "outcome": "degraded", "retries": -1, "retry": null, "best": null,
        "runner_up": null, "gain": null, "clusters": {"considered": 3, "not_online": 3, "failing_metrics": 0,
        "labels": 0, "custom_resources": 0, "metrics": 0, "fit": 0},
    });
    let clusters =
        [candidate("bonn", "PENDING"), candidate("kiel", "OFFLINE"), candidate("munich", "PENDING")];
    let answer = json!({"decision": decision, "last": null, "clusters": clusters, "clouds": []});
    let server = Server::answering([json_said(200, &answer)]).await;
    let shown = server.run(&["kube", "app", "explain", "echo", "-n", "testing"]).await.calm();
    for line in [
        "testing/kiel is OFFLINE: an operator or an observer has reported it as offline. Once it can run \
         applications: madako kube cluster set-state kiel online -n testing",
        "testing/bonn (and 1 more) is PENDING: no operator and no observer has reported its state yet. Once \
         it can run applications: madako kube cluster set-state bonn online -n testing",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} is not in\n{shown}");
    }
}

#[tokio::test]
async fn the_help_of_each_group_names_krakectls_file() {
    for words in
        [&["kube"][..], &["core"], &["infra"], &["os"], &["kube", "cluster"], &["kube", "cluster", "delete"]]
    {
        let help = madako(&[words, &["--help"]].concat()).await.calm();
        assert!(
            help.contains("krakectl's configuration file") && help.contains("--api-url <URL>"),
            "{words:?}: {help}"
        );
        assert!(!help.contains("CKE's"), "{words:?}: {help}");
    }
    assert!(madako(&["status", "--help"]).await.calm().contains("CKE's"));
}
