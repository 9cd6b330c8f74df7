//! Judges the promises to operators with the oracle, on observations from outside of the processes.
//!
//! Assumes: only the leader polls and fetches. A request does not name its sender, so it counts as the leader's.
//!
//! Does not: observe permits, which stay inside of an instance, or whether an answer arrived. Faults of the network are
//! facts of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use madako_domain::keys;
use madako_faults::{Act, Schedule};
use madako_judges::{
    Change, Command, Exemption, Exemptions, Fact, FaultPlace, MachineReport, Oracle, PodFact, PromiseTerms,
    RegistryQuestion,
};
use time::OffsetDateTime;

use super::Verdicts;
use super::drains::{Effect, earliest_send_time, effects_of, find_held_requests};
use super::effects::HEARD_LATER;
use crate::datacenter::{CorruptAnswer, Line, LineContent, PROTECTED, metric_of};
use crate::history::{AcknowledgedWrite, Call, Event, Micros, RequestEnd, to_microseconds};
use crate::network::Node;
use crate::observer::{PREFIX, Revision};
use crate::world::COMMAND_TIMEOUT;

/// Name of the verdict on exemptions beyond their bounds.
pub(crate) const EXCUSED: &str = "excused";

pub(crate) struct RunObservations<'a> {
    /// Lines of the data center's journals.
    pub(crate) lines: &'a [Line],
    /// Beginning of the history.
    pub(crate) unix: OffsetDateTime,
    pub(crate) revisions: &'a [Revision],
    pub(crate) events: &'a [(Micros, Event)],
    pub(crate) schedule: &'a Schedule,
    pub(crate) leading: &'a [(Micros, Option<i64>)],
    pub(crate) epochs: &'a BTreeMap<i64, u32>,
    pub(crate) clusters: Vec<String>,
}

/// Judges each promise by the facts of a run of this length. Adds the uses of exemptions, and judges all of them.
pub(crate) fn judge_promises(
    facts: &[(Micros, Fact)],
    (terms, length): (PromiseTerms, Duration),
    mut exemptions: Exemptions,
    verdicts: &mut Verdicts,
) -> Exemptions {
    let mut oracle = Oracle::new(terms);
    for (at, fact) in facts {
        oracle.observe(Duration::from_micros(*at), fact);
    }
    for (promise, verdict) in oracle.verdicts() {
        verdicts.verdict_of(promise.name()).judged += verdict.judged;
        for what in verdict.violations {
            verdicts.count_violation(promise.name(), what);
        }
    }
    exemptions.add(&oracle.exemptions());
    verdicts.verdict_of(EXCUSED).judged = Exemption::ALL.len() as u64;
    for beyond in exemptions.exceeded_bounds(length) {
        verdicts.count_violation(EXCUSED, beyond);
    }
    exemptions
}

impl RunObservations<'_> {
    pub(crate) fn collect_facts(&self) -> Vec<(Micros, Fact)> {
        let stored = self.revisions.iter().map(|revision| (revision.at, self.revision_fact(revision)));
        let mut facts: Vec<(Micros, Fact)> = stored.collect();
        for (at, event) in self.events {
            facts.extend(self.facts_of_event(event).into_iter().map(|fact| (*at, fact)));
        }
        let mut commands = BTreeMap::new();
        let mut answers = BTreeMap::new();
        for line in self.lines {
            let at = Micros::try_from((line.wall_clock_time() - self.unix).whole_microseconds()).unwrap_or(0);
            match &line.what {
                LineContent::Polled { question, machines, spoilt } => {
                    if let Some(machines) = machines {
                        let machines = machines.iter().map(|machine| self.with_original_identity(machine));
                        answers.insert(*question, Arc::new(machines.collect::<Vec<_>>()));
                    }
                    let answer = answers.get(question).filter(|_| spoilt.is_none_or(CorruptAnswer::is_list));
                    facts.extend(self.poll_facts(at, *question, answer).map(|fact| (at, fact)));
                }
                LineContent::Fetched { request, values } => {
                    facts.extend(self.fetch_facts(at, request, values).into_iter().map(|fact| (at, fact)));
                }
                what => facts.extend(facts_of_commands(at, what, &mut commands)),
            }
        }
        // The control API ended before it could report the ends of these commands.
        let lost = commands.into_values().map(|(at, instance, address)| {
            (
                at + to_microseconds(COMMAND_TIMEOUT),
                command_ended((instance, address), Command::Repair, false),
            )
        });
        facts.extend(lost);
        facts.extend(self.kubernetes_facts());
        facts.sort_by_key(|(at, _)| *at);
        facts
    }

    fn kubernetes_facts(&self) -> impl Iterator<Item = (Micros, Fact)> {
        let held = find_held_requests(self.events, self.schedule);
        effects_of(self.lines, self.unix).into_iter().map(move |effect| {
            let sent = Duration::from_micros(earliest_send_time(&effect, &held));
            let Effect { at, action, node, pod, refused, .. } = effect;
            let protected =
                |pod: &str| pod.split_once('/').is_some_and(|(namespace, _)| namespace == PROTECTED);
            let pod = pod.map(|name| PodFact { protected: protected(&name), name });
            (at, Fact::Kubernetes { action, node, pod, refused, sent })
        })
    }

    fn revision_fact(&self, revision: &Revision) -> Fact {
        let changes = revision.changes.iter().map(|change| {
            let key = change.key.strip_prefix(PREFIX).unwrap_or(&change.key).to_owned();
            // All instances of a run have one host name.
            let value = match &change.value {
                Some(_) if key.starts_with(keys::LEADER) => {
                    Some(self.instance_of_epoch(change.created).into_bytes())
                }
                value => value.clone(),
            };
            Change { key, value: value.map(Arc::from) }
        });
        Fact::Stored { revision: revision.revision, changes: changes.collect() }
    }

    fn instance_of_epoch(&self, epoch: i64) -> String {
        self.epochs.get(&epoch).map_or_else(|| format!("epoch={epoch}"), |number| instance_name(*number))
    }

    /// The leader at a time. An election is observed a little later.
    fn leader_at(&self, at: Micros) -> String {
        let led = self.leading.iter().rev().find(|(from, _)| *from <= at + HEARD_LATER);
        let epoch = led.and_then(|(_, epoch)| *epoch);
        epoch.map_or_else(|| Node::Client.to_string(), |epoch| self.instance_of_epoch(epoch))
    }

    fn with_original_identity(&self, machine: &MachineReport) -> MachineReport {
        let began = Duration::try_from(self.unix - OffsetDateTime::UNIX_EPOCH).unwrap_or_default();
        MachineReport { since: machine.since.saturating_sub(began), ..machine.clone() }
    }

    fn poll_facts(
        &self,
        at: Micros,
        question: RegistryQuestion,
        machines: Option<&Arc<Vec<MachineReport>>>,
    ) -> impl Iterator<Item = Fact> {
        let instance = self.leader_at(at);
        let answered = machines.map(|machines| {
            let (instance, machines) = (instance.clone(), Arc::clone(machines));
            Fact::Answered { instance, question, machines }
        });
        [Fact::Polled { instance, question }].into_iter().chain(answered)
    }

    fn fetch_facts(&self, at: Micros, request: &str, values: &BTreeMap<String, f64>) -> Vec<Fact> {
        let mut facts = vec![Fact::Fetched { instance: self.leader_at(at), what: request.to_owned() }];
        let metrics = self.clusters.iter().map(|cluster| metric_of(cluster));
        facts.extend(metrics.filter(|metric| request.contains(metric.as_str())).map(|metric| {
            let good = values.contains_key(&metric);
            Fact::Provided { metric, good }
        }));
        facts
    }

    fn facts_of_event(&self, event: &Event) -> Vec<Fact> {
        match event {
            Event::Fault { injection, change, on: Some(on), .. } => {
                let act = self.schedule.injections.get(*injection).map(|injection| injection.act);
                act.map_or_else(Vec::new, |act| trouble_facts(act, on, change))
            }
            Event::AcknowledgedWrite(AcknowledgedWrite { written: Some((revision, _)) }) => {
                vec![Fact::ByUser { revision: *revision }]
            }
            Event::Call(call) => call_facts(call),
            Event::Transacted { held, written } => vec![Fact::Transacted { held: *held, written: *written }],
            _ => Vec::new(),
        }
    }
}

fn instance_name(number: u32) -> String {
    Node::Instance(number).to_string()
}

/// The facts that a fault is for the affected places.
fn trouble_facts(act: Act, on: &str, change: &str) -> Vec<Fact> {
    let is_registry = on == Node::Registry.to_string();
    let place = match on.split_once('=') {
        Some(("instance", _)) => FaultPlace::Instance(on.to_owned()),
        Some(("store", _)) => FaultPlace::Store,
        Some(("provider", _)) => FaultPlace::Providers,
        None if is_registry => FaultPlace::Registry,
        _ => return Vec::new(),
    };
    // The registry's process also carries out the commands on hosts, and has the API server beside the registry.
    let hosts = (is_registry && matches!(act, Act::Kill | Act::Pause)).then_some(FaultPlace::Hosts);
    let of_answers = matches!(act, Act::ClockJump | Act::Corrupt);
    let kubernetes = (is_registry && !of_answers).then_some(FaultPlace::Kubernetes);
    let changes: &[bool] = match change {
        "begins" => &[true],
        "ends" => &[false],
        "strikes" => &[true, false],
        _ => &[],
    };
    let clock = act == Act::ClockJump;
    let fact = |place: FaultPlace| {
        changes.iter().map(move |begins| Fact::Troubled { place: place.clone(), clock, begins: *begins })
    };
    [place].into_iter().chain(hosts).chain(kubernetes).flat_map(fact).collect()
}

/// The facts of a client's call: its write, and its condition.
fn call_facts(call: &Call) -> Vec<Fact> {
    let RequestEnd::Answered { status, revision: after, .. } = call.end else { return Vec::new() };
    let named =
        call.expected.map(|version| Fact::Conditional { key: call.object.clone(), version, status, after });
    let wrote = call.written_revision().map(|revision| Fact::ByUser { revision });
    named.into_iter().chain(wrote).collect()
}

fn command_began((instance, address): (String, String), command: Command) -> Fact {
    Fact::Began { instance, command, address }
}

fn command_ended((instance, address): (String, String), command: Command, good: bool) -> Fact {
    Fact::Ended { instance, command, address, good }
}

/// Commands on hosts. `running` keeps the repair commands that run.
fn facts_of_commands(
    at: Micros,
    what: &LineContent,
    running: &mut BTreeMap<u64, (Micros, String, String)>,
) -> Vec<(Micros, Fact)> {
    match what {
        LineContent::Acts { number, instance: of, address, waited, .. } => {
            running.insert(*number, (at, instance_name(*of), address.clone()));
            vec![(
                at.saturating_sub(*waited),
                command_began((instance_name(*of), address.clone()), Command::Repair),
            )]
        }
        LineContent::Acted { number, whole, .. } => {
            let ends = running.remove(number);
            let fact =
                |(_, instance, address)| (at, command_ended((instance, address), Command::Repair, *whole));
            ends.map(fact).into_iter().collect()
        }
        LineContent::Checked { instance: of, address, waited, healthy } => {
            let whose = (instance_name(*of), address.clone());
            let check = Command::HealthCheck;
            vec![
                (at.saturating_sub(*waited), command_began(whose.clone(), check)),
                (at, command_ended(whose, check, *healthy)),
            ]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
