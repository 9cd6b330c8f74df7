//! Combines the facts of the registry and of etcd about each machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_cluster_planner::{LeaderStage, PlanInput, evaluate_eligibility, plan};
use madako_domain::choices::Choices;
use madako_domain::cluster::{Cluster, Node, Taint};
use madako_domain::keys;
use madako_domain::machine::{Machine, QueryVariables};
use madako_domain::repair::RepairQueueEntry;
use madako_domain::state::ClusterState;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::Registry as _;
use madako_protocol::store::Store;
use madako_sabakan::SabakanRegistry;
use serde::Serialize;
use time::OffsetDateTime;

use crate::access::decode;
use crate::failure::Failure;
use crate::running_settings::effective_setting;

/// State of a node whose machine the registry does not list.
pub(super) const MISSING: &str = "MISSING";

/// The reason of a node that another program or an earlier version chose, or of which the leader keeps no reason any more.
const NO_CHOICE: &str = "no reason is stored for this node's part";

/// A machine of the registry, or a node of the cluster without one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KnownMachine {
    pub(super) serial: Option<String>,
    pub(super) address: Option<String>,
    pub(super) rack: Option<i64>,
    pub(super) index_in_rack: Option<i64>,
    pub(super) role: Option<String>,
    pub(super) bmc_type: Option<String>,
    /// As sabakan spells it; `MISSING` for a node that the registry does not list.
    pub(super) state: &'static str,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) since: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) retire_date: Option<OffsetDateTime>,
    /// `control-plane` or `worker`; `None` outside the cluster.
    pub(super) part: Option<&'static str>,
    /// Name in Kubernetes.
    pub(super) node: Option<String>,
    /// Taints of the cluster configuration.
    pub(super) taints: Vec<Taint>,
    /// The unfinished entry of the repair queue, else the last one.
    pub(super) repair: Option<RepairQueueEntry>,
    /// The change in the next plan.
    pub(super) next: Option<&'static str>,
    /// The reason for its part in the cluster.
    pub(super) why: Option<String>,
    /// Time of the plan whose reason is stored; `None`: the reason holds now.
    #[serde(with = "time::serde::rfc3339::option")]
    pub(super) decided: Option<OffsetDateTime>,
}

/// All machines with the registry's own descriptions, and remarks for the operator.
pub(super) struct KnownMachines {
    pub(super) machines: Vec<KnownMachine>,
    /// The registry's machines, in its order.
    pub(super) registered: Vec<Machine>,
    pub(super) remarks: Vec<String>,
}

/// Reads the store at one revision and asks the registry; `all`: also machines that the query of the cluster excludes.
pub(super) async fn read_known_machines(
    all: bool,
    store: &dyn Store,
    now: OffsetDateTime,
) -> Result<KnownMachines, Failure> {
    let snapshot = store.list("").await?;
    let state = ClusterState::decode(snapshot.revision, &snapshot.entries, None);
    for key in [keys::SABAKAN_URL, keys::SABAKAN_VARIABLES, keys::CLUSTER] {
        if let Some(why) = state.fault_of(key) {
            return Err(Failure::failed(format_args!("the stored value of {key} cannot be used: {why}")));
        }
    }
    let url = state.url.as_ref().ok_or_else(|| {
        Failure::failed("no URL of the registry is stored (madako sabakan set-url stores one)")
    })?;
    let everything = QueryVariables::default();
    let variables = if all { Some(&everything) } else { state.variables.as_ref().map(|it| &*it.value) };
    let transport = ReqwestTransport::for_url(&url.value).map_err(|error| Failure::Failed(error.into()))?;
    let registry = SabakanRegistry::new(Arc::new(transport));
    let answer = registry.machines(&url.value, variables).await;
    let fetched = answer.map_err(|error| Failure::Failed(error.into()))?;
    let mut registered = fetched.machines;
    registered.extend(fetched.left_out);
    let choices: Option<Choices> =
        snapshot.entries.get(keys::CHOICES).map(|entry| decode(keys::CHOICES, entry)).transpose()?;
    // A plan for machines that the query excludes would choose them.
    let (machines, remarks) =
        describe_machines(&registered, &state, &choices.unwrap_or_default(), !all, now)?;
    Ok(KnownMachines { machines, registered, remarks })
}

/// The machines in the order of racks, with the nodes that have none, and remarks on plans.
fn describe_machines(
    registered: &[Machine],
    state: &ClusterState,
    choices: &Choices,
    is_planned: bool,
    now: OffsetDateTime,
) -> Result<(Vec<KnownMachine>, Vec<String>), Failure> {
    let cluster = state.cluster.as_ref().map(|cluster| &*cluster.value);
    let nodes: BTreeMap<&str, &Node> =
        cluster.iter().flat_map(|cluster| &cluster.nodes).map(|node| (node.address.as_str(), node)).collect();
    let repairs = repairs_by_address(state);
    let mut remarks = Vec::new();
    let next = if is_planned {
        next_changes(registered, state, cluster, now, &mut remarks)?
    } else {
        BTreeMap::new()
    };
    let template = state.template.as_ref().map(|template| &*template.value);
    let eligible = template.map(|template| evaluate_eligibility(template, registered, cluster));
    let mut machines = Vec::with_capacity(registered.len());
    for (index, machine) in registered.iter().enumerate() {
        let spec = &machine.spec;
        let address = machine.address();
        let node = address.and_then(|address| nodes.get(address).copied());
        let change = address.and_then(|address| next.get(address));
        let choice = address.and_then(|address| choices.get(address));
        let (why, decided) = match (change, node, choice, &eligible) {
            (Some((_, Some(why))), ..) => (why.clone(), None),
            (_, Some(_), Some(choice), _) => (choice.why.clone(), Some(whole_seconds(choice.at))),
            (_, Some(_), None, _) => (NO_CHOICE.to_owned(), None),
            (_, None, _, Some(eligible)) => (eligible[index].to_string(), None),
            (_, None, _, None) => ("no template is stored, so no machine is chosen".to_owned(), None),
        };
        machines.push(KnownMachine {
            serial: Some(spec.serial.clone()),
            address: address.map(str::to_owned),
            rack: Some(spec.rack),
            index_in_rack: Some(spec.index_in_rack),
            role: Some(spec.role.clone()),
            bmc_type: Some(spec.bmc.bmc_type.clone()),
            state: machine.status.state.name(),
            since: start_of_state(machine, now),
            retire_date: Some(spec.retire_date),
            next: change.map(|(change, _)| *change),
            why: Some(why),
            decided,
            ..machine_in_cluster(node, address, &repairs)
        });
    }
    let listed: BTreeSet<&str> = registered.iter().filter_map(Machine::address).collect();
    for (address, node) in nodes.iter().filter(|(address, _)| !listed.contains(**address)) {
        machines.push(KnownMachine {
            address: Some((*address).to_owned()),
            next: next.get(*address).map(|(change, _)| *change),
            why: Some("the registry does not list this node's machine".to_owned()),
            ..machine_in_cluster(Some(node), Some(address), &repairs)
        });
    }
    let place = |machine: &KnownMachine| {
        (machine.rack.unwrap_or(i64::MAX), machine.index_in_rack, machine.serial.clone())
    };
    machines.sort_by_cached_key(place);
    Ok((machines, remarks))
}

/// The part and the repairs of a machine, without its description.
fn machine_in_cluster(
    node: Option<&Node>,
    address: Option<&str>,
    repairs: &BTreeMap<&str, &RepairQueueEntry>,
) -> KnownMachine {
    KnownMachine {
        serial: None,
        address: None,
        rack: None,
        index_in_rack: None,
        role: None,
        bmc_type: None,
        state: MISSING,
        since: None,
        retire_date: None,
        part: node.map(|node| if node.control_plane { "control-plane" } else { "worker" }),
        node: node.map(|node| node.name().to_owned()),
        taints: node.map(|node| node.taints.clone()).unwrap_or_default(),
        repair: address.and_then(|address| repairs.get(address)).map(|entry| (*entry).clone()),
        next: None,
        why: None,
        decided: None,
    }
}

/// Beginning of the machine's state, to the second.
fn start_of_state(machine: &Machine, now: OffsetDateTime) -> Option<OffsetDateTime> {
    let lasts = time::Duration::checked_seconds_f64(machine.status.duration)?;
    now.checked_sub(lasts).map(whole_seconds)
}

fn whole_seconds(time: OffsetDateTime) -> OffsetDateTime {
    time.replace_nanosecond(0).unwrap_or(time)
}

/// The entry that counts of each address: the unfinished one, else the last one.
fn repairs_by_address(state: &ClusterState) -> BTreeMap<&str, &RepairQueueEntry> {
    let mut found: BTreeMap<&str, &RepairQueueEntry> = BTreeMap::new();
    for item in state.repair.entries.values() {
        let entry = &item.value;
        let known = found.entry(&entry.address).or_insert(entry);
        if known.is_finished() {
            *known = entry;
        }
    }
    found
}

/// Changes of the next plan by address, each with the planner's reason for it.
fn next_changes(
    registered: &[Machine],
    state: &ClusterState,
    cluster: Option<&Cluster>,
    now: OffsetDateTime,
    remarks: &mut Vec<String>,
) -> Result<BTreeMap<String, (&'static str, Option<String>)>, Failure> {
    let (Some(template), Some(constraints)) = (&state.template, &state.constraints) else {
        return Ok(BTreeMap::new());
    };
    let wait = effective_setting(None, state, |settings| settings.retire_wait).map_err(Failure::failed)?;
    let under_repair = state.repair.machines_under_way().map(str::to_owned).collect();
    let input = PlanInput {
        template: &template.value,
        constraints: &constraints.value,
        machines: registered,
        current: cluster,
        node_taints: &BTreeMap::new(),
        under_repair: &under_repair,
        now,
        retire_wait: wait.value,
        template_changed: state.has_changed_template(),
        moment: LeaderStage::Running,
    };
    let plan = match plan(&input) {
        Ok(plan) => plan,
        Err(error) => {
            remarks.push(format!("no plan can be made: {}", error.message));
            return Ok(BTreeMap::new());
        }
    };
    let mut reasons: BTreeMap<&str, String> = BTreeMap::new();
    for reason in plan.reasons.iter().filter(|reason| Some(reason.rule) == plan.action) {
        if let Some(address) = &reason.address {
            reasons.entry(address).or_insert_with(|| reason.why.to_string());
        }
    }
    let changes = plan.changes.iter().map(|change| {
        let why = reasons.get(change.address.as_str()).cloned();
        (change.address.clone(), (change.change.name(), why))
    });
    Ok(changes.collect())
}
