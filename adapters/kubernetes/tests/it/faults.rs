//! Tests of the requests to the API server, and of answers that a correct API server never sends.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::component::Component;
use madako_domain::kubernetes::{EvictionOutcome, PodId};
use madako_domain::objects::SecretVersion;
use madako_kubernetes::{Limits, WRITE_DEADLINE};
use madako_protocol::components::Components as _;
use madako_protocol::kubernetes::{Kubernetes, KubernetesError};
use madako_protocol::objects::Objects as _;
use madako_protocol::permit::Permit;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::components::HERE;
use crate::contract::permit;
use crate::fake::{Fake, Reply};
use crate::pki::Authority;

/// Long enough for an immediate answer on a busy machine, short enough to wait for a timeout.
const HASTY: Limits = Limits {
    read_deadline: Duration::from_secs(3),
    write_deadline: Duration::from_secs(3),
    max_answer_bytes: 256 * 1024,
    page: 2,
    node_age: Duration::ZERO,
    seed: 1,
};

/// Limits for a busy machine.
fn patient() -> Limits {
    Limits { max_answer_bytes: 256 * 1024, page: 2, ..Limits::default() }
}

fn pod() -> PodId {
    PodId { namespace: "web".to_owned(), name: "front-1".to_owned(), uid: "uid-1".to_owned() }
}

fn status(code: u16, reason: &str, causes: &Value) -> String {
    let details = json!({"name": "front-1", "kind": "pods", "causes": causes});
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the {reason}\nas it is"), "reason": reason, "code": code, "details": details,
    })
    .to_string()
}

/// The error of listing nodes when the server answers so.
async fn nodes(reply: impl Fn() -> Reply + Send + Sync + 'static, limits: Limits) -> KubernetesError {
    let fake = Fake::start(move |_| reply()).await;
    fake.adapter(limits).nodes().await.unwrap_err()
}

#[tokio::test]
async fn an_answer_is_taken_whole_or_not_at_all() {
    let list = |items: Value| json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items});
    for (case, body) in [
        ("no JSON", "<html>welcome</html>".to_owned()),
        ("nothing", String::new()),
        ("half", "{\"kind\": \"NodeList\", \"items\": [".to_owned()),
        (
            "another type",
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": 7}).to_string(),
        ),
        (
            "another kind",
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}).to_string(),
        ),
        (
            "wrong field",
            list(json!([{"metadata": {"name": "a"}, "spec": {"unschedulable": "hunter2"}}])).to_string(),
        ),
        ("no name", list(json!([{"metadata": {"name": "a"}}, {"metadata": {}}])).to_string()),
        ("empty name", list(json!([{"metadata": {"name": ""}}])).to_string()),
    ] {
        let error = nodes(move || Reply::Whole(200, body.clone()), patient()).await;
        assert!(matches!(&error, KubernetesError::Malformed { .. }), "{case}: {error:?}");
        assert!(!error.to_string().contains("hunter2"), "no value is repeated: {error}");
    }
    let error = nodes(|| Reply::CutOff, patient()).await;
    assert!(matches!(&error, KubernetesError::Unavailable { .. }), "{error:?}");
    for endless in [
        nodes(|| Reply::Endless, patient()).await,
        nodes(|| Reply::Whole(200, " ".repeat(300_000)), patient()).await,
    ] {
        assert!(
            matches!(&endless, KubernetesError::Malformed { why, .. } if why.contains("longer")),
            "{endless:?}"
        );
    }
    // The body of an error answer is bounded as well.
    let error = nodes(|| Reply::Whole(500, "x".repeat(300_000)), patient()).await;
    assert!(matches!(&error, KubernetesError::Malformed { why, .. } if why.contains("longer")), "{error:?}");
    let error = nodes(|| Reply::Whole(302, String::new()), patient()).await;
    assert!(matches!(&error, KubernetesError::Malformed { .. }), "{error:?}");

    let begun = Instant::now();
    let error = nodes(|| Reply::Hang, HASTY).await;
    assert!(matches!(&error, KubernetesError::Unavailable { .. }), "{error:?}");
    assert!(begun.elapsed() >= HASTY.read_deadline, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn request_is_counted_once_even_if_its_caller_leaves() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    // The recorder is thread-local, and the test has one thread.
    let _recording = metrics::set_default_local_recorder(&recorder);
    let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": []}).to_string();
    Fake::start(move |_| Reply::Whole(200, list.clone())).await.adapter(patient()).nodes().await.unwrap();
    let silent = Fake::start(|_| Reply::Hang).await;
    let api = silent.adapter(patient());
    let is_asked = async {
        while silent.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = api.nodes() => panic!("nobody answers: {answer:?}"),
        asked = tokio::time::timeout(Duration::from_secs(30), is_asked) => asked.expect("it is asked"),
    }
    let page = page.render();
    let counted = |line: &&str| line.starts_with("madako_kubernetes_request") && !line.contains("quantile");
    let mut counted: Vec<&str> = page.lines().filter(counted).filter(|line| !line.contains("_sum")).collect();
    counted.sort_unstable();
    assert_eq!(
        counted,
        [
            "madako_kubernetes_request_seconds_count{call=\"nodes\"} 2",
            "madako_kubernetes_requests_total{call=\"nodes\",outcome=\"cancelled\"} 1",
            "madako_kubernetes_requests_total{call=\"nodes\",outcome=\"ok\"} 1",
        ]
    );
}

#[tokio::test]
async fn endless_pages_of_a_list_are_cut_off() {
    let page = |items: Vec<Value>| {
        let metadata = json!({"continue": "more"});
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string()
    };
    let fake = Fake::start(move |_| Reply::Whole(200, page(Vec::new()))).await;
    let error = fake.adapter(patient()).nodes().await.unwrap_err();
    assert!(
        matches!(&error, KubernetesError::Malformed { why, .. } if why.contains("empty page")),
        "{error:?}"
    );
    assert_eq!(fake.asked().len(), 1);

    let nodes: Vec<Value> = (0..3_000).map(|n| json!({"metadata": {"name": format!("node-{n}")}})).collect();
    let fake = Fake::start(move |_| Reply::Whole(200, page(nodes.clone()))).await;
    let error = fake.adapter(patient()).nodes().await.unwrap_err();
    assert!(
        matches!(&error, KubernetesError::Malformed { why, .. } if why.contains("more than")),
        "{error:?}"
    );
    let asked = fake.asked();
    assert_eq!(asked.len(), madako_kubernetes::MAX_NODES / 3_000 + 1);
    assert!(asked[0].target.contains("limit=2") && asked[1].target.contains("continue=more"), "{asked:?}");
}

#[tokio::test]
async fn a_pod_of_another_node_is_never_among_those_to_drain() {
    let list = |node: &str| {
        let metadata = json!({"name": "front-1", "namespace": "web", "uid": "uid-1"});
        let items = json!([{"metadata": metadata, "spec": {"nodeName": node, "containers": []}}]);
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string()
    };
    let fake = Fake::start(move |_| Reply::Whole(200, list("10.0.0.2"))).await;
    let api = fake.adapter(patient());
    assert_eq!(api.pods_on("10.0.0.2").await.unwrap()[0].id, pod());
    let error = api.pods_on("10.0.0.1").await.unwrap_err();
    assert!(
        matches!(&error, KubernetesError::Malformed { why, .. } if why.contains("another node")),
        "{error:?}"
    );
    assert!(fake.asked()[0].target.contains("fieldSelector=spec.nodeName%3D10.0.0.2"), "{:?}", fake.asked());
}

#[tokio::test]
async fn only_a_429_of_a_disruption_budget_counts_as_refused() {
    let budget =
        json!([{"reason": "DisruptionBudget", "message": "The disruption budget all needs 2 healthy pods"}]);
    let evict = async |code: u16, body: String| {
        let fake = Fake::start(move |_| Reply::Whole(code, body.clone())).await;
        fake.adapter(patient()).evict(&permit(), &pod(), false).await
    };
    let refused = evict(429, status(429, "TooManyRequests", &budget)).await.unwrap();
    assert!(
        matches!(&refused, EvictionOutcome::Refused { why } if why.contains("needs 2 healthy pods")),
        "{refused:?}"
    );
    // An overloaded server, a webhook's denial, or a load balancer's page.
    for (code, body) in [
        (429, status(429, "TooManyRequests", &json!([]))),
        (429, "slow down".to_owned()),
        (403, status(403, "Forbidden", &budget)),
        (500, status(500, "InternalError", &json!([]))),
        (503, "<html>no upstream</html>".to_owned()),
        (404, "404 page not found".to_owned()),
    ] {
        let error = evict(code, body.clone()).await.unwrap_err();
        assert!(
            matches!(&error, KubernetesError::Refused { status, .. } if *status == code),
            "{body}: {error:?}"
        );
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert_eq!(evict(404, status(404, "NotFound", &json!([]))).await.unwrap(), EvictionOutcome::Gone);
}

#[tokio::test]
async fn after_a_conflict_the_pod_is_looked_at() {
    for (uid, gone) in [("uid-1", false), ("uid-2", true)] {
        let fake = Fake::start(move |asked| match asked.method.as_str() {
            "GET" => {
                let metadata = json!({"name": "front-1", "namespace": "web", "uid": uid});
                Reply::Whole(
                    200,
                    json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata}).to_string(),
                )
            }
            _ => Reply::Whole(409, status(409, "Conflict", &json!([]))),
        })
        .await;
        let api = fake.adapter(patient());
        let (evicted, deleted) =
            (api.evict(&permit(), &pod(), false).await, api.delete(&permit(), &pod()).await);
        if gone {
            assert_eq!((evicted, deleted), (Ok(EvictionOutcome::Gone), Ok(())));
        } else {
            for error in [evicted.map(|_| ()).unwrap_err(), deleted.unwrap_err()] {
                assert!(matches!(&error, KubernetesError::Refused { status: 409, .. }), "{error:?}");
            }
        }
    }
}

const NODE: &str = r#"{"metadata": {"name": "10.0.0.1"}}"#;

#[tokio::test]
async fn requests_have_the_form_that_kubernetes_expects() {
    let fake = Fake::start(|asked| match &*asked.method {
        "GET" => Reply::Whole(200, NODE.to_owned()),
        _ => Reply::Whole(201, "{}".to_owned()),
    })
    .await;
    let api = fake.adapter(patient());
    api.evict(&permit(), &pod(), true).await.unwrap();
    api.evict(&permit(), &pod(), false).await.unwrap();
    api.delete(&permit(), &pod()).await.unwrap();
    api.cordon(&permit(), "10.0.0.1").await.unwrap();
    let asked = fake.asked();
    let body = |index: usize| serde_json::from_str::<Value>(&asked[index].body).unwrap();
    for (index, dry_run) in [(0, json!(["All"])), (1, Value::Null)] {
        assert_eq!(asked[index].target.trim_end_matches('?'), "/api/v1/namespaces/web/pods/front-1/eviction");
        let body = body(index);
        assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("Eviction"), &json!("policy/v1")), "{body}");
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "uid-1", "{body}");
        assert_eq!(body["deleteOptions"]["dryRun"], dry_run, "{body}");
        assert!(
            body["deleteOptions"]["gracePeriodSeconds"].is_null(),
            "the pod's own grace period counts: {body}"
        );
    }
    assert_eq!((asked[2].method.as_str(), &body(2)["preconditions"]["uid"]), ("DELETE", &json!("uid-1")));
    assert!(
        asked[4].head.to_lowercase().contains("application/strategic-merge-patch+json"),
        "{}",
        asked[4].head
    );
    assert!(asked[4].target.contains("fieldManager=madako"), "{}", asked[4].target);
    assert!(asked.iter().all(|asked| asked.head.contains("Bearer a-secret-token")));

    // Invalid names cause no request.
    for name in ["../secrets", "a?b", "", "a/b", "A"] {
        let odd = PodId { name: name.to_owned(), ..pod() };
        api.evict(&permit(), &odd, false).await.unwrap_err();
        api.delete(&permit(), &odd).await.unwrap_err();
        api.pods_on(name).await.unwrap_err();
    }
    assert_eq!(fake.asked().len(), asked.len());
}

#[tokio::test]
async fn a_write_is_given_up_when_its_permit_ends() {
    let fake = Fake::start(|asked| match &*asked.method {
        "GET" => Reply::Whole(200, NODE.to_owned()),
        _ => Reply::Hang,
    })
    .await;
    let api = fake.adapter(Limits { write_deadline: Duration::from_secs(600), ..Limits::default() });
    let permit = Permit::give(3, Instant::now() + Duration::from_secs(2));
    let late = api.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&late, KubernetesError::Unavailable { .. }), "{late:?}");
    // It had the remaining time of the permit, not the ten minutes.
    assert!(late.to_string().contains("no complete answer within 1."), "{late}");
    let after = api.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&after, KubernetesError::Permit(_)), "{after:?}");
    assert_eq!(fake.asked().len(), 2, "a read, and the write");
}

/// Each server accepts the connection, and never answers.
#[tokio::test]
async fn a_write_takes_one_deadline_at_all_silent_api_servers_together() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let mut kept = Vec::new();
    let silent = tokio::spawn(async move {
        loop {
            kept.push(listener.accept().await.unwrap());
        }
    });
    let components = crate::components::components(Arc::new(Authority::new()), &url);
    let servers: Vec<String> = std::iter::repeat_n(HERE.to_owned(), 5).collect();
    let began = Instant::now();
    let error = components.add_taints(&permit(), &servers, "10.0.0.1", &[]).await.unwrap_err();
    assert!(matches!(error, KubernetesError::Unavailable { .. }), "{error}");
    let took = began.elapsed();
    assert!(took < WRITE_DEADLINE + Duration::from_secs(5), "{took:?}");
    silent.abort();
}

/// A kubeconfig names the API server for objects, whatever the addresses of the control plane are.
#[tokio::test]
async fn the_api_server_of_a_kubeconfig_answers_for_the_control_plane() {
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "10.0.0.1"}});
    let fake = Fake::start(move |_| Reply::Whole(200, node.to_string())).await;
    let components = crate::components::components(Arc::new(Authority::new()), "https://127.0.0.1:1");
    let components = components.with_server(&fake.access()).unwrap();
    let read = components.read_taints(&["127.0.0.9".to_owned()], "10.0.0.1").await.unwrap();
    assert_eq!(read, Some(Vec::new()));
    components.check(Component::ApiServer, "127.0.0.1").await.unwrap_err();
    components.read_server_version("127.0.0.1").await.unwrap_err();
    assert!(fake.asked().iter().all(|asked| asked.target.contains("/nodes/10.0.0.1")), "{:?}", fake.asked());
}

#[tokio::test]
async fn an_error_about_secrets_has_no_message_of_the_api_server() {
    let fake = Fake::start(|_| Reply::Whole(500, status(500, "hunter2", &json!([])))).await;
    let components = crate::components::components(Arc::new(Authority::new()), "https://127.0.0.1:1");
    let components = components.with_server(&fake.access()).unwrap();
    let [namespace, name, resource_version] = ["a", "s", "1"].map(str::to_owned);
    let secret = SecretVersion { namespace, name, resource_version };
    let errors = [
        components.list_secrets(&[]).await.unwrap_err(),
        components.rewrite_secret(&permit(), &[], &secret).await.unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("withheld") && !error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn restarted_containers_are_those_of_running_pods_in_the_watch_cache() {
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}).to_string();
    let fake = Fake::start(move |_| Reply::Whole(200, list.clone())).await;
    let components = crate::components::components(Arc::new(Authority::new()), "https://127.0.0.1:1");
    let components = components.with_server(&fake.access()).unwrap();
    let since = OffsetDateTime::UNIX_EPOCH;
    assert!(components.restarted_containers(&[], "10.0.0.1", since).await.unwrap().is_empty());
    let target = fake.asked()[0].target.clone();
    for part in ["resourceVersion=0", "spec.nodeName%3D10.0.0.1", "status.phase%21%3DSucceeded"] {
        assert!(target.contains(part), "{part}: {target}");
    }
    assert!(!target.contains("limit="), "etcd would answer: {target}");
}
