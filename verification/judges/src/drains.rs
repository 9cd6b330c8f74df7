//! Promises about drains, as predicates over observed facts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use madako_domain::invariants::repair::is_active;
use madako_domain::keys;
use madako_domain::reboot::{RebootQueueEntry, RebootStatus};
use madako_domain::repair::{RepairQueueEntry, RepairStatus, RepairStepStatus};

use crate::exemptions::Exemption;
use crate::fact::{Fact, FactTime, KubernetesRequest, PodFact};
use crate::observed_world::ObservedWorld;
use crate::oracle::{Context, FactJudgement, Predicate};
use crate::terms::PromiseTerms;

/// Maximum time until a drain that is over ends: [`Exemption::LateDrain`].
const LATE: Duration = Exemption::LateDrain.longest_use().expect("a drain is late for a time");
/// Seconds of the shortest pause after a drain was given up, and of its longest growth each time (CKE).
const BACK_OFF: i64 = 300;

/// For each node, the spans in which it had a certain entry; [`FactTime::MAX`]: it still has.
#[derive(Default)]
struct NodeSpans(BTreeMap<String, Vec<(FactTime, FactTime)>>);

impl NodeSpans {
    /// From `at` on, exactly the nodes of the chosen entries have one. Requests name a node by its name or its address.
    fn set<'a>(
        &mut self,
        at: FactTime,
        now: &'a ObservedWorld,
        chosen: impl Fn(&RepairQueueEntry) -> bool,
        rebooted: impl Iterator<Item = &'a str>,
    ) {
        let entries = now.entries.values().map(|item| &item.entry).filter(|entry| chosen(entry));
        let nodes = entries.flat_map(|entry| [&*entry.address, &*entry.nodename]);
        let nodes: BTreeSet<&str> = nodes.chain(rebooted).collect();
        for (node, spans) in &mut self.0 {
            if let Some((_, until)) = spans.last_mut().filter(|(_, until)| *until == FactTime::MAX)
                && !nodes.contains(&**node)
            {
                *until = at;
            }
        }
        for node in nodes {
            let spans = self.0.entry(node.to_owned()).or_default();
            if spans.last().is_none_or(|(_, until)| *until != FactTime::MAX) {
                spans.push((at, FactTime::MAX));
            }
        }
    }

    fn spans_of(&self, node: &str) -> &[(FactTime, FactTime)] {
        self.0.get(node).map_or(&[], Vec::as_slice)
    }

    fn had_entry_between(&self, node: &str, [first, last]: [FactTime; 2]) -> bool {
        self.spans_of(node).iter().any(|(from, until)| first <= *until && last >= *from)
    }

    fn is_always(&self, node: &str, [first, last]: [FactTime; 2]) -> bool {
        self.spans_of(node).iter().any(|(from, until)| *from <= first && last < *until)
    }
}

struct Request {
    at: FactTime,
    action: KubernetesRequest,
    node: String,
    /// Earliest time at which it may have been sent.
    sent: FactTime,
}

/// Assumes: a revision of the store may be observed later than a request that follows it.
#[derive(Default)]
pub(crate) struct DrainRequests {
    /// The entries of the reboot queue by key.
    reboots: BTreeMap<String, RebootQueueEntry>,
    /// The reboot queue is disabled: none of its entries counts (CKE).
    disabled: bool,
    draining: NodeSpans,
    active: NodeSpans,
    /// Requests that a revision may still explain.
    open: Vec<Request>,
}

impl DrainRequests {
    /// True if an entry of the node explains the request, as far as is known at `at`.
    fn is_explained(
        &self,
        Request { at: received, action, node, sent }: &Request,
        at: FactTime,
        slack: Duration,
    ) -> bool {
        let (first, last) = (sent.saturating_sub(slack), *received + slack);
        match action {
            KubernetesRequest::Uncordon => !self.active.is_always(node, [first, last.min(at)]),
            _ => self.draining.had_entry_between(node, [first, last]),
        }
    }
}

impl Predicate for DrainRequests {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        for written in written.iter().filter(|written| keys::is_reboot(&written.key)) {
            match written.read::<RebootQueueEntry>().1 {
                Some(entry) => drop(self.reboots.insert(written.key.clone(), entry)),
                None => drop(self.reboots.remove(&written.key)),
            }
        }
        if let Some(written) = written.iter().find(|written| written.key == keys::REBOOTS_DISABLED) {
            self.disabled = written.read::<bool>().1.unwrap_or(false);
        }
        let is_of_queue = |key: &str| {
            key == keys::REBOOTS_DISABLED || key.starts_with(keys::REPAIRS) || keys::is_reboot(key)
        };
        if written.iter().any(|written| is_of_queue(&written.key)) {
            let rebooted = |statuses: &'static [RebootStatus]| {
                let entries = self.reboots.values().filter(move |entry| statuses.contains(&entry.status));
                entries.map(|entry| entry.node.as_str())
            };
            self.draining.set(*at, now, is_drained_for_repair, rebooted(&[RebootStatus::Draining]));
            let away = if self.disabled {
                rebooted(&[RebootStatus::Drained])
            } else {
                rebooted(&[RebootStatus::Draining, RebootStatus::Rebooting, RebootStatus::Drained])
            };
            self.active.set(*at, now, is_active, away);
        }
        if let Fact::Kubernetes { action, node, sent, .. } = fact {
            ruling.count_test();
            self.open.push(Request { at: *at, action: *action, node: node.clone(), sent: *sent });
        }
        let slack = terms.answer_within;
        for request in std::mem::take(&mut self.open) {
            let Request { at: received, action, node, sent } = &request;
            let recent = Request { sent: *received, node: node.clone(), ..request };
            if self.is_explained(&recent, *at, slack) {
                continue;
            }
            if *at <= *received + slack {
                self.open.push(request);
                continue;
            }
            if self.is_explained(&request, *at, slack) {
                ruling.exemptions.record_use(Exemption::HeldBack, *received - *sent);
            } else {
                ruling.report_broken(format_args!(
                    "{action:?} of {node} at {received:?}, sent after {sent:?}; its drains were {:?}",
                    self.draining.spans_of(node)
                ));
            }
        }
    }
}

/// Polls after which the leader's look at the nodes is too old for a drain to begin.
const FRESH_LOOK: u32 = 3;
/// Time for a look at the nodes, and between the decision on a drain and its commit.
const LOOK_TAKES: Duration = Duration::from_secs(90);
/// The end of a node's silence is observed some seconds later.
const OBSERVED_LATE: Duration = Duration::from_secs(10);

struct BegunDrain {
    at: FactTime,
    node: String,
    /// The nodes that were silent before the leader's look at them, and still are.
    silent: BTreeSet<String>,
    maximum: usize,
}

/// Invariant I15 of drains.
#[derive(Default)]
pub(crate) struct DrainLimit {
    /// The nodes of entries that drain or reboot, by key.
    away: BTreeMap<String, String>,
    begun: Vec<BegunDrain>,
}

impl DrainLimit {
    /// The nodes of the cluster that are silent since before a time and do not reboot.
    fn silent_nodes(&self, now: &ObservedWorld, since: FactTime) -> BTreeSet<String> {
        let nodes = now.cluster.iter().flat_map(|cluster| &cluster.nodes).map(|node| &node.address);
        let is_silent = |node: &&String| now.silent.get(*node).is_some_and(|began| *began < since);
        let is_away = |node: &&String| self.away.values().any(|away| away == *node);
        nodes.filter(is_silent).filter(|node| !is_away(node)).cloned().collect()
    }
}

impl Predicate for DrainLimit {
    fn observe(
        &mut self,
        Context { at, fact, written, now, terms }: &Context<'_>,
        ruling: &mut FactJudgement<'_>,
    ) {
        if let Fact::Silent(silent) = fact {
            self.begun.iter_mut().for_each(|drain| drain.silent.retain(|node| silent.contains_key(node)));
        }
        let looked = terms.interval * FRESH_LOOK + LOOK_TAKES + terms.tolerance;
        for written in written.iter().filter(|written| keys::is_reboot(&written.key)) {
            let (before, after) = written.read::<RebootQueueEntry>();
            let drains = |entry: &RebootQueueEntry| entry.status == RebootStatus::Draining;
            let drained = before.as_ref().is_some_and(drains);
            if let Some(entry) = after.as_ref().filter(|entry| drains(entry) && !drained) {
                let constraint = now.current_constraints().maximum_unreachable_nodes_for_reboot;
                self.begun.push(BegunDrain {
                    at: *at,
                    node: entry.node.clone(),
                    silent: self.silent_nodes(now, at.saturating_sub(looked)),
                    maximum: usize::try_from(constraint).unwrap_or(0),
                });
            }
            match after.filter(RebootQueueEntry::is_under_way) {
                Some(entry) => drop(self.away.insert(written.key.clone(), entry.node)),
                None => drop(self.away.remove(&written.key)),
            }
        }
        for drain in std::mem::take(&mut self.begun) {
            if *at < drain.at + OBSERVED_LATE {
                self.begun.push(drain);
                continue;
            }
            let BegunDrain { at, node, silent, maximum } = &drain;
            ruling.require(silent.len() <= *maximum, || {
                format!(
                    "the drain of {node} began at {at:?} while {silent:?} did not answer; the maximum is {maximum}"
                )
            });
        }
    }
}

#[derive(Default)]
pub(crate) struct OneDrain {
    /// The nodes of the entries that drain, by key.
    drained: BTreeMap<String, String>,
}

impl Predicate for OneDrain {
    fn observe(&mut self, Context { written, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let mut begun = Vec::new();
        for written in written.iter() {
            let node = if written.key.starts_with(keys::REPAIRS) {
                let entry = written.read::<RepairQueueEntry>().1.filter(is_drained_for_repair);
                entry.map(|entry| entry.address)
            } else if keys::is_reboot(&written.key) {
                let entry = written.read::<RebootQueueEntry>().1;
                entry.filter(|entry| entry.status == RebootStatus::Draining).map(|entry| entry.node)
            } else {
                continue;
            };
            let before = match &node {
                Some(node) => self.drained.insert(written.key.clone(), node.clone()),
                None => self.drained.remove(&written.key),
            };
            begun.extend(node.filter(|node| before.as_ref() != Some(node)));
        }
        for node in begun {
            let drains = self.drained.iter().filter(|(_, drained)| **drained == node);
            let keys: Vec<&str> = drains.map(|(key, _)| key.as_str()).collect();
            ruling
                .require(keys.len() == 1, || format!("{node} is drained for {} at once", keys.join(" and ")));
        }
    }
}

fn is_drained_for_repair(entry: &RepairQueueEntry) -> bool {
    is_active(entry) && entry.step_status == RepairStepStatus::Draining
}

#[derive(Default)]
pub(crate) struct EvictedFirst {
    refused: BTreeSet<String>,
}

impl Predicate for EvictedFirst {
    fn observe(&mut self, Context { fact, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        let Fact::Kubernetes { action, refused, pod: Some(PodFact { name, .. }), .. } = fact else { return };
        match action {
            KubernetesRequest::Delete => ruling.require(self.refused.contains(name), || {
                format!("{name} is deleted, and no disruption budget refused its eviction")
            }),
            KubernetesRequest::Evict if *refused => drop(self.refused.insert(name.clone())),
            _ => {}
        }
    }
}

#[derive(Default)]
pub(crate) struct DrainEnds {
    /// For each entry, the time since which it has its status.
    entered: BTreeMap<i64, FactTime>,
}

impl Predicate for DrainEnds {
    fn observe(&mut self, Context { at, written, terms, .. }: &Context<'_>, ruling: &mut FactJudgement<'_>) {
        for written in written.iter().filter(|written| written.key.starts_with(keys::REPAIRS)) {
            let (before, after) = written.read::<RepairQueueEntry>();
            let Some(after) = after else { continue };
            let status = |entry: &RepairQueueEntry| (entry.status.clone(), entry.step_status.clone());
            let since = *self.entered.entry(after.index).or_insert(*at);
            let Some(before) = before.filter(|before| status(before) != status(&after)) else { continue };
            self.entered.insert(after.index, *at);
            // The times in an entry are those of a leader's clock, which may be wrong.
            judge_transition(&before, &after, (*at - since, terms), ruling);
        }
    }
}

/// Judges a change of the status of an entry whose status was the same for the time `lasted`.
fn judge_transition(
    before: &RepairQueueEntry,
    after: &RepairQueueEntry,
    (lasted, terms): (Duration, &PromiseTerms),
    ruling: &mut FactJudgement<'_>,
) {
    let in_step = |entry: &RepairQueueEntry, status| {
        entry.status == RepairStatus::Processing && entry.step_status == status
    };
    let waits = in_step(after, RepairStepStatus::Waiting);
    let (Some(since), Some(now)) = (before.last_transition_time, after.last_transition_time) else { return };
    if in_step(before, RepairStepStatus::Draining) {
        let late = lasted.saturating_sub(terms.eviction_timeout);
        ruling.require(late <= LATE, || {
            format!("entry {} was drained for {lasted:?}, from {since} to {now}", after.index)
        });
        if late > terms.reaction_time() {
            ruling.exemptions.record_use(Exemption::LateDrain, late);
        }
        if waits {
            let count = i64::from(before.drain_backoff_count) + 1;
            let pause = after.drain_backoff_expire.map(|until| (until - now).whole_seconds());
            let right = pause.is_some_and(|pause| (BACK_OFF..=BACK_OFF * (count + 1)).contains(&pause));
            ruling.require(right && i64::from(after.drain_backoff_count) == count, || {
                format!(
                    "the drain of entry {} is given up for the {}. time, not the {count}., for {pause:?} s",
                    after.index, after.drain_backoff_count
                )
            });
        }
    }
    if in_step(before, RepairStepStatus::Waiting)
        && after.status == RepairStatus::Processing
        && let Some(until) =
            before.drain_backoff_expire.filter(|until| *until > now && *until > since + lasted)
    {
        ruling.report_broken(format_args!(
            "entry {} begins at {now}, and its back-off ends at {until}",
            after.index
        ));
    }
}
