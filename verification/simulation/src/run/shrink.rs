//! Shrinks a failed simulated run to one with fewer faults and a shorter time that fails for the same reason.
//!
//! This is delta debugging over the faults of the schedule: it leaves out halves, then quarters and so on, as long as
//! the failure stays. The result is not necessarily the smallest run, but no tried removal makes it smaller.

use std::collections::BTreeSet;

use madako_faults::{Scenario, Span};

use super::{Options, Report, SHORTEST, SimulateError, simulate};

/// Time that a run continues after its last fault: long enough for the effects of the fault to show before the quiet
/// period is due.
const AFTER_THE_LAST: Span = Span::from_seconds(5 * 60);

/// A smaller run that fails for the same reason.
#[derive(Debug)]
pub struct ShrunkScenario {
    /// Numbers of the remaining faults in the schedule.
    pub only: BTreeSet<usize>,
    pub length: Span,
    /// Number of tried runs.
    pub runs: u32,
    pub report: Report,
}

/// Shrinks a failed run. `go_on` receives the number of runs so far, and returns whether another one may start.
///
/// # Errors
/// See [`simulate`].
pub fn shrink_scenario(
    scenario: &Scenario,
    failed: Report,
    mut go_on: impl FnMut(u32) -> bool,
) -> Result<ShrunkScenario, SimulateError> {
    let wrong: BTreeSet<String> = failed.failure_texts().into_iter().collect();
    let (seed, mut length) = (failed.seed, failed.length);
    let mut only: Vec<usize> = (0..failed.schedule.injections.len()).collect();
    let (mut runs, mut best) = (0, failed);
    let fails = |only: &[usize], length: Span, runs: &mut u32| -> Result<Option<Report>, SimulateError> {
        *runs += 1;
        let options = Options { only: Some(only.iter().copied().collect()), ..Options::default() };
        let report = simulate(scenario, seed, length, options)?;
        Ok(report.failure_texts().iter().any(|what| wrong.contains(what)).then_some(report))
    };
    let mut parts = 2;
    while !only.is_empty() && go_on(runs) {
        let size = only.len().div_ceil(parts);
        let mut smaller = None;
        for part in 0..only.len().div_ceil(size) {
            if !go_on(runs) {
                break;
            }
            let (from, to) = (part * size, ((part + 1) * size).min(only.len()));
            let rest: Vec<usize> = only[..from].iter().chain(&only[to..]).copied().collect();
            if let Some(report) = fails(&rest, length, &mut runs)? {
                smaller = Some((rest, report));
                break;
            }
        }
        match smaller {
            Some((rest, report)) => {
                (only, best) = (rest, report);
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(only.len()),
        }
    }
    let last = only.iter().filter_map(|number| best.schedule.injections.get(*number));
    let ends = last.map(|injection| injection.ends.unwrap_or(injection.begins)).max();
    let shorter = ends.map_or(SHORTEST, |ends| ends + AFTER_THE_LAST).max(SHORTEST);
    if shorter < length
        && go_on(runs)
        && let Some(report) = fails(&only, shorter, &mut runs)?
    {
        (length, best) = (shorter, report);
    }
    Ok(ShrunkScenario { only: only.into_iter().collect(), length, runs, report: best })
}
