//! I11: an application is bound only to an online cluster that meets all its constraints at decision time.
//!
//! Guarantees: every application that a transaction writes is evaluated in its written form. A new binding is valid
//! only with its evidence: the cluster, its cloud, and the observed metrics. The leader compares the revisions of the
//! application, cluster and cloud, so the evaluated state is also the committed state. A binding without evidence
//! must equal the stored one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Id, Violation};
use crate::placement::fit::{self, AnyCloud, ComparedMetrics, Offer};
use crate::placement::kind::{Kind, ObjectKey};
use crate::placement::kubernetes::{Application, Cluster};
use crate::placement::metadata::ResourceRef;
use crate::placement::metrics::MetricsObserved;
use crate::placement::object_value::{Object, Resource as _};
use crate::placement::objects::Stored;
use crate::store::{Condition, Write};

/// The state that allowed a binding (invariant I11). The leader compares the revisions of application, cluster and
/// cloud.
#[derive(Debug, Clone)]
pub struct BindingEvidence {
    /// The application at the time of the decision.
    pub application: Arc<Stored>,
    /// The target cluster in its evaluated state.
    pub cluster: Arc<Stored>,
    /// The cloud of the cluster, if it exists.
    pub cloud: Option<Arc<Stored>>,
    /// The observed metrics; `None` if there were none.
    pub metrics: Option<Arc<MetricsObserved>>,
    /// The values that metric constraints compare.
    pub compared: ComparedMetrics,
}

/// A placement transaction before its commit, with the data that I11 compares it with.
#[derive(Clone, Copy)]
pub struct PlacementChange<'a> {
    /// The conditions of the transaction; keys are absolute.
    pub conditions: &'a [Condition],
    /// The writes of the transaction.
    pub writes: &'a [Write],
    /// The evidence of its new bindings.
    pub evidence: &'a [BindingEvidence],
    /// The stored resources in the checker's own view.
    pub stored: &'a dyn Fn(&ObjectKey) -> Option<Arc<Stored>>,
}

/// The result of the check of a transaction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BindingCheck {
    /// The violations of I11.
    pub violations: Vec<Violation>,
    /// Keys that changed after the decision; the transaction can be neither evaluated nor committed.
    pub changed: Vec<String>,
}

/// Checks I11 for a transaction.
#[must_use]
pub fn check_allowed_bindings(change: &PlacementChange<'_>) -> BindingCheck {
    let mut judged = BindingCheck::default();
    let evidence: BTreeMap<&ObjectKey, &BindingEvidence> =
        change.evidence.iter().map(|evidence| (&evidence.application.key, evidence)).collect();
    for write in change.writes {
        let Write::Put { key, value, .. } = write else { continue };
        let Some(of) = ObjectKey::from_etcd_key(key).filter(|of| of.kind == Kind::Application) else {
            continue;
        };
        let Some(application) = read_application(value) else {
            judged.record_violation(&of, "the written value is not an application");
            continue;
        };
        match (evidence.get(&of), &application.status.scheduled_to) {
            (Some(evidence), Some(to)) => judged.check_binding(change, &of, &application, to, evidence),
            (Some(_), None) => {
                judged.record_violation(
                    &of,
                    "the evidence is about a binding, but the change writes no binding",
                );
            }
            // An unbound application cannot violate the invariant.
            (None, None) => {}
            (None, Some(to)) => judged.check_kept(change, key, &of, to),
        }
    }
    judged
}

fn read_application(value: &[u8]) -> Option<Application> {
    let object = Object::from_stored(Kind::Application, std::str::from_utf8(value).ok()?).ok()?;
    Application::from_object(&object).cloned()
}

impl BindingCheck {
    fn record_violation(&mut self, application: &ObjectKey, what: impl std::fmt::Display) {
        self.violations.push(Violation { invariant: Id::I11, what: format!("{application}: {what}") });
    }

    /// Checks a new binding: the target is the cluster of the evidence, which accepts the application in its written
    /// form.
    fn check_binding(
        &mut self,
        change: &PlacementChange<'_>,
        of: &ObjectKey,
        application: &Application,
        to: &ResourceRef,
        evidence: &BindingEvidence,
    ) {
        let target = &evidence.cluster.key;
        let Some(cluster) = Cluster::from_object(&evidence.cluster.object).filter(|_| to.refers_to(target))
        else {
            return self.record_violation(
                of,
                format_args!("the change does not bind it to the evaluated cluster, {target}"),
            );
        };
        let bound_to = cluster.status.scheduled_to.as_ref().and_then(ResourceRef::key);
        let given = evidence.cloud.as_ref();
        if let Some(given) = given.filter(|given| bound_to.as_ref() != Some(&given.key)) {
            return self.record_violation(
                of,
                format_args!("{target} is not bound to the evaluated cloud, {}", given.key),
            );
        }
        if given.is_none() && bound_to.as_ref().is_some_and(|cloud| (change.stored)(cloud).is_some()) {
            return self.record_violation(of, format_args!("{target} was evaluated without its cloud"));
        }
        let none = BTreeMap::new();
        let values = evidence.metrics.as_ref().map_or(&none, |observed| &observed.metrics);
        let cloud = given.and_then(|cloud| AnyCloud::from_object(&cloud.object));
        let offer = Offer::from_cluster(cluster, cloud, values, evidence.compared);
        for unmet in fit::unmet_requirements(application, cluster, &offer) {
            self.record_violation(of, format_args!("it is bound to {target}: {unmet}"));
        }
    }

    /// Checks a binding without evidence: it equals the stored binding at the compared revision.
    fn check_kept(&mut self, change: &PlacementChange<'_>, key: &str, of: &ObjectKey, to: &ResourceRef) {
        let compared = change.conditions.iter().find_map(|condition| match condition {
            Condition::Unchanged { key: compared, revision } if compared == key => Some(*revision),
            _ => None,
        });
        let Some(revision) = compared else {
            return self
                .record_violation(of, "it is bound without evidence, and its revision is not compared");
        };
        let stored = (change.stored)(of).filter(|stored| stored.mod_revision == revision);
        if stored.is_none() && revision > 0 {
            return self.changed.push(key.to_owned());
        }
        let before = stored.as_ref().and_then(|stored| Application::from_object(&stored.object));
        if before.and_then(|before| before.status.scheduled_to.as_ref()) != Some(to) {
            self.record_violation(
                of,
                format_args!("it is bound to {} {} without evidence", to.kind, to.name),
            );
        }
    }
}

/// The conditions that protect the evidence: the revisions of its applications, clusters and clouds, each once.
pub fn evidence_conditions(evidence: &[BindingEvidence]) -> impl Iterator<Item = Condition> {
    evidence
        .iter()
        .flat_map(|evidence| [Some(&evidence.application), Some(&evidence.cluster), evidence.cloud.as_ref()])
        .flatten()
        .map(|stored| Condition::Unchanged { key: stored.key.etcd_key(), revision: stored.mod_revision })
}

#[cfg(test)]
mod tests;
