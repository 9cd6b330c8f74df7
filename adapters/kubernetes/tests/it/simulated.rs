//! Runs the contract on the simulated Kubernetes, and tests its faults, in paused time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use madako_datacenter_sim::Fault;
use madako_datacenter_sim::kubernetes::{SimulatedKubernetes, Workload, WorkloadBudget};
use madako_domain::cluster::Taint;
use madako_domain::kubernetes::PodId;
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use madako_protocol::permit::Permit;
use madako_protocol::ports::Clock;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::contract::{self, Site};

/// Wall clock of the paused time.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) + self.0.elapsed()
    }
}

pub(crate) fn simulated(seed: u64) -> SimulatedKubernetes {
    SimulatedKubernetes::new(seed, Arc::new(PausedClock(Instant::now())))
}

fn taint([key, value, effect]: &[&str; 3]) -> Taint {
    let (key, value, effect) = ((*key).to_owned(), (*value).to_owned(), (*effect).to_owned());
    Taint { key, value, effect, ..Taint::default() }
}

#[async_trait]
impl Site for SimulatedKubernetes {
    fn api(&self) -> &dyn Kubernetes {
        self
    }

    fn reader(&self) -> &dyn KubernetesWorkloads {
        self
    }

    async fn node(&self, name: &str, taints: &[[&str; 3]]) {
        self.with_cluster(|cluster| {
            cluster.add_node(name);
            cluster.set_taints(name, taints.iter().map(taint).collect());
        });
    }

    async fn remove_node(&self, name: &str) {
        self.with_cluster(|cluster| cluster.remove_node(name));
    }

    async fn taint(&self, name: &str, added: [&str; 3]) {
        self.with_cluster(|cluster| cluster.set_taints(name, vec![taint(&added)]));
    }

    async fn cordon_as_another(&self, name: &str, cordoned: bool) {
        self.with_cluster(|cluster| cluster.cordon_as_another(name, cordoned));
    }

    async fn namespace(&self, name: &str, labels: &[(&str, &str)]) {
        self.with_cluster(|cluster| cluster.add_namespace(name, labels));
    }

    async fn workload(&self, workload: Workload) {
        self.with_cluster(|cluster| cluster.add_workload(workload));
    }

    async fn budget(&self, budget: WorkloadBudget) {
        self.with_cluster(|cluster| cluster.add_budget(budget));
    }

    async fn remove_budget(&self, namespace: &str, name: &str) {
        self.with_cluster(|cluster| cluster.remove_budget(namespace, name));
    }

    async fn set_stuck(&self, pod: &PodId, stuck: bool) {
        self.with_cluster(|cluster| cluster.set_stuck(pod, stuck));
    }
}

#[tokio::test(start_paused = true)]
async fn the_contract_holds_for_the_simulated_one() {
    for seed in 0..20 {
        contract::holds(&simulated(seed)).await;
        contract::changes_of_nodes_show(&simulated(seed)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_simulated_one_are_those_that_the_adapter_reports() {
    let site = simulated(1);
    Site::node(&site, "10.0.0.1", &[]).await;
    let permit = contract::permit();
    let cordoned = || site.with_cluster(|cluster| cluster.nodes()[0].unschedulable);

    site.faults().set(Fault::RefuseConnections);
    let refused = site.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&refused, KubernetesError::Unavailable { .. }), "{refused:?}");
    site.faults().clear_all();

    site.faults().set(Fault::Status(403));
    let refused = site.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&refused, KubernetesError::Refused { status: 403, .. }), "{refused:?}");
    site.faults().clear_all();

    site.faults().set(Fault::MalformedJson);
    let malformed = site.nodes().await.unwrap_err();
    assert!(matches!(&malformed, KubernetesError::Malformed { .. }), "{malformed:?}");
    site.faults().clear_all();

    site.faults().set(Fault::Hang);
    let begun = Instant::now();
    let late = site.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(matches!(&late, KubernetesError::Unavailable { .. }), "{late:?}");
    assert_eq!(begun.elapsed(), madako_kubernetes::WRITE_DEADLINE);
    let begun = Instant::now();
    site.nodes().await.unwrap_err();
    assert_eq!(begun.elapsed(), madako_kubernetes::READ_DEADLINE);
    assert!(!cordoned());
    // No longer than the permit.
    let begun = Instant::now();
    site.cordon(&Permit::give(1, begun + Duration::from_secs(3)), "10.0.0.1").await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    site.faults().clear_all();

    // A write with a late answer has taken effect.
    site.faults().set(Fault::Slow(Duration::from_secs(60)));
    site.cordon(&permit, "10.0.0.1").await.unwrap_err();
    assert!(cordoned());
    site.faults().set(Fault::Slow(Duration::from_secs(5)));
    site.uncordon(&permit, "10.0.0.1").await.unwrap();
    assert!(!cordoned());
}
