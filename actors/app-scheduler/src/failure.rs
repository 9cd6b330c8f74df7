//! Handles applications without a fitting cluster, and ends such failures.
//!
//! Guarantees: `retries` counts down from `backoff_limit`, by one each time that `scheduled_retry` passes; -1 means
//! unlimited retries, and 0 means FAILED at once. With unlimited retries only the first retry has a time: after it
//! `scheduled_retry` is cleared, as any change triggers the next attempt. So a thousand applications without a place
//! do not cause a thousand writes a second, and none shows a past retry.

use madako_domain::placement::decision::Outcome;
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use madako_domain::placement::metadata::{Reason, ReasonCode};
use madako_json::krake::timestamp::Timestamp;
use time::OffsetDateTime;

use crate::config::add_seconds;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    /// True if the attempt counts and is written.
    pub(crate) counts: bool,
    /// Time of the next attempt that counts.
    pub(crate) again: Option<OffsetDateTime>,
}

/// True if an earlier failure was one of placement.
pub(crate) fn is_ours(application: &Application) -> bool {
    let status = &application.status;
    status.state == ApplicationState::Degraded
        && status.reason.as_ref().is_none_or(|reason| reason.code == ReasonCode::NoSuitableResource)
}

pub(crate) fn next_attempt(application: &Application, now: OffsetDateTime) -> AttemptResult {
    let (spec, status) = (&application.spec, &application.status);
    let for_ever = spec.backoff_limit < 0;
    let left = match status.retries {
        _ if for_ever => -1,
        // `backoff_limit` was lowered since.
        Some(left) if left >= 0 => left.min(spec.backoff_limit),
        _ => spec.backoff_limit,
    };
    let planned = status.scheduled_retry.as_ref().map(Timestamp::instant);
    let failed_before = is_ours(application) && status.reason.is_some();
    let ahead = planned.is_some_and(|retry| retry > now);
    if failed_before && (ahead || (for_ever && planned.is_none())) {
        let outcome = Outcome::Degraded { retries: left, retry: planned };
        return AttemptResult { outcome, counts: false, again: planned };
    }
    if failed_before && for_ever {
        let outcome = Outcome::Degraded { retries: left, retry: None };
        return AttemptResult { outcome, counts: true, again: None };
    }
    if !for_ever && left == 0 {
        return AttemptResult { outcome: Outcome::Failed, counts: true, again: None };
    }
    let retry = add_seconds(now, spec.backoff_delay.saturating_mul(spec.backoff));
    let retries = if for_ever { -1 } else { left - 1 };
    let outcome = Outcome::Degraded { retries, retry: Some(retry) };
    AttemptResult { outcome, counts: true, again: Some(retry) }
}

pub(crate) fn note_failure(application: &mut Application, attempt: &AttemptResult) {
    let status = &mut application.status;
    let code = ReasonCode::NoSuitableResource;
    status.reason = Some(Reason::new(code, "No matching Kubernetes cluster found"));
    match &attempt.outcome {
        Outcome::Degraded { retries, retry } => {
            status.state = ApplicationState::Degraded;
            status.retries = Some(*retries);
            status.scheduled_retry = retry.map(Timestamp::new);
        }
        _ => {
            status.state = ApplicationState::Failed;
            status.retries = Some(0);
            status.scheduled_retry = None;
        }
    }
}

/// Clears a placement failure. The state of a running application does not belong to the scheduler and stays.
pub(crate) fn clear_failure(application: &mut Application) {
    let status = &mut application.status;
    let waited = [ApplicationState::Degraded, ApplicationState::WaitingForClusterCreation];
    if waited.contains(&status.state) && status.running_on.is_none() {
        status.state = ApplicationState::Pending;
    }
    status.reason = None;
    status.retries = Some(application.spec.backoff_limit);
    status.scheduled_retry = None;
}
