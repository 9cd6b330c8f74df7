//! Tests of explanations: parsing of questions, visibility of answers, and answers without a leader.

use madako_domain::placement::decision::{
    Candidate, Counts, Decision, DropReason, ExplainError, Explanation, Gain, Hold, MetricPart, Move,
    Outcome, RankedCluster, Stay, WhatIf,
};
use madako_domain::placement::kind::ObjectKey;
use madako_protocol::placement::explainer::{Explainer, NoExplanation};

use super::access::{allow, rbac};
use super::*;

/// Knows two applications, `testing/known` and `testing/bound`, and a cluster in each of two namespaces.
/// `testing/bound` is bound to `testing/c`.
pub(super) struct Fake;

fn cluster(namespace: &str) -> ObjectKey {
    ObjectKey::new(Kind::Cluster, Some(namespace), "c")
}

fn candidate(namespace: &str, current: bool) -> Candidate {
    let metric = MetricPart {
        metric: "latency".to_owned(),
        weight: 0.25,
        value: Some(4.0),
        normalized: Some(0.8),
        age: None,
        oscillates: false,
        range: None,
        since: None,
        note: None,
    };
    Candidate {
        target: cluster(namespace),
        current,
        dropped: current.then_some(DropReason::FailingMetrics { metric: "latency".to_owned(), why: None }),
        metrics: vec![metric],
        base: Some(0.5),
        score: Some(0.5),
    }
}

fn ranked(namespace: &str) -> RankedCluster {
    RankedCluster { target: cluster(namespace), score: 0.5, has_metrics: false }
}

/// A decision that names both clusters.
fn held() -> Decision {
    let rule = Hold::MaxMoves { limit: 10, until: None };
    Decision {
        at: OffsetDateTime::UNIX_EPOCH,
        outcome: Outcome::Held { on: cluster("testing"), to: cluster("other"), why: Move::Better, rule },
        best: Some(ranked("other")),
        runner_up: Some(ranked("other")),
        gain: None,
        clusters: Counts::default(),
    }
}

#[async_trait::async_trait]
impl Explainer for Fake {
    async fn explain(
        &self,
        application: ObjectKey,
        what_if: WhatIf,
    ) -> Result<Box<Explanation>, NoExplanation> {
        match application.name.as_str() {
            "known" | "bound" => {}
            "elsewhere" => {
                return Err(NoExplanation::Elsewhere { leader: Some("host1".to_owned()), last: None });
            }
            "kept" => {
                let last = Some(Box::new(held()));
                return Err(NoExplanation::Elsewhere { leader: Some("host1".to_owned()), last });
            }
            "late" => return Err(NoExplanation::Unanswered),
            _ => return Err(ExplainError::Unknown { application }.into()),
        }
        if let Some((metric, value)) = what_if.with.first() {
            let (metric, value, why) = (metric.clone(), value.to_string(), "no".to_owned());
            return Err(ExplainError::BadValue { metric, value, why }.into());
        }
        if let Some(name) = what_if.without.first().filter(|name| !what_if.includes_namespace(Some(name))) {
            return Err(ExplainError::UnknownCluster { cluster: name.clone(), application }.into());
        }
        let clusters =
            ["testing", "other"].into_iter().filter(|name| !what_if.without.contains(&(*name).to_owned()));
        let bound = application.name == "bound";
        Ok(Box::new(Explanation {
            application,
            revision: 7,
            decision: Decision {
                at: OffsetDateTime::UNIX_EPOCH,
                outcome: Outcome::Stays { on: cluster("testing"), why: Stay::Best },
                best: Some(ranked("testing")),
                runner_up: Some(ranked("other")),
                gain: Some(Gain { gain: 0.125, stickiness: 0.0625 }),
                clusters: Counts::default(),
            },
            last: Some(held()),
            stickiness: 0.1,
            clusters: clusters
                .map(|namespace| candidate(namespace, bound && namespace == "testing"))
                .collect(),
            clouds: Vec::new(),
        }))
    }
}

const PATH: &str = "/kubernetes/namespaces/testing/applications";

fn namespaces(answer: &Value) -> Vec<&str> {
    let clusters = answer["clusters"].as_array().unwrap();
    clusters.iter().map(|candidate| candidate["target"]["namespace"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn user_with_all_rights_sees_every_candidate() {
    let answer = world().ask("GET", &format!("{PATH}/known/explain")).await.with(200).json();
    assert_eq!(namespaces(&answer), ["testing", "other"]);
    assert_eq!(answer["decision"]["outcome"], "stays");
    let without = world().ask("GET", &format!("{PATH}/known/explain?without=other")).await.with(200).json();
    assert_eq!(namespaces(&without), ["testing"]);
}

#[tokio::test]
async fn explain_hides_candidates_that_the_user_may_not_list() {
    let world = rbac();
    let path = format!("{PATH}/known/explain");
    world.ask("GET", &path).await.with(403);
    allow(&world, "apps", "kubernetes", "applications", &["testing"], "get");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(namespaces(&answer), [""; 0]);
    assert!(!answer.to_string().contains("other"), "{answer}");
    assert_eq!(answer["decision"]["best"], Value::Null);
    allow(&world, "own", "kubernetes", "clusters", &["testing"], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!((namespaces(&answer), &answer["decision"]["runner_up"]), (vec!["testing"], &Value::Null));
    assert_eq!(answer["decision"]["best"]["target"]["namespace"], "testing");
    assert_eq!(
        (&answer["last"]["on"]["name"], &answer["last"]["to"]["name"]),
        (&json!("c"), &json!("(hidden)"))
    );
    assert!(!answer.to_string().contains("other"), "{answer}");
    // The existence of a hidden cluster is not revealed either.
    let question = format!("{path}?without=other");
    let answer = world.ask("GET", &question).await.with(422).json();
    assert!(answer["detail"].as_str().unwrap().contains("has no candidate cluster other"), "{answer}");
    allow(&world, "all", "kubernetes", "clusters", &[""], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer["decision"]["runner_up"]["target"]["namespace"], "other");
    assert_eq!(answer["last"]["to"]["namespace"], "other");
    world.ask("GET", &question).await.with(200);
}

#[tokio::test]
async fn bound_cluster_without_list_permission_is_shown_by_name_only() {
    let world = rbac();
    allow(&world, "creator", "kubernetes", "applications", &["testing"], "create");
    allow(&world, "binder", "kubernetes", "applications/binding", &["testing"], "update");
    allow(&world, "reader", "kubernetes", "applications", &["testing"], "get");
    let (application, _) = world.created(Kind::Application, "bound").await;
    let to = json!({"api": "kubernetes", "kind": "Cluster", "namespace": "testing", "name": "c"});
    world.say("PUT", &format!("{application}/binding"), &json!({"cluster": to})).await.with(200);

    let path = format!("{application}/explain");
    let answer = world.ask("GET", &path).await.with(200).json();
    let bound = json!({"kind": "Cluster", "namespace": "testing", "name": "c"});
    let alone = json!({
        "target": bound, "current": true, "dropped": null, "metrics": [], "base": null, "score": null,
    });
    assert_eq!(answer["clusters"], json!([alone]));
    assert_eq!((&answer["decision"]["on"], &answer["last"]["on"]), (&bound, &bound));
    for decision in ["decision", "last"] {
        for compared in ["best", "runner_up", "gain"] {
            assert_eq!(
                answer[decision][compared],
                Value::Null,
                "{decision}.{compared} tells of the cluster's score"
            );
        }
    }
    allow(&world, "lister", "kubernetes", "clusters", &["testing"], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer["clusters"][0]["metrics"][0]["weight"], 0.25);
    assert_eq!(answer["decision"]["best"]["score"], 0.5);
    // The gain compares with a hidden cluster of another namespace.
    assert_eq!(answer["decision"]["gain"], Value::Null);
    allow(&world, "all", "kubernetes", "clusters", &[""], "list");
    assert_eq!(world.ask("GET", &path).await.with(200).json()["decision"]["gain"]["gain"], 0.125);
}

#[tokio::test]
async fn follower_shows_the_last_decision_and_names_the_leader() {
    let answer = world().ask("GET", &format!("{PATH}/kept/explain")).await.with(200).json();
    assert_eq!((&answer["leader"], &answer["decision"]), (&json!("host1"), &Value::Null));
    assert_eq!(
        (&answer["last"]["outcome"], &answer["last"]["to"]["namespace"]),
        (&json!("held"), &json!("other"))
    );
    // Only the leader can evaluate an assumption.
    let answer = world().ask("GET", &format!("{PATH}/kept/explain?without=other")).await.with(503).json();
    assert!(answer["detail"].as_str().unwrap().contains("ask the leader, on host1"), "{answer}");

    let world = rbac();
    allow(&world, "apps", "kubernetes", "applications", &["testing"], "get");
    allow(&world, "own", "kubernetes", "clusters", &["testing"], "list");
    let answer = world.ask("GET", &format!("{PATH}/kept/explain")).await.with(200).json();
    assert_eq!((&answer["last"]["best"], &answer["last"]["to"]["name"]), (&Value::Null, &json!("(hidden)")));
}

#[tokio::test]
async fn unanswerable_explanation_is_refused_with_the_reason() {
    let world = world();
    for (question, status, says) in [
        ("unknown/explain", 404, "the placement API has no Application testing/unknown"),
        ("elsewhere/explain", 503, "ask the leader, on host1"),
        ("late/explain", 503, "did not answer the request for an explanation in time"),
        ("known/explain?with=load=2", 422, "load cannot have the value 2: no"),
        ("known/explain?with=load", 422, "load=0.5"),
    ] {
        let answer = world.ask("GET", &format!("{PATH}/{question}")).await.with(status).json();
        assert!(answer["detail"].as_str().unwrap().contains(says), "{answer}");
    }
    world.ask("PUT", &format!("{PATH}/known/explain")).await.with(405);
    world.ask("GET", "/kubernetes/namespaces/testing/clusters/known/explain").await.with(404);
}
