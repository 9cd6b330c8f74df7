//! Collects the state of all nodes and of etcd for a command, without a running service.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::containers::ContainerOptions;
use madako_domain::keys;
use madako_domain::node_status::FleetStatus;
use madako_domain::state::ClusterState;
use madako_domain::store::Snapshot;
use madako_operation_runner::kubernetes::objects::apply::ReadResources;
use madako_operation_runner::kubernetes::options::KubernetesOptions;
use madako_operation_runner::{KubernetesMode, Settings, SurveyAccess, survey_fleet};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use madako_supervisor::nodes::{OperationsMode, OperationsPorts, node_target};
use madako_supervisor::operations::{node_components, operations_ports};

use super::join_addresses;
use super::plan::{CollectedInputs, KubernetesInputs};
use crate::access;
use crate::cli::Global;
use crate::commands::etcd::members::command_permit;
use crate::commands::images::Assignment;
use crate::failure::Failure;
use crate::host;
use crate::limits::MAX_SERVER_TEXT;
use crate::output::{escape_unprintable, print_note};

/// The state of a fleet, and the ports through which it was read.
pub(crate) struct GatheredStates {
    pub(crate) inputs: CollectedInputs,
    pub(crate) state: ClusterState,
    pub(crate) snapshot: Snapshot,
    pub(crate) ports: OperationsPorts,
}

/// Reads the cluster from the store and the state of its nodes from the nodes.
pub(crate) async fn gather_states(global: &Global) -> Result<GatheredStates, Failure> {
    gather_configured(Config::load(global.config.as_deref())?, &[]).await
}

/// As [`gather_states`], with the components of Kubernetes, whether the service leaves them to CKE or not.
pub(crate) async fn gather_kubernetes(global: &Global) -> Result<GatheredStates, Failure> {
    gather_kubernetes_with(global, &[]).await
}

/// As [`gather_kubernetes`], as if these images were in the key.
pub(crate) async fn gather_kubernetes_with(
    global: &Global,
    images: &[Assignment],
) -> Result<GatheredStates, Failure> {
    let mut config = Config::load(global.config.as_deref())?;
    config.operations.settings.kubernetes = KubernetesMode::Observe;
    gather_configured(config, images).await
}

async fn gather_configured(config: Config, images: &[Assignment]) -> Result<GatheredStates, Failure> {
    let mut operations = config.operations.clone();
    // The mode is that of the service. This command never acts.
    operations.mode = Some(OperationsMode::Observe);
    let store: Arc<dyn Store> = Arc::new(access::open_configured_store(&config)?);
    let seed = host::draw_seed().map_err(Failure::Failed)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let kubeconfig = config.kubernetes.as_ref();
    let components = node_components(&operations, &store, Arc::clone(&clock), kubeconfig, seed);
    let components = components.map_err(|error| Failure::Failed(error.into()))?;
    let ports = operations_ports(&operations, Arc::clone(&store), clock, components, None, seed);
    let ports = ports.ok_or_else(|| {
        Failure::failed("operations on nodes are off: set operations.mode in the configuration file")
    })?;
    let snapshot = store.list("").await?;
    let mut state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    let given = &mut Arc::make_mut(&mut state.images).0;
    for Assignment { name, image } in images {
        match image {
            Some(image) => drop(given.insert(*name, image.clone())),
            None => drop(given.remove(name)),
        }
    }
    let unusable = |why: &str| Failure::failed(format_args!("the stored cluster cannot be used: {why}"));
    if let Some(fault) = state.faults.iter().find(|fault| fault.key == keys::CLUSTER) {
        return Err(unusable(&fault.why));
    }
    let cluster = state.cluster.as_ref().map(|cluster| Arc::clone(&cluster.value));
    let cluster = cluster.ok_or_else(|| {
        Failure::failed(
            "no cluster configuration is stored, so there is no operation (madako cluster set stores one)",
        )
    })?;
    let options = state.container_options.clone();
    let options =
        options.ok_or_else(|| unusable(state.options_fault.as_deref().unwrap_or("it has no options")))?;
    let configured = &config.operations.settings;
    let (status, settings) = collect_states(&ports, &cluster, &options, &state, configured).await?;
    let now = SystemClock.now();
    let valid = state.restarts.iter().filter(|(_, request)| request.is_valid(now));
    let restarts = valid.map(|(address, _)| address.clone()).collect();
    let restore = state.restore.clone().filter(|request| request.is_valid(now) || state.is_restoring());
    let restore = restore.map(|request| (request, state.is_restoring()));
    let stale = state.restored.as_ref().map(|restored| restored.stale.clone()).unwrap_or_default();
    // A read certificate of etcd is not a proof that another one can be issued.
    let authorities = ports.runner.authorities.ready().await.err().map(|error| error.to_string());
    let kubernetes = (settings.kubernetes != KubernetesMode::Off).then(|| KubernetesInputs {
        options: KubernetesOptions::read(&cluster.options).map_err(|error| error.to_string()),
        busy: state.repair.machines_under_way().map(str::to_owned).collect(),
        leaving: state.repair.leaving_machines().map(str::to_owned).collect(),
        resources: ReadResources::new(&state.resources),
        rollout: match state.fault_of(keys::ROLLOUT) {
            Some(why) => Err(why.to_owned()),
            None => Ok(state.rollout.clone()),
        },
        reboots: state.repair.reboots.clone(),
        reboot_ends: state.repair.records.reboot_ends(),
        rotation: match state.fault_of(keys::ENCRYPTION_ROTATION) {
            Some(why) => Err(why.to_owned()),
            None => Ok(state.encryption_rotation.clone()),
        },
        is_guarded: state.guard.is_some(),
    });
    let inputs = CollectedInputs {
        cluster,
        options,
        status,
        restarts,
        restore,
        stale,
        authorities,
        kubernetes,
        settings,
    };
    Ok(GatheredStates { inputs, state, snapshot, ports })
}

async fn collect_states(
    ports: &OperationsPorts,
    cluster: &Cluster,
    options: &ContainerOptions,
    state: &ClusterState,
    configured: &Settings,
) -> Result<(FleetStatus, Settings), Failure> {
    let targets: BTreeMap<_, _> = cluster
        .nodes
        .iter()
        .map(|node| (node.address.clone(), node_target(node, ports.host_keys, &state.host_keys)))
        .collect();
    let access = SurveyAccess { driver: Arc::clone(&ports.driver), targets, permit: command_permit() };
    let surveyed = survey_fleet(&access, ports.runner.clone(), (cluster, options), state, configured).await;
    let (status, settings, errors) = surveyed.ok_or_else(|| {
        Failure::failed("the key config-version in the store has an unknown value: expected 1 or 2")
    })?;
    merge_errors(&errors).iter().for_each(print_note);
    Ok((status, settings))
}

/// A message for each error of nodes or images. Errors that differ in the node alone have one: a fleet without a key would
/// have thousands.
fn merge_errors(errors: &[(String, String)]) -> Vec<String> {
    let mut alike: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (subject, why) in errors {
        let form = why.replace(subject.as_str(), "");
        match alike.iter_mut().find(|(known, ..)| *known == form) {
            Some((.., others)) => others.push(subject),
            None => alike.push((form, why, Vec::new())),
        }
    }
    let tell = |(_, why, others): (String, &str, Vec<&str>)| {
        let why: String = why.chars().take(MAX_SERVER_TEXT).collect();
        let more = match others.len() {
            0 => String::new(),
            1 => format!("; the same on {}", others[0]),
            count => format!("; the same on {count} other nodes: {}", join_addresses(&others)),
        };
        escape_unprintable(&(why + &more))
    };
    alike.into_iter().map(tell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_the_node_alone_are_one_message() {
        let error = |node: u8, why: &str| {
            let address = format!("10.0.0.{node}");
            (address.clone(), why.replace("NODE", &address))
        };
        let key = "no private key for the login on NODE: nothing is stored";
        let mut errors: Vec<(String, String)> = (1..=8).map(|node| error(node, key)).collect();
        errors.insert(1, error(9, "NODE is not reachable: timed out"));
        assert_eq!(
            merge_errors(&errors),
            [
                "no private key for the login on 10.0.0.1: nothing is stored; the same on 7 other nodes: 10.0.0.2, \
                 10.0.0.3, 10.0.0.4, 10.0.0.5, 10.0.0.6 and 2 more",
                "10.0.0.9 is not reachable: timed out",
            ]
        );
        let two = [error(1, key), error(2, key)];
        assert!(merge_errors(&two)[0].ends_with("nothing is stored; the same on 10.0.0.2"), "{two:?}");
        assert_eq!(merge_errors(&[]), [""; 0]);
    }
}
