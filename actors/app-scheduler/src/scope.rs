//! The clusters, clouds or projects to choose from, with shared evaluation of constraints.
//!
//! Guarantees: each canonical constraint is evaluated once, and each set of constraints ranked once, for all
//! applications. The result equals a separate evaluation with [`Requirements::are_met_by`].

use std::collections::BTreeMap;
use std::rc::Rc;

use madako_domain::canary::{Canary, is_planted};
use madako_domain::placement::constraint::has_custom_resource;
use madako_domain::placement::decision::Counts;
use madako_domain::placement::fit::Requirements;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::{LabelConstraint, MetricConstraint};

use crate::bits::BitSet;
use crate::target::{Availability, Target};

/// Places in the order of their keys.
pub(crate) struct Scope<'a> {
    targets: Vec<Rc<Target<'a>>>,
    places: BTreeMap<&'a ObjectKey, usize>,
    ready: BitSet,
    waits: BitSet,
    counts: Counts,
    label_columns: BTreeMap<&'a str, Vec<Option<&'a str>>>,
    metric_columns: BTreeMap<&'a str, Vec<Option<f64>>>,
    labels: BTreeMap<&'a str, Rc<BitSet>>,
    custom_resources: BTreeMap<&'a str, Rc<BitSet>>,
    metrics: BTreeMap<&'a str, Rc<BitSet>>,
    classes: BTreeMap<Signature<'a>, Rc<ConstraintResult>>,
}

/// Canonical constraints on labels, custom resources and metrics: each list sorted and without duplicates.
type Signature<'a> = (Vec<&'a str>, Vec<&'a str>, Vec<&'a str>);

pub(crate) struct ConstraintResult {
    pub(crate) fit: BitSet,
    /// Places that meet the known part of the constraints and whose metrics were never fetched.
    pub(crate) waits: BitSet,
    /// The best places, and the second best.
    groups: Vec<RankGroup>,
    pub(crate) counts: Counts,
}

/// Places of equal rank.
struct RankGroup {
    rank: Rank,
    members: Vec<usize>,
}

/// Places with metrics rank above places without.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank {
    pub(crate) has_metrics: bool,
    pub(crate) score: f64,
}

impl Rank {
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        self.compare(other).is_gt()
    }

    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        self.has_metrics.cmp(&other.has_metrics).then(self.score.total_cmp(&other.score))
    }
}

impl<'a> Scope<'a> {
    pub(crate) fn new(targets: Vec<Rc<Target<'a>>>) -> Self {
        let size = targets.len();
        let takes = |wanted| BitSet::from_predicate(size, |at| targets[at].availability == wanted);
        let (ready, waits) = (takes(Availability::Yes), takes(Availability::Waits));
        let counts = Counts {
            considered: size,
            not_online: takes(Availability::NotOnline).count() + takes(Availability::Deleted).count(),
            failing_metrics: takes(Availability::FailingMetrics).count(),
            ..Counts::default()
        };
        let places = targets.iter().enumerate().map(|(at, target)| (target.key(), at)).collect();
        Self {
            targets,
            places,
            ready,
            waits,
            counts,
            label_columns: BTreeMap::new(),
            metric_columns: BTreeMap::new(),
            labels: BTreeMap::new(),
            custom_resources: BTreeMap::new(),
            metrics: BTreeMap::new(),
            classes: BTreeMap::new(),
        }
    }

    pub(crate) fn target(&self, at: usize) -> &Rc<Target<'a>> {
        &self.targets[at]
    }

    pub(crate) fn targets(&self) -> &[Rc<Target<'a>>] {
        &self.targets
    }

    pub(crate) fn place(&self, key: &ObjectKey) -> Option<usize> {
        self.places.get(key).copied()
    }

    pub(crate) fn evaluate_requirements(&mut self, wants: &Requirements<'a>) -> Rc<ConstraintResult> {
        let signature = (
            sort_texts(wants.labels.iter().map(LabelConstraint::canonical_text)),
            sort_texts(wants.custom_resources.iter().map(String::as_str)),
            sort_texts(wants.metrics.iter().map(MetricConstraint::canonical_text)),
        );
        if let Some(class) = self.classes.get(&signature) {
            return Rc::clone(class);
        }
        let class = Rc::new(self.evaluate(wants));
        self.classes.insert(signature, Rc::clone(&class));
        class
    }

    fn evaluate(&mut self, wants: &Requirements<'a>) -> ConstraintResult {
        let mut counts = self.counts;
        let mut all = self.ready.clone();
        all.add_all(&self.waits);
        let mut left = all.count();
        let drop = |all: &BitSet, left: &mut usize| {
            let now = all.count();
            let dropped = *left - now;
            *left = now;
            dropped
        };
        for constraint in wants.labels.iter().filter(|_| !is_planted(Canary::LabelsIgnored)) {
            all.intersect(&self.targets_with_label(constraint));
        }
        counts.labels = drop(&all, &mut left);
        for name in wants.custom_resources {
            all.intersect(&self.custom_resource(name));
        }
        counts.custom_resources = drop(&all, &mut left);
        let mut waits = all.clone();
        waits.intersect(&self.waits);
        let mut fit = all;
        fit.intersect(&self.ready);
        left = fit.count();
        for constraint in wants.metrics {
            fit.intersect(&self.targets_with_metric(constraint));
        }
        counts.metrics = drop(&fit, &mut left);
        counts.fit = left;
        let groups = self.rank(&fit);
        ConstraintResult { fit, waits, groups, counts }
    }

    /// The best and second-best groups: an application on a best place needs another one to compare with.
    fn rank(&self, fit: &BitSet) -> Vec<RankGroup> {
        let mut groups: [Option<RankGroup>; 2] = [None, None];
        for at in fit.iter() {
            let base = &self.targets[at].base;
            let rank = Rank { has_metrics: base.has_metrics, score: base.score() };
            for level in 0..groups.len() {
                let order = groups[level]
                    .as_ref()
                    .map_or(std::cmp::Ordering::Greater, |group| rank.compare(&group.rank));
                match (order, &mut groups[level]) {
                    (std::cmp::Ordering::Equal, Some(group)) => {
                        group.members.push(at);
                        break;
                    }
                    (std::cmp::Ordering::Greater, _) => {
                        groups[level..].rotate_right(1);
                        groups[level] = Some(RankGroup { rank, members: vec![at] });
                        break;
                    }
                    _ => {}
                }
            }
        }
        groups.into_iter().flatten().collect()
    }

    fn targets_with_label(&mut self, constraint: &'a LabelConstraint) -> Rc<BitSet> {
        if let Some(bits) = self.labels.get(constraint.canonical_text()) {
            return Rc::clone(bits);
        }
        let size = self.targets.len();
        let bits = Rc::new(match constraint.rule() {
            Err(_) => BitSet::from_predicate(size, |_| false),
            Ok(rule) => {
                let targets = &self.targets;
                let column = self
                    .label_columns
                    .entry(rule.key.as_str())
                    .or_insert_with(|| targets.iter().map(|target| target.offer.label(&rule.key)).collect());
                BitSet::from_predicate(size, |at| column[at].is_some_and(|value| rule.test.accepts(value)))
            }
        });
        self.labels.insert(constraint.canonical_text(), Rc::clone(&bits));
        bits
    }

    fn custom_resource(&mut self, name: &'a str) -> Rc<BitSet> {
        let targets = &self.targets;
        let bits = self.custom_resources.entry(name).or_insert_with(|| {
            let has = |at: usize| has_custom_resource(targets[at].offer.custom_resources(), name);
            Rc::new(BitSet::from_predicate(targets.len(), has))
        });
        Rc::clone(bits)
    }

    fn targets_with_metric(&mut self, constraint: &'a MetricConstraint) -> Rc<BitSet> {
        if let Some(bits) = self.metrics.get(constraint.canonical_text()) {
            return Rc::clone(bits);
        }
        let size = self.targets.len();
        let bits = Rc::new(match constraint.metric() {
            None => BitSet::from_predicate(size, |_| false),
            Some(name) => {
                let targets = &self.targets;
                let column = self.metric_columns.entry(name).or_insert_with(|| {
                    targets.iter().map(|target| target.offer.compared_value(name).ok()).collect()
                });
                BitSet::from_predicate(size, |at| constraint.evaluate(column[at]).is_match())
            }
        });
        self.metrics.insert(constraint.canonical_text(), Rc::clone(&bits));
        bits
    }
}

impl ConstraintResult {
    /// The best rank outside `without`, and all places of that rank.
    pub(crate) fn best_without(&self, without: &[usize]) -> Option<(Rank, Vec<usize>)> {
        self.groups.iter().find_map(|group| {
            let left = group.members.iter().copied().filter(|at| !without.contains(at));
            let left: Vec<usize> = left.collect();
            (!left.is_empty()).then_some((group.rank, left))
        })
    }
}

fn sort_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut texts: Vec<&str> = texts.collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_constraints_are_evaluated_once() {
        let labels: [[LabelConstraint; 1]; 2] =
            ["loc = DE", "loc is DE"].map(|written| [written.parse().unwrap()]);
        let metrics: [[MetricConstraint; 1]; 2] =
            ["load >= 5", "load gte 5.0"].map(|written| [written.parse().unwrap()]);
        let mut scope = Scope::new(Vec::new());
        let [one, other] = [0, 1].map(|at| {
            scope.evaluate_requirements(&Requirements {
                labels: &labels[at],
                metrics: &metrics[at],
                ..Requirements::default()
            })
        });
        assert!(Rc::ptr_eq(&one, &other));
        assert_eq!((scope.labels.len(), scope.metrics.len()), (1, 1));
    }
}
