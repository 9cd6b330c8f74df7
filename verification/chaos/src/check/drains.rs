//! Judges the effects on Kubernetes from the journal of its API server: cordons, uncordons, evictions and deletions.
//!
//! I1: an instance that requests an effect leads. I17: once all is calm, no node without a repair is cordoned. The oracle
//! judges whether a drain of the node's repair explains a request.
//!
//! Guarantees: a request that a network fault or a stopped server may have held back is judged by the whole time since
//! the beginning of that fault, and of earlier faults that overlap with it.
//!
//! Does not: know the time of a request, only of its arrival. It misses a late request by an instance whose requests
//! were held back at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::invariants::repair::is_active;
use madako_domain::invariants::{Id, Violation};
use madako_domain::keys;
use madako_domain::repair::RepairQueueEntry;
use madako_faults::{Act, Schedule};
use madako_judges::{Exemption, Exemptions, KubernetesRequest};
use serde::Serialize;
use time::OffsetDateTime;

use super::Verdicts;
use super::effects::{HEARD_LATER, has_led_within};
use crate::datacenter::{Line, LineContent};
use crate::history::{Event, Micros};
use crate::network::Node;
use crate::observer::{PREFIX, Revision};

/// A request to change Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Time of the change or refusal.
    pub at: Micros,
    pub instance: u32,
    pub action: KubernetesRequest,
    /// The node, or the node of the pod.
    pub node: String,
    /// The pod: `NAMESPACE/NAME`.
    pub pod: Option<String>,
    /// True if a disruption budget forbade it.
    pub refused: bool,
}

/// The effects in a journal, with times relative to `unix`, the beginning of the history.
#[must_use]
pub fn effects_of(lines: &[Line], unix: OffsetDateTime) -> Vec<Effect> {
    let at =
        |line: &Line| Micros::try_from((line.wall_clock_time() - unix).whole_microseconds()).unwrap_or(0);
    let effect = |line: &Line| match &line.what {
        LineContent::Kubernetes { instance, action, node, pod, refused } => {
            let (instance, action, node, pod, refused) =
                (*instance, *action, node.clone(), pod.clone(), *refused);
            Some(Effect { at: at(line), instance, action, node, pod, refused })
        }
        _ => None,
    };
    lines.iter().filter_map(effect).collect()
}

/// A fault that may have held back requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldingFault {
    /// The affected instance; `None`: all instances.
    pub instance: Option<u32>,
    pub from: Micros,
    /// Latest arrival of a request that was held back: TCP retransmits after pauses that become as long as the cut was.
    pub until: Micros,
}

/// The faults of a run that held back requests between instances and the API server.
#[must_use]
pub fn find_held_requests(events: &[(Micros, Event)], schedule: &Schedule) -> Vec<HoldingFault> {
    let mut held: BTreeMap<usize, HoldingFault> = BTreeMap::new();
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
            held.insert(*injection, HoldingFault { instance, from: *at, until: Micros::MAX });
        } else if let Some(held) = held.get_mut(injection).filter(|_| *change == "ends") {
            held.until = *at + (*at - held.from) + HEARD_LATER;
        }
    }
    held.into_values().collect()
}

/// Numbers of effects by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EffectCounts {
    pub cordoned: u64,
    pub uncordoned: u64,
    pub evicted: u64,
    /// Evictions that a disruption budget forbade.
    pub refused: u64,
    pub deleted: u64,
}

#[must_use]
pub fn count_effects(effects: &[Effect]) -> EffectCounts {
    let mut counted = EffectCounts::default();
    for effect in effects {
        let count = match (effect.action, effect.refused) {
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
pub fn cordon_spans(effects: &[Effect]) -> Vec<(&str, Micros, Option<Micros>)> {
    let mut spans: Vec<(&str, Micros, Option<Micros>)> = Vec::new();
    for effect in effects {
        let open = spans.iter_mut().find(|(node, _, until)| *node == effect.node && until.is_none());
        match (effect.action, open) {
            (KubernetesRequest::Cordon, None) => spans.push((&effect.node, effect.at, None)),
            (KubernetesRequest::Uncordon, Some((.., until))) => *until = Some(effect.at),
            _ => {}
        }
    }
    spans
}

/// Earliest time at which the request may have been sent.
pub(crate) fn earliest_send_time(effect: &Effect, held: &[HoldingFault]) -> Micros {
    let may_be_of = |held: &&HoldingFault| held.instance.is_none_or(|instance| instance == effect.instance);
    let mut since = effect.at;
    // An earlier fault may have held back the request until this one began.
    while let Some(earlier) = held
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

/// Judges the senders of requests by the leader's epoch from each time on and the instance of each epoch.
pub fn judge_drains(
    effects: &[Effect],
    leading: &[(Micros, Option<i64>)],
    epochs: &BTreeMap<i64, u32>,
    held: &[HoldingFault],
    verdicts: &mut Verdicts,
) -> Exemptions {
    let mut exemptions = Exemptions::default();
    for effect in effects {
        let Effect { at, instance, action, node, .. } = effect;
        let sent = earliest_send_time(effect, held);
        verdicts.count_judged(Id::I1, 1);
        let led_since = |since| has_led_within(*instance, [since, *at], leading, epochs);
        if !led_since(sent) {
            let what =
                format!("instance={instance} asked for {action:?} at {node} at {at} us, and did not lead");
            verdicts.count_violated(&Violation { invariant: Id::I1, what });
        } else if !led_since(*at) {
            exemptions.record_use(Exemption::HeldBack, Duration::from_micros(at - sent));
        }
    }
    exemptions
}

/// Judges a run that has become calm: no node is cordoned without an unfinished repair.
pub fn judge_calm(effects: &[Effect], revisions: &[Revision], verdicts: &mut Verdicts) {
    let mut entries = BTreeMap::new();
    for change in revisions.iter().flat_map(|revision| &revision.changes) {
        let is_entry = |key: &str| key.strip_prefix(PREFIX).is_some_and(|key| key.starts_with(keys::REPAIRS));
        if is_entry(&change.key) {
            let entry = change.value.as_deref().map(serde_json::from_slice::<RepairQueueEntry>);
            entries.insert(&change.key, entry.and_then(Result::ok));
        }
    }
    let active = entries.into_values().flatten().filter(is_active);
    let busy: BTreeSet<String> = active.flat_map(|entry| [entry.address, entry.nodename]).collect();
    verdicts.count_judged(Id::I17, 1);
    for (node, ..) in
        cordon_spans(effects).into_iter().filter(|(node, _, until)| until.is_none() && !busy.contains(*node))
    {
        let what = format!("all is calm, and {node} is left cordoned");
        verdicts.count_violated(&Violation { invariant: Id::I17, what });
    }
}

#[cfg(test)]
mod tests;
