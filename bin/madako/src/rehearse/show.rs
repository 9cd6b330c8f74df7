//! Prints the report of a rehearsal.

mod rows;

use std::time::Duration;

use madako_faults::{Count, Scenario, Span};
use madako_simulation::run::rehearsal::{POD_ENDS, Rehearsal, START_TAKES, UPDATE_TAKES};
use madako_simulation::run::{Outcome, QuietPeriod};
use madako_simulation::walk::STEP;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;

use self::rows::{placement_cells, plan_cells, repair_cells, wrap_sentences};
use super::RehearseArgs;
use super::inputs::RehearsalInputs;
use crate::list::Surface;
use crate::output::Table;
use crate::running_settings::settings_origin;

/// Rows of a text table; `-o json` has all.
const ROWS: usize = 60;
/// Violations and faults named in the last message.
const NAMED: usize = 5;

pub(super) struct RehearsalView<'a> {
    pub(super) args: &'a RehearseArgs,
    pub(super) scenario: &'a Scenario,
    pub(super) inputs: &'a RehearsalInputs,
    pub(super) rehearsal: &'a Rehearsal,
    pub(super) took: Duration,
}

fn to_span(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn count_noun(number: usize, one: &str, several: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {several}") }
}

/// Rows up to [`ROWS`], and the number of the others.
fn format_table<const N: usize>(heading: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new(heading);
    let left_out = rows.len().saturating_sub(ROWS);
    rows.into_iter().take(ROWS).for_each(|row| table.add_row(row));
    let more =
        if left_out > 0 { format!("... and {left_out} more (-o json has all)\n") } else { String::new() };
    table.to_text() + &more
}

impl RehearsalView<'_> {
    fn outcome_word(&self) -> &'static str {
        match self.rehearsal.overall_outcome() {
            Outcome::Passed => "done",
            Outcome::Failed => "failed",
            Outcome::Skipped => "done, except for faults that could not be injected",
        }
    }

    pub(super) fn failure_texts(&self) -> Vec<String> {
        let invariants = self.rehearsal.invariants.iter();
        let violated = invariants
            .flat_map(|(id, verdict)| verdict.violations.iter().map(|what| format!("{}: {what}", id.name())));
        let calm = self.rehearsal.calm.found.iter().map(|found| format!("at the end: {found}"));
        violated.chain(calm).take(NAMED).collect()
    }

    /// The scheduled end of the last fault; `None`: there were none.
    fn last_fault(&self) -> Option<Span> {
        self.rehearsal.schedule.events.iter().map(|event| event.at).max()
    }

    pub(super) fn skipped_faults(&self) -> Vec<String> {
        let text =
            |skipped: &madako_simulation::run::SkippedFault| format!("{}: {}", skipped.fault, skipped.why);
        self.rehearsal.skipped.iter().take(NAMED).map(text).collect()
    }

    fn taken_in(&self) -> Vec<[String; 2]> {
        let copied = &self.inputs.copied;
        let metrics: usize = copied.providers.iter().map(|provider| provider.metrics.len()).sum();
        let row = |what: &str, is: String| [what.to_owned(), is];
        vec![
            row(
                "read",
                copied.at.replace_nanosecond(0).unwrap_or(copied.at).format(&Rfc3339).unwrap_or_default(),
            ),
            row("revision of the store", copied.revision.to_string()),
            row("keys", (copied.own.len() + copied.root.len()).to_string()),
            row("machines", copied.machines.len().to_string()),
            row("applications", self.scenario.world.applications.to_string()),
            row("clusters", self.scenario.world.clusters.to_string()),
            row("metrics in use", metrics.to_string()),
        ]
    }

    /// Assumptions about parts that cannot be copied: part and assumption.
    fn assumption_rows(&self) -> Vec<[String; 2]> {
        let (args, rehearsal, service) = (self.args, self.rehearsal, &self.inputs.service);
        let settings = &self.inputs.settings;
        let row = |what: &str, is: String| [what.to_owned(), is];
        let around = |mean: Duration| format!("{} to {}", to_span(mean / 2), to_span(mean + mean / 2));
        let mut rows = vec![
            row(
                "instances",
                format!(
                    "{}, new ones: a command that ran at the time of the copy is marked cancelled",
                    self.scenario.world.instances
                ),
            ),
            row(
                "poll of the registry",
                format!("every {}, {}", to_span(settings.interval.value), settings.interval.origin),
            ),
            row(
                "leader's session",
                format!(
                    "ends {} after its leader, {}",
                    to_span(service.working.session_ttl),
                    settings.session_ttl.origin
                ),
            ),
            row(
                "retired worker",
                format!(
                    "leaves after {}, {}",
                    to_span(settings.retire_wait.value),
                    settings.retire_wait.origin
                ),
            ),
            row("held racks", settings_origin(settings.repair.is_some())),
            row("store", "one member in memory".to_owned()),
            row("people and clients", "only the service works with the copy".to_owned()),
            row("machines", "only faults break machines; none is added or removed".to_owned()),
            row(
                "nodes",
                "left out: no containers, no etcd of the cluster, and no operations on nodes".to_owned(),
            ),
            row("start of a machine", format!("takes {}", around(START_TAKES))),
            row("update of a machine", format!("takes {}", around(UPDATE_TAKES))),
            row("command of a repair", format!("takes {} and succeeds", around(args.command_takes))),
            row(
                "machine after it",
                format!("is healthy in {} of 100 cases, if its rack has power", args.heals),
            ),
        ];
        if let Some(pods) = rehearsal.pods {
            let is = format!(
                "{pods} spread over the nodes, which end within {} of their eviction; no disruption budgets",
                to_span(POD_ENDS)
            );
            rows.push(row("pods", is));
        }
        if service.places {
            rows.push(row("placement", settings_origin(settings.placement.is_some())));
            rows.push(row(
                "metrics",
                format!(
                    "start at their copied values; each {}, they rise or fall by at most {} % of their \
                     range, by seed {}; static tables do not change",
                    to_span(STEP),
                    args.walk,
                    args.seed
                ),
            ));
            rows.push(row(
                "applications",
                "are bound but not deployed; clusters keep their state".to_owned(),
            ));
        }
        rows
    }

    pub(super) fn to_json(&self) -> Value {
        let (rehearsal, copied) = (self.rehearsal, &self.inputs.copied);
        let pairs = |rows: Vec<[String; 2]>| {
            rows.into_iter().map(|[name, is]| (name, json!(is))).collect::<serde_json::Map<String, Value>>()
        };
        let counts: serde_json::Map<String, Value> = Count::ALL
            .iter()
            .filter(|count| **count != Count::FailedClientCalls)
            .map(|count| (count.to_string(), json!(rehearsal.counts.count_of(*count))))
            .collect();
        let values: serde_json::Map<String, Value> = copied
            .providers
            .iter()
            .flat_map(|provider| &provider.metrics)
            .flat_map(|(_, metric)| {
                let value = json!({"begins": metric.initial_value(), "assumed": metric.value.is_none()});
                metric.names.iter().map(move |name| (name.clone(), value.clone()))
            })
            .collect();
        json!({
            "scenario": self.scenario.name,
            "seed": self.args.seed,
            "for": self.args.length,
            "done": rehearsal.overall_outcome() == Outcome::Passed,
            "wrong": self.failure_texts(),
            "not_injected": self.skipped_faults(),
            "inputs": pairs(self.taken_in()),
            "notes": self.inputs.notes,
            "assumptions": pairs(self.assumption_rows()),
            "metrics": values,
            "faults": rehearsal.schedule.to_string().lines().collect::<Vec<_>>(),
            "draws": rehearsal.schedule.draws,
            "plans": rehearsal.plans,
            "repairs": rehearsal.repairs,
            "placements": rehearsal.placements,
            "waits": rehearsal.waits.0,
            "waits_left_out": rehearsal.waits.1,
            "held": rehearsal.held,
            "invariants": rehearsal.invariants,
            "calm": {"after": rehearsal.calm.after, "within": rehearsal.calm.within},
            "last_fault": self.last_fault(),
            "last_change": rehearsal.last_change,
            "counts": counts,
            "history": {"hash": format!("{:016x}", rehearsal.history.0), "lines": rehearsal.history.1},
            "simulated_seconds": rehearsal.simulated.as_secs_f64(),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let rehearsal = self.rehearsal;
        let width = Surface::for_output().width;
        let title = format!(
            "{}: {} of {} on a copy of the running system, seed {}",
            self.outcome_word(),
            self.args.length,
            self.scenario.name,
            self.args.seed
        );
        let mut text = wrap_sentences(&[title], width) + "\n";
        text += &format_table(["COPIED", "IS"], self.taken_in());
        let notes: Vec<String> = self.inputs.notes.iter().map(|note| format!("note: {note}")).collect();
        text += &wrap_sentences(&notes, width);
        text += "\n";
        text += &format_table(["ASSUMED", "IS"], self.assumption_rows());
        let faults = rehearsal.schedule.to_string();
        text += &format_section("Faults", faults.lines().count(), || {
            let lines: Vec<String> = faults.lines().take(ROWS).map(str::to_owned).collect();
            let more = faults.lines().count().saturating_sub(ROWS);
            let more = if more > 0 { format!("... and {more} more\n") } else { String::new() };
            wrap_sentences(&lines, width) + &more
        });
        text += &format_section("Plans", rehearsal.plans.len(), || {
            format_table(["AT", "ACTION", "NODES AND WHY"], rehearsal.plans.iter().map(plan_cells).collect())
        });
        text += &format_section("Repairs", rehearsal.repairs.len(), || {
            let heading = ["ENTRY", "MACHINE", "OPERATION", "REQUESTED", "BEGINS", "ENDS", "STATUS", "LAST"];
            format_table(heading, rehearsal.repairs.iter().map(repair_cells).collect())
        });
        text += &format_section("Placement", rehearsal.placements.len(), || {
            let rows = rehearsal.placements.iter().map(placement_cells);
            format_table(["AT", "APPLICATION", "WHAT", "CLUSTERS AND WHY"], rows.collect())
        });
        text += &format_section("Held meanwhile", rehearsal.waits.0.len(), || {
            let waits = rehearsal.waits.0.iter();
            let rows = waits.map(|wait| [wait.at.to_string(), wait.what.clone(), wait.why.clone()]);
            format_table(["AT", "WHAT", "WHY"], rows.collect())
        });
        text += &format_section("Held at the end", rehearsal.held.len(), || {
            let rows = rehearsal.held.iter().map(|held| [held.what.clone(), held.why.clone()]);
            format_table(["WHAT", "WHY"], rows.collect())
        });
        text += "\n";
        text += &format_table(["INVARIANT", "VERDICT", "JUDGED"], self.verdict_rows());
        text += "\n";
        text += &wrap_sentences(&self.describe_end(), width);
        text
    }

    fn verdict_rows(&self) -> Vec<[String; 3]> {
        let verdict = |(id, verdict): (&madako_domain::invariants::Id, &madako_simulation::run::Verdict)| {
            let verdict_text = match (verdict.violations.len(), verdict.judged) {
                (0, 0) => "nothing to judge".to_owned(),
                (0, _) => "held".to_owned(),
                (count, _) => format!("violated, {count} times"),
            };
            [id.name().to_owned(), verdict_text, verdict.judged.to_string()]
        };
        self.rehearsal.invariants.iter().map(verdict).collect()
    }

    fn describe_end(&self) -> Vec<String> {
        let rehearsal = self.rehearsal;
        let wrong = self.failure_texts().into_iter().map(|wrong| format!("Wrong: {wrong}"));
        let skipped = self.skipped_faults().into_iter().map(|skipped| format!("Not injected: {skipped}"));
        let changed = match (rehearsal.last_change, self.last_fault()) {
            (Some(change), Some(fault)) if change >= fault => {
                let later = to_span(change.duration().saturating_sub(fault.duration()));
                format!("The last fault ended at {fault}; the last change was at {change}, {later} later.")
            }
            (Some(change), Some(fault)) => {
                format!("The last fault ended at {fault}; the last change was before it, at {change}.")
            }
            (Some(change), None) => format!("The last change was at {change}."),
            (None, _) => "Nothing was changed.".to_owned(),
        };
        let QuietPeriod { after, within, .. } = &rehearsal.calm;
        let calm = match after {
            Some(after) => format!(
                "Calm {after} after the end of the {}, with constant metrics; the limit is {within}.",
                self.args.length
            ),
            None => format!("Never calm; the limit is {within}."),
        };
        let cost = format!(
            "{:.0} s simulated in {:.1} s. History {:016x}, {}.",
            rehearsal.simulated.as_secs_f64(),
            self.took.as_secs_f64(),
            rehearsal.history.0,
            count_noun(rehearsal.history.1, "line", "lines")
        );
        wrong.chain(skipped).chain([changed, calm, cost]).collect()
    }
}

/// A section with a heading, or a line that it is empty.
fn format_section(name: &str, entries: usize, text: impl FnOnce() -> String) -> String {
    if entries == 0 { format!("\n{name}: none\n") } else { format!("\n{name}:\n{}", text()) }
}
