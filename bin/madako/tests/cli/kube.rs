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
    assert!(server.lines().is_empty(), "an invalid request is not sent");

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
async fn a_refusal_for_lack_of_roles_names_the_command_that_stores_them() {
    let server = Server::answering([json_said(403, &json!({"detail": "403: Forbidden"}))]).await;
    let message = server.run(&["kube", "cluster", "list"]).await.refused(1);
    assert!(message.contains(" was refused: 403: Forbidden; roles and role bindings "), "{message}");
    assert!(message.contains("madako bootstrap --default-roles"), "{message}");
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
    for part in [
        "\ntesting/kiel is OFFLINE: an operator or an observer has reported it as offline.\n  Once it can run \
         applications:\n  madako kube cluster set-state kiel online -n testing\n",
        "\ntesting/bonn (and 1 more) is PENDING: no operator and no observer has reported\n  its state yet. Once it \
         can run applications:\n  madako kube cluster set-state bonn online -n testing\n",
    ] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
}

/// An explanation of an application on the first of many clusters, with long names and reasons.
fn explained(clusters: usize) -> Value {
    let names: Vec<String> =
        (0..clusters).map(|number| format!("cluster-in-a-distant-region-{number:03}")).collect();
    let target = |name: &str| json!({"kind": "Cluster", "namespace": "testing", "name": name});
    let metric = |name: &str| {
        json!({"metric": name, "weight": 1.5, "value": 12.5, "normalized": 0.125, "age": 3.0, "oscillates": false,
               "range": [10.0, 14.0], "since": "2026-01-01T00:00:00Z", "note": null})
    };
    let metrics = json!([metric("testing/electricity_cost"), metric("heat_demand"), metric("latency")]);
    let candidates: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let dropped = (number >= 3).then(|| {
                json!({"reason": "unmet", "unmet": [
                    {"unmet": "label", "constraint": "location is DE", "got": "a rather distant place"},
                    {"unmet": "custom_resource", "name": "databases.example.com"}]})
            });
            let score = (number < 3).then(|| 0.9 - f64::from(u32::try_from(number).unwrap()) / 10.0);
            json!({"target": target(name), "current": number == 0, "dropped": dropped, "metrics": metrics,
                   "base": score, "score": score})
        })
        .collect();
    let decision = json!({
        "at": "2026-01-01T00:00:00Z", "outcome": "stays", "on": target(&names[0]), "why": {"reason": "best"},
        "best": {"target": target(&names[0]), "score": 0.9, "has_metrics": true},
        "runner_up": {"target": target(&names[1]), "score": 0.8, "has_metrics": true},
        "gain": {"gain": -0.1, "stickiness": 0.0}, "clusters": {"considered": clusters, "not_online": 0,
        "failing_metrics": 0, "labels": clusters - 3, "custom_resources": 0, "metrics": 0, "fit": 3},
    });
    json!({"decision": decision, "last": decision, "clusters": candidates, "clouds": []})
}

#[tokio::test]
async fn an_explanation_fits_eighty_columns_with_a_line_for_each_other_cluster() {
    let answer = explained(40);
    let server = Server::answering((0..3).map(|_| json_said(200, &answer))).await;
    let shown = server.run(&["kube", "app", "explain", "echo", "-n", "testing"]).await.calm();
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let others: Vec<&str> = shown.lines().filter(|line| line.starts_with("testing/cluster-")).collect();
    assert_eq!(others.len(), 40, "{shown}");
    assert!(
        others[0].contains("0.900") && others[1].contains("0.800") && others[2].contains("0.700"),
        "{shown}"
    );
    assert!(
        shown.contains("\n  testing/electricity_cost 0.125 x 1.5 (12.5, 3 s old) within 10 to 14"),
        "{shown}"
    );
    assert!(others[0].contains(" (current) "), "{shown}");
    assert!(others[3].contains("location is DE:"), "{shown}");
    assert!(!shown.contains("databases.example.com"), "{shown}");
    let whole = server.run(&["kube", "app", "explain", "echo", "-n", "testing", "--all"]).await.calm();
    assert!(whole.lines().all(|line| line.chars().count() <= 80), "{whole}");
    assert_eq!(whole.matches("databases.example.com").count(), 37, "{whole}");
    assert_eq!(whole.matches("electricity_cost 0.125 x 1.5").count(), 40, "{whole}");
    let shown = server.run(&["kube", "app", "explain", "echo", "-n", "testing", "--all", "-o", "json"]).await;
    assert_eq!(shown.json(), answer);
    assert_eq!(
        server.lines()[1],
        "GET /kubernetes/namespaces/testing/applications/echo/explain",
        "--all is not an option of the request"
    );
}

#[tokio::test]
async fn a_list_of_applications_has_cluster_score_age_and_reason() {
    let app = |name: &str, status: Value| json!({"metadata": {"name": name, "namespace": "testing"}, "status": status});
    let munich = json!({"kind": "Cluster", "namespace": "testing", "name": "munich"});
    let bound = json!({"state": "RUNNING", "scheduled_to": munich, "scheduled": "2026-01-01T00:00:00Z"});
    let items = json!({"items": [app("bound", bound)]});
    let mut degraded = explained(4);
    degraded["decision"]["outcome"] = "failed".into();
    degraded["clusters"][0]["current"] = false.into();
    let unbound = json!({"items": [app("unbound", json!({"state": "DEGRADED", "scheduled_to": null}))]});
    let server = Server::answering([
        json_said(200, &items),
        json_said(200, &explained(4)),
        json_said(200, &unbound),
        json_said(200, &degraded),
        json_said(200, &unbound),
        json_said(403, &json!({"detail": "no"})),
        json_said(200, &items),
    ])
    .await;
    let list = ["kube", "app", "list", "-n", "testing"];
    let shown = server.run(&list).await.calm();
    let line = shown.lines().nth(1).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        (&cells[..5], cells.len()),
        (&["bound", "testing", "RUNNING", "munich", "0.900"][..], 6),
        "{shown}"
    );
    assert!(cells[5].ends_with('h'), "the age of the binding: {shown}");
    let shown = server.run(&list).await.calm();
    assert!(
        shown.ends_with("DEGRADED  -        -      -      fits nowhere: of 4 clusters 1 with other labels\n"),
        "{shown}"
    );
    assert_eq!(
        server.lines()[..2],
        [
            "GET /kubernetes/namespaces/testing/applications",
            "GET /kubernetes/namespaces/testing/applications/bound/explain"
        ]
    );
    let answer = server.run(&list).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(
        answer.err.contains("scores and reasons are missing: ") && answer.out.contains("DEGRADED"),
        "{answer:?}"
    );
    // The documents are krakectl's, and no explanation is asked for.
    assert_eq!(server.run(&[&list[..], &["-o", "json"]].concat()).await.json(), items["items"]);
    let message = server.run(&[&list[..], &["--sort-by", "size"]].concat()).await.refused(2);
    assert!(message.contains("expected one of name, namespace, state, cluster, score, since"), "{message}");
    assert_eq!(server.asked().len(), 7);
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
    let own =
        ["issue", "status", "plan", "pause", "resume", "rotate-encryption-key"].map(|word| ["kube", word]);
    let own = own.iter().map(|words| &words[..]);
    for words in own.chain([&["status"][..], &["kubernetes", "issue"]]) {
        let help = madako(&[words, &["--help"]].concat()).await.calm();
        assert!(help.contains("Configuration file, CKE's"), "{words:?}: {help}");
        assert!(!help.contains("krakectl") && !help.contains("--api-url"), "{words:?}: {help}");
    }
}

#[tokio::test]
async fn the_address_of_the_api_is_refused_where_no_api_is_asked() {
    for args in [
        &["kube", "status", "--api-url", "http://127.0.0.1:1"][..],
        &["kube", "--api-url", "http://127.0.0.1:1", "issue"],
    ] {
        let message = madako(args).await.refused(2);
        assert!(message.contains("--api-url has no effect on `madako kube "), "{args:?}: {message}");
    }
}
