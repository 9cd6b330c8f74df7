//! Effects on Kubernetes, as its API server wrote them down: cordons, evictions, deletions and their ends.
//!
//! I1: who asks for one leads. I8: no two control plane nodes are drained at a time. I12: once all is calm, no node is left cordoned
//! that nothing is done with. `drains`: an effect begins only after the change that announces it is durable, so each node that is
//! cordoned, and each whose pods are ended, has a repair that the store says is draining; none is uncordoned while its repair goes on; and
//! no more nodes are drained at a time than `max_concurrent_repairs`.
//!
//! Guarantees: what a fault of the network, or a server that stood still, may have held back is judged by the whole time since that
//! began, as is everything behind which another such fault may be; two drains are side by side only where one had certainly begun and
//! the other was certainly still asked for.
//!
//! Does not: know when something was asked for, only when it arrived. Who asks late for what was held back all the same is not found,
//! nor is an uncordon within some seconds of the beginning or end of a repair.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::cluster::Cluster;
use madako_domain::invariants::repair::is_active;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::repair::config::{MAX_CONCURRENT_REPAIRS, RepairConfig};
use madako_domain::repair::{RepairQueueEntry, RepairStepStatus};
use madako_faults::{Act, Schedule};
use serde::Serialize;
use time::OffsetDateTime;

use super::Verdicts;
use super::effects::{HEARD_LATER, led_within};
use crate::datacenter::{Asked, Line, What};
use crate::history::{Event, Micros};
use crate::network::Node;
use crate::observer::{PREFIX, Revision};

/// The name of the verdict on what no invariant has a name for.
pub const DRAINS: &str = "drains";
/// An instance hears so much later at most that a drain is over: its request to the store takes 2 s.
const TOLD_LATER: Micros = 3_000_000;

/// Something that Kubernetes was asked to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// When it was done, or refused.
    pub at: Micros,
    /// Who asked.
    pub instance: u32,
    /// What for.
    pub asked: Asked,
    /// The node, or that of the pod.
    pub node: String,
    /// Whether a disruption budget forbade it.
    pub refused: bool,
}

/// What a journal tells of them, with the times of a history that began at `unix`.
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

/// A fault that may have held back what was asked for while it lasted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// By whom; `None`: by anybody.
    pub instance: Option<u32>,
    /// From when on.
    pub from: Micros,
    /// Until when it may arrive: what was said in a cut is sent again after pauses that become as long as it was.
    pub until: Micros,
}

/// The faults of a run that held back what instances and the API server said to each other.
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
            // What was sent to a server that stands still waits for it.
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

/// How often what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Nodes were cordoned.
    pub cordoned: u64,
    /// Nodes were uncordoned.
    pub uncordoned: u64,
    /// Pods were evicted.
    pub evicted: u64,
    /// A disruption budget forbade that.
    pub refused: u64,
    /// Pods were deleted.
    pub deleted: u64,
}

/// Counts effects.
#[must_use]
pub fn counted(effects: &[Effect]) -> Counted {
    let mut counted = Counted::default();
    for effect in effects {
        let count = match (effect.asked, effect.refused) {
            (_, true) => &mut counted.refused,
            (Asked::Cordon, _) => &mut counted.cordoned,
            (Asked::Uncordon, _) => &mut counted.uncordoned,
            (Asked::Evict, _) => &mut counted.evicted,
            (Asked::Delete, _) => &mut counted.deleted,
        };
        *count += 1;
    }
    counted
}

/// Each node that was cordoned, from when, and until when it was.
#[must_use]
pub fn cordoned(effects: &[Effect]) -> Vec<(&str, Micros, Option<Micros>)> {
    let mut spans: Vec<(&str, Micros, Option<Micros>)> = Vec::new();
    for effect in effects {
        let open = spans.iter_mut().find(|(node, _, until)| *node == effect.node && until.is_none());
        match (effect.asked, open) {
            (Asked::Cordon, None) => spans.push((&effect.node, effect.at, None)),
            (Asked::Uncordon, Some((.., until))) => *until = Some(effect.at),
            _ => {}
        }
    }
    spans
}

/// What they are judged by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The store's history.
    pub revisions: &'a [Revision],
    /// Who led from when on.
    pub leading: &'a [(Micros, Option<i64>)],
    /// Epochs and the instances that they are of.
    pub epochs: &'a BTreeMap<i64, u32>,
    /// What held back requests.
    pub held: &'a [Held],
    /// Whether all became calm.
    pub calm: bool,
}

impl Evidence<'_> {
    /// When what arrived may have been sent, at the earliest.
    fn sent(&self, effect: &Effect) -> Micros {
        let may_be_of = |held: &&Held| held.instance.is_none_or(|instance| instance == effect.instance);
        let mut since = effect.at;
        // Behind one fault there may be another.
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

/// Judges all effects.
pub fn judge(effects: &[Effect], seen: &Evidence<'_>, verdicts: &mut Verdicts) {
    let told = Told::of(seen.revisions);
    for effect in effects {
        let Effect { at, instance, asked, node, .. } = effect;
        let sent = seen.sent(effect);
        let what = format!("instance={instance} asked for {asked:?} at {node} at {at} us");
        verdicts.judged(Id::I1, 1);
        if !led_within(*instance, [sent, *at], seen.leading, seen.epochs) {
            let what = format!("{what}, and did not lead");
            verdicts.violated(&Violation { invariant: Id::I1, what });
        }
        verdicts.of(DRAINS).judged += 1;
        let meanwhile = [sent.saturating_sub(TOLD_LATER), at + HEARD_LATER];
        if *asked == Asked::Uncordon {
            if told.active.always(node, meanwhile) {
                verdicts.broken(DRAINS, format!("{what}, and its repair went on all the while"));
            }
        } else if !told.draining.ever(node, meanwhile) {
            verdicts.broken(DRAINS, format!("{what}, and no repair of it was draining"));
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
}

/// A drain, for as long as it was certainly under way.
struct Drain<'a> {
    node: &'a str,
    from: Micros,
    until: Micros,
}

/// Each of them begins with a cordon, and lasts until a pod was asked to end the last time before the next one, or the node was
/// uncordoned.
fn drains<'a>(effects: &'a [Effect], seen: &Evidence<'_>) -> Vec<Drain<'a>> {
    let mut drains: Vec<Drain<'_>> = Vec::new();
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for effect in effects {
        match effect.asked {
            Asked::Cordon => {
                open.insert(&effect.node, drains.len());
                drains.push(Drain { node: &effect.node, from: effect.at, until: effect.at });
            }
            Asked::Uncordon => drop(open.remove(effect.node.as_str())),
            Asked::Evict | Asked::Delete => {
                if let Some(drain) = open.get(effect.node.as_str()).and_then(|drain| drains.get_mut(*drain)) {
                    drain.until = drain.until.max(seen.sent(effect).saturating_sub(HEARD_LATER));
                }
            }
        }
    }
    // Of the others nobody knows whether they were over when their cordon arrived.
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

/// When something held of nodes, by their names; `Micros::MAX`: it still does.
#[derive(Default)]
struct Spans(BTreeMap<String, Vec<(Micros, Micros)>>);

impl Spans {
    /// From a time on it holds of these nodes, and no others.
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

    /// Whether it held of a node at some time of a span.
    fn ever(&self, node: &str, [first, last]: [Micros; 2]) -> bool {
        self.of(node).iter().any(|(from, until)| first <= *until && last >= *from)
    }

    /// Whether it held of a node for all of a span.
    fn always(&self, node: &str, [first, last]: [Micros; 2]) -> bool {
        self.of(node).iter().any(|(from, until)| *from <= first && last < *until)
    }
}

/// What the store said when.
#[derive(Default)]
struct Told {
    /// When the repairs of a node were draining.
    draining: Spans,
    /// When repairs were at a node: it was drained, or watched after a command.
    active: Spans,
    /// Nodes that repairs are at in the end.
    busy: BTreeSet<String>,
    /// Who is in the control plane from when on.
    control_plane: Vec<(Micros, BTreeSet<String>)>,
    /// How many nodes may be drained at once: the most that was ever allowed.
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

/// The nodes of some entries: by their names, and by the addresses that they have these from.
fn nodes_of(
    entries: &BTreeMap<String, RepairQueueEntry>,
    chosen: impl Fn(&RepairQueueEntry) -> bool,
) -> BTreeSet<String> {
    let chosen = entries.values().filter(|entry| chosen(entry));
    chosen.flat_map(|entry| [entry.address.clone(), entry.nodename.clone()]).collect()
}

#[cfg(test)]
mod tests;
