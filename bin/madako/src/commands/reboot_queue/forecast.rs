//! `madako reboot-queue forecast`: the reboots to come, and their blockers, before the first cordon.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_console::Progress;
use madako_domain::keys;
use madako_domain::kubernetes::PodId;
use madako_domain::reboot::RebootSettings;
use madako_domain::state::ClusterState;
use madako_domain::store::Snapshot;
use madako_kubernetes::{ApiServer, Limits};
use madako_protocol::kubernetes::{Kubernetes, KubernetesError, KubernetesWorkloads};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_reboot_queue::explain;
use madako_reboot_queue::forecast::{DryRun, Forecast, ForecastInput, History, forecast, pods_to_ask};
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use madako_supervisor::operations::{control_plane_port, node_components};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

use super::add::{missing_cluster_failure, read_nodes};
use crate::access::{open_configured_store, read_records};
use crate::cli::Global;
use crate::commands::etcd::members::command_permit;
use crate::failure::Failure;
use crate::host::draw_seed;
use crate::limits::DRY_RUN_PAUSE;
use crate::output::{Format, PROGRAM, print_warning, show_value};

/// Shows the reboots to come and their blockers before the first cordon: waves and their nodes, each blocker, and the
/// expected duration.
///
/// The command changes nothing. With FILE, it shows the queue as if the nodes of the file had been added to its end. A
/// wave has the nodes whose drains begin together. Blockers are running jobs with their age, pods whose disruption
/// budget forbids their eviction, pods that do not end, nodes that are down or under repair. Each pod is shown with its
/// owners up to the top. Notes are not blockers: several pods of one budget on a node or in a wave, pods that are deleted
/// although their budget refuses, pods that nothing replaces. The leader also waits for etcd and for operations on
/// nodes, which the command does not ask.
///
/// The duration comes from the drains and boots in the history (the last 1,000 records), and counts as if all blockers
/// were gone. Without such a record it is unknown.
///
/// The command sends the eviction of a pod as a dry run, at most 20 a second, where a refusal would abort the drain: for
/// the pods of protected namespaces that a budget selects. With --no-dry-run, the state of the budgets decides instead.
/// Without a kubeconfig in the configuration file, the command asks the API servers of the control plane, as the service does
/// (kubernetes.mode must not be off). A kubeconfig must allow to list nodes, namespaces, pods, replicasets, deployments,
/// statefulsets, jobs and poddisruptionbudgets, and to create pods/eviction.
///
/// The JSON has these fields: is_blocked; obstacles to all reboots ([{name, why}]); nodes_down ([{node, why}]); under_way
/// ([{index, node, status, ends_after_seconds}]); waves ([{number, is_control_plane, begins_after_seconds,
/// ends_after_seconds, nodes, notes}]); duration ({drains, boots, aborted_drains, expected_seconds, worst_seconds,
/// unknown}, where drains and boots are {count, median_seconds, worst_seconds}); dry_runs, the number of answers. A node
/// of a wave is {index, node, pods, blockers, notes}; the index is null for a node of FILE. A blocker is {kind, pod,
/// owners, budgets, age_seconds, why}, with the kinds job, budget, refused (the API server refused the dry run itself),
/// not-ending, node-down, no-node and repaired. A note is {kind, pods, budget, why}, with the kinds budget-rounds,
/// deleted and not-replaced. A budget is {namespace, name, allowed, healthy, desired}. Unknown times are null; an unknown age is
/// absent, and so is the pod of a blocker that is none.
///
/// Exit codes: 0: no blocker; 1: blocked, or the state could not be read; 2: bad input.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako reboot-queue forecast\n  madako reboot-queue forecast nodes.txt -o json"
)]
pub(crate) struct Args {
    /// File with the addresses of nodes to add, as for madako reboot-queue add; - is standard input [default: the queue
    /// alone]
    file: Option<String>,
    /// Sends no dry run
    #[arg(long)]
    no_dry_run: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) async fn run(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let forecast = find(args, global, store, clock).await?;
    show_value(args.output, &forecast, table::format_forecast)?;
    if forecast.is_blocked { Err(Failure::Different) } else { Ok(()) }
}

async fn find(
    args: &Args,
    global: &Global,
    store: &dyn Store,
    clock: &dyn Clock,
) -> Result<Forecast, Failure> {
    let config = Config::load(global.config.as_deref())?;
    let server = ReachedServer::connect(&config)?;
    let snapshot = store.list("").await?;
    let state = read_state(&snapshot)?;
    let cluster = state.cluster.as_ref().ok_or_else(missing_cluster_failure)?;
    let added = match &args.file {
        Some(file) => read_nodes(file, &cluster.value)?,
        None => Vec::new(),
    };
    let history = History::from_records(&read_records(&snapshot));
    make_forecast(&server, (&state, &added), &history, (config.reboots, !args.no_dry_run), clock.now()).await
}

/// The forecast of the queue with the added nodes.
///
/// # Errors
/// The API server does not answer.
pub(crate) async fn make_forecast(
    server: &ReachedServer,
    (state, added): (&ClusterState, &[String]),
    history: &History,
    (settings, sends_dry_runs): (RebootSettings, bool),
    now: OffsetDateTime,
) -> Result<Forecast, Failure> {
    let workloads = server.workloads.workloads().await.map_err(read_failure)?;
    // An unusable section is an obstacle of the forecast; without it, no namespace is protected.
    let protected = match explain::config(state) {
        Ok(rules) => server.drains.namespaces(&rules.protected_namespaces).await.map_err(read_failure)?,
        Err(_) => BTreeSet::new(),
    };
    let none = BTreeMap::new();
    let input = ForecastInput {
        state,
        added,
        settings,
        history,
        workloads: &workloads,
        protected: &protected,
        answers: &none,
        now,
    };
    if !sends_dry_runs {
        return Ok(forecast(&input));
    }
    let pods = pods_to_ask(&input);
    let mut progress = Progress::start(PROGRAM, "dry runs of evictions", "pods");
    let all = u64::try_from(pods.len()).ok();
    let answers = send_dry_runs(&*server.drains, &pods, |done| progress.advance(done, all)).await?;
    drop(progress);
    Ok(forecast(&ForecastInput { answers: &answers, ..input }))
}

/// The API server of the kubeconfig, or without one those of the control plane, as for the drains of the service.
pub(crate) struct ReachedServer {
    drains: Arc<dyn Kubernetes>,
    workloads: Arc<dyn KubernetesWorkloads>,
}

impl ReachedServer {
    /// # Errors
    /// No API server is known, or the kubeconfig cannot be used.
    pub(crate) fn connect(config: &Config) -> Result<Self, Failure> {
        if let Some(access) = &config.kubernetes {
            let server = ApiServer::new(access, Limits::default());
            let server = Arc::new(server.map_err(|error| Failure::Failed(error.into()))?);
            return Ok(Self { drains: Arc::clone(&server) as Arc<dyn Kubernetes>, workloads: server });
        }
        let store: Arc<dyn Store> = Arc::new(open_configured_store(config)?);
        let seed = draw_seed().map_err(Failure::Failed)?;
        let components = node_components(&config.operations, &store, Arc::new(SystemClock), None, seed);
        let components = components.map_err(|error| Failure::Failed(error.into()))?;
        let server = control_plane_port(&config.operations, &store, &components).ok_or_else(|| {
            Failure::bad_input(
                "no API server is known, so no pod can be read: the configuration file has no \
                 kubernetes.kubeconfig, and kubernetes.mode is off",
            )
        })?;
        Ok(Self { drains: Arc::clone(&server) as Arc<dyn Kubernetes>, workloads: server })
    }
}

fn read_failure(error: KubernetesError) -> Failure {
    Failure::Failed(error.into())
}

/// The state, if its cluster can be read. An entry that cannot be read has no reboot.
fn read_state(snapshot: &Snapshot) -> Result<ClusterState, Failure> {
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    for fault in &state.faults {
        if fault.key == keys::CLUSTER {
            return Err(Failure::failed(format_args!("the stored cluster cannot be used: {}", fault.why)));
        }
        if fault.key.starts_with(keys::REBOOTS) {
            print_warning(format_args!("the entry {} is left out: {}", fault.key, fault.why));
        }
    }
    Ok(state)
}

/// Sends the evictions as dry runs, one after another, and at most 20 a second. The answers have the uids of their pods.
///
/// # Errors
/// The API server does not answer, or has too much to do: the eviction of the pod stays unknown.
async fn send_dry_runs(
    kubernetes: &dyn Kubernetes,
    pods: &[PodId],
    mut tell: impl FnMut(u64),
) -> Result<BTreeMap<String, DryRun>, Failure> {
    let mut answers = BTreeMap::new();
    let mut next = Instant::now();
    for (done, pod) in (1..).zip(pods) {
        sleep_until(next).await;
        next = Instant::now() + DRY_RUN_PAUSE;
        let answer = match kubernetes.evict(&command_permit(), pod, true).await {
            Ok(outcome) => outcome.into(),
            Err(error @ KubernetesError::Refused { status, .. }) if status != 429 => {
                DryRun::Failed { why: error.to_string() }
            }
            Err(error) => return Err(read_failure(error)),
        };
        answers.insert(pod.uid.clone(), answer);
        tell(done);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use madako_datacenter_sim::Fault;
    use madako_datacenter_sim::kubernetes::{PodOwner, SimulatedKubernetes, Workload, WorkloadBudget};

    use super::*;

    struct PausedClock(Instant);

    impl Clock for PausedClock {
        fn now(&self) -> OffsetDateTime {
            OffsetDateTime::UNIX_EPOCH + self.0.elapsed()
        }
    }

    /// 31 running pods, and 10 more with a budget that never yields.
    async fn simulated() -> (SimulatedKubernetes, Vec<PodId>) {
        let simulated = SimulatedKubernetes::new(1, Arc::new(PausedClock(Instant::now())));
        simulated.with_cluster(|cluster| {
            cluster.add_node("10.0.0.1");
            for (name, replicas) in [("free", 31), ("tight", 10)] {
                cluster.add_workload(Workload {
                    namespace: "web".to_owned(),
                    name: name.to_owned(),
                    owner: PodOwner::ReplicaSet { replicas },
                    grace: Duration::from_secs(30),
                    ends_within: Duration::from_secs(10),
                });
            }
            cluster.add_budget(WorkloadBudget {
                namespace: "web".to_owned(),
                name: "tight".to_owned(),
                workload: "tight".to_owned(),
                min_available: 10,
            });
        });
        tokio::time::sleep(Duration::from_secs(600)).await;
        let pods = simulated.pods_on("10.0.0.1").await.unwrap().into_iter().map(|pod| pod.id).collect();
        (simulated, pods)
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_dry_runs_a_second_change_nothing() {
        let (simulated, pods) = simulated().await;
        let before = simulated.with_cluster(|cluster| (cluster.writes(), cluster.pods()));
        let (began, mut told) = (Instant::now(), Vec::new());
        let answers = send_dry_runs(&simulated, &pods, |done| told.push(done)).await.unwrap();
        assert_eq!(began.elapsed(), DRY_RUN_PAUSE * 40, "41 pods");
        assert_eq!(told, (1..=41).collect::<Vec<u64>>());
        let refused = answers.values().filter(|answer| matches!(answer, DryRun::Refused { .. })).count();
        let accepted = answers.values().filter(|answer| **answer == DryRun::Accepted).count();
        assert_eq!((refused, accepted), (10, 31));
        assert_eq!(simulated.with_cluster(|cluster| (cluster.writes(), cluster.pods())), before);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_or_silent_api_server_does_not_decide_about_a_pod() {
        let (simulated, pods) = simulated().await;
        for (fault, is_answer) in
            [(Fault::Status(500), true), (Fault::Status(429), false), (Fault::RefuseConnections, false)]
        {
            simulated.faults().set(fault.clone());
            let answers = send_dry_runs(&simulated, &pods[..1], |_| ()).await;
            let failed = |answers: &BTreeMap<String, DryRun>| {
                answers.values().all(|answer| matches!(answer, DryRun::Failed { .. }))
            };
            assert_eq!(answers.as_ref().is_ok_and(failed), is_answer, "{fault:?}: {answers:?}");
            simulated.faults().clear_all();
        }
    }
}
