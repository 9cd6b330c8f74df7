//! The report of a chaos run: verdicts, effects of each fault, and recovery times.

mod exercised;
mod recovery;
mod text;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use madako_domain::invariants::Id;
use madako_domain::keys;
use madako_faults::{Counts, DrawnBeginning, Observed, Scenario, Schedule, Shortfall, Span, find_shortfalls};
use madako_judges::{ExemptionUse, Fact};
use serde::Serialize;

use crate::check::drains::{self, Effect, EffectCounts};
use crate::check::effects::{self, CommandRun};
use crate::check::linear::{self, LinearizabilityResult};
use crate::check::registry::{self, RegistryRequests};
use crate::check::store::{RegistryAnswers, StoreObservations};
use crate::check::{Verdict, Verdicts, acknowledged, api, placement, promises, store, watches};
use crate::history::{Call, Event, Micros};
use crate::inject::ProcessChecks;
use crate::network::NetworkCarrier;
use crate::observer::{PREFIX, Revision};
use crate::world::terms_of_settings;

pub use self::recovery::FaultEffect;

/// Name of the verdict on linearizability.
const LINEARIZABLE: &str = "linearizable";
/// Name of the verdict on the store's own history.
const HISTORY: &str = "history";
/// Name of the verdict on running processes.
const PROCESSES: &str = "processes";
/// Name of the verdict on mutations that instances refused.
const GATE: &str = "gate";

#[derive(Debug)]
pub(crate) struct Observations {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) length: Span,
    pub(crate) network: NetworkCarrier,
    pub(crate) schedule: Schedule,
    pub(crate) events: Vec<(Micros, Event)>,
    pub(crate) revisions: Vec<Revision>,
    pub(crate) facts: Vec<(Micros, Fact)>,
    pub(crate) wrong: Vec<String>,
    pub(crate) leading: Vec<(Micros, Option<i64>)>,
    pub(crate) epochs: BTreeMap<i64, u32>,
    pub(crate) refused: u64,
    pub(crate) gate: BTreeMap<String, u64>,
    pub(crate) answered: RegistryAnswers,
    pub(crate) registry_requests: RegistryRequests,
    pub(crate) looked: ProcessChecks,
    pub(crate) acts: Vec<CommandRun>,
    pub(crate) kubernetes: Vec<Effect>,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
    pub(crate) skipped: BTreeMap<usize, String>,
    pub(crate) calm_after: Option<Span>,
    pub(crate) settings_allow: Span,
    pub(crate) unwritten: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As the scenario expects.
    Passed,
    /// An invariant was violated or not exercised, the run did not become calm, or too little happened.
    Failed,
    /// A fault could not be injected, and nothing else is wrong.
    Skipped,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub scenario: String,
    pub seed: u64,
    /// Time in which faults begin.
    pub length: Span,
    pub network: NetworkCarrier,
    pub outcome: Outcome,
    pub verdicts: Verdicts,
    pub exemptions: BTreeMap<&'static str, ExemptionUse>,
    pub linearizability: LinearizabilityResult,
    pub counts: Counts,
    pub kubernetes: EffectCounts,
    /// Time from the last fault until the run was calm.
    pub calm_after: Option<Span>,
    /// Reasons why the run fails without a violation.
    pub shortfalls: Vec<Shortfall>,
    /// Checks that the scenario was bound to exercise and that were not: the run fails.
    pub not_exercised: Vec<String>,
    /// Random beginnings of faults.
    pub draws: Vec<DrawnBeginning>,
    pub faults: Vec<FaultEffect>,
    #[serde(skip)]
    picture: String,
}

pub(crate) fn make_report(observations: Observations) -> Report {
    let calls: Vec<&Call> = observations
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Call(call) => Some(call),
            _ => None,
        })
        .collect();
    let mut verdicts = Verdicts::default();
    for &id in Id::ALL {
        verdicts.count_judged(id, 0);
    }
    let calm = observations.calm_after.is_some();
    let observed = StoreObservations {
        revisions: &observations.revisions,
        answered: &observations.answered,
        leading: &observations.leading,
        epochs: &observations.epochs,
        facts: &observations.facts,
    };
    let mut excused = store::judge_store(observed, calm, &mut verdicts);
    placement::judge_placement(&observations.revisions, calm, &mut verdicts);
    let written = observations.events.iter().filter_map(|(_, event)| match event {
        Event::AcknowledgedWrite(wrote) => wrote.written.as_ref(),
        _ => None,
    });
    acknowledged::judge_acknowledged_writes(
        calls.iter().copied(),
        written,
        &observations.revisions,
        &mut verdicts,
    );
    watches::judge_watches(&observations.events, &observations.revisions, &mut verdicts);
    api::judge_api_answers(&observations.events, &observations.revisions, calm, &mut verdicts);
    effects::judge_effects(&observations.acts, &observations.leading, &observations.epochs, &mut verdicts);
    let held = drains::find_held_requests(&observations.events, &observations.schedule);
    excused.add(&drains::judge_drains(
        &observations.kubernetes,
        &observations.leading,
        &observations.epochs,
        &held,
        &mut verdicts,
    ));
    if calm {
        drains::judge_calm(&observations.kubernetes, &observations.revisions, &mut verdicts);
    }
    verdicts.verdict_of(HISTORY).judged = observations.revisions.len() as u64;
    for wrong in observations.wrong.iter().cloned().chain(observations.unwritten.clone()) {
        verdicts.count_violation(HISTORY, wrong);
    }
    excused.add(&observations.looked.exemptions);
    verdicts.verdict_of(PROCESSES).judged = observations.looked.times;
    for ended in &observations.looked.ended {
        verdicts.count_violation(PROCESSES, ended.clone());
    }
    registry::judge_registry_requests(&observations.registry_requests, &mut verdicts);
    let lasted = Duration::from_micros(observations.ended - observations.began);
    let exemptions =
        promises::judge_promises(&observations.facts, (terms_of_settings(), lasted), excused, &mut verdicts);
    verdicts.verdict_of(GATE).judged = observations.epochs.len() as u64;
    for (invariant, times) in observations.gate.iter().filter(|(_, times)| **times > 0) {
        verdicts.count_violation(
            GATE,
            format!("an instance kept itself from breaking {invariant}, {times} times"),
        );
    }
    let linearizability = linear::judge_linearizability(calls.iter().copied());
    verdicts.verdict_of(LINEARIZABLE).judged = linearizability.calls;
    for object in &linearizability.broken {
        verdicts.count_violation(LINEARIZABLE, format!("the calls of {object} fit into no order"));
    }
    for object in &linearizability.undecided {
        verdicts.count_violation(LINEARIZABLE, format!("the calls of {object} were too many to be judged"));
    }
    let counts = count_observations(&observations);
    let observed = Observed {
        counts,
        skipped: observations.skipped.len() as u64,
        calm_after: observations.calm_after,
        settings_allow: observations.settings_allow,
    };
    let shortfalls = find_shortfalls(&observations.scenario.expect, &observed);
    let not_exercised = exercised::missing_checks(&observations.scenario, observations.length, &verdicts);
    let outcome = run_outcome(&verdicts, &shortfalls, &not_exercised);
    let faults = recovery::effects_of_faults(&observations, &calls);
    let picture = timeline::draw_timeline(&observations, &calls);
    Report {
        scenario: observations.scenario.name,
        seed: observations.seed,
        length: observations.length,
        network: observations.network,
        outcome,
        verdicts,
        exemptions: exemptions.list_uses().into_iter().map(|(it, used)| (it.name(), used)).collect(),
        linearizability,
        counts,
        kubernetes: drains::count_effects(&observations.kubernetes),
        calm_after: observations.calm_after,
        shortfalls,
        not_exercised,
        draws: observations.schedule.draws,
        faults,
        picture,
    }
}

fn run_outcome(verdicts: &Verdicts, shortfalls: &[Shortfall], not_exercised: &[String]) -> Outcome {
    let only_skipped = shortfalls.iter().all(|short| matches!(short, Shortfall::Skipped { .. }));
    match (verdicts.has_broken() || !not_exercised.is_empty(), shortfalls.is_empty()) {
        (false, true) => Outcome::Passed,
        (false, false) if only_skipped => Outcome::Skipped,
        _ => Outcome::Failed,
    }
}

fn count_observations(observations: &Observations) -> Counts {
    // A cut or a loss that dropped no packet had no effect.
    let idle: BTreeSet<usize> = observations
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Fault { injection, dropped: Some(0), .. } => Some(*injection),
            _ => None,
        })
        .collect();
    let begun = |(_, event): &&(Micros, Event)| match event {
        Event::Fault { injection, change, .. } => {
            matches!(*change, "begins" | "strikes") && !idle.contains(injection)
        }
        _ => false,
    };
    Counts {
        leader_changes: recovery::leader_changes(observations, 0, Micros::MAX),
        commits: observations.revisions.iter().filter(|revision| is_commit(revision)).count() as u64,
        refused_writes: observations.refused,
        failed_client_calls: observations.events.iter().filter(|(_, event)| is_failure(event)).count() as u64,
        faults: observations.events.iter().filter(begun).count() as u64,
    }
}

fn is_failure(event: &Event) -> bool {
    match event {
        Event::Call(call) => call.has_failed(),
        Event::Unwritten { .. } => true,
        Event::Searched { why } => why.is_some(),
        _ => false,
    }
}

/// True if the leader wrote the revision: a cluster, or a key that only the leader writes.
fn is_commit(revision: &Revision) -> bool {
    revision.changes.iter().any(|change| {
        change.key.strip_prefix(PREFIX).is_some_and(|key| key == keys::CLUSTER || key.starts_with("madako/"))
    })
}

pub fn write_report(report: &Report, directory: &Path) -> io::Result<()> {
    fs::write(directory.join("report.md"), report.to_string())?;
    fs::write(directory.join("report.json"), serde_json::to_vec_pretty(report)?)?;
    fs::write(directory.join("timeline.svg"), &report.picture)
}

impl Report {
    /// The reasons why the run fails, a line each.
    #[must_use]
    pub fn reason_of_outcome(&self) -> Vec<String> {
        let broken = self.verdicts.0.iter().filter(|(_, verdict)| verdict.broken > 0);
        let broken = broken.map(|(name, verdict)| format!("{name} was broken {} times", verdict.broken));
        let short = self.shortfalls.iter().map(ToString::to_string);
        broken.chain(short).chain(self.unexercised_expectations()).collect()
    }

    /// Checks that were not exercised, a line each.
    fn unexercised_expectations(&self) -> impl Iterator<Item = String> {
        self.not_exercised
            .iter()
            .map(|name| format!("{name} had nothing to judge, which this scenario is bound to give it"))
    }

    fn verdict_word(verdict: &Verdict) -> &'static str {
        match (verdict.broken, verdict.judged) {
            (0, 0) => "not exercised",
            (0, _) => "held",
            _ => "BROKEN",
        }
    }
}

#[cfg(test)]
mod tests;
