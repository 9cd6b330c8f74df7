//! The state of one metric in the schedule: its last value, its last error, and the time of its next fetch.

use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::metadata::{Reason, ReasonCode};
use madako_domain::placement::metrics::{MetricKey, MetricState, Value};
use madako_protocol::placement::providers::{FetchError, Sample};

use super::ClockReading;
use crate::bounds;
use crate::catalog::{Source, UndefinedMetric, shorten_name};
use crate::trust::ValueHistory;

/// State of a metric's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Condition {
    /// There is no answer by the present definition yet.
    Awaited,
    /// The last fetch succeeded.
    Good,
    /// The last fetch failed, and an earlier value counts.
    Kept,
    /// The last fetch failed, and no value counts.
    Failed,
    /// Its definition is missing or invalid.
    Undefined,
}

#[derive(Debug)]
pub(super) struct MetricTrack {
    /// Origin by the present definitions; `None`: undefined.
    source: Option<Source>,
    /// A fetch by the present definition is still due.
    pending: bool,
    /// `None` before the first answer.
    known: Option<LastAnswer>,
    history: ValueHistory,
    history_of: Option<Source>,
}

#[derive(Debug)]
struct LastAnswer {
    metric_revision: i64,
    provider_revision: i64,
    value: Option<KeptValue>,
    reason: Option<Reason>,
    undefined: bool,
}

#[derive(Debug)]
struct KeptValue {
    value: Value,
    note: Option<String>,
    source: Source,
    /// Time of the fetch, on the monotonic clock.
    since: Duration,
}

impl MetricTrack {
    pub(super) fn new(now: ClockReading) -> Self {
        Self {
            source: None,
            pending: false,
            known: None,
            history: ValueHistory::new(now.at),
            history_of: None,
        }
    }

    /// Applies the present definitions. The known value stays until their first answer arrives; a missing or invalid
    /// definition counts as an answer.
    pub(super) fn set_definition(&mut self, resolved: Result<Source, UndefinedMetric>) {
        match resolved {
            Ok(source) => {
                let same = self.source.as_ref().is_some_and(|old| {
                    (old.metric_revision, old.provider_revision)
                        == (source.metric_revision, source.provider_revision)
                });
                self.pending |= !same;
                self.source = Some(source);
            }
            Err(undefined) => {
                (self.source, self.pending) = (None, false);
                self.known = Some(LastAnswer {
                    metric_revision: undefined.metric_revision,
                    provider_revision: undefined.provider_revision,
                    value: None,
                    reason: Some(undefined.reason),
                    undefined: true,
                });
            }
        }
    }

    /// Applies an answer of the present source.
    pub(super) fn record_answer(
        &mut self,
        key: &MetricKey,
        sample: &Result<Sample, FetchError>,
        now: ClockReading,
    ) {
        let Some(source) = self.source.clone() else { return };
        self.pending = false;
        if self.history_of.as_ref().is_some_and(|old| !old.same_origin(&source)) {
            self.history = ValueHistory::new(now.at);
        }
        self.history_of = Some(source.clone());
        let is_static = matches!(*source.kind, MetricsProviderKind::Static(_));
        let evaluated = match sample {
            Ok(sample) => match bounds::normalize(&source.spec, sample.value) {
                Ok(normalized) => Ok((sample, normalized)),
                Err(why) => Err((value_reason(key, &why), is_static)),
            },
            Err(error) => Err((failure_reason(key, &source, error), is_static || error.is_definition())),
        };
        let (value, reason, undefined) = match evaluated {
            Ok((sample, normalized)) => {
                self.history.push(now.elapsed, sample.value);
                let value = Value { raw: sample.value, normalized, at: now.at };
                let note = sample.note.clone();
                (Some(KeptValue { value, note, source: source.clone(), since: now.elapsed }), None, false)
            }
            Err((reason, undefined)) => {
                let kept = self.known.take().and_then(|known| known.value).filter(|_| !undefined);
                (kept.and_then(|kept| kept.keep_if_valid_under(&source)), Some(reason), undefined)
            }
        };
        self.known = Some(LastAnswer {
            metric_revision: source.metric_revision,
            provider_revision: source.provider_revision,
            value,
            reason,
            undefined,
        });
    }

    pub(super) fn expire_old_values(&mut self, now: ClockReading, max_age: Duration) {
        self.history.forget(now.elapsed);
        let Some(known) = &mut self.known else { return };
        let too_old = |kept: &mut KeptValue| now.elapsed.saturating_sub(kept.since) >= max_age;
        if let Some(kept) = known.value.take_if(too_old) {
            // No fetch failed: no fetch happened, for example while this process was suspended.
            known.reason.get_or_insert_with(|| {
                let (provider, age) = (&kept.source.provider, max_age.as_secs());
                let message = format!("metrics provider {provider} has not answered for {age} s");
                Reason::new(ReasonCode::UnreachableMetricsProvider, message)
            });
        }
    }

    /// Published state; `None` before the first answer.
    pub(super) fn metric_state(&self) -> Option<MetricState> {
        let known = self.known.as_ref()?;
        Some(MetricState {
            metric_revision: known.metric_revision,
            provider_revision: known.provider_revision,
            value: known.value.as_ref().map(|kept| kept.value),
            reason: known.reason.clone(),
            undefined: known.undefined,
            note: known.value.as_ref().and_then(|kept| kept.note.clone()),
            trust: self.history.trust(),
        })
    }

    pub(super) fn metric_condition(&self) -> Condition {
        match &self.known {
            _ if self.pending => Condition::Awaited,
            None => Condition::Awaited,
            Some(known) if known.undefined => Condition::Undefined,
            Some(known) if known.reason.is_none() => Condition::Good,
            Some(known) if known.value.is_some() => Condition::Kept,
            Some(_) => Condition::Failed,
        }
    }

    pub(super) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Time of the fetch of the current value, on the monotonic clock.
    pub(super) fn time_of_value(&self) -> Option<Duration> {
        self.known.as_ref()?.value.as_ref().map(|kept| kept.since)
    }
}

impl KeptValue {
    /// The value under the present definitions. A value from another origin, or outside the new bounds, is dropped.
    fn keep_if_valid_under(self, source: &Source) -> Option<Self> {
        let normalized = bounds::normalize(&source.spec, self.value.raw).ok()?;
        let value = Value { normalized, ..self.value };
        self.source.same_origin(source).then_some(Self { value, ..self })
    }
}

fn value_reason(key: &MetricKey, why: &str) -> Reason {
    Reason::new(ReasonCode::InvalidMetric, format!("metric {key}: {why}"))
}

fn failure_reason(key: &MetricKey, source: &Source, error: &FetchError) -> Reason {
    let message = if error.is_providers() {
        format!("metrics provider {}: {error}", source.provider)
    } else {
        format!(
            "metric {key} ({} on metrics provider {}): {error}",
            shorten_name(source.name_at_provider()),
            source.provider
        )
    };
    Reason::new(error.code(), message)
}
