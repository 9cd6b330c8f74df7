//! Effects on Kubernetes from the journal of its API server: cordons, uncordons, evictions and deletions.
//!
//! I1: an instance that requests an effect leads. I8: no two control plane nodes are drained at a time. I12: once all
//! is calm, no node without a repair is cordoned. `drains`: an effect begins only after the change that announces it is
//! durable. So each node that is cordoned, or whose pods are evicted or deleted, has a repair that is draining
//! according to the store; no node is uncordoned during its repair; and at most `max_concurrent_repairs` nodes are
//! drained at a time.
//!
//! Guarantees: an effect that a network fault or a stopped server may have held back is judged by the whole time since
//! the beginning of that fault, and of earlier faults that overlap with it. Two drains count as concurrent only if the
//! first had certainly begun and certainly still received requests.
//!
//! Does not: know the time of a request, only of its arrival. It misses a late request by an instance whose requests
//! were held back at that time, and an uncordon within some seconds of the beginning or end of a repair.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::is_active;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::repair::config::{MAX_CONCURRENT_REPAIRS, RepairConfig};
use madako_domain::repair::{RepairQueueEntry, RepairStepStatus};
use madako_faults::{Act, Schedule};
use madako_judges::{Exemption, Exemptions};
use serde::Serialize;
use time::OffsetDateTime;

use super::Verdicts;
use super::effects::{HEARD_LATER, led_within};
use crate::datacenter::{KubernetesRequest, Line, What};
use crate::history::{Event, Micros};
use crate::network::Node;
use crate::observer::{PREFIX, Revision};

/// Name of the verdict on the rules that are no invariant.
pub const DRAINS: &str = "drains";
/// Maximum delay until an instance learns that a drain is over: its request to the store takes 2 s.
const TOLD_LATER: Micros = 3_000_000;

/// A request to change Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Time of the change or refusal.
    pub at: Micros,
    pub instance: u32,
    pub asked: KubernetesRequest,
    /// The node, or the node of the pod.
    pub node: String,
    /// Whether a disruption budget forbade it.
    pub refused: bool,
}

/// The effects in a journal, with times relative to `unix`, the beginning of the history.
#[must_use]
pub fn effects(lines: &[Line], unix: OffsetDateTime) -> Vec<Effect> {
    let at = |line: &Line| Micros::try_from((line.time() - unix).whole_microseconds()).unwrap_or(0);
    let effect = |line: &Line| match &line.what {
        What::Kubernetes { instance, asked, node, refused, .. } => {
            let (node, refused) = (node.clone(), *refused);
            Some(Effect { at: at(line), instance: *instance, asked: *asked, node, refused })
        }
        _ => None,
    };
    lines.iter().filter_map(effect).collect()
}

/// A fault that may have held back requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The affected instance; `None`: all instances.
    pub instance: Option<u32>,
    pub from: Micros,
    /// Latest arrival of a request that was held back: TCP retransmits after pauses that become as long as the cut was.
    pub until: Micros,
}

/// The faults of a run that held back requests between instances and the API server.
#[must_use]
pub fn held(events: &[(Micros, Event)], schedule: &Schedule) -> Vec<Held> {
    let mut held: BTreeMap<usize, Held> = BTreeMap::new();
    for (at, event) in events {
        let Event::Fault { injection, change, on: Some(on), .. } = event else { continue };
        let act = schedule.injections.get(*injection).map(|injection| injection.act);
        let of_network = matches!(act, Some(Act::Cut | Act::Delay | Act::Loss));
        let instance = on.strip_prefix("instance=").and_then(|number| number.parse().ok());
        let holds = match instance {
            Some(_) => of_network,
            // Requests to a stopped server wait for it.
            None => *on == Node::Registry.to_string() && (of_network || act == Some(Act::Pause)),
        };
        if *change == "begins" && holds {
            held.insert(*injection, Held { instance, from: *at, until: Micros::MAX });
        } else if let Some(held) = held.get_mut(injection).filter(|_| *change == "ends") {
            held.until = *at + (*at - held.from) + HEARD_LATER;
        }
    }
    held.into_values().collect()
}

/// Numbers of effects by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    pub cordoned: u64,
    pub uncordoned: u64,
    pub evicted: u64,
    /// Evictions that a disruption budget forbade.
    pub refused: u64,
    pub deleted: u64,
}

#[must_use]
pub fn counted(effects: &[Effect]) -> Counted {
    let mut counted = Counted::default();
    for effect in effects {
        let count = match (effect.asked, effect.refused) {
            (_, true) => &mut counted.refused,
            (KubernetesRequest::Cordon, _) => &mut counted.cordoned,
            (KubernetesRequest::Uncordon, _) => &mut counted.uncordoned,
            (KubernetesRequest::Evict, _) => &mut counted.evicted,
            (KubernetesRequest::Delete, _) => &mut counted.deleted,
        };
        *count += 1;
    }
    counted
}

/// For each cordon: the node, its beginning, and its end if there was one.
#[must_use]
pub fn cordoned(effects: &[Effect]) -> Vec<(&str, Micros, Option<Micros>)> {
    let mut spans: Vec<(&str, Micros, Option<Micros>)> = Vec::new();
    for effect in effects {
        let open = spans.iter_mut().find(|(node, _, until)| *node == effect.node && until.is_none());
        match (effect.asked, open) {
            (KubernetesRequest::Cordon, None) => spans.push((&effect.node, effect.at, None)),
            (KubernetesRequest::Uncordon, Some((.., until))) => *until = Some(effect.at),
            _ => {}
        }
    }
    spans
}

/// The observations that effects are judged by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub revisions: &'a [Revision],
    /// The leader's epoch from each time on.
    pub leading: &'a [(Micros, Option<i64>)],
    /// The instance of each epoch.
    pub epochs: &'a BTreeMap<i64, u32>,
    /// Faults that held back requests.
    pub held: &'a [Held],
    /// Whether the run became calm.
    pub calm: bool,
}

impl Evidence<'_> {
    /// Earliest time at which the request may have been sent.
    fn sent(&self, effect: &Effect) -> Micros {
        let may_be_of = |held: &&Held| held.instance.is_none_or(|instance| instance == effect.instance);
        let mut since = effect.at;
        // An earlier fault may have held back the request until this one began.
        while let Some(earlier) = self
            .held
            .iter()
            .filter(may_be_of)
            .filter(|held| held.from < since && since <= held.until)
            .map(|held| held.from)
            .min()
        {
            since = earlier;
        }
        since
    }
}

pub fn judge(effects: &[Effect], seen: &Evidence<'_>, verdicts: &mut Verdicts) -> Exemptions {
    let (told, mut exemptions) = (Told::of(seen.revisions), Exemptions::default());
    for effect in effects {
        let Effect { at, instance, asked, node, .. } = effect;
        let sent = seen.sent(effect);
        let what = format!("instance={instance} asked for {asked:?} at {node} at {at} us");
        verdicts.judged(Id::I1, 1);
        let led_since = |since| led_within(*instance, [since, *at], seen.leading, seen.epochs);
        if !led_since(sent) {
            let what = format!("{what}, and did not lead");
            verdicts.violated(&Violation { invariant: Id::I1, what });
        } else if !led_since(*at) {
            exemptions.used(Exemption::HeldBack, Duration::from_micros(at - sent));
        }
        verdicts.of(DRAINS).judged += 1;
        let meanwhile = [sent.saturating_sub(TOLD_LATER), at + HEARD_LATER];
        if *asked == KubernetesRequest::Uncordon {
            if told.active.always(node, meanwhile) {
                verdicts.broken(DRAINS, format!("{what}, and its repair went on all the while"));
            }
        } else if !told.draining.ever(node, meanwhile) {
            verdicts.broken(DRAINS, format!("{what}, and no repair of it was draining"));
        } else if !told.draining.ever(node, [at.saturating_sub(TOLD_LATER), meanwhile[1]]) {
            exemptions.used(Exemption::HeldBack, Duration::from_micros(at - sent));
        }
    }
    side_by_side(&drains(effects, seen), &told, verdicts);
    if seen.calm {
        verdicts.judged(Id::I12, 1);
        let left = cordoned(effects)
            .into_iter()
            .filter(|(node, _, until)| until.is_none() && !told.busy.contains(*node));
        for (node, ..) in left {
            let what = format!("all is calm, and {node} is left cordoned");
            verdicts.violated(&Violation { invariant: Id::I12, what });
        }
    }
    exemptions
}

/// A drain during the time in which it was certainly under way.
struct Drain<'a> {
    node: &'a str,
    from: Micros,
    until: Micros,
}

/// A drain begins with a cordon. It lasts until the last eviction or deletion on the node before the next cordon, or
/// until the uncordon.
fn drains<'a>(effects: &'a [Effect], seen: &Evidence<'_>) -> Vec<Drain<'a>> {
    let mut drains: Vec<Drain<'_>> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for effect in effects {
        match effect.asked {
            KubernetesRequest::Cordon => {
                open.insert(&effect.node, drains.len());
                drains.push(Drain { node: &effect.node, from: effect.at, until: effect.at });
            }
            KubernetesRequest::Uncordon => drop(open.remove(effect.node.as_str())),
            KubernetesRequest::Evict | KubernetesRequest::Delete => {
                if let Some(drain) = open.get(effect.node.as_str()).and_then(|drain| drains.get_mut(*drain)) {
                    drain.until = drain.until.max(seen.sent(effect).saturating_sub(HEARD_LATER));
                }
            }
        }
    }
    // Other drains may have been over when their cordon arrived.
    drains.retain(|drain| drain.until > drain.from);
    drains
}

fn side_by_side(drains: &[Drain<'_>], told: &Told, verdicts: &mut Verdicts) {
    for drain in drains {
        let at = drain.from;
        let beside =
            drains.iter().filter(|other| other.node != drain.node && other.from <= at && at < other.until);
        let beside: BTreeSet<&str> = beside.map(|other| other.node).collect();
        verdicts.of(DRAINS).judged += 1;
        if beside.len() >= told.limit as usize {
            let (node, limit) = (drain.node, told.limit);
            verdicts.broken(
                DRAINS,
                format!("{node} was drained at {at} us beside {beside:?}, where {limit} may be at once"),
            );
        }
        if !told.is_control_plane(drain.node, at) {
            continue;
        }
        verdicts.judged(Id::I8, 1);
        if let Some(other) = beside.iter().find(|node| told.is_control_plane(node, at)) {
            let what =
                format!("the control plane nodes {} and {other} were drained at once at {at} us", drain.node);
            verdicts.violated(&Violation { invariant: Id::I8, what });
        }
    }
}

/// For each node, the spans in which a statement held; `Micros::MAX`: it still does.
#[derive(Default)]
struct Spans(BTreeMap<String, Vec<(Micros, Micros)>>);

impl Spans {
    /// From `at` on, the statement holds for exactly these nodes.
    fn at(&mut self, at: Micros, nodes: BTreeSet<String>) {
        for (node, spans) in &mut self.0 {
            if let Some((_, until)) = spans.last_mut().filter(|(_, until)| *until == Micros::MAX)
                && !nodes.contains(node)
            {
                *until = at;
            }
        }
        for node in nodes {
            let spans = self.0.entry(node).or_default();
            if spans.last().is_none_or(|(_, until)| *until != Micros::MAX) {
                spans.push((at, Micros::MAX));
            }
        }
    }

    fn of(&self, node: &str) -> &[(Micros, Micros)] {
        self.0.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether the statement held for the node at some time of the span.
    fn ever(&self, node: &str, [first, last]: [Micros; 2]) -> bool {
        self.of(node).iter().any(|(from, until)| first <= *until && last >= *from)
    }

    /// Whether the statement held for the node during the whole span.
    fn always(&self, node: &str, [first, last]: [Micros; 2]) -> bool {
        self.of(node).iter().any(|(from, until)| *from <= first && last < *until)
    }
}

/// The state of repairs according to the store over time.
#[derive(Default)]
struct Told {
    /// Nodes with a draining repair.
    draining: Spans,
    /// Nodes with a repair in its drain or in the watch after a command.
    active: Spans,
    /// Nodes with such a repair at the end.
    busy: BTreeSet<String>,
    /// The control plane nodes from each time on.
    control_plane: Vec<(Micros, BTreeSet<String>)>,
    /// Most concurrent repairs that any cluster configuration of the run allowed.
    limit: u32,
}

impl Told {
    fn of(revisions: &[Revision]) -> Self {
        let (mut told, mut entries) = (Self::default(), BTreeMap::new());
        for revision in revisions {
            for change in &revision.changes {
                let Some(key) = change.key.strip_prefix(PREFIX) else { continue };
                let value = change.value.as_deref();
                if key == keys::CLUSTER {
                    let cluster = value.and_then(|value| serde_json::from_slice::<Cluster>(value).ok());
                    told.cluster(revision.at, &cluster.unwrap_or_default());
                } else if key.starts_with(keys::REPAIRS) {
                    let entry =
                        value.and_then(|value| serde_json::from_slice::<RepairQueueEntry>(value).ok());
                    match entry {
                        Some(entry) => drop(entries.insert(key.to_owned(), entry)),
                        None => drop(entries.remove(key)),
                    }
                }
            }
            told.entries(revision.at, &entries);
        }
        told.busy = nodes_of(&entries, is_active);
        told
    }

    fn cluster(&mut self, at: Micros, cluster: &Cluster) {
        let nodes = cluster.control_plane().map(|node| node.name().to_owned());
        self.control_plane.push((at, nodes.collect()));
        let limit = RepairConfig::read(&cluster.repair)
            .map_or(MAX_CONCURRENT_REPAIRS, |config| config.max_concurrent);
        self.limit = self.limit.max(limit);
    }

    fn entries(&mut self, at: Micros, entries: &BTreeMap<String, RepairQueueEntry>) {
        let is_drained =
            |entry: &RepairQueueEntry| is_active(entry) && entry.step_status == RepairStepStatus::Draining;
        self.draining.at(at, nodes_of(entries, is_drained));
        self.active.at(at, nodes_of(entries, is_active));
    }

    fn is_control_plane(&self, node: &str, at: Micros) -> bool {
        let known = self.control_plane.iter().rfind(|(from, _)| *from <= at);
        known.is_some_and(|(_, nodes)| nodes.contains(node))
    }
}

/// Names and addresses of the chosen entries' nodes: effects have the one or the other.
fn nodes_of(
    entries: &BTreeMap<String, RepairQueueEntry>,
    chosen: impl Fn(&RepairQueueEntry) -> bool,
) -> BTreeSet<String> {
    let chosen = entries.values().filter(|entry| chosen(entry));
    chosen.flat_map(|entry| [entry.address.clone(), entry.nodename.clone()]).collect()
}

#[cfg(test)]
mod tests;
