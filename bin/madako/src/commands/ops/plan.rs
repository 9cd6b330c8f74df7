//! `madako ops plan`: the next operations for a state of the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::cluster::Cluster;
use madako_domain::component::Component;
use madako_domain::containers::ContainerOptions;
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::found::cluster_from_yaml;
use madako_domain::node_status::{FleetStatus, status_from_yaml};
use madako_domain::reboot::RebootQueueEntry;
use madako_domain::repair::queue::Items;
use madako_domain::restore::RestoreRequest;
use madako_domain::rollout::Rollout;
use madako_domain::state::ClusterState;
use madako_operation_runner::images::with_images;
use madako_operation_runner::kubernetes::objects::apply::ReadResources;
use madako_operation_runner::kubernetes::options::KubernetesOptions;
use madako_operation_runner::limits::MAX_CONCURRENT_UPDATES;
use madako_operation_runner::{
    Decision, Input, KubernetesPart, ObjectsPart, RequestedRestore, Settings, decide,
};
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use time::OffsetDateTime;

use super::{ShownCommand, ShownHeld, ShownOperation, collected, join_addresses, operation_tables};
use crate::cli::Global;
use crate::failure::Failure;
use crate::input::{STDIN, input_file_failure, read_text};
use crate::output::{Format, print_warning, show_value};
use crate::serve_args::parse_updates;

/// Shows the operations of the next reconcile pass, and the operations that are held, with the reasons. Changes nothing.
///
/// Without files, the command reads the cluster from the store and collects the status itself: it connects to every
/// node with the keys of the service (Vault, or the sections `ssh` and `pki` of the configuration), whether a leader
/// runs or not. The command pins no host key. Nodes whose state cannot be read count as unreachable, and standard error
/// names the reason. `madako ops` shows what the leader knows, such as nodes that back off.
///
/// With --cluster and --status, the command reads only these files, and the names of the images in the file of --config if
/// that is given (default: CKE's images). It opens no connection, and leaves the components of Kubernetes out.
///
/// The status is an object in JSON or YAML: {"config_version": "2", "nodes": {ADDRESS: {"reachable": true, "containers":
/// {NAME: {"running": true, "image": IMAGE, "builtin": PARAMETERS, "extra": PARAMETERS}}, "etcd_data": true, "etcd_mark":
/// true}}, "etcd": {"healthy": true, "members": [{"id": "1", "name": ADDRESS, "peer_urls": [URL], "learner": false,
/// "in_sync": true}]}, "bootstrap": {"status": "completed", "targets": [ADDRESS]}}. PARAMETERS are those of the label
/// com.cybozu.cke: {"extra_args": [], "extra_binds": [], "extra_env": {}}. Lists and maps may be null; "etcd" is null
/// if etcd does not answer, and "bootstrap" if there is no record of a bootstrap. Optional fields are "foreign" of a
/// container, "etcd_empty", "etcd_other_volume" and "etcd_certificates" of a node, "version" of a member,
/// "etcd_image_version", and "interrupted_removals" (addresses in records of `etcd-destroy-member` that did not end).
/// "etcd_certificates" is {"server.crt": {"not_before": TIME, "not_after": TIME}, "peer.crt": ...}.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako ops plan\n  madako ops plan --cluster cluster.yml --status status.json -o json"
)]
pub(crate) struct Args {
    /// Cluster configuration in YAML or JSON
    #[arg(long, value_name = "FILE", requires = "status")]
    cluster: Option<String>,
    /// State of the nodes and of etcd in JSON or YAML
    #[arg(long, value_name = "FILE", requires = "cluster")]
    status: Option<String>,
    /// Nodes on which one operation starts or restarts rivers
    #[arg(long, value_name = "NUMBER", value_parser = parse_updates, default_value_t = MAX_CONCURRENT_UPDATES)]
    max_concurrent_updates: usize,
    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The state that a plan is for.
pub(crate) struct CollectedInputs {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) options: Arc<ContainerOptions>,
    pub(crate) status: FleetStatus,
    pub(crate) restarts: BTreeSet<String>,
    /// The request of a restore of etcd, and whether it is under way.
    pub(crate) restore: Option<(RestoreRequest, bool)>,
    /// Nodes with data of before the last restore.
    pub(crate) stale: BTreeSet<String>,
    /// The reason for which no certificate can be issued.
    pub(crate) authorities: Option<String>,
    /// `None`: Kubernetes is left to CKE.
    pub(crate) kubernetes: Option<KubernetesInputs>,
    /// With the images of this state.
    pub(crate) settings: Settings,
}

/// The part of the state for Kubernetes' containers.
pub(crate) struct KubernetesInputs {
    /// The options of the cluster, or the reason why they cannot be used.
    pub(crate) options: Result<KubernetesOptions, String>,
    /// Nodes that drain, reboot or are repaired.
    pub(crate) busy: BTreeSet<String>,
    /// Nodes that endpoints have as not ready.
    pub(crate) leaving: BTreeSet<String>,
    pub(crate) resources: ReadResources,
    /// The roll of kubelets and proxies, or the reason why it cannot be read.
    pub(crate) rollout: Result<Option<Arc<Rollout>>, String>,
    /// The entries of the reboot queue, and the drains for upgrades.
    pub(crate) reboots: Items<RebootQueueEntry>,
    pub(crate) reboot_ends: BTreeMap<String, OffsetDateTime>,
    /// The rotation of the encryption key, or the reason why it cannot be read.
    pub(crate) rotation: Result<Option<Arc<EncryptionRotation>>, String>,
    /// The removal guard holds an observation of the registry back.
    pub(crate) is_guarded: bool,
}

static NONE: BTreeSet<String> = BTreeSet::new();
static NOTHING_ENDS: BTreeSet<(String, Component)> = BTreeSet::new();

impl CollectedInputs {
    /// The options of the cluster for Kubernetes.
    ///
    /// # Errors
    /// The components were not asked, or the options cannot be used.
    pub(crate) fn kubernetes_options(&self) -> Result<&KubernetesOptions, Failure> {
        self.kubernetes()?.options.as_ref().map_err(|why| {
            Failure::failed(format_args!("the field options of the cluster cannot be used: {why}"))
        })
    }

    /// The part for Kubernetes.
    ///
    /// # Errors
    /// The components were not asked.
    pub(crate) fn kubernetes(&self) -> Result<&KubernetesInputs, Failure> {
        let kubernetes = self.kubernetes.as_ref();
        kubernetes.ok_or_else(|| Failure::failed("the components of Kubernetes were not asked for their state: set kubernetes.mode in the configuration file"))
    }

    pub(crate) fn as_input<'a>(&'a self, settings: &'a Settings) -> Input<'a> {
        Input {
            cluster: &self.cluster,
            options: &self.options,
            status: &self.status,
            now: SystemClock.now(),
            backing_off: &NONE,
            restarts: &self.restarts,
            restore: self
                .restore
                .as_ref()
                .map(|(request, is_under_way)| RequestedRestore { request, is_under_way: *is_under_way }),
            stale: &self.stale,
            authorities: self.authorities.as_deref(),
            kubernetes: self.kubernetes.as_ref().map(|kubernetes| KubernetesPart {
                options: kubernetes.options.as_ref().map_err(String::as_str),
                busy: &kubernetes.busy,
                // One collection does not show for how long they are healthy.
                settling: &NONE,
                ending: &NOTHING_ENDS,
                rollout: kubernetes.rollout.as_ref().map(Option::as_deref).map_err(String::as_str),
                reboots: &kubernetes.reboots,
                reboot_ends: &kubernetes.reboot_ends,
                rotation: kubernetes.rotation.as_ref().map(Option::as_deref).map_err(String::as_str),
                objects: ObjectsPart {
                    user: &kubernetes.resources,
                    leaving: &kubernetes.leaving,
                    is_guarded: kubernetes.is_guarded,
                    ..ObjectsPart::default()
                },
            }),
            settings,
        }
    }
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let inputs = match (&args.cluster, &args.status) {
        (Some(cluster), Some(status)) => from_files(cluster, status, global)?,
        _ => collected::gather_states(global).await?.inputs,
    };
    let settings =
        Settings { max_concurrent_updates: args.max_concurrent_updates, ..inputs.settings.clone() };
    let decision = decide(&inputs.as_input(&settings));
    show_value(args.output, &decision, decision_table)
}

pub(super) fn from_files(
    cluster_file: &str,
    status_file: &str,
    global: &Global,
) -> Result<CollectedInputs, Failure> {
    if cluster_file == STDIN && status_file == STDIN {
        return Err(Failure::bad_input("only one of --cluster and --status can be - (standard input)"));
    }
    let cluster = cluster_from_yaml(&read_text(cluster_file)?)
        .map_err(|error| input_file_failure(cluster_file, error))?;
    let options = ContainerOptions::read(&cluster.options).map_err(|error| {
        Failure::bad_input(format_args!("{cluster_file}: the field `options` cannot be read: {error}"))
    })?;
    let status =
        status_from_yaml(&read_text(status_file)?).map_err(|error| input_file_failure(status_file, error))?;
    let known: BTreeSet<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let reported: BTreeSet<&str> = status.nodes.keys().map(String::as_str).collect();
    warn_of_addresses("the cluster has no node", reported.difference(&known).copied());
    warn_of_addresses(
        "the status lacks nodes, which count as unreachable:",
        known.difference(&reported).copied(),
    );
    let settings = with_images(&read_settings(global)?, &ClusterState::default(), &cluster, &status);
    Ok(CollectedInputs {
        cluster: Arc::new(cluster),
        options: Arc::new(options),
        status,
        restarts: BTreeSet::new(),
        restore: None,
        stale: BTreeSet::new(),
        authorities: None,
        // A file of the status has no components of Kubernetes.
        kubernetes: None,
        settings,
    })
}

/// The settings of the configuration file that the operator named.
fn read_settings(global: &Global) -> Result<Settings, Failure> {
    match global.config.as_deref() {
        None => Ok(Settings::default()),
        Some(file) => Ok(Config::load(Some(file))?.operations.settings),
    }
}

fn warn_of_addresses<'a>(what: &str, addresses: impl Iterator<Item = &'a str>) {
    let addresses: Vec<&str> = addresses.collect();
    if !addresses.is_empty() {
        print_warning(format_args!("{what} {}", join_addresses(&addresses)));
    }
}

fn decision_table(decision: &Decision) -> String {
    let operations = decision.operations.iter().map(|operation| ShownOperation {
        name: operation.name.to_string(),
        targets: operation.targets.clone(),
        commands: operation
            .commands
            .iter()
            .map(|command| ShownCommand { name: command.name().to_owned(), target: command.target() })
            .collect(),
    });
    let held = decision.held.iter().map(|held| ShownHeld {
        what: held.what.to_string(),
        reason: held.reason.name().to_owned(),
        targets: held.targets.clone(),
        why: held.reason.to_string(),
    });
    let tables = operation_tables("OPERATION", &operations.collect::<Vec<_>>(), &held.collect::<Vec<_>>());
    format!("Phase  {}\n{tables}", decision.phase)
}
