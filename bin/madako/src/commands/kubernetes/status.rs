//! `madako kubernetes status`: the components of Kubernetes on the nodes, their certificates, and the objects in Kubernetes.

use std::collections::BTreeMap;
use std::sync::Arc;

use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::keys;
use madako_domain::rollout::Rollout;
use madako_domain::state::ClusterState;
use madako_operation_runner::kubernetes::objects::shown::{ObjectState, ShownObject, objects};
use madako_operation_runner::kubernetes::operation::KubernetesOperationName;
use madako_operation_runner::kubernetes::shown::certificates::{
    CertificateState, ShownCertificate, certificates,
};
use madako_operation_runner::kubernetes::shown::{ShownComponent, State, components};
use madako_operation_runner::operation::OperationName;
use madako_protocol::ports::Clock as _;
use madako_reboot_queue::next_action::Explained;
use madako_repair_queue::explain as repairs;
use madako_supervisor::clock::SystemClock;
use madako_supervisor::config::Config;
use serde::Serialize;
use time::OffsetDateTime;

use crate::access;
use crate::cli::Global;
use crate::commands::machine::list::address_order;
use crate::commands::ops::collected::GatheredStates;
use crate::commands::ops::{ShownHeld, collected, join_addresses, running};
use crate::commands::reboot_queue::explain::{QueueExplanation, explain_queue};
use crate::commands::resource;
use crate::commands::resource::status::{describe_leader_error, tone_of_state};
use crate::failure::Failure;
use crate::limits::NODES_PAUSE;
use crate::list::{AsList, Cell, List, ListArgs, Tone};

/// Shows each component of Kubernetes on each node, with its state and its differences from the wanted component. Changes
/// nothing.
///
/// The command reads the cluster from the store and collects the state itself, as `madako ops plan` does, whatever
/// `kubernetes.mode` says. The states are good, unhealthy (no answer to the health check), outdated (it differs from the
/// wanted component), stopped, foreign (a container of another program), unwanted (kube-proxy runs although it is disabled)
/// and unreachable (the node does not answer). The column WHY has the failed health check, the differences, and the reason
/// for which the leader holds an operation on the component. `madako ops plan` shows the operations that follow.
///
/// A line counts the kubelets that do not get another minor version yet (`kubernetes.minor_upgrade`); their rows have the
/// reason, such as the pod for which a drain was given up. The line `Roll` names a pause, the nodes that failed after their
/// restart, and those of the present wave, and the load of an API server for which the next wave is smaller. The line
/// `Rotation` names the last step of a rotation of the encryption key, and the reason for which the next step waits. Below
/// the components, the list has the certificates that are due (they end soon) or unreadable, with the path of the file,
/// the objects of Kubernetes that are not as wanted (due, held or unknown), the nodes that the leader leaves out for a while
/// after a failed command, and the entries of the reboot queue and the repair queue whose next step is held, with the
/// obstacle. The obstacles of reboots are those that the leader knows; if the leader does not answer, the store alone
/// decides, as it always does for repairs.
///
/// The JSON has these fields: components ([{node, component, state, image, why}]); certificates (all of them: [{node, file, state,
/// not_after, why}]); objects (all of them: [{key, state, why}], or null: no API server is healthy); back_offs (the remaining
/// time and the last error, by node or operation); entries ([{queue, index, node, next, obstacle, why}]); minor_upgrades (the
/// number of kubelets that wait, by reason); rollout (the value of madako/kubernetes/rollout, or null);
/// encryption_rotation ({stage, key, started, held}, or null); leader_error (the reason for which the operations of the leader,
/// or its decisions on reboots, are not known, or null).
///
/// Exit codes: 0: all components, certificates and objects are good, and nothing is held; 1: some are not, a roll or a rotation is
/// under way, paused or halted, or the state could not be read; 2: bad input.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  madako kube status\n  madako kube status -o wide --sort-by state\n  \
                        madako kube status --watch")]
pub(crate) struct Args {
    #[command(flatten)]
    list: ListArgs,
}

/// The reasons for which kubelets of another minor version wait, and the words for them after their number.
const MINOR_UPGRADES: [(&str, &str); 3] = [
    ("next-boot", "get it when their nodes boot"),
    ("drained-first", "wait for the drain of their nodes"),
    ("drain-aborted", "wait for another drain of their nodes, after one was given up"),
];

#[derive(PartialEq, Serialize)]
struct KubernetesStatusReport {
    components: Vec<ShownComponent>,
    certificates: Vec<ShownCertificate>,
    /// `None`: no API server is healthy.
    objects: Option<Vec<ShownObject>>,
    /// Nodes that are left out after a failed command, and operations that are, with the remaining time and the last error.
    back_offs: BTreeMap<String, String>,
    /// Entries of the reboot queue and of the repair queue whose next step is held.
    entries: Vec<ShownEntry>,
    /// Kubelets that the leader does not give another minor version yet, by reason.
    minor_upgrades: BTreeMap<String, usize>,
    /// The roll of kubelets and proxies; `None` before the first one.
    rollout: Option<Arc<Rollout>>,
    /// The rotation of the encryption key; `None`: there is none.
    encryption_rotation: Option<ShownRotation>,
    /// The reason for which the held operations of the leader, or its decisions on reboots, are not known.
    leader_error: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct ShownEntry {
    /// `reboot-queue` or `repair-queue`.
    queue: &'static str,
    index: i64,
    /// Address of the node.
    node: String,
    /// The next step, in words.
    next: String,
    /// Name of the obstacle.
    obstacle: String,
    why: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct ShownRotation {
    #[serde(flatten)]
    rotation: EncryptionRotation,
    /// The reason for which the leader holds its next step.
    held: Option<String>,
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let mut is_good = true;
    let read = async || {
        let shown = gather_kubernetes_status(global).await?;
        let objects = shown.objects.as_ref().is_some_and(|all| all.iter().all(is_as_wanted));
        let certificates = shown.certificates.iter().all(is_valid);
        is_good = objects
            && certificates
            && shown.encryption_rotation.is_none()
            && shown.leader_error.is_none()
            && shown.back_offs.is_empty()
            && shown.entries.is_empty()
            && shown.rollout.as_ref().is_none_or(|rollout| is_at_rest(rollout))
            && shown.components.iter().all(|component| component.state == State::Good);
        Ok(shown)
    };
    args.list.show(list_columns(), &SystemClock, NODES_PAUSE, read).await?;
    if is_good { Ok(()) } else { Err(Failure::Different) }
}

async fn gather_kubernetes_status(global: &Global) -> Result<KubernetesStatusReport, Failure> {
    let GatheredStates { inputs, state, snapshot, .. } = collected::gather_kubernetes(global).await?;
    let options = inputs.kubernetes_options()?;
    let rollout = inputs.kubernetes()?.rollout.clone();
    let rollout = rollout.map_err(|why| {
        Failure::failed(format_args!("the stored value of {} cannot be read: {why}", keys::ROLLOUT))
    })?;
    let rotation = inputs.kubernetes()?.rotation.clone().map_err(|why| {
        Failure::failed(format_args!(
            "the stored value of {} cannot be read: {why}",
            keys::ENCRYPTION_ROTATION
        ))
    })?;
    let mut encryption_rotation =
        rotation.map(|rotation| ShownRotation { rotation: (*rotation).clone(), held: None });
    let input = inputs.as_input(&inputs.settings);
    let mut components = components(&input, options);
    let mut certificates = certificates(&input);
    let mut objects = objects(&input, options);
    let mut minor_upgrades = BTreeMap::new();
    let mut back_offs = BTreeMap::new();
    let config = Config::load(global.config.as_deref())?;
    let store = access::open_configured_store(&config)?;
    let (records, now) = (access::read_records(&snapshot), SystemClock.now());
    let (operations, reboots) = tokio::join!(
        running::fetch_operations(&store),
        explain_queue(&state, &records, &config, &store, now)
    );
    let QueueExplanation { entries: reboots, leader_error: reboots_error } = reboots;
    let leader_error = match operations {
        Ok(page) => {
            back_offs = page.back_offs().map(|(subject, why)| (subject.to_owned(), why)).collect();
            let held = page.held;
            add_held_reasons(&mut components, &held);
            minor_upgrades = count_minor_upgrades(&held);
            if let Some(rotation) = &mut encryption_rotation {
                let mut all = held.iter();
                let held = all.find(|held| held.what == OperationName::KubernetesRotateEncryptionKey.name());
                rotation.held = held.map(|held| held.why.clone());
            }
            add_held_renewals(&mut certificates, &held);
            resource::status::add_held(objects.as_deref_mut().unwrap_or_default(), &held);
            None
        }
        Err(failure) => failure.message(),
    };
    Ok(KubernetesStatusReport {
        components,
        certificates,
        objects,
        back_offs,
        entries: queue_entries(&state, reboots, config.reaches_kubernetes(), now),
        minor_upgrades,
        rollout,
        encryption_rotation,
        leader_error: leader_error.or(reboots_error),
    })
}

/// The entries of both queues whose next step is held, as the explanations of the queues show them.
fn queue_entries(
    state: &ClusterState,
    reboots: Vec<Explained>,
    kubernetes: bool,
    now: OffsetDateTime,
) -> Vec<ShownEntry> {
    let rebooted = reboots.into_iter().filter(|entry| entry.is_held);
    let rebooted = rebooted.map(|entry| ShownEntry {
        queue: "reboot-queue",
        index: entry.index,
        node: entry.node,
        next: entry.what,
        obstacle: entry.obstacle.unwrap_or_default(),
        why: entry.why.unwrap_or_default(),
    });
    // Racks on hold follow from the registry's answer, which `madako repair-queue explain` asks for.
    let context = repairs::ExplainContext { kubernetes, ..repairs::ExplainContext::default() };
    let repaired = repairs::explain(state, &context, None, now).into_iter().filter(|entry| entry.is_held);
    let repaired = repaired.map(|entry| ShownEntry {
        queue: "repair-queue",
        index: entry.index,
        node: entry.address,
        next: entry.what,
        obstacle: entry.obstacle.unwrap_or_default().to_owned(),
        why: entry.why.unwrap_or_default(),
    });
    rebooted.chain(repaired).collect()
}

/// Counts the kubelets of another minor version that wait, by reason.
fn count_minor_upgrades(held: &[ShownHeld]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for held in held.iter().filter(|held| MINOR_UPGRADES.iter().any(|(reason, _)| held.reason == *reason)) {
        *counts.entry(held.reason.clone()).or_default() += held.targets.len();
    }
    counts
}

/// Adds the reasons for which the leader holds operations to the components that they would change.
fn add_held_reasons(components: &mut [ShownComponent], held: &[ShownHeld]) {
    for held in held {
        // Other operations are those on etcd and on rivers.
        let Ok(name) = held.what.parse::<KubernetesOperationName>() else { continue };
        let is_target = |shown: &&mut ShownComponent| {
            shown.component == name.component().name() && held.targets.contains(&shown.node)
        };
        for shown in components.iter_mut().filter(is_target) {
            shown.why.push(format!("{} is held: {}", held.what, held.why));
        }
    }
}

/// Adds the reasons for which the leader holds renewals to the certificates that are due.
fn add_held_renewals(certificates: &mut [ShownCertificate], held: &[ShownHeld]) {
    for held in held.iter().filter(|held| held.what == OperationName::KubernetesRenewCertificates.name()) {
        let is_target = |shown: &&mut ShownCertificate| {
            shown.state == CertificateState::Due && held.targets.contains(&shown.node)
        };
        for shown in certificates.iter_mut().filter(is_target) {
            shown.why.push(format!("{} is held: {}", held.what, held.why));
        }
    }
}

/// True if no wave is watched, and nothing but the wanted state decides when the next one begins.
fn is_at_rest(rollout: &Rollout) -> bool {
    let is_free = !rollout.halted && !rollout.paused;
    is_free && rollout.watched.is_empty() && rollout.failed.is_empty() && rollout.failed_servers.is_empty()
}

fn is_valid(certificate: &ShownCertificate) -> bool {
    certificate.state == CertificateState::Good
}

fn is_as_wanted(object: &ShownObject) -> bool {
    object.state == ObjectState::Good
}

pub(crate) fn list_columns() -> List {
    List::new(&["NODE", "NAME", "STATE", "WHY"], &["IMAGE"]).with_whole_reasons()
}

impl AsList for KubernetesStatusReport {
    fn list(&self, _: OffsetDateTime) -> List {
        let mut list = list_columns();
        for ShownComponent { node, component, state, image, why } in &self.components {
            let tone = match state {
                State::Good => Tone::Good,
                State::Unhealthy | State::Unreachable => Tone::Bad,
                State::Outdated | State::Stopped | State::Foreign | State::Unwanted => Tone::Notice,
            };
            list.add(vec![
                Cell::new(node).with_order(address_order(Some(node))),
                (*component).into(),
                Cell::new(state.name()).with_tone(tone),
                why.join("; ").into(),
                image.clone().unwrap_or_default().into(),
            ]);
        }
        let certificates = self.certificates.iter().filter(|certificate| !is_valid(certificate));
        for ShownCertificate { node, file, state, why, .. } in certificates {
            let node = Cell::new(node).with_order(address_order(Some(node)));
            let state = Cell::new(state.name()).with_tone(Tone::Notice);
            list.add(vec![node, (*file).into(), state, why.join("; ").into(), "".into()]);
        }
        let objects = self.objects.iter().flatten();
        for ShownObject { key, state, why } in objects.filter(|object| !is_as_wanted(object)) {
            let state = Cell::new(state.name()).with_tone(tone_of_state(*state));
            let node = Cell::new("-").with_order(address_order(None));
            list.add(vec![node, key.into(), state, why.join("; ").into(), "".into()]);
        }
        for (subject, why) in &self.back_offs {
            let is_operation = OperationName::from_record_name(subject).is_some();
            let (node, name) =
                if is_operation { ("-", subject.as_str()) } else { (subject.as_str(), "node") };
            let node = Cell::new(node).with_order(address_order(Some(node).filter(|_| !is_operation)));
            let state = Cell::new("backs-off").with_tone(Tone::Notice);
            list.add(vec![node, name.into(), state, why.into(), "".into()]);
        }
        for ShownEntry { queue, index, node, next, obstacle, why } in &self.entries {
            let node = Cell::new(node).with_order(address_order(Some(node)));
            let state = Cell::new(obstacle).with_tone(Tone::Notice);
            let why = format!("next, {next}; but {why}");
            list.add(vec![node, format!("{queue} {index}").into(), state, why.into(), "".into()]);
        }
        list
    }

    fn summary(&self) -> String {
        let rollout = self.rollout.as_deref().map(describe_rollout).unwrap_or_default();
        let rotation = self.encryption_rotation.as_ref().map(describe_rotation).unwrap_or_default();
        rollout
            + &describe_minor_upgrades(&self.minor_upgrades)
            + &rotation
            + &describe_leader_error(self.leader_error.as_deref())
    }
}

/// One line while kubelets of another minor version wait.
fn describe_minor_upgrades(counts: &BTreeMap<String, usize>) -> String {
    let known = MINOR_UPGRADES.iter().filter_map(|(reason, what)| Some((what, counts.get(*reason)?)));
    let parts: Vec<String> = known.map(|(what, count)| format!("{count} {what}")).collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("Kubelets of another minor version: {}.\n", parts.join("; "))
}

/// One line while the encryption key is rotated.
fn describe_rotation(ShownRotation { rotation, held }: &ShownRotation) -> String {
    let EncryptionRotation { stage, key, started } = rotation;
    let mut text = format!("Rotation of the encryption key: new key {key}; last step: {stage}");
    if !started.is_empty() {
        let started: Vec<&String> = started.iter().collect();
        text += &format!("; API servers with the present keys: {}", join_addresses(&started));
    }
    if let Some(why) = held {
        text += &format!("; the next step is held: {why}");
    }
    text + ".\n"
}

/// One line while the roll does not simply go on.
fn describe_rollout(rollout: &Rollout) -> String {
    let with_reasons = |failed: &BTreeMap<String, String>| -> Vec<String> {
        failed.iter().map(|(node, why)| format!("{node} ({why})")).collect()
    };
    let (failed, servers) = (with_reasons(&rollout.failed), with_reasons(&rollout.failed_servers));
    let mut parts = Vec::new();
    if rollout.paused {
        parts.push("an operator paused the roll of kubelets and proxies".to_owned());
    }
    if rollout.halted {
        parts.push("too many nodes failed, which halts the roll of kubelets and proxies".to_owned());
    }
    if !failed.is_empty() {
        parts.push(format!("failed after their restart: {}", join_addresses(&failed)));
    }
    if !servers.is_empty() {
        parts.push(format!(
            "API servers that did not become healthy after a start: {}",
            join_addresses(&servers)
        ));
    }
    if !rollout.watched.is_empty() {
        let watched: Vec<&String> = rollout.watched.keys().collect();
        parts.push(format!("not yet Ready for long enough: {}", join_addresses(&watched)));
    }
    if let Some(why) = &rollout.slowed {
        parts.push(format!("a smaller wave follows (most nodes: {}): {why}", rollout.next_waves()));
    }
    if parts.is_empty() { String::new() } else { format!("Roll: {}.\n", parts.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Surface;

    #[test]
    fn a_row_names_node_component_state_image_and_differences() {
        let component = |state, image: Option<&str>, why: &[&str]| ShownComponent {
            node: "10.0.0.1".to_owned(),
            component: "kubelet",
            state,
            image: image.map(str::to_owned),
            why: why.iter().map(|why| (*why).to_owned()).collect(),
        };
        let components = vec![
            component(State::Outdated, Some("k:1"), &["one", "two"]),
            component(State::Unreachable, None, &[]),
        ];
        let certificate = |state, why: &[&str]| ShownCertificate {
            node: "10.0.0.1".to_owned(),
            file: "/k/kubeconfig",
            state,
            not_after: None,
            why: why.iter().map(|why| (*why).to_owned()).collect(),
        };
        let mut certificates =
            vec![certificate(CertificateState::Good, &[]), certificate(CertificateState::Due, &["soon"])];
        let renewal = |what: &str| ShownHeld {
            what: what.to_owned(),
            reason: "backing-off".to_owned(),
            targets: vec!["10.0.0.1".to_owned()],
            why: "later".to_owned(),
        };
        let held = [renewal("kubernetes-renew-certificates"), renewal("etcd-renew-certificates")];
        add_held_renewals(&mut certificates, &held);
        let object = |key: &str, state| ShownObject { key: key.to_owned(), state, why: vec!["x".to_owned()] };
        let objects =
            Some(vec![object("Namespace/a", ObjectState::Good), object("Namespace/b", ObjectState::Held)]);
        let mut rollout = Rollout::new("k:1");
        rollout.paused = true;
        rollout.waves.insert("kubelet".to_owned(), 1);
        rollout.slowed = Some("the API server on a is slow".to_owned());
        let rollout = Some(Arc::new(rollout));
        let minor_upgrades = BTreeMap::from([("drained-first".to_owned(), 2), ("next-boot".to_owned(), 1)]);
        let rotation = EncryptionRotation::new("k1").advance().unwrap();
        let rotation = rotation.with_started(&["10.0.0.9".to_owned()]).unwrap();
        let shown = KubernetesStatusReport {
            components,
            certificates,
            objects,
            back_offs: [("10.0.0.2", "for 30 s"), ("etcd-start", "for 9 s")]
                .map(|(subject, why)| (subject.to_owned(), why.to_owned()))
                .into(),
            entries: vec![ShownEntry {
                queue: "reboot-queue",
                index: 3,
                node: "10.0.0.4".to_owned(),
                next: "drain the node".to_owned(),
                obstacle: "back-off".to_owned(),
                why: "it waits".to_owned(),
            }],
            minor_upgrades,
            rollout,
            encryption_rotation: Some(ShownRotation { rotation, held: Some("a node is down".to_owned()) }),
            leader_error: Some("silence".to_owned()),
        };
        let text = shown.list(OffsetDateTime::UNIX_EPOCH).to_text(true, Surface::default());
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1..],
            [
                vec!["10.0.0.1", "kubelet", "outdated", "k:1", "one;", "two"],
                vec!["10.0.0.1", "kubelet", "unreachable"],
                "10.0.0.1 /k/kubeconfig due soon; kubernetes-renew-certificates is held: later"
                    .split(' ')
                    .collect(),
                vec!["-", "Namespace/b", "held", "x"],
                vec!["10.0.0.2", "node", "backs-off", "for", "30", "s"],
                vec!["-", "etcd-start", "backs-off", "for", "9", "s"],
                "10.0.0.4 reboot-queue 3 back-off next, drain the node; but it waits".split(' ').collect(),
            ],
            "a good certificate and an object as wanted have no line: {text}"
        );
        assert!(shown.summary().starts_with("Roll: an operator paused the roll"));
        let rotation = "Rotation of the encryption key: new key k1; last step: added; API servers with the present \
                        keys: 10.0.0.9; the next step is held: a node is down.\n";
        assert!(shown.summary().contains(rotation), "{}", shown.summary());
        assert!(shown.summary().contains("a smaller wave follows (most nodes: kubelet 1): the API"));
        let waiting = "Kubelets of another minor version: 1 get it when their nodes boot; 2 wait for the drain of their nodes.";
        assert!(shown.summary().contains(waiting), "{}", shown.summary());
        assert!(shown.summary().ends_with("of the leader are not known: silence\n"));
    }

    #[test]
    fn held_reboots_are_entries_with_their_obstacle() {
        let reboot = |index, is_held| Explained {
            index,
            node: "10.0.0.4".to_owned(),
            next: "drain".to_owned(),
            what: "the node is drained".to_owned(),
            at: None,
            obstacle: Some("etcd-not-good".to_owned()),
            why: Some("it waits".to_owned()),
            is_held,
        };
        let reboots = vec![reboot(3, true), reboot(4, false)];
        let shown = queue_entries(&ClusterState::default(), reboots, true, OffsetDateTime::UNIX_EPOCH);
        let held = ShownEntry {
            queue: "reboot-queue",
            index: 3,
            node: "10.0.0.4".to_owned(),
            next: "the node is drained".to_owned(),
            obstacle: "etcd-not-good".to_owned(),
            why: "it waits".to_owned(),
        };
        assert_eq!(shown, [held]);
    }

    #[test]
    fn a_held_operation_is_a_reason_of_its_component_alone() {
        let component = |node: &str, component| ShownComponent {
            node: node.to_owned(),
            component,
            state: State::Stopped,
            image: None,
            why: Vec::new(),
        };
        let mut components =
            [component("a", "kubelet"), component("b", "kubelet"), component("a", "kube-proxy")];
        let held = |what: &str| ShownHeld {
            what: what.to_owned(),
            reason: "backing-off".to_owned(),
            targets: vec!["a".to_owned()],
            why: "it failed".to_owned(),
        };
        add_held_reasons(&mut components, &[held("kubelet-bootstrap"), held("etcd-start")]);
        let upgrades = [("next-boot", 2), ("next-boot", 1), ("wave", 1)].map(|(reason, nodes)| ShownHeld {
            reason: reason.to_owned(),
            targets: vec!["a".to_owned(); nodes],
            ..held("kubelet-restart")
        });
        assert_eq!(count_minor_upgrades(&upgrades), BTreeMap::from([("next-boot".to_owned(), 3)]));
        let whys = components.map(|component| component.why);
        assert_eq!(whys, [vec!["kubelet-bootstrap is held: it failed".to_owned()], Vec::new(), Vec::new()]);
    }
}
