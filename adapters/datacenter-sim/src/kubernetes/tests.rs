//! Tests of the simulated API server that the contract tests cannot run against a real one: histories and failing nodes.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::kubernetes::{EvictionOutcome, Pod, PodPhase};
use madako_protocol::kubernetes::Kubernetes;
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{PodOwner, SimulatedKubernetes, Workload, WorkloadBudget};

struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + self.0.elapsed()
    }
}

const NODES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

fn workload(name: &str, owner: PodOwner) -> Workload {
    Workload {
        namespace: "web".to_owned(),
        name: name.to_owned(),
        owner,
        grace: Duration::from_secs(30),
        ends_within: Duration::from_secs(10),
    }
}

async fn cluster(seed: u64) -> SimulatedKubernetes {
    let site = SimulatedKubernetes::new(seed, Arc::new(PausedClock(Instant::now())));
    site.with_cluster(|cluster| {
        for node in NODES {
            cluster.add_node(node);
        }
        cluster.add_workload(workload("front", PodOwner::ReplicaSet { replicas: 6 }));
        cluster.add_workload(workload("logs", PodOwner::DaemonSet));
        cluster.add_workload(workload("sums", PodOwner::Job { pods: 2, takes: Duration::from_secs(120) }));
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    site
}

fn permit() -> Permit {
    Permit::give(1, Instant::now() + Duration::from_secs(86_400))
}

/// Evicts all pods of the first node except those of its DaemonSet, once a second, for five minutes.
async fn history(seed: u64) -> Vec<String> {
    let site = cluster(seed).await;
    site.cordon(&permit(), NODES[0]).await.unwrap();
    let mut lines = Vec::new();
    for _ in 0..300 {
        for pod in site.pods_on(NODES[0]).await.unwrap() {
            if pod.controller.as_deref() == Some("ReplicaSet") && pod.deleted_at.is_none() {
                site.evict(&permit(), &pod.id, false).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        lines.push(format!("{:?}", site.with_cluster(|cluster| cluster.pods())));
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history_and_another_one_another() {
    let one = history(1).await;
    assert_eq!(one, history(1).await);
    assert_ne!(one, history(2).await);
    // At the end the node only has its DaemonSet pod, and its other pods run elsewhere; the job ended on its node.
    assert_eq!(one.last().unwrap().matches("front-").count(), 6);
}

#[tokio::test(start_paused = true)]
async fn simulated_kubernetes_does_not_depend_on_the_number_of_reads() {
    let (often, seldom) = (cluster(3).await, cluster(3).await);
    for site in [&often, &seldom] {
        site.cordon(&permit(), NODES[0]).await.unwrap();
        for pod in site.pods_on(NODES[0]).await.unwrap() {
            site.delete(&permit(), &pod.id).await.unwrap();
        }
    }
    for _ in 0..600 {
        often.with_cluster(|_| ());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(often.with_cluster(|cluster| cluster.pods()), seldom.with_cluster(|cluster| cluster.pods()));
}

#[tokio::test(start_paused = true)]
async fn pods_of_jobs_end_by_themselves_and_keep_their_node() {
    let site = cluster(1).await;
    let jobs = || {
        site.with_cluster(|cluster| cluster.pods())
            .into_iter()
            .filter(|(_, pod)| pod.controller.as_deref() == Some("Job"))
    };
    let before: Vec<Pod> = jobs().map(|(_, pod)| pod).collect();
    assert!(before.iter().all(|pod| pod.phase == PodPhase::Running), "{before:?}");
    tokio::time::sleep(Duration::from_secs(200)).await;
    let after: Vec<Pod> = jobs().map(|(_, pod)| pod).collect();
    assert!(after.iter().all(|pod| pod.phase == PodPhase::Succeeded), "{after:?}");
    assert!(before.iter().zip(&after).all(|(one, other)| one.id == other.id));
}

#[tokio::test(start_paused = true)]
async fn on_a_node_that_does_not_answer_no_pod_ends_until_it_does() {
    let site = cluster(1).await;
    site.with_cluster(|cluster| cluster.set_ready(NODES[1], false));
    let pod = site
        .pods_on(NODES[1])
        .await
        .unwrap()
        .into_iter()
        .find(|pod| pod.controller.as_deref() == Some("ReplicaSet"));
    let pod = pod.expect("six pods are spread over three nodes");
    site.delete(&permit(), &pod.id).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(
        site.pods_on(NODES[1])
            .await
            .unwrap()
            .iter()
            .any(|other| other.id == pod.id && other.deleted_at.is_some())
    );
    assert_eq!(site.nodes().await.unwrap()[1].ready, None, "the node does not report");
    site.with_cluster(|cluster| cluster.set_ready(NODES[1], true));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(site.pods_on(NODES[1]).await.unwrap().iter().all(|other| other.id != pod.id));
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_in_use_until_some_time_after_its_pod_and_while_the_node_does_not_report() {
    let site = cluster(1).await;
    let volumes = |node: usize| site.with_cluster(|cluster| cluster.nodes()[node].volumes_in_use.len());
    let with_volume = |node: &str| {
        let pods = site.with_cluster(|cluster| cluster.pods_on(node));
        pods.into_iter().find(|pod| pod.id.name.starts_with("store")).unwrap()
    };
    site.with_cluster(|cluster| {
        cluster.add_workload(workload("store", PodOwner::DaemonSet));
        cluster.give_volumes("web", "store");
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!([0, 1, 2].map(volumes), [1, 1, 1]);
    let first = with_volume(NODES[0]);
    site.delete(&permit(), &first.id).await.unwrap();
    let mut after_pod = 0;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let there = with_volume(NODES[0]);
        // The pod of the DaemonSet is replaced on the same node.
        after_pod += usize::from(there.id != first.id && volumes(0) == 2);
    }
    assert!(after_pod > 0 && volumes(0) == 1, "{after_pod} s, {} volumes", volumes(0));
    let second = with_volume(NODES[1]);
    site.delete(&permit(), &second.id).await.unwrap();
    let ends = || {
        let mut pods = site.with_cluster(|cluster| cluster.pods_on(NODES[1])).into_iter();
        pods.any(|pod| pod.id == second.id)
    };
    let ended = async {
        while ends() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("a deleted pod ends within its grace");
    let before = volumes(1);
    site.with_cluster(|cluster| cluster.set_ready(NODES[1], false));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(volumes(1), before, "a node that does not report frees no volume");
    site.with_cluster(|cluster| cluster.set_ready(NODES[1], true));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(volumes(1), 1);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_never_allows_it_is_never_passed_by_evictions() {
    let site = cluster(1).await;
    site.with_cluster(|cluster| {
        cluster.add_budget(WorkloadBudget {
            namespace: "web".to_owned(),
            name: "all".to_owned(),
            workload: "front".to_owned(),
            min_available: 6,
        });
    });
    let before = site.with_cluster(|cluster| cluster.writes());
    for _ in 0..100 {
        for pod in site.pods_on(NODES[0]).await.unwrap() {
            let answer = site
                .evict(&permit(), &pod.id, pod.controller.as_deref() != Some("ReplicaSet"))
                .await
                .unwrap();
            let refused = matches!(answer, EvictionOutcome::Refused { .. });
            assert_eq!(refused, pod.controller.as_deref() == Some("ReplicaSet"), "{pod:?}: {answer:?}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(site.with_cluster(|cluster| cluster.writes()), before);
    // Two budgets for one pod are an error; the API server refuses to choose between them.
    site.with_cluster(|cluster| {
        cluster.add_budget(WorkloadBudget {
            namespace: "web".to_owned(),
            name: "more".to_owned(),
            workload: "front".to_owned(),
            min_available: 0,
        });
    });
    let pods = site.pods_on(NODES[0]).await.unwrap();
    let front = pods.iter().find(|pod| pod.controller.as_deref() == Some("ReplicaSet")).unwrap();
    site.evict(&permit(), &front.id, true).await.unwrap_err();
}
