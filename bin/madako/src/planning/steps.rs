//! Prints successive plans one by one: each contains the whole cluster, and there may be as many plans as nodes, so
//! that not all of them fit into memory.

use std::io::{self, BufWriter, IsTerminal as _, Write};

use madako_cluster_planner::render::{end_table, step_table};
use madako_cluster_planner::{WhatIf, WhatIfEnd};
use madako_console::Progress;
use madako_domain::plan::Plan;
use madako_json::go::to_yaml;
use serde::Serialize;

use super::lay_out_table;
use crate::failure::Failure;
use crate::output::{Format, PROGRAM};

/// Prints every plan and the end, and returns the end.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print_steps(format: Format, answer: &mut WhatIf<'_>) -> Result<WhatIfEnd, Failure> {
    let mut series = Series { expected: answer.estimate_plans(), answer, progress: start_progress() };
    let mut out = BufWriter::new(io::stdout().lock());
    let end = match format {
        Format::Table => print_table(&mut out, &mut series)?,
        Format::Json => print_json(&mut out, &mut series)?,
        Format::Yaml => print_yaml(&mut out, &mut series)?,
    };
    out.flush()?;
    Ok(end)
}

/// The plans show the progress on a terminal; elsewhere the reader of standard error sees it. A short series shows none.
fn start_progress() -> Option<Progress> {
    (!io::stdout().is_terminal() && io::stderr().is_terminal())
        .then(|| Progress::start(PROGRAM, "planned", "plans"))
}

/// A series of plans, with its progress.
struct Series<'a, 'b> {
    answer: &'a mut WhatIf<'b>,
    /// The number of plans at the beginning; `None`: nothing is known of it.
    expected: Option<usize>,
    progress: Option<Progress>,
}

impl Series<'_, '_> {
    fn count_plans(&self) -> usize {
        self.answer.count_plans()
    }

    fn next_plan(&mut self) -> Result<&Plan, WhatIfEnd> {
        let count = |plans: usize| u64::try_from(plans).unwrap_or(u64::MAX);
        let made = self.answer.count_plans();
        if let Some(progress) = &mut self.progress {
            // With more plans than expected, the end is not known any more.
            let expected = self.expected.filter(|expected| *expected >= made);
            progress.advance(count(made), expected.map(count));
        }
        self.answer.next_plan()
    }
}

fn print_table(out: &mut impl Write, answer: &mut Series<'_, '_>) -> Result<WhatIfEnd, Failure> {
    loop {
        let number = answer.count_plans() + 1;
        match answer.next_plan() {
            Ok(plan) => out.write_all(step_table(number, plan, lay_out_table).as_bytes())?,
            Err(end) => {
                out.write_all(end_table(answer.count_plans(), &end, lay_out_table).as_bytes())?;
                return Ok(end);
            }
        }
    }
}

/// `{"plans": [...], "end": null}`, a plan a line: indented it would be twice as long.
fn print_json(out: &mut impl Write, answer: &mut Series<'_, '_>) -> Result<WhatIfEnd, Failure> {
    out.write_all(b"{\"plans\": [")?;
    let mut before: &[u8] = b"\n";
    loop {
        match answer.next_plan() {
            Ok(plan) => {
                out.write_all(before)?;
                before = b",\n";
                // Keeps the kind of the error, so that a closed pipe is recognized.
                serde_json::to_writer(&mut *out, plan).map_err(io::Error::from)?;
            }
            Err(end) => {
                let before: &[u8] = if answer.count_plans() == 0 { b"" } else { b"\n" };
                out.write_all(before)?;
                writeln!(out, "], \"end\": {}}}", serde_json::to_string(&end)?)?;
                return Ok(end);
            }
        }
    }
}

fn print_yaml(out: &mut impl Write, answer: &mut Series<'_, '_>) -> Result<WhatIfEnd, Failure> {
    #[derive(Serialize)]
    struct SeriesEnd<'a> {
        end: &'a WhatIfEnd,
    }

    loop {
        match answer.next_plan() {
            Ok(plan) => {
                // A list is indented like its field, so its items can be written one by one.
                let item = to_yaml(&[plan])?;
                if answer.count_plans() == 1 {
                    out.write_all(b"plans:\n")?;
                }
                out.write_all(item.as_bytes())?;
            }
            Err(end) => {
                if answer.count_plans() == 0 {
                    out.write_all(b"plans: []\n")?;
                }
                out.write_all(to_yaml(&SeriesEnd { end: &end })?.as_bytes())?;
                return Ok(end);
            }
        }
    }
}
