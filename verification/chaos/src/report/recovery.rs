//! Computes the effects of each fault, and the time until the service recovered from it.

use serde::Serialize;

use super::Observations;
use crate::history::{Call, Event, Micros};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FaultEffect {
    /// Act and target.
    pub what: String,
    /// The target, if it was resolved at the injection.
    pub on: Option<String>,
    pub skipped: Option<String>,
    /// Seconds since the beginning of the run.
    pub begins: f64,
    /// Seconds since the beginning of the run; `None`: the fault struck once.
    pub ends: Option<f64>,
    /// Packets dropped by the fault, if they are counted.
    pub dropped_packets: Option<u64>,
    /// Elections of another instance from the beginning of the fault until writes succeed again.
    pub leader_changes: u64,
    pub refused_writes: u64,
    /// Failed calls of clients of all kinds in that time.
    pub failed_client_calls: u64,
    /// Seconds from the beginning of the fault to the election of another instance.
    pub led_after: Option<f64>,
    /// Seconds from the end of the fault to the first acknowledged write.
    pub wrote_after: Option<f64>,
}

/// In the order of the beginnings.
pub(super) fn effects_of_faults(observations: &Observations, calls: &[&Call]) -> Vec<FaultEffect> {
    let count = observations.schedule.injections.len();
    (0..count).filter_map(|injection| effect_of_strike(observations, calls, injection)).collect()
}

fn effect_of_strike(observations: &Observations, calls: &[&Call], wanted: usize) -> Option<FaultEffect> {
    let mut of_it = observations.events.iter().filter_map(|(at, event)| match event {
        Event::Fault { injection, what, change, on, dropped, why } if *injection == wanted => {
            Some((*at, what, *change, on, *dropped, why))
        }
        _ => None,
    });
    let first = of_it.next()?;
    let second = of_it.next();
    let (begins, what, _, on, ..) = first;
    let (ends, dropped_packets) = second.map(|(at, .., dropped, _)| (at, dropped)).unzip();
    let over = ends.unwrap_or(begins);
    let wrote = calls
        .iter()
        .filter(|call| call.called >= over && call.written_revision().is_some())
        .map(|call| call.returned)
        .min();
    let until = wrote.unwrap_or(over).max(over);
    let failed = |call: &&&Call| call.has_failed() && call.returned >= begins && call.called <= until;
    // Other clients record the time of a failure, not its duration.
    let others = observations.events.iter().filter(|(at, event)| {
        !matches!(event, Event::Call(_)) && super::is_failure(event) && (begins..=until).contains(at)
    });
    // A fault that began may be impossible to end.
    let skipped = second.into_iter().chain([first]).find(|(_, _, change, ..)| *change == "skipped");
    let skipped = skipped.map(|(.., why)| why.clone().unwrap_or_default());
    Some(FaultEffect {
        what: what.clone(),
        on: on.clone(),
        begins: seconds_between(observations.began, begins),
        ends: ends.map(|ends| seconds_between(observations.began, ends)),
        dropped_packets: dropped_packets.flatten(),
        leader_changes: leader_changes(observations, begins, until),
        refused_writes: count_refused(observations, until)
            .saturating_sub(count_refused(observations, begins)),
        failed_client_calls: (calls.iter().filter(failed).count() + others.count()) as u64,
        led_after: times_of_elections(observations)
            .into_iter()
            .find(|at| (begins..=until).contains(at))
            .map(|at| seconds_between(begins, at)),
        wrote_after: wrote.map(|wrote| seconds_between(over, wrote)),
        skipped,
    })
}

/// Elections of an instance that did not lead before; the first election does not count.
fn times_of_elections(observations: &Observations) -> Vec<Micros> {
    let mut last: Option<Option<u32>> = None;
    let mut elections = Vec::new();
    for (at, epoch) in observations.leading.iter().filter_map(|(at, epoch)| Some((*at, (*epoch)?))) {
        let instance = observations.epochs.get(&epoch).copied();
        // An epoch too short for the instance to report it counts as another instance.
        if last.is_some_and(|last| last.is_none() || last != instance) {
            elections.push(at);
        }
        last = Some(instance);
    }
    elections
}

/// Elections within a span.
pub(super) fn leader_changes(observations: &Observations, from: Micros, until: Micros) -> u64 {
    times_of_elections(observations).into_iter().filter(|at| (from..=until).contains(at)).count() as u64
}

fn count_refused(observations: &Observations, until: Micros) -> u64 {
    let counts = observations.events.iter().filter_map(|(at, event)| match event {
        Event::Refused { writes } if *at <= until => Some(*writes),
        _ => None,
    });
    counts.max().unwrap_or(0)
}

/// Seconds between two times, to a millisecond.
#[expect(clippy::cast_precision_loss, reason = "spans of hours, in milliseconds")]
pub(super) fn seconds_between(from: Micros, to: Micros) -> f64 {
    (to.saturating_sub(from) / 1_000) as f64 / 1_000.0
}
