//! Explanations: what a question becomes, who may see what of the answer, and what there is when there is none.

use madako_messages::placement::decision::{
    Candidate, Counts, Decision, ExplainError, Explanation, Outcome, Ranked, Stay, WhatIf,
};
use madako_messages::placement::explainer::{Explainer, NoExplanation};
use madako_messages::placement::kind::ObjectKey;

use super::access::{allow, rbac};
use super::*;

/// Knows one application, `testing/known`, with a cluster in each of two namespaces.
pub(super) struct Fake;

fn cluster(namespace: &str) -> ObjectKey {
    ObjectKey::new(Kind::Cluster, Some(namespace), "c")
}

fn candidate(namespace: &str) -> Candidate {
    Candidate {
        target: cluster(namespace),
        current: false,
        dropped: None,
        metrics: Vec::new(),
        base: Some(0.5),
        score: Some(0.5),
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
            "known" => {}
            "elsewhere" => return Err(NoExplanation::Elsewhere),
            "late" => return Err(NoExplanation::Unanswered),
            _ => return Err(ExplainError::Unknown { application }.into()),
        }
        if let Some((metric, value)) = what_if.with.first() {
            let (metric, value, why) = (metric.clone(), value.to_string(), "no".to_owned());
            return Err(ExplainError::BadValue { metric, value, why }.into());
        }
        let ranked = |namespace| Ranked { target: cluster(namespace), score: 0.5, has_metrics: false };
        let clusters =
            ["testing", "other"].into_iter().filter(|name| !what_if.without.contains(&(*name).to_owned()));
        Ok(Box::new(Explanation {
            application,
            revision: 7,
            decision: Decision {
                at: OffsetDateTime::UNIX_EPOCH,
                outcome: Outcome::Stays { on: cluster("testing"), why: Stay::Best },
                best: Some(ranked("testing")),
                runner_up: Some(ranked("other")),
                gain: None,
                clusters: Counts::default(),
            },
            last: None,
            stickiness: 0.1,
            clusters: clusters.map(candidate).collect(),
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
async fn everybody_who_may_everything_sees_every_candidate() {
    let answer = world().ask("GET", &format!("{PATH}/known/explain")).await.with(200).json();
    assert_eq!(namespaces(&answer), ["testing", "other"]);
    assert_eq!(answer["decision"]["outcome"], "stays");
    let without = world().ask("GET", &format!("{PATH}/known/explain?without=other")).await.with(200).json();
    assert_eq!(namespaces(&without), ["testing"]);
}

#[tokio::test]
async fn candidates_of_others_stay_theirs() {
    let world = rbac();
    let path = format!("{PATH}/known/explain");
    world.ask("GET", &path).await.with(403);
    allow(&world, "apps", "kubernetes", "applications", &["testing"], "get");
    assert_eq!(namespaces(&world.ask("GET", &path).await.with(200).json()), [""; 0]);
    allow(&world, "own", "kubernetes", "clusters", &["testing"], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!((namespaces(&answer), &answer["decision"]["runner_up"]), (vec!["testing"], &Value::Null));
    allow(&world, "all", "kubernetes", "clusters", &[""], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer["decision"]["runner_up"]["target"]["namespace"], "other");
}

#[tokio::test]
async fn a_question_without_an_answer_is_refused_with_the_reason() {
    let world = world();
    for (question, status, says) in [
        ("unknown/explain", 404, "there is no Application testing/unknown"),
        ("elsewhere/explain", 503, "ask the one that leads"),
        ("late/explain", 503, "did not answer in time"),
        ("known/explain?with=load=2", 422, "load cannot be 2: no"),
        ("known/explain?with=load", 422, "load=0.5"),
    ] {
        let answer = world.ask("GET", &format!("{PATH}/{question}")).await.with(status).json();
        assert!(answer["detail"].as_str().unwrap().contains(says), "{answer}");
    }
    world.ask("PUT", &format!("{PATH}/known/explain")).await.with(405);
    world.ask("GET", "/kubernetes/namespaces/testing/clusters/known/explain").await.with(404);
}
