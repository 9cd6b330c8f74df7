//! Publishes the decision of a reconcile pass: the page `/ops`, the metrics, and the state of operations for other
//! actors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::certificate::Validity;
use madako_domain::cluster::Node;
use madako_domain::component::Component;
use madako_domain::node_status::EtcdStatus;
use madako_protocol::actors::Collected;
use madako_protocol::event::Event;
use madako_protocol::operations::OperationsState;
use tokio::time::Instant;

use super::{Inputs, ReadOptions, RunnerState};
use crate::certificates;
use crate::held::BlockedBy;
use crate::input::{KubernetesMode, Settings};
use crate::kubernetes::certificates::{unreadable_certificates, validities_in_use};
use crate::page::{HeldPage, Mode, NodePage, OpsPage, RunningCommandPage};

/// Addresses of the cluster's nodes that the last collection did not reach.
fn unreachable_nodes(inputs: &Inputs, collected: &Collected) -> BTreeSet<String> {
    let is_reachable = |address: &str| collected.nodes.get(address).is_some_and(|node| node.reachable);
    let nodes = inputs.cluster.nodes.iter().map(|node| &node.address);
    nodes.filter(|address| !is_reachable(address)).cloned().collect()
}

/// True if operations give kubelets another minor version.
fn updates_kubelets(settings: &Settings, inputs: &Inputs) -> bool {
    let is_usable = |read: &ReadOptions| read.as_ref().is_ok();
    settings.kubernetes == KubernetesMode::Act && inputs.kubernetes.as_ref().is_some_and(is_usable)
}

/// The health of the configured API servers at the last collection; empty if they were not asked.
fn api_servers(inputs: &Inputs, collected: &Collected) -> BTreeMap<String, bool> {
    let Some(answers) = &collected.kubernetes else { return BTreeMap::new() };
    let health = |address: &str| answers.is_healthy(Component::ApiServer, address);
    inputs.cluster.control_plane().map(|node| (node.address.clone(), health(&node.address))).collect()
}

impl RunnerState {
    /// Publishes the newest decision and the command that runs.
    pub(super) fn publish(&mut self, inputs: &Inputs) {
        self.count_nodes(inputs);
        let now = Instant::now();
        let decision = self.decision.as_ref();
        let running = self.effects.announced_effect().map(|announced| RunningCommandPage {
            record: announced.step.record,
            operation: announced.step.operation.name.name().to_owned(),
            command: announced.step.command().to_string(),
            targets: announced.step.operation.targets.clone(),
        });
        let held = decision.map(|decision| decision.held.as_slice()).unwrap_or_default();
        let held: Vec<HeldPage> =
            held.iter().map(|held| HeldPage { held: held.clone(), why: held.reason.to_string() }).collect();
        let acts = self.given.mode == Mode::Act;
        let is_due = acts && (running.is_some() || decision.is_some_and(|it| !it.operations.is_empty()));
        if let Some((_, collected)) = &self.collected {
            self.find(OperationsState {
                is_due,
                updates_kubelets: acts && updates_kubelets(&self.given.settings, inputs),
                has_data: collected.asked_etcd,
                unreachable: unreachable_nodes(inputs, collected),
                etcd: collected.etcd.clone().map(Arc::new),
                api_servers: api_servers(inputs, collected),
                read_at: self.collection_began,
            });
        }
        let pauses = || self.backing_off.remaining_pauses(now);
        let operations = decision.map(|decision| decision.operations.as_slice()).unwrap_or_default();
        let page = OpsPage {
            phase: decision.map(|decision| decision.phase.clone()),
            mode: self.given.mode,
            nodes: self.node_pages(inputs, now),
            // The first operation of the pass is the one that runs.
            next: operations.iter().skip(usize::from(running.is_some())).cloned().collect(),
            running,
            backing_off: pauses().map(|(node, until, _)| (node.clone(), (until - now).as_secs())).collect(),
            back_off_errors: pauses().map(|(node, _, why)| (node.clone(), why.to_owned())).collect(),
            held,
            stories: Arc::clone(&self.stories),
        };
        self.publish_held_operations(&page.held);
        self.given.page.publish(Arc::new(page));
    }

    fn node_pages(&self, inputs: &Inputs, now: Instant) -> BTreeMap<String, NodePage> {
        let Some((since, collected)) = &self.collected else { return self.nodes_of_last_page() };
        let age_seconds = now.saturating_duration_since(*since).as_secs();
        let node = |address: &String| {
            let status = collected.nodes.get(address);
            let unknown = || Some("no answer yet".to_owned());
            let error = status.is_none().then(|| collected.errors.get(address).cloned().or_else(unknown));
            let reachable = status.is_some_and(|status| status.reachable);
            (address.clone(), NodePage { reachable, error: error.flatten(), age_seconds })
        };
        inputs.cluster.nodes.iter().map(|entry| node(&entry.address)).collect()
    }

    /// The nodes of the last page: while an operation runs, there is no newer collection.
    fn nodes_of_last_page(&self) -> BTreeMap<String, NodePage> {
        self.given.page.newest().map(|page| page.nodes.clone()).unwrap_or_default()
    }

    /// Counts the held operations by reason, and emits them.
    fn publish_held_operations(&mut self, held: &[HeldPage]) {
        for reason in BlockedBy::names() {
            let count = held.iter().filter(|held| held.held.reason.name() == reason).count();
            super::madako_operations_held(reason).set(count as f64);
        }
        let now = self.given.clock.now().unix_timestamp();
        self.held_since.note(held.iter().map(|held| held.held.reason.name()), now);
        for reason in BlockedBy::names() {
            let since = self.held_since.time_of(&reason).unwrap_or(0);
            super::madako_operations_held_since_timestamp_seconds(reason).set(since as f64);
        }
        let text = |HeldPage { held, why }: &HeldPage| {
            format!("{} of {}: {why}", held.what, held.targets.join(", "))
        };
        self.report_held(held.iter().map(text).collect());
    }

    /// Shows that operations cannot be decided on, because the options of the cluster are unusable. Repairs and plans
    /// judge etcd's quorum as unknown, and wait for no operation.
    pub(super) fn publish_unusable_options(&mut self) {
        let Some(why) = self.state.as_ref().and_then(|state| state.options_fault.clone()) else { return };
        self.report_held(vec![format!(
            "all operations: the field options of the cluster cannot be used: {why}"
        )]);
        let read_at = self.collection_began;
        let unreachable = BTreeSet::new();
        self.find(OperationsState {
            is_due: false,
            updates_kubelets: false,
            has_data: true,
            unreachable,
            etcd: None,
            api_servers: BTreeMap::new(),
            read_at,
        });
    }

    /// Publishes findings. Equal ones wake no other actor.
    fn find(&self, found: OperationsState) {
        if self.given.operations.newest().as_deref() != Some(&found) {
            self.given.operations.publish(Arc::new(found));
        }
    }

    /// Counts the nodes and the members of etcd of a new collection, by state.
    fn count_nodes(&mut self, inputs: &Inputs) {
        let Some((_, collected)) = &self.collected else { return };
        let unreachable = unreachable_nodes(inputs, collected);
        super::madako_nodes("unreachable").set(unreachable.len() as f64);
        super::madako_nodes("reachable").set((inputs.cluster.nodes.len() - unreachable.len()) as f64);
        self.unreachable_since.note(unreachable, self.given.clock.now().unix_timestamp());
        let since = self.unreachable_since.earliest_time().unwrap_or(0);
        super::madako_nodes_unreachable_since_timestamp_seconds().set(since as f64);
        show_certificates(inputs, collected);
        if collected.asked_etcd {
            let faults = count_members(inputs, collected.etcd.as_ref());
            self.etcd_fault_since.note(faults, self.given.clock.now().unix_timestamp());
            for fault in ETCD_FAULTS {
                let since = self.etcd_fault_since.time_of(&fault).unwrap_or(0);
                super::madako_etcd_fault_since_timestamp_seconds(fault).set(since as f64);
            }
        }
    }

    /// Emits the held operations, if they differ from those of the last event.
    fn report_held(&mut self, held: Vec<String>) {
        if held != self.held {
            self.given.events.emit(Event::OperationsHeld { held: held.clone() });
            self.held = held;
        }
    }
}

/// States of etcd that need the operator if they last.
const ETCD_FAULTS: [&str; 3] = ["no-majority", "out-of-sync", "missing"];

/// Counts the members of etcd, and returns the faults. Without a majority, the states of its members are unknown, and
/// none is counted.
fn count_members(inputs: &Inputs, etcd: Option<&EtcdStatus>) -> Vec<&'static str> {
    let etcd = etcd.filter(|etcd| etcd.healthy);
    super::madako_etcd_healthy().set(f64::from(etcd.is_some()));
    let members = etcd.map(|etcd| etcd.members.as_slice()).unwrap_or_default();
    let in_sync = members.iter().filter(|member| member.is_in_sync()).count();
    let is_member = |address: &str| members.iter().any(|member| member.address() == address);
    let missing = inputs.cluster.control_plane().filter(|node| !is_member(&node.address)).count();
    let missing = etcd.map_or(0, |_| missing);
    super::madako_etcd_members("in-sync").set(in_sync as f64);
    super::madako_etcd_members("out-of-sync").set((members.len() - in_sync) as f64);
    super::madako_etcd_members("missing").set(missing as f64);
    let is_so = [etcd.is_none(), in_sync < members.len(), missing > 0];
    ETCD_FAULTS.into_iter().zip(is_so).filter_map(|(fault, is_so)| is_so.then_some(fault)).collect()
}

/// Shows the earliest end of the certificates, and how many nodes have unreadable certificates: of etcd, and of Kubernetes unless
/// it is left to CKE.
fn show_certificates(inputs: &Inputs, collected: &Collected) {
    let control_plane = inputs.cluster.control_plane();
    let of_etcd = control_plane.filter_map(|node| collected.nodes.get(&node.address));
    let of_etcd = of_etcd.flat_map(|node| node.etcd_certificates.values()).filter_map(|it| it.validity);
    let of_etcd = earliest_end(of_etcd);
    super::madako_certificates_end_timestamp_seconds("etcd").set(of_etcd as f64);
    let of_kubernetes = inputs.cluster.nodes.iter().filter(|_| inputs.kubernetes.is_some());
    let of_kubernetes = of_kubernetes.filter_map(|node| collected.nodes.get(&node.address));
    let of_kubernetes = earliest_end(of_kubernetes.flat_map(validities_in_use));
    super::madako_certificates_end_timestamp_seconds("kubernetes").set(of_kubernetes as f64);
    let is_unreadable = |node: &&Node| {
        let Some(status) = collected.nodes.get(&node.address) else { return false };
        let of_etcd = node.control_plane && certificates::unreadable_certificates(status).next().is_some();
        let of_kubernetes = || unreadable_certificates(status).next().is_some();
        of_etcd || (inputs.kubernetes.is_some() && of_kubernetes())
    };
    let unreadable = inputs.cluster.nodes.iter().filter(is_unreadable).count();
    super::madako_nodes_with_unreadable_certificates().set(unreadable as f64);
}

/// Unix time; 0 if there is none.
fn earliest_end(validities: impl Iterator<Item = Validity>) -> i64 {
    validities.map(|validity| validity.to.unix_timestamp()).min().unwrap_or(0)
}
