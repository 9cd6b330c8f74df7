//! The contract of the real API server and the simulated one. Tests against the simulated one are therefore valid for
//! the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use madako_datacenter_sim::kubernetes::{PodOwner, Workload, WorkloadBudget};
use madako_domain::kubernetes::workload::ScheduledPod;
use madako_domain::kubernetes::{EvictionOutcome, KubeNode, Pod, PodId, PodPhase};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use madako_protocol::permit::Permit;
use tokio::time::Instant;

use crate::server::until;

#[async_trait]
pub(crate) trait Site: Sync {
    fn api(&self) -> &dyn Kubernetes;
    fn reader(&self) -> &dyn KubernetesWorkloads;
    /// Adds a node with taints: key, value, effect.
    async fn node(&self, name: &str, taints: &[[&str; 3]]);
    async fn remove_node(&self, name: &str);
    /// Adds a taint to a node: key, value, effect.
    async fn taint(&self, name: &str, taint: [&str; 3]);
    /// Cordons or uncordons a node as `kubectl` does.
    async fn cordon_as_another(&self, name: &str, cordoned: bool);
    /// Adds a namespace with labels.
    async fn namespace(&self, name: &str, labels: &[(&str, &str)]);
    async fn workload(&self, workload: Workload);
    async fn budget(&self, budget: WorkloadBudget);
    async fn remove_budget(&self, namespace: &str, name: &str);
    /// Sets whether a pod hangs when it is deleted.
    async fn set_stuck(&self, pod: &PodId, stuck: bool);
}

/// A permit that outlasts every test.
pub(crate) fn permit() -> Permit {
    Permit::give(1, Instant::now() + Duration::from_secs(3600))
}

const NODES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

/// Every case, on an empty cluster.
pub(crate) async fn holds(site: &dyn Site) {
    nodes_and_namespaces(site).await;
    cordon_and_uncordon(site).await;
    check_owners_of_pods(site).await;
    a_budget_refuses(site).await;
    workloads_have_owners_budgets_and_starts(site).await;
    another_pod_of_the_same_name_is_left_alone(site).await;
    a_stuck_pod_stays(site).await;
    nothing_is_written_without_a_permit(site).await;
}

async fn nodes_and_namespaces(site: &dyn Site) {
    let api = site.api();
    assert_eq!(api.nodes().await.unwrap(), []);
    site.node(
        NODES[0],
        &[
            ["example.com/disk", "slow", "PreferNoSchedule"],
            ["cke.cybozu.com/state", "retiring", "NoExecute"],
        ],
    )
    .await;
    site.node(NODES[1], &[]).await;
    site.node(NODES[2], &[]).await;
    let nodes = node_map(site).await;
    assert_eq!(nodes.keys().collect::<Vec<_>>(), NODES);
    let first = &nodes[NODES[0]];
    assert_eq!((first.unschedulable, first.ready, first.is_cordoned_by_us()), (false, Some(true), false));
    let taints: Vec<[&str; 3]> = first.taints.iter().map(|t| [&*t.key, &*t.value, &*t.effect]).collect();
    assert_eq!(
        taints,
        [["example.com/disk", "slow", "PreferNoSchedule"], ["cke.cybozu.com/state", "retiring", "NoExecute"]]
    );
    assert_eq!(nodes[NODES[1]].taints, []);

    site.namespace("red", &[("team", "red"), ("protected", "true")]).await;
    site.namespace("blue", &[("team", "blue")]).await;
    site.namespace("grey", &[]).await;
    let ours = BTreeSet::from(["blue", "grey", "red"].map(str::to_owned));
    for (selector, expected) in [
        ("", vec!["blue", "grey", "red"]),
        ("team=red", vec!["red"]),
        ("team==red", vec!["red"]),
        ("team!=red", vec!["blue", "grey"]),
        ("team in (red, blue)", vec!["blue", "red"]),
        ("team in (red,blue),protected", vec!["red"]),
        ("team notin (red)", vec!["blue", "grey"]),
        ("team", vec!["blue", "red"]),
        ("!team", vec!["grey"]),
        ("team=green", vec![]),
    ] {
        let chosen = api.namespaces(selector).await.unwrap();
        let chosen: Vec<&String> = chosen.intersection(&ours).collect();
        assert_eq!(chosen, expected, "{selector}");
    }
    for selector in ["team=red=blue", "team in red", "(", "team ~ red"] {
        let refused = api.namespaces(selector).await.unwrap_err();
        assert!(matches!(&refused, KubernetesError::Refused { status: 400, .. }), "{selector}: {refused:?}");
    }
}

/// Nodes that other clients add, change and remove show in later reads, whether those are lists or kept by a watch.
pub(crate) async fn changes_of_nodes_show(site: &dyn Site) {
    let names = async || node_map(site).await.into_keys().collect::<Vec<_>>();
    assert!(names().await.is_empty());
    for (count, name) in (1..).zip(NODES) {
        site.node(name, &[]).await;
        until("the added node shows", async || (names().await == NODES[..count]).then_some(())).await;
    }
    site.remove_node(NODES[1]).await;
    until("the removed node shows no more", async || (names().await == [NODES[0], NODES[2]]).then_some(()))
        .await;
    site.taint(NODES[2], ["example.com/disk", "slow", "NoExecute"]).await;
    until("the taint shows", async || {
        let taints = node_map(site).await.remove(NODES[2])?.taints;
        taints.iter().any(|taint| taint.key == "example.com/disk").then_some(())
    })
    .await;
    // Own changes show at once.
    site.api().cordon(&permit(), NODES[0]).await.unwrap();
    assert!(node_map(site).await[NODES[0]].unschedulable);
    site.api().uncordon(&permit(), NODES[0]).await.unwrap();
    assert!(!node_map(site).await[NODES[0]].unschedulable);
}

async fn cordon_and_uncordon(site: &dyn Site) {
    let (api, permit) = (site.api(), permit());
    // Each call is idempotent.
    for _ in 0..2 {
        api.cordon(&permit, NODES[0]).await.unwrap();
        let node = node_map(site).await.remove(NODES[0]).unwrap();
        assert!(node.unschedulable && node.is_cordoned_by_us(), "{node:?}");
    }
    assert!(!node_map(site).await[NODES[1]].unschedulable);
    for _ in 0..2 {
        api.uncordon(&permit, NODES[0]).await.unwrap();
        let node = node_map(site).await.remove(NODES[0]).unwrap();
        assert!(!node.unschedulable && !node.is_cordoned_by_us(), "{node:?}");
        assert_eq!(node.taints.len(), 2, "{node:?}");
    }
    // The cordon of another client stays.
    site.cordon_as_another(NODES[1], true).await;
    for _ in 0..2 {
        api.cordon(&permit, NODES[1]).await.unwrap();
        let node = api.node(NODES[1]).await.unwrap().unwrap();
        assert!(node.is_cordoned_by_us() && node.was_cordoned_before(), "{node:?}");
    }
    for _ in 0..2 {
        api.uncordon(&permit, NODES[1]).await.unwrap();
        let node = api.node(NODES[1]).await.unwrap().unwrap();
        assert!(node.is_cordoned_by_another() && !node.was_cordoned_before(), "{node:?}");
    }
    // A cordon that its client takes back meanwhile stays taken back.
    api.cordon(&permit, NODES[1]).await.unwrap();
    site.cordon_as_another(NODES[1], false).await;
    api.cordon(&permit, NODES[1]).await.unwrap();
    api.uncordon(&permit, NODES[1]).await.unwrap();
    assert!(!api.node(NODES[1]).await.unwrap().unwrap().unschedulable);
    site.remove_node(NODES[1]).await;
    site.node(NODES[1], &[]).await;
    for absent in ["10.0.0.9", "no/node", "", "..", "a?b=c"] {
        for refused in [api.cordon(&permit, absent).await, api.uncordon(&permit, absent).await] {
            assert!(matches!(&refused, Err(KubernetesError::NotFound { .. })), "{absent}: {refused:?}");
        }
    }
    assert_eq!(api.pods_on("10.0.0.9").await.unwrap(), []);
    assert_eq!(api.node(NODES[1]).await.unwrap().as_ref().map(|node| &*node.name), Some(NODES[1]));
    for absent in ["10.0.0.9", "no/node", ""] {
        assert_eq!(api.node(absent).await.unwrap(), None, "{absent}");
    }
}

async fn check_owners_of_pods(site: &dyn Site) {
    let job = PodOwner::Job { pods: 1, takes: Duration::from_secs(1_000_000) };
    for (name, owner, expected) in [
        ("daemon", PodOwner::DaemonSet, (Some("DaemonSet"), false, 3)),
        ("static", PodOwner::Static, (Some("Node"), true, 3)),
        ("job", job, (Some("Job"), false, 1)),
        ("bare", PodOwner::Nobody { pods: 1 }, (None, false, 1)),
        ("replicas", PodOwner::ReplicaSet { replicas: 2 }, (Some("ReplicaSet"), false, 2)),
    ] {
        site.workload(workload("grey", name, owner)).await;
        let pods = running(site, "grey", name, expected.2).await;
        for (node, pod) in &pods {
            assert_eq!((pod.controller.as_deref(), pod.mirror), (expected.0, expected.1), "{node}: {pod:?}");
            assert_eq!((pod.phase, pod.deleted_at), (PodPhase::Running, None));
            assert!(!pod.id.uid.is_empty());
        }
        if owner == PodOwner::DaemonSet || owner == PodOwner::Static {
            let nodes: Vec<&String> = pods.iter().map(|(node, _)| node).collect();
            assert_eq!(nodes, NODES, "{name}");
        }
    }
    let (api, permit) = (site.api(), permit());
    assert_eq!(api.on_delete_pods(NODES[0]).await.unwrap(), [], "no DaemonSet has this strategy");
    site.workload(workload("grey", "old", PodOwner::OnDeleteDaemonSet)).await;
    for (node, pod) in running(site, "grey", "old", 3).await {
        assert_eq!(api.on_delete_pods(&node).await.unwrap(), [pod.id], "{node}");
    }
    // A pod without an owner is gone for good; the others are replaced.
    let bare = running(site, "grey", "bare", 1).await.remove(0).1;
    assert_eq!(api.evict(&permit, &bare.id, false).await.unwrap(), EvictionOutcome::Accepted);
    until("the pod of nobody is gone", async || pods(site, "grey", "bare").await.is_empty().then_some(()))
        .await;
    assert_eq!(api.evict(&permit, &bare.id, false).await.unwrap(), EvictionOutcome::Gone);
    assert_eq!(api.evict(&permit, &bare.id, true).await.unwrap(), EvictionOutcome::Gone);
    api.delete(&permit, &bare.id).await.unwrap();
}

async fn a_budget_refuses(site: &dyn Site) {
    let (api, permit) = (site.api(), permit());
    site.workload(workload("red", "web", PodOwner::ReplicaSet { replicas: 2 })).await;
    let before = running(site, "red", "web", 2).await;
    let (node, pod) = before[0].clone();
    assert_eq!(api.evict(&permit, &pod.id, true).await.unwrap(), EvictionOutcome::Accepted);

    let budget = |min_available| WorkloadBudget {
        namespace: "red".to_owned(),
        name: "all".to_owned(),
        workload: "web".to_owned(),
        min_available,
    };
    site.budget(budget(2)).await;
    let counted = |answer: &EvictionOutcome| matches!(answer, EvictionOutcome::Refused { why } if why.contains("2 healthy pods"));
    until("the budget counts two pods and refuses", async || {
        counted(&api.evict(&permit, &pod.id, true).await.unwrap()).then_some(())
    })
    .await;
    let refused = api.evict(&permit, &pod.id, false).await.unwrap();
    assert!(
        matches!(&refused, EvictionOutcome::Refused { why } if why.contains("disruption budget")),
        "{refused:?}"
    );
    assert_eq!(running(site, "red", "web", 2).await, before, "what was refused changed nothing");

    // Deletion ignores budgets. A new pod replaces it on another node.
    api.cordon(&permit, &node).await.unwrap();
    api.delete(&permit, &pod.id).await.unwrap();
    api.delete(&permit, &pod.id).await.unwrap();
    let after = until("another pod runs in its place", async || {
        let pods = pods(site, "red", "web").await;
        let runs = pods.iter().all(|(_, pod)| pod.phase == PodPhase::Running && pod.deleted_at.is_none());
        (pods.len() == 2 && runs && pods.iter().all(|(_, other)| other.id.uid != pod.id.uid)).then_some(pods)
    })
    .await;
    let moved = after.iter().find(|(_, pod)| before.iter().all(|(_, old)| old.id != pod.id)).unwrap();
    assert_ne!(moved.0, node, "a cordoned node gets no pods");
    api.uncordon(&permit, &node).await.unwrap();

    // With one pod allowed to be missing, one eviction is accepted and the next one refused.
    site.remove_budget("red", "all").await;
    site.budget(budget(1)).await;
    let (_, one) = after[0].clone();
    let (_, other) = after[1].clone();
    site.set_stuck(&one.id, true).await;
    until("the new budget lets one go", async || {
        (api.evict(&permit, &one.id, true).await.unwrap() == EvictionOutcome::Accepted).then_some(())
    })
    .await;
    assert_eq!(after, running(site, "red", "web", 2).await, "a dry run changes nothing");
    assert_eq!(api.evict(&permit, &one.id, false).await.unwrap(), EvictionOutcome::Accepted);
    let ending = pods(site, "red", "web").await.into_iter().find(|(_, pod)| pod.id == one.id).unwrap().1;
    assert!(ending.deleted_at.is_some(), "{ending:?}");
    // Evicting an ending pod again is not a second disruption.
    assert_eq!(api.evict(&permit, &one.id, false).await.unwrap(), EvictionOutcome::Accepted);
    site.set_stuck(&one.id, false).await;
    until("the evicted pod is gone", async || {
        pods(site, "red", "web").await.iter().all(|(_, pod)| pod.id != one.id).then_some(())
    })
    .await;
    assert!(pods(site, "red", "web").await.iter().any(|(_, pod)| pod.id == other.id));
    site.remove_budget("red", "all").await;
}

async fn workloads_have_owners_budgets_and_starts(site: &dyn Site) {
    site.workload(workload("blue", "shop", PodOwner::ReplicaSet { replicas: 3 })).await;
    let shop = running(site, "blue", "shop", 3).await;
    // No pod changes any more.
    running(site, "red", "web", 2).await;
    for (name, workload, min_available) in [("shop", "shop", 1), ("none", "absent", 1)] {
        let (namespace, name, workload) = ("blue".to_owned(), name.to_owned(), workload.to_owned());
        site.budget(WorkloadBudget { namespace, name, workload, min_available }).await;
    }
    let found = until("the budget allows two evictions", async || {
        let found = site.reader().workloads().await.unwrap();
        let shop = found.budgets.iter().find(|budget| budget.name == "shop");
        shop.is_some_and(|budget| (budget.allowed, budget.healthy, budget.desired) == (2, 3, 1))
            .then_some(found)
    })
    .await;
    let nodes: Vec<&str> = found.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(nodes, NODES);
    assert!(found.budgets.iter().all(|budget| budget.namespace == "blue"), "{:?}", found.budgets);
    let none = found.budgets.iter().find(|budget| budget.name == "none").unwrap();
    assert_eq!((none.allowed, none.healthy), (0, 0));

    // The same pods as in the lists of single nodes.
    let mut bound = Vec::new();
    for node in NODES {
        let pods = site.api().pods_on(node).await.unwrap();
        bound.extend(pods.into_iter().map(|pod| (node.to_owned(), pod)));
    }
    bound.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
    let mut listed: Vec<(String, Pod)> =
        found.pods.iter().map(|found| (found.node.clone(), found.pod.clone())).collect();
    listed.sort_by(|(_, one), (_, other)| one.id.cmp(&other.id));
    assert_eq!(listed, bound);

    let by_id: BTreeMap<&PodId, &ScheduledPod> = found.pods.iter().map(|pod| (&pod.pod.id, pod)).collect();
    let mut uids = BTreeSet::new();
    for (_, pod) in &shop {
        let pod = by_id[&pod.id];
        let owner = pod.owner.as_ref().unwrap();
        assert_eq!((&*owner.kind, &*owner.name), ("ReplicaSet", "shop"));
        uids.insert(&*owner.uid);
        assert_eq!(pod.labels.get("app").map(String::as_str), Some("shop"));
        let budgets: Vec<&str> =
            found.budgets.iter().filter(|it| it.selects(&pod.labels)).map(|it| &*it.name).collect();
        assert_eq!(budgets, ["shop"]);
        assert!(pod.started_at.is_some(), "{pod:?}");
    }
    assert_eq!(uids.len(), 1, "one ReplicaSet owns them");
    assert!(!found.owners.contains_key(*uids.first().unwrap()), "nothing owns the ReplicaSet");
    site.remove_budget("blue", "shop").await;
    site.remove_budget("blue", "none").await;
}

async fn another_pod_of_the_same_name_is_left_alone(site: &dyn Site) {
    let (api, permit) = (site.api(), permit());
    let there = running(site, "grey", "job", 1).await.remove(0).1;
    let uid = "11111111-2222-3333-4444-555555555555".to_owned();
    let former = PodId { uid, ..there.id.clone() };
    assert_eq!(api.evict(&permit, &former, true).await.unwrap(), EvictionOutcome::Gone);
    assert_eq!(api.evict(&permit, &former, false).await.unwrap(), EvictionOutcome::Gone);
    api.delete(&permit, &former).await.unwrap();
    assert_eq!(running(site, "grey", "job", 1).await.remove(0).1, there);
}

async fn a_stuck_pod_stays(site: &dyn Site) {
    let (api, permit) = (site.api(), permit());
    site.workload(workload("blue", "stuck", PodOwner::Nobody { pods: 1 })).await;
    let pod = running(site, "blue", "stuck", 1).await.remove(0).1;
    site.set_stuck(&pod.id, true).await;
    api.delete(&permit, &pod.id).await.unwrap();
    let first = pods(site, "blue", "stuck").await.remove(0).1.deleted_at.expect("it is to end");
    tokio::time::sleep(GRACE + Duration::from_secs(1)).await;
    api.delete(&permit, &pod.id).await.unwrap();
    let still = pods(site, "blue", "stuck").await.remove(0).1;
    assert_eq!((still.id, still.deleted_at), (pod.id.clone(), Some(first)), "it ends since the first time");
    site.set_stuck(&pod.id, false).await;
    until("it ended after all", async || pods(site, "blue", "stuck").await.is_empty().then_some(())).await;
}

async fn nothing_is_written_without_a_permit(site: &dyn Site) {
    let api = site.api();
    let ended = Permit::give(7, Instant::now());
    let pod = running(site, "grey", "job", 1).await.remove(0).1;
    let refusals = [
        api.cordon(&ended, NODES[1]).await.unwrap_err(),
        api.uncordon(&ended, NODES[1]).await.unwrap_err(),
        api.evict(&ended, &pod.id, false).await.unwrap_err(),
        api.evict(&ended, &pod.id, true).await.unwrap_err(),
        api.delete(&ended, &pod.id).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(&refusal, KubernetesError::Permit(ended) if ended.epoch == 7), "{refusal:?}");
    }
    assert!(!node_map(site).await[NODES[1]].unschedulable);
    assert_eq!(running(site, "grey", "job", 1).await.remove(0).1, pod);
}

const GRACE: Duration = Duration::from_secs(2);

fn workload(namespace: &str, name: &str, owner: PodOwner) -> Workload {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Workload { namespace, name, owner, grace: GRACE, ends_within: Duration::from_millis(500) }
}

async fn node_map(site: &dyn Site) -> BTreeMap<String, KubeNode> {
    site.api().nodes().await.unwrap().into_iter().map(|node| (node.name.clone(), node)).collect()
}

async fn pods(site: &dyn Site, namespace: &str, owner: &str) -> Vec<(String, Pod)> {
    let mut found = Vec::new();
    for node in NODES {
        let pods = site.api().pods_on(node).await.unwrap();
        let of_owner =
            |pod: &Pod| pod.id.namespace == namespace && pod.id.name.starts_with(&format!("{owner}-"));
        found.extend(pods.into_iter().filter(of_owner).map(|pod| (node.to_owned(), pod)));
    }
    found
}

/// Waits until this many of them run and none is ending.
async fn running(site: &dyn Site, namespace: &str, owner: &str, count: usize) -> Vec<(String, Pod)> {
    until(&format!("{count} pods of {owner} run"), async || {
        let pods = pods(site, namespace, owner).await;
        let runs = pods.iter().all(|(_, pod)| pod.phase == PodPhase::Running && pod.deleted_at.is_none());
        (pods.len() == count && runs).then_some(pods)
    })
    .await
}
