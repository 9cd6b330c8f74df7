//! `GET .../applications/{name}/explain`: the reasons of an application's placement, and changes that would alter it.
//! An extension; Krake has no such path.
//!
//! Guarantees: an answer reveals no clusters and clouds that the user may not list, neither in candidates, nor in
//! decisions, nor in the refusal of a question. The cluster that the application is bound to is an exception: the
//! application itself shows its name, and the answer adds nothing to the name.
//! An instance that is not the leader answers with the last decision and the name of the leader.

use std::collections::BTreeSet;
use std::iter;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use madako_domain::placement::core::Verb;
use madako_domain::placement::decision::{ExplainError, Explanation, WhatIf};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::object_value::Object;
use madako_protocol::placement::explainer::NoExplanation;
use serde_json::json;

use super::problem::{Problem, ProblemTitle};
use super::query::Query;
use super::rbac::{GrantedScope, RequestScope, RequestedAccess};
use super::service::{RequestContext, json_answer};
pub(super) use crate::limits::MOST_ASSUMPTIONS;

impl RequestContext {
    /// Answers with the scheduler's explanation, restricted to the candidates that the user may see.
    pub(super) async fn explain(mut self, application: ObjectKey) -> Result<Response, Problem> {
        self.authorize_one(&application, None, Verb::Get).await?;
        let clusters = self.visible_namespaces(Kind::Cluster).await?;
        let clouds = self.visible_namespaces(Kind::Cloud).await?;
        let global = self.visible_namespaces(Kind::GlobalCloud).await?;
        let shows = |target: &ObjectKey| match target.kind {
            Kind::Cluster => clusters.includes(target.namespace.as_deref()),
            Kind::GlobalCloud => global == GrantedScope::Whole,
            _ => clouds.includes(target.namespace.as_deref()),
        };
        let mut what_if = parse_what_if(&self.query)?;
        if let GrantedScope::Namespaces(names) = &clusters {
            what_if.namespaces = Some(names.clone());
        }
        // The explanation includes all earlier writes.
        self.refresh().await?;
        let Some(explainer) = &self.service.api.explainer else {
            return Err(not_leader_problem("this instance does not control placement"));
        };
        // The application itself shows its binding.
        let bound = self.service.api.objects.get(&application).and_then(|stored| match &stored.object {
            Object::Application(application) => application.status.scheduled_to.as_ref()?.key(),
            _ => None,
        });
        let plain = what_if.is_empty();
        match explainer.explain(application.clone(), what_if).await {
            Ok(mut explanation) => {
                let Explanation { clusters, clouds, decision, last, .. } = &mut *explanation;
                clusters.retain_mut(|candidate| {
                    let whole = shows(&candidate.target);
                    if !whole {
                        candidate.reduce_to_name();
                    }
                    whole || candidate.current
                });
                clouds.retain(|candidate| shows(&candidate.target));
                for decision in iter::once(decision).chain(last) {
                    decision.hide_resources(shows, bound.as_ref());
                }
                Ok(json_answer(StatusCode::OK, &explanation))
            }
            Err(NoExplanation::Elsewhere { leader, last: Some(mut last) }) if plain => {
                last.hide_resources(shows, bound.as_ref());
                let kept = json!({
                    "application": {
                        "kind": application.kind.name(),
                        "namespace": application.namespace,
                        "name": application.name,
                    },
                    "revision": null, "decision": null, "last": last, "stickiness": null,
                    "clusters": [], "clouds": [], "leader": leader,
                });
                Ok(json_answer(StatusCode::OK, &kept))
            }
            Err(error @ (NoExplanation::Elsewhere { .. } | NoExplanation::Unanswered)) => {
                Err(not_leader_problem(&error.to_string()))
            }
            Err(NoExplanation::Unread(error)) => Err(Problem::store(&error)),
            Err(NoExplanation::Refused(error)) => Err(problem_of(&error)),
        }
    }

    /// Namespaces whose resources of a kind the user may list.
    pub(super) async fn visible_namespaces(&mut self, kind: Kind) -> Result<GrantedScope, Problem> {
        let place = if kind.namespaced() { RequestScope::Everywhere } else { RequestScope::Global };
        match self
            .authorize_access(&RequestedAccess { kind, part: None, verb: Verb::List, scope: place })
            .await
        {
            Err(problem) if problem.status() == StatusCode::FORBIDDEN => {
                Ok(GrantedScope::Namespaces(BTreeSet::new()))
            }
            other => other,
        }
    }
}

fn not_leader_problem(why: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("503: {why}"))
        .with_header(header::RETRY_AFTER, HeaderValue::from_static("1"))
}

fn problem_of(error: &ExplainError) -> Problem {
    let detail = error.to_string();
    let field = |name: &str, expected: &str| Problem::invalid_field(name, detail.clone(), expected);
    match error {
        ExplainError::Unknown { .. } => {
            Problem::with_title(StatusCode::NOT_FOUND, ProblemTitle::NotFoundError, detail)
        }
        ExplainError::UnknownMetric { .. } => field("with", "a metric of a candidate"),
        ExplainError::BadValue { .. } => field("with", "a value that the metric may have"),
        ExplainError::UnknownCluster { .. } => field("without", "a candidate"),
        ExplainError::NotReady => not_leader_problem(&detail),
    }
}

/// `with=metric=value` and `without=cluster`, each any number of times.
fn parse_what_if(query: &Query) -> Result<WhatIf, Problem> {
    let mut what_if = WhatIf::default();
    for text in query.all_values("with") {
        let assumed = text.rsplit_once('=').and_then(|(metric, value)| {
            let value = value.parse::<f64>().ok().filter(|value| value.is_finite())?;
            (!metric.is_empty()).then(|| (metric.to_owned(), value))
        });
        let Some(assumed) = assumed else {
            return Err(Problem::invalid_field(
                "with",
                text,
                "a metric and a finite number, such as load=0.5",
            ));
        };
        what_if.with.push(assumed);
    }
    what_if.without.extend(query.all_values("without").map(str::to_owned));
    let count = what_if.with.len() + what_if.without.len();
    if count > MOST_ASSUMPTIONS {
        return Err(Problem::invalid_field("with", format!("{count} assumptions"), "at most 32"));
    }
    Ok(what_if)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assumptions_are_read_whole() {
        let read = |query: &str| parse_what_if(&Query::read(Some(query)));
        let requested = read("with=load=0.5&with=a%3Db=-1e2&without=one&without=two").unwrap();
        assert_eq!(requested.with, [("load".to_owned(), 0.5), ("a=b".to_owned(), -100.0)]);
        assert_eq!(requested.without, ["one", "two"]);
        assert!(read("").unwrap().is_empty());
        for wrong in ["with=load", "with=load=x", "with=load=inf", "with=load=NaN", "with==1", "with="] {
            assert_eq!(read(wrong).unwrap_err().status(), StatusCode::UNPROCESSABLE_ENTITY, "{wrong}");
        }
        let many = vec!["without=a"; MOST_ASSUMPTIONS + 1].join("&");
        assert_eq!(read(&many).unwrap_err().status(), StatusCode::UNPROCESSABLE_ENTITY);
    }
}
