//! Pods with their owners, and disruption budgets, as the API server shows them: the fields that a forecast of drains
//! needs.

use std::collections::{BTreeMap, BTreeSet};

use time::OffsetDateTime;

use crate::kubernetes::selector::{LabelSelector, Requirement};
use crate::kubernetes::{KubeNode, Pod, PodPhase};

/// The object that controls another one, as the owned object names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerReference {
    /// Kind of the controller, such as `ReplicaSet` or `Job`.
    pub kind: String,
    /// Name of the owner, in the namespace of the owned object.
    pub name: String,
    /// Identifier from the API server; a later object of the same name has another one.
    pub uid: String,
}

/// A pod that is bound to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledPod {
    /// The fields that a drain needs.
    pub pod: Pod,
    /// Name of the Node object.
    pub node: String,
    /// Labels, by which disruption budgets select the pod.
    pub labels: BTreeMap<String, String>,
    /// The controller of the pod.
    pub owner: Option<OwnerReference>,
    /// The time at which the kubelet accepted the pod (`status.startTime`).
    pub started_at: Option<OffsetDateTime>,
}

/// A PodDisruptionBudget with its state, as its controller counted last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisruptionBudget {
    /// Namespace of the budget and of its pods.
    pub namespace: String,
    /// Name, unique in the namespace.
    pub name: String,
    /// The selector of its pods. The empty selector selects all pods of the namespace, an absent one selects none.
    pub selector: Option<LabelSelector>,
    /// Evictions that the budget allows now.
    pub allowed: i64,
    /// Pods that the controller of budgets counts as healthy.
    pub healthy: i64,
    /// Healthy pods that the budget demands.
    pub desired: i64,
}

/// The state of Kubernetes for a forecast of drains. The parts are read one after another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workloads {
    /// Every Node object.
    pub nodes: Vec<KubeNode>,
    /// All pods that are bound to a node.
    pub pods: Vec<ScheduledPod>,
    /// The controllers of ReplicaSets, StatefulSets and jobs by the uid of the owned object. An object without a
    /// controller is absent.
    pub owners: BTreeMap<String, OwnerReference>,
    /// The disruption budgets of all namespaces.
    pub budgets: Vec<DisruptionBudget>,
}

impl ScheduledPod {
    /// True if an eviction of the pod counts against its budgets: the API server evicts a pod that has ended, has not
    /// begun or is being deleted whatever budgets say.
    #[must_use]
    pub fn is_budgeted(&self) -> bool {
        self.pod.phase == PodPhase::Running && self.pod.deleted_at.is_none()
    }
}

impl DisruptionBudget {
    /// True if the budget selects the labels of a pod of its namespace.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.as_ref().is_some_and(|selector| is_selected(selector, labels))
    }
}

/// True if a selector selects the labels. An expression with an unknown operator selects nothing: the API server
/// accepts none.
fn is_selected(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let meets = |Requirement { key, operator, values }: &Requirement| {
        let value = labels.get(key);
        match operator.as_str() {
            "In" => value.is_some_and(|value| values.contains(value)),
            "NotIn" => value.is_none_or(|value| !values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(meets)
}

/// The budgets of each pod, found without a comparison of every pod with every budget.
#[derive(Debug)]
pub struct BudgetIndex<'a> {
    budgets: &'a [DisruptionBudget],
    /// Budgets by namespace, and by the first label that they demand.
    by_label: BTreeMap<(&'a str, &'a str, &'a str), Vec<usize>>,
    /// Budgets by namespace that demand no label.
    others: BTreeMap<&'a str, Vec<usize>>,
}

impl<'a> BudgetIndex<'a> {
    /// Indexes the budgets by namespace, so that a lookup does not compare every budget.
    #[must_use]
    pub fn new(budgets: &'a [DisruptionBudget]) -> Self {
        let (mut by_label, mut others) = (BTreeMap::new(), BTreeMap::new());
        for (at, budget) in budgets.iter().enumerate() {
            let Some(selector) = &budget.selector else { continue };
            let list: &mut Vec<usize> = match selector.match_labels.first_key_value() {
                Some((key, value)) => by_label.entry((&*budget.namespace, &**key, &**value)).or_default(),
                None => others.entry(&*budget.namespace).or_default(),
            };
            list.push(at);
        }
        Self { budgets, by_label, others }
    }

    /// The budgets that select a pod, in their order.
    #[must_use]
    pub fn budgets_of(&self, pod: &ScheduledPod) -> Vec<&'a DisruptionBudget> {
        let namespace = pod.pod.id.namespace.as_str();
        let by_label = pod.labels.iter().filter_map(|(key, value)| {
            let key: (&str, &str, &str) = (namespace, key, value);
            self.by_label.get(&key)
        });
        let candidates: BTreeSet<usize> =
            by_label.chain(self.others.get(namespace)).flatten().copied().collect();
        let budgets = candidates.into_iter().map(|at| &self.budgets[at]);
        budgets.filter(|budget| budget.selects(&pod.labels)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::PodId;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn budget(namespace: &str, name: &str, selector: Option<&str>) -> DisruptionBudget {
        DisruptionBudget {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: selector.map(|json| serde_json::from_str(json).unwrap()),
            allowed: 0,
            healthy: 0,
            desired: 0,
        }
    }

    fn pod(namespace: &str, pairs: &[(&str, &str)]) -> ScheduledPod {
        ScheduledPod {
            pod: Pod {
                id: PodId { namespace: namespace.to_owned(), name: "p".to_owned(), uid: "1".to_owned() },
                phase: PodPhase::Running,
                controller: None,
                mirror: false,
                deleted_at: None,
            },
            node: "n".to_owned(),
            labels: labels(pairs),
            owner: None,
            started_at: None,
        }
    }

    #[test]
    fn every_operator_selects_as_in_kubernetes() {
        let web = labels(&[("app", "web"), ("tier", "front")]);
        for (selector, expected) in [
            ("{}", true),
            (r#"{"matchLabels":{"app":"web"}}"#, true),
            (r#"{"matchLabels":{"app":"web","tier":"back"}}"#, false),
            (r#"{"matchLabels":{"other":""}}"#, false),
            (r#"{"matchExpressions":[{"key":"app","operator":"In","values":["db","web"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"app","operator":"In","values":["db"]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"other","operator":"NotIn","values":["web"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"tier","operator":"Exists"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]}"#, false),
            (r#"{"matchExpressions":[{"key":"other","operator":"DoesNotExist"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"tier","operator":"Near"}]}"#, false),
            (
                r#"{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]}"#,
                false,
            ),
        ] {
            assert_eq!(budget("a", "b", Some(selector)).selects(&web), expected, "{selector}");
        }
        assert!(!budget("a", "b", None).selects(&web), "an absent selector selects none");
    }

    #[test]
    fn index_finds_the_budgets_that_a_comparison_with_each_budget_finds() {
        let budgets = [
            budget("a", "all", Some("{}")),
            budget("a", "web", Some(r#"{"matchLabels":{"app":"web"}}"#)),
            budget("a", "front", Some(r#"{"matchLabels":{"app":"web","tier":"front"}}"#)),
            budget("a", "tiers", Some(r#"{"matchExpressions":[{"key":"tier","operator":"Exists"}]}"#)),
            budget("a", "none", None),
            budget("b", "all", Some("{}")),
            budget("b", "web", Some(r#"{"matchLabels":{"app":"web"}}"#)),
        ];
        let index = BudgetIndex::new(&budgets);
        for namespace in ["a", "b", "c"] {
            for pairs in [
                &[][..],
                &[("app", "web")],
                &[("app", "web"), ("tier", "front")],
                &[("tier", "back")],
                &[("app", "db"), ("web", "app")],
            ] {
                let pod = pod(namespace, pairs);
                let compared: Vec<&DisruptionBudget> = budgets
                    .iter()
                    .filter(|budget| budget.namespace == namespace && budget.selects(&pod.labels))
                    .collect();
                assert_eq!(index.budgets_of(&pod), compared, "{namespace} {pairs:?}");
            }
        }
        let names =
            |pod: &ScheduledPod| index.budgets_of(pod).iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&pod("a", &[("app", "web")])), ["all", "web"]);
    }
}
