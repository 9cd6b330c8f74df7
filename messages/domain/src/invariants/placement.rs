//! I11: an application is bound only to an online cluster that meets all its constraints at decision time.
//!
//! Guarantees: whatever a transaction writes of applications is judged as it is written. A binding counts with its
//! evidence only: the cluster, the cloud that it inherits from, and what was known of metrics; the gate compares the
//! revisions of these, so that what was judged is still so when it is committed. Without evidence a binding must be
//! the one that is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Id, Violation};
use crate::placement::fit::{self, AnyCloud, Compared, Offer};
use crate::placement::kind::{Kind, ObjectKey};
use crate::placement::kubernetes::{Application, Cluster};
use crate::placement::metadata::ResourceRef;
use crate::placement::metrics::MetricsObserved;
use crate::placement::object_value::{Object, Resource as _};
use crate::placement::objects::Stored;
use crate::store::{Condition, Write};

/// What is judged before an application is bound (invariant I11). The gate compares the revisions of all three.
#[derive(Debug, Clone)]
pub struct BindingEvidence {
    /// The application, as it was when that was decided.
    pub application: Arc<Stored>,
    /// The cluster that it is bound to.
    pub cluster: Arc<Stored>,
    /// The cloud that the cluster is bound to, if it is there.
    pub cloud: Option<Arc<Stored>>,
    /// What was known of metrics; `None`: nothing.
    pub metrics: Option<Arc<MetricsObserved>>,
    /// What metric constraints compare.
    pub compared: Compared,
}

/// A transaction of placement that is about to be committed, and what it must be judged by.
#[derive(Clone, Copy)]
pub struct PlacementChange<'a> {
    /// What is compared; keys are absolute.
    pub conditions: &'a [Condition],
    /// What is written.
    pub writes: &'a [Write],
    /// What its bindings were decided on.
    pub evidence: &'a [BindingEvidence],
    /// What is stored, as the judge's own view has it.
    pub stored: &'a dyn Fn(&ObjectKey) -> Option<Arc<Stored>>,
}

/// What was found of a transaction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// How it breaks the invariant.
    pub violations: Vec<Violation>,
    /// Keys that changed since it was decided, so that it can neither be judged nor be committed.
    pub changed: Vec<String>,
}

/// I11, for a transaction.
#[must_use]
pub fn placed_where_allowed(change: &PlacementChange<'_>) -> Judged {
    let mut judged = Judged::default();
    let evidence: BTreeMap<&ObjectKey, &BindingEvidence> =
        change.evidence.iter().map(|evidence| (&evidence.application.key, evidence)).collect();
    for write in change.writes {
        let Write::Put { key, value, .. } = write else { continue };
        let Some(of) = ObjectKey::from_etcd_key(key).filter(|of| of.kind == Kind::Application) else {
            continue;
        };
        let Some(application) = read(value) else {
            judged.violate(&of, "what is written cannot be read as an application");
            continue;
        };
        match (evidence.get(&of), &application.status.scheduled_to) {
            (Some(evidence), Some(to)) => judged.binding(change, &of, &application, to, evidence),
            (Some(_), None) => judged.violate(&of, "there is evidence of a binding, and none is written"),
            // Whoever is bound nowhere is nowhere where it may not be.
            (None, None) => {}
            (None, Some(to)) => judged.kept(change, key, &of, to),
        }
    }
    judged
}

fn read(value: &[u8]) -> Option<Application> {
    let object = Object::from_stored(Kind::Application, std::str::from_utf8(value).ok()?).ok()?;
    Application::of(&object).cloned()
}

impl Judged {
    fn violate(&mut self, application: &ObjectKey, what: impl std::fmt::Display) {
        self.violations.push(Violation { invariant: Id::I11, what: format!("{application}: {what}") });
    }

    /// A new binding: the cluster is that of the evidence, and takes the application as it is written.
    fn binding(
        &mut self,
        change: &PlacementChange<'_>,
        of: &ObjectKey,
        application: &Application,
        to: &ResourceRef,
        evidence: &BindingEvidence,
    ) {
        let target = &evidence.cluster.key;
        let Some(cluster) = Cluster::of(&evidence.cluster.object).filter(|_| to.is(target)) else {
            return self
                .violate(of, format_args!("it is bound to another cluster than was judged, {target}"));
        };
        let bound_to = cluster.status.scheduled_to.as_ref().and_then(ResourceRef::key);
        let given = evidence.cloud.as_ref();
        if let Some(given) = given.filter(|given| bound_to.as_ref() != Some(&given.key)) {
            return self.violate(
                of,
                format_args!("{target} is not bound to the cloud that was judged, {}", given.key),
            );
        }
        if given.is_none() && bound_to.as_ref().is_some_and(|cloud| (change.stored)(cloud).is_some()) {
            return self
                .violate(of, format_args!("{target} was judged without the cloud that it is bound to"));
        }
        let none = BTreeMap::new();
        let values = evidence.metrics.as_ref().map_or(&none, |observed| &observed.metrics);
        let cloud = given.and_then(|cloud| AnyCloud::of(&cloud.object));
        let offer = Offer::of_cluster(cluster, cloud, values, evidence.compared);
        for unmet in fit::unmet(application, cluster, &offer) {
            self.violate(of, format_args!("it is bound to {target}: {unmet}"));
        }
    }

    /// A binding without evidence: it is the one that is stored at the revision that is compared.
    fn kept(&mut self, change: &PlacementChange<'_>, key: &str, of: &ObjectKey, to: &ResourceRef) {
        let compared = change.conditions.iter().find_map(|condition| match condition {
            Condition::Unchanged { key: compared, revision } if compared == key => Some(*revision),
            _ => None,
        });
        let Some(revision) = compared else {
            return self.violate(of, "it is bound without evidence, and its revision is not compared");
        };
        let stored = (change.stored)(of).filter(|stored| stored.mod_revision == revision);
        if stored.is_none() && revision > 0 {
            return self.changed.push(key.to_owned());
        }
        let before = stored.as_ref().and_then(|stored| Application::of(&stored.object));
        if before.and_then(|before| before.status.scheduled_to.as_ref()) != Some(to) {
            self.violate(of, format_args!("it is bound to {} {} without evidence", to.kind, to.name));
        }
    }
}

/// What is compared because bindings were judged by it: the revisions of applications, clusters and clouds, once each.
pub fn judged_by(evidence: &[BindingEvidence]) -> impl Iterator<Item = Condition> {
    evidence
        .iter()
        .flat_map(|evidence| [Some(&evidence.application), Some(&evidence.cluster), evidence.cloud.as_ref()])
        .flatten()
        .map(|stored| Condition::Unchanged { key: stored.key.etcd_key(), revision: stored.mod_revision })
}

#[cfg(test)]
mod tests;
