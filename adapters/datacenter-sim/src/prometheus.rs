//! A simulated Prometheus with changing metrics, as clusters would report them.
//!
//! For: the demo. It answers over HTTP, so that clients use the path of a real Prometheus.
//!
//! Guarantees: a value depends only on the seed, the metric's place in the list and the time since the start, not on
//! the requests. It changes continuously and stays within its bounds.
//!
//! Does not: keep samples. Of Prometheus' API it has only instant queries by GET; of its language only selection by
//! metric name.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use madako_protocol::ports::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::net::TcpListener;

use crate::chance::{Kind, SeededChance};
use crate::tcp;

const QUERY_PATH: &str = "/api/v1/query";
/// Steps between the bounds of a value; finer differences are not visible.
const STEPS: u64 = 10_000;

/// A metric that moves between random turning points.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomWalkMetric {
    pub name: String,
    pub least: f64,
    pub greatest: f64,
    /// Time between two turning points; must be positive.
    pub pace: Duration,
}

/// A simulated Prometheus. Clones share the same state.
#[derive(Clone)]
pub struct SimulatedPrometheus(Arc<PrometheusState>);

struct PrometheusState {
    chance: SeededChance,
    clock: Arc<dyn Clock>,
    began: OffsetDateTime,
    metrics: BTreeMap<String, (u32, RandomWalkMetric)>,
    answered: Mutex<BTreeMap<String, f64>>,
}

impl SimulatedPrometheus {
    /// Starts the metrics at the clock's present time.
    #[must_use]
    pub fn new(
        seed: u64,
        clock: Arc<dyn Clock>,
        metrics: impl IntoIterator<Item = RandomWalkMetric>,
    ) -> Self {
        let metrics = (0..).zip(metrics).map(|(place, metric)| (metric.name.clone(), (place, metric)));
        Self(Arc::new(PrometheusState {
            chance: SeededChance::new(seed),
            began: clock.now(),
            clock,
            metrics: metrics.collect(),
            answered: Mutex::default(),
        }))
    }

    /// The latest value of each metric that a client has received.
    #[must_use]
    pub fn answered_values(&self) -> BTreeMap<String, f64> {
        self.0.lock_answered().clone()
    }

    pub fn router(&self) -> Router {
        Router::new().route(QUERY_PATH, get(answer_query)).with_state(self.clone())
    }

    /// Serves on a listener until the future is dropped.
    ///
    /// # Errors
    /// The listener has no address.
    pub async fn serve_tcp(self, listener: TcpListener) -> io::Result<()> {
        listener.local_addr()?;
        tcp::serve(&listener, &self.router()).await;
        Ok(())
    }
}

impl PrometheusState {
    // No code panics while it holds the lock.
    fn lock_answered(&self) -> MutexGuard<'_, BTreeMap<String, f64>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a metric `after` the start, rounded to a tenth.
    fn value_at(&self, place: u32, metric: &RandomWalkMetric, after: Duration) -> f64 {
        let turns = after.as_secs_f64() / metric.pace.as_secs_f64().max(f64::MIN_POSITIVE);
        let (turn, part) = (turns.floor().clamp(0.0, f64::from(u32::MAX - 1)), turns.fract());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
        let turn = turn as u32;
        let (from, to) =
            (self.turning_value(place, metric, turn), self.turning_value(place, metric, turn + 1));
        // Smoothstep: the slope is zero at the turning points.
        let eased = part * part * (3.0 - 2.0 * part);
        ((from + (to - from) * eased) * 10.0).round() / 10.0
    }

    /// Value of a metric at its `nth` turning point.
    fn turning_value(&self, place: u32, metric: &RandomWalkMetric, nth: u32) -> f64 {
        let step = self.chance.number_below(Kind::MetricTurn, place, nth, STEPS + 1);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let part = step as f64 / STEPS as f64;
        metric.least + (metric.greatest - metric.least) * part
    }
}

#[derive(Deserialize)]
struct QueryParameters {
    query: String,
}

async fn answer_query(
    State(prometheus): State<SimulatedPrometheus>,
    Query(parameters): Query<QueryParameters>,
) -> Response {
    let inner = &prometheus.0;
    let Some(names) = names_in_query(&parameters.query) else {
        let error =
            "only metrics chosen by their names are here: name, {__name__=\"name\"} or {__name__=~\"a|b\"}";
        let body = json!({"status": "error", "errorType": "bad_data", "error": error});
        return json_answer(StatusCode::BAD_REQUEST, &body);
    };
    let now = inner.clock.now();
    let after = Duration::try_from(now - inner.began).unwrap_or_default();
    let mut result = Vec::new();
    let mut answered = inner.lock_answered();
    for name in names {
        if let Some((place, metric)) = inner.metrics.get(&name) {
            let value = inner.value_at(*place, metric, after);
            let stamp = Value::from(now.unix_timestamp());
            result.push(json!({"metric": {"__name__": name}, "value": [stamp, value.to_string()]}));
            answered.insert(name, value);
        }
    }
    drop(answered);
    json_answer(
        StatusCode::OK,
        &json!({"status": "success", "data": {"resultType": "vector", "result": result}}),
    )
}

fn json_answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// Metric names that a query selects; `None` for any other query.
fn names_in_query(query: &str) -> Option<Vec<String>> {
    let query = query.trim();
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '_' | ':'))
    };
    if is_name(query) {
        return Some(vec![query.to_owned()]);
    }
    let inner = query.strip_prefix('{')?.strip_suffix('}')?.trim().strip_prefix("__name__")?;
    let (pattern, quoted) = match inner.strip_prefix("=~") {
        Some(quoted) => (true, quoted),
        None => (false, inner.strip_prefix('=')?),
    };
    let text = unescape(quoted.strip_prefix('"')?.strip_suffix('"')?)?;
    if !pattern {
        return Some(vec![text]);
    }
    // A literal regex character is preceded by a backslash; an unescaped one makes the text a pattern, not a name.
    text.split('|').map(|name| unescape(name).filter(|_| is_plain_text(name))).collect()
}

/// The text without the backslashes of its escapes.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(plain)
}

/// True if a pattern contains no regex metacharacter.
fn is_plain_text(pattern: &str) -> bool {
    let mut escaped = false;
    pattern.chars().all(|character| {
        let meant = escaped || !r".+*?()[]{}^$".contains(character);
        escaped = character == '\\' && !escaped;
        meant
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(OffsetDateTime);

    impl Clock for At {
        fn now(&self) -> OffsetDateTime {
            self.0
        }
    }

    fn wandering(seed: u64) -> SimulatedPrometheus {
        let metric = |name: &str| RandomWalkMetric {
            name: name.to_owned(),
            least: 10.0,
            greatest: 90.0,
            pace: Duration::from_secs(30),
        };
        let clock = Arc::new(At(OffsetDateTime::UNIX_EPOCH));
        SimulatedPrometheus::new(seed, clock, [metric("a"), metric("b")])
    }

    fn history(of: &SimulatedPrometheus, name: &str) -> Vec<f64> {
        let (place, metric) = &of.0.metrics[name];
        (0..600).map(|second| of.0.value_at(*place, metric, Duration::from_secs(second))).collect()
    }

    #[test]
    fn a_value_wanders_steadily_within_its_bounds_and_repeats_with_the_seed() {
        let values = history(&wandering(1), "a");
        assert_eq!(values, history(&wandering(1), "a"));
        assert_ne!(values, history(&wandering(2), "a"));
        assert_ne!(values, history(&wandering(1), "b"));
        assert!(values.iter().all(|value| (10.0..=90.0).contains(value)), "{values:?}");
        // The steepest slope is 1.5 times the whole range per pace.
        let jolt = values.windows(2).find(|pair| (pair[0] - pair[1]).abs() > 80.0 * 1.5 / 30.0 + 0.1);
        assert_eq!(jolt, None);
        let (least, greatest) =
            (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
        assert!(greatest.unwrap() - least.unwrap() > 40.0, "it hardly moves: {least:?} to {greatest:?}");
    }

    #[test]
    fn the_simulated_prometheus_understands_only_metric_names() {
        let some = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        for (query, expected) in [
            ("free_oslo", some(&["free_oslo"])),
            (r#"{__name__="free.oslo"}"#, some(&["free.oslo"])),
            (r#"{__name__=~"a|b\\.c"}"#, some(&["a", "b.c"])),
            (r#"{__name__=~"a.*"}"#, None),
            (r#"{__name__=~"a\"}"#, None),
            ("rate(a[5m])", None),
            ("{", None),
            ("", None),
        ] {
            assert_eq!(names_in_query(query), expected, "{query}");
        }
    }
}
