//! Plans as text tables. Equal plans give equal text.

use std::fmt::Write as _;

use madako_domain::plan::{Outcome, Part, Plan, PlanError, Reason};

use crate::what_if::{WhatIfEnd, describe_endless_planning};

/// Action, changes and reasons of a plan.
#[must_use]
pub fn plan_table(plan: &Plan) -> String {
    let mut text = plan_summary(plan);
    push_block(&mut text, &change_rows(plan));
    push_block(&mut text, &reason_rows(plan.reasons.iter()));
    text
}

/// Message and reasons of a failed plan.
#[must_use]
pub fn error_table(error: &PlanError) -> String {
    let mut text =
        format!("No plan can be made ({}): {}.\n", error.kind.name(), escape_unprintable(&error.message));
    push_block(&mut text, &reason_rows(error.reasons.iter()));
    text
}

/// One of several consecutive plans, with the reasons of the deciding rule only.
#[must_use]
pub fn step_table(number: usize, plan: &Plan) -> String {
    let mut text = format!("Plan {number}\n");
    text.push_str(&plan_summary(plan));
    push_block(&mut text, &change_rows(plan));
    let fired = plan.reasons.iter().filter(|reason| reason.outcome == Outcome::Fired);
    push_block(&mut text, &reason_rows(fired));
    text.push('\n');
    text
}

#[must_use]
pub fn end_table(made: usize, end: &WhatIfEnd) -> String {
    let made = match made {
        0 => "At once: ".to_owned(),
        1 => "After 1 plan: ".to_owned(),
        plans => format!("After {plans} plans: "),
    };
    match end {
        WhatIfEnd::AtRest => format!("{made}nothing is left to do.\n"),
        WhatIfEnd::NoPlan(error) => {
            let mut text = format!(
                "{made}no plan can be made ({}): {}.\n",
                error.kind.name(),
                escape_unprintable(&error.message)
            );
            let failed = error.reasons.iter().filter(|reason| reason.outcome == Outcome::Failed);
            push_block(&mut text, &reason_rows(failed));
            text
        }
        WhatIfEnd::NeverAtRest { plans } => format!("{made}{}.\n", describe_endless_planning(*plans)),
    }
}

fn plan_summary(plan: &Plan) -> String {
    let action = plan.action.map_or("nothing to do", |action| action.name());
    let mut text = format!("Action   {action}\n");
    if let Some(cluster) = &plan.cluster {
        let _ = writeln!(
            text,
            "Cluster  {}, {}",
            count_of(cluster.control_plane().count(), "control plane node"),
            count_of(cluster.workers().count(), "worker")
        );
    }
    let roles: Vec<String> = plan
        .workers_by_role
        .iter()
        .map(|(role, count)| format!("{} {count}", if role.is_empty() { "(no role)" } else { role }))
        .collect();
    let roles = if roles.is_empty() { "none".to_owned() } else { roles.join(", ") };
    let _ = writeln!(text, "Workers  {}", escape_unprintable(&roles));
    let _ = writeln!(text, "Unused   {}", count_of(plan.unused_machines as usize, "healthy machine"));
    text
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

fn format_row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.into_iter().map(escape_unprintable).collect()
}

/// External text for a terminal: control characters are replaced.
fn escape_unprintable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Adds a table after an empty line, unless it has only its heading.
fn push_block(text: &mut String, rows: &[Vec<String>]) {
    if rows.len() < 2 {
        return;
    }
    text.push('\n');
    let columns = rows[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests;
