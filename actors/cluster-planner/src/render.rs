//! Plans as text tables. Equal plans give equal text.

use madako_domain::plan::{Outcome, Part, Plan, PlanError, Reason};

use crate::what_if::{WhatIfEnd, describe_endless_planning};

/// Lays out rows of cells, the first of which is the heading, with a line end after each row.
pub type TableLayout = fn(Vec<Vec<String>>) -> String;

/// Action, changes and reasons of a plan.
#[must_use]
pub fn plan_table(plan: &Plan, layout: TableLayout) -> String {
    let mut text = layout(summary_rows(plan));
    push_block(&mut text, change_rows(plan), layout);
    push_block(&mut text, reason_rows(plan.reasons.iter()), layout);
    text
}

/// Message and reasons of a failed plan.
#[must_use]
pub fn error_table(error: &PlanError, layout: TableLayout) -> String {
    let mut text =
        sentence(&format!("No plan can be made ({}): {}.", error.kind.name(), error.message), layout);
    push_block(&mut text, reason_rows(error.reasons.iter()), layout);
    text
}

/// One of several consecutive plans, with the reasons of the deciding rule only.
#[must_use]
pub fn step_table(number: usize, plan: &Plan, layout: TableLayout) -> String {
    let mut text = format!("Plan {number}\n");
    text.push_str(&layout(summary_rows(plan)));
    push_block(&mut text, change_rows(plan), layout);
    let fired = plan.reasons.iter().filter(|reason| reason.outcome == Outcome::Fired);
    push_block(&mut text, reason_rows(fired), layout);
    text.push('\n');
    text
}

#[must_use]
pub fn end_table(made: usize, end: &WhatIfEnd, layout: TableLayout) -> String {
    let made = match made {
        0 => "At once: ".to_owned(),
        1 => "After 1 plan: ".to_owned(),
        plans => format!("After {plans} plans: "),
    };
    match end {
        WhatIfEnd::AtRest => sentence(&format!("{made}nothing is left to do."), layout),
        WhatIfEnd::NoPlan(error) => {
            let why = format!("{made}no plan can be made ({}): {}.", error.kind.name(), error.message);
            let mut text = sentence(&why, layout);
            let failed = error.reasons.iter().filter(|reason| reason.outcome == Outcome::Failed);
            push_block(&mut text, reason_rows(failed), layout);
            text
        }
        WhatIfEnd::NeverAtRest { plans } => {
            sentence(&format!("{made}{}.", describe_endless_planning(*plans)), layout)
        }
    }
}

fn summary_rows(plan: &Plan) -> Vec<Vec<String>> {
    let action = plan.action.map_or("nothing to do", |action| action.name());
    let mut rows = vec![format_row(["Action", action])];
    if let Some(cluster) = &plan.cluster {
        let control_plane = count_of(cluster.control_plane().count(), "control plane node");
        let workers = count_of(cluster.workers().count(), "worker");
        rows.push(format_row(["Cluster", &format!("{control_plane}, {workers}")]));
    }
    let roles: Vec<String> = plan
        .workers_by_role
        .iter()
        .map(|(role, count)| format!("{} {count}", if role.is_empty() { "(no role)" } else { role }))
        .collect();
    let roles = if roles.is_empty() { "none".to_owned() } else { roles.join(", ") };
    rows.push(format_row(["Workers", &roles]));
    rows.push(format_row(["Unused", &count_of(plan.unused_machines as usize, "healthy machine")]));
    rows
}

fn count_of(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn change_rows(plan: &Plan) -> Vec<Vec<String>> {
    let heading = format_row(["CHANGE", "ADDRESS", "PART"]);
    let rows = plan
        .changes
        .iter()
        .map(|change| format_row([change.change.name(), &change.address, part_name(change.part)]));
    std::iter::once(heading).chain(rows).collect()
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::ControlPlane => "control plane",
        Part::Worker => "worker",
    }
}

fn reason_rows<'a>(reasons: impl Iterator<Item = &'a Reason>) -> Vec<Vec<String>> {
    let heading = format_row(["RULE", "OUTCOME", "ADDRESS", "SCORE", "WHY"]);
    let rows = reasons.map(|reason| {
        format_row([
            reason.rule.name(),
            reason.outcome.name(),
            reason.address.as_deref().unwrap_or(""),
            &reason.score.map(|score| score.to_string()).unwrap_or_default(),
            &reason.why.to_string(),
        ])
    });
    std::iter::once(heading).chain(rows).collect()
}

/// A sentence in as many lines as the layout gives it.
fn sentence(words: &str, layout: TableLayout) -> String {
    layout(vec![format_row([words])])
}

fn format_row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.into_iter().map(escape_unprintable).collect()
}

/// External text for a terminal: control characters are replaced.
fn escape_unprintable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Adds a table after an empty line, unless it has only its heading.
fn push_block(text: &mut String, rows: Vec<Vec<String>>, layout: TableLayout) {
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&layout(rows));
    }
}

#[cfg(test)]
mod tests;
