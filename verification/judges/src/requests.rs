//! Promises about the service's requests to Kubernetes, and about the requests of API clients.

use crate::fact::{Fact, KubernetesRequest, PodFact};
use crate::observed_world::ObservedWorld;
use crate::oracle::{Context, FactJudgement, Predicate};

pub(crate) struct ProtectedPods;

impl Predicate for ProtectedPods {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        match fact {
            Fact::Kubernetes { action, pod: Some(PodFact { name, protected: true }), .. }
                if *action == KubernetesRequest::Delete =>
            {
                ruling.report_broken(format_args!("{name} is deleted, and its namespace is protected"));
            }
            // The situation in which another pod would be deleted.
            Fact::Kubernetes { pod: Some(PodFact { protected: true, .. }), refused: true, .. }
            | Fact::EvictionTried { protected: true, refused: true } => ruling.count_test(),
            _ => {}
        }
    }
}

pub(crate) struct AllConditions;

impl Predicate for AllConditions {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        if let Fact::Transacted { held, written } = fact {
            ruling.require(held == written, || {
                format!("a transaction wrote: {written}, and all of its conditions held: {held}")
            });
        }
    }
}

#[derive(Default)]
pub(crate) struct IfMatch {
    /// Answers that arrived before their revision: key, named version, version after the request.
    early_answers: Vec<(String, i64, i64)>,
}

impl Predicate for IfMatch {
    fn observe(&mut self, Context { fact, now, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        match fact {
            Fact::Conditional { status: 412, .. } => ruling.count_test(),
            Fact::Conditional { key, version, status: 200..300, after: Some(after) } if version != after => {
                self.early_answers.push((key.clone(), *version, *after));
            }
            Fact::Stored { .. } => {}
            _ => return,
        }
        self.early_answers.retain(|(key, version, after)| {
            let Some(before) = version_of_key_before(now, key, *after) else { return true };
            if before != *version {
                ruling.report_broken(format_args!(
                    "{key} was to be changed at {version}, and was at {before} until {after}"
                ));
            }
            false
        });
    }
}

/// The version of a key before the version `after`; `None`: that is not known yet.
fn version_of_key_before(now: &ObservedWorld, key: &str, after: i64) -> Option<i64> {
    let versions = now.versions.get(key)?;
    let at = versions.iter().rposition(|version| *version == after)?;
    Some(at.checked_sub(1).map_or(0, |before| versions[before]))
}
