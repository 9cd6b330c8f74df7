//! The answers about objects that a fleet at rest keeps, so that a pass reads only some of the objects anew.
//!
//! # Guarantees
//! - Unless the last decision found nothing to do, a pass reads all objects; so does the first pass after a command.
//! - At rest each object is read once in [`REST_PASSES`] passes or more often, and each pass reads at least
//!   [`LEAST_REST_READS`] objects: a change by another client is noticed within these passes.
//! - Only answers about present objects are kept. A wanted content that changes meanwhile differs from the kept answer.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::objects::{FoundObject, ObjectAnswers};
use madako_domain::resource::ResourceKey;

use super::RunnerState;
use crate::decide::Decision;
use crate::held::BlockedBy;
use crate::limits::{LEAST_REST_READS, REST_PASSES};

#[derive(Debug, Default)]
pub(super) struct KeptAnswers {
    /// Only the objects without the Node objects.
    answers: ObjectAnswers,
    /// Number of the collection that read an object.
    read: BTreeMap<ResourceKey, u64>,
}

impl KeptAnswers {
    /// The objects that the next pass does not read, of all that are asked for: those that were read last.
    pub(super) fn left_out(&self, asked: &BTreeSet<ResourceKey>) -> BTreeSet<ResourceKey> {
        let mut known: Vec<(u64, &ResourceKey)> =
            asked.iter().filter_map(|key| Some((*self.read.get(key)?, key))).collect();
        known.sort_unstable();
        let reads = LEAST_REST_READS.max(asked.len().div_ceil(REST_PASSES));
        known.into_iter().skip(reads).map(|(_, key)| key.clone()).collect()
    }

    /// Adds the answers about the objects that a collection left out, and keeps all of them.
    /// `found`: `None` if no API server answered.
    pub(super) fn complete(
        &mut self,
        number: u64,
        left_out: &BTreeSet<ResourceKey>,
        found: Option<&mut ObjectAnswers>,
    ) {
        let Some(found) = found else { return *self = Self::default() };
        let kept = std::mem::take(self);
        let is_left_out = |key: &ResourceKey| left_out.contains(key);
        found.resources.extend(kept.answers.resources.into_iter().filter(|(key, _)| is_left_out(key)));
        found.certificates.extend(kept.answers.certificates.into_iter().filter(|(key, _)| is_left_out(key)));
        found.contents.extend(kept.answers.contents.into_iter().filter(|(key, _)| is_left_out(key)));
        self.answers = ObjectAnswers {
            resources: present(&found.resources),
            certificates: found.certificates.clone(),
            contents: present(&found.contents),
            ..ObjectAnswers::default()
        };
        let keys = self.answers.resources.keys().chain(self.answers.contents.keys());
        let time = |key: &ResourceKey| kept.read.get(key).copied().filter(|_| is_left_out(key));
        self.read = keys.map(|key| (key.clone(), time(key).unwrap_or(number))).collect();
    }
}

fn present<T: Clone>(found: &BTreeMap<ResourceKey, FoundObject<T>>) -> BTreeMap<ResourceKey, FoundObject<T>> {
    let present = found.iter().filter(|(_, found)| matches!(found, FoundObject::Exists(_)));
    present.map(|(key, found)| (key.clone(), found.clone())).collect()
}

/// True if nothing is to be done, and no object waits.
fn is_calm(decision: &Decision) -> bool {
    decision.operations.is_empty()
        && !decision.held.iter().any(|held| matches!(held.reason, BlockedBy::Object(_)))
}

impl RunnerState {
    /// The objects that the next collection does not read.
    pub(super) fn objects_left_out(&self, asked: &BTreeSet<ResourceKey>) -> BTreeSet<ResourceKey> {
        // The answers about applied objects are those of before.
        let is_at_rest = !self.is_thinned && self.decision.as_ref().is_some_and(is_calm);
        if is_at_rest { self.kept.left_out(asked) } else { BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use madako_domain::objects::Annotations;

    use super::*;

    fn key(number: usize) -> ResourceKey {
        ResourceKey {
            kind: "ConfigMap".to_owned(),
            namespace: Some("n".to_owned()),
            name: format!("c{number:03}"),
        }
    }

    /// The answers of a collection that read these objects.
    fn answers(keys: impl Iterator<Item = ResourceKey>) -> ObjectAnswers {
        let found = |key| (key, FoundObject::Exists(Annotations::new()));
        ObjectAnswers { resources: keys.map(found).collect(), ..ObjectAnswers::default() }
    }

    #[test]
    fn each_object_is_read_once_in_some_passes_and_no_answer_is_missing() {
        for count in [5, 19, 500] {
            let asked: BTreeSet<ResourceKey> = (0..count).map(key).collect();
            let mut kept = KeptAnswers::default();
            assert_eq!(kept.left_out(&asked), BTreeSet::new(), "nothing is known");
            kept.complete(0, &BTreeSet::new(), Some(&mut answers(asked.iter().cloned())));
            for number in 1..=20 {
                let left_out = kept.left_out(&asked);
                let reads = asked.len() - left_out.len();
                assert!(reads <= LEAST_REST_READS.max(asked.len().div_ceil(REST_PASSES)), "{reads}");
                let mut some = answers(asked.difference(&left_out).cloned());
                kept.complete(number, &left_out, Some(&mut some));
                assert!(some.resources.keys().eq(asked.iter()));
                let passes = u64::try_from(REST_PASSES).unwrap();
                assert!(
                    kept.read.values().all(|read| number - read < passes),
                    "{count} objects in pass {number}"
                );
            }
        }
    }

    #[test]
    fn only_answers_about_present_objects_are_kept() {
        let asked: BTreeSet<ResourceKey> = (0..20).map(key).collect();
        let mut kept = KeptAnswers::default();
        let mut first = answers(asked.iter().cloned());
        first.resources.insert(key(0), FoundObject::Missing);
        first.resources.insert(key(1), FoundObject::Unread("silence".to_owned()));
        kept.complete(1, &BTreeSet::new(), Some(&mut first));
        let left_out = kept.left_out(&asked);
        assert!(!left_out.contains(&key(0)) && !left_out.contains(&key(1)));
        assert_eq!(left_out.len(), 18 - LEAST_REST_READS);
        // An object that is not asked for any more is forgotten.
        kept.complete(2, &BTreeSet::new(), Some(&mut answers((2..4).map(key))));
        assert_eq!(kept.read.len(), 2);
        kept.complete(3, &BTreeSet::new(), None);
        assert!(kept.read.is_empty(), "no API server answered");
    }
}
