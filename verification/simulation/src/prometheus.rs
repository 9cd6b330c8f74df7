//! Simulated Prometheus servers with changing values, missing or wrong series, and servers that refuse, hang or send
//! wrong answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::placement::PlacementChecker;

/// Server and name of each series. No name is part of another one.
pub const SERIES: [(&str, &str); 6] = [
    ("prometheus-one.invalid", "load_a"),
    ("prometheus-one.invalid", "load_b"),
    ("prometheus-one.invalid", "load_c"),
    ("prometheus-one.invalid", "load_d"),
    ("prometheus-two.invalid", "heat_a"),
    ("prometheus-two.invalid", "heat_b"),
];

/// Minimum and maximum of every metric.
pub const RANGE: (f64, f64) = (0.0, 100.0);

/// Duration of an answer without faults.
const LATENCY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrometheusFault {
    /// The server refuses connections.
    Refuses,
    /// The server does not answer.
    Hangs,
    /// The answer takes 90 % of the deadline.
    Slow,
    Status,
    CutOff,
    /// Each answer is an HTML page.
    NotJson,
    /// Each answer is a number instead of a list.
    WrongTypes,
    /// Each result is an empty list.
    Empty,
}

const WRONG: [PrometheusFault; 5] = [
    PrometheusFault::CutOff,
    PrometheusFault::NotJson,
    PrometheusFault::WrongTypes,
    PrometheusFault::Empty,
    PrometheusFault::Status,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesFault {
    /// The answer lacks the series.
    Missing,
    NotANumber,
    Infinite,
    /// Far outside the series' range.
    OutOfRange,
    /// The value is a word.
    Text,
    /// The answer has two different values.
    Twice,
}

#[derive(Default)]
struct PrometheusState {
    values: BTreeMap<&'static str, f64>,
    lies: BTreeMap<&'static str, SeriesFault>,
    troubles: BTreeMap<&'static str, PrometheusFault>,
    /// True if the last answer had a usable value for the series.
    given: BTreeMap<&'static str, bool>,
    /// Chooses the fault of each answer; `None` if answers are correct.
    corrupt: Option<ChaCha8Rng>,
}

/// All servers. Clones share their state.
#[derive(Clone)]
pub struct Prometheus {
    inside: Arc<Mutex<PrometheusState>>,
    checker: PlacementChecker,
}

impl Prometheus {
    /// Servers without faults.
    pub fn new(checker: PlacementChecker) -> Self {
        let values = SERIES.iter().zip(1_u8..).map(|((_, name), nth)| (*name, f64::from(nth) * 14.0));
        let inside = PrometheusState { values: values.collect(), ..PrometheusState::default() };
        Self { inside: Arc::new(Mutex::new(inside)), checker }
    }

    /// Changes every value by a random step.
    pub fn change_values(&self, chance: &mut ChaCha8Rng) {
        for value in self.inside.lock().unwrap().values.values_mut() {
            *value = (*value + chance.random_range(-12.0..12.0_f64)).round().clamp(RANGE.0, RANGE.1);
        }
    }

    /// Changes every value by a random step in one of twelve calls.
    pub fn change_values_sometimes(&self, chance: &mut ChaCha8Rng) {
        if chance.random_range(0..12_u32) == 0 {
            self.change_values(chance);
        }
    }

    /// Starts or ends a random fault, and returns a description of it.
    pub fn toggle_random_fault(&self, chance: &mut ChaCha8Rng) -> String {
        use PrometheusFault::{CutOff, Empty, Hangs, NotJson, Refuses, Slow, Status, WrongTypes};
        let mut inside = self.inside.lock().unwrap();
        let (server, name) = SERIES[chance.random_range(0..SERIES.len())];
        if chance.random_range(0..3_u32) == 0 {
            let troubles = [Refuses, Hangs, Slow, Status, CutOff, NotJson, WrongTypes, Empty];
            let trouble = troubles[chance.random_range(0..troubles.len())];
            if inside.troubles.remove(server).is_some() {
                return format!("{server} answers again");
            }
            inside.troubles.insert(server, trouble);
            return format!("{server}: {trouble:?}");
        }
        let lies = [
            SeriesFault::Missing,
            SeriesFault::NotANumber,
            SeriesFault::Infinite,
            SeriesFault::OutOfRange,
            SeriesFault::Text,
            SeriesFault::Twice,
        ];
        let lie = lies[chance.random_range(0..lies.len())];
        if inside.lies.remove(name).is_some() {
            return format!("{name} is right again");
        }
        inside.lies.insert(name, lie);
        format!("{name}: {lie:?}")
    }

    /// Makes each answer wrong in a way that `chance` chooses; `None` makes answers correct again.
    pub fn set_corruption(&self, chance: Option<ChaCha8Rng>) {
        self.inside.lock().unwrap().corrupt = chance;
    }

    pub fn set(&self, series: &str, value: f64) {
        if let Some(there) = self.inside.lock().unwrap().values.get_mut(series) {
            *there = value;
        }
    }

    /// Removes a series from all answers, or restores it.
    pub fn hide_series(&self, series: &'static str, hidden: bool) {
        let mut inside = self.inside.lock().unwrap();
        inside.lies.remove(series);
        if hidden {
            inside.lies.insert(series, SeriesFault::Missing);
        }
    }

    /// Gives every server the same fault.
    pub fn break_all(&self, trouble: PrometheusFault) {
        let servers = SERIES.iter().map(|(server, _)| (*server, trouble));
        self.inside.lock().unwrap().troubles.extend(servers);
    }

    pub fn end_fault(&self) {
        let mut inside = self.inside.lock().unwrap();
        inside.lies.clear();
        inside.troubles.clear();
    }

    /// The fault of the server that `url` names, and the server's body without a fault. Updates `given`.
    fn answer_query(&self, url: &str) -> (Option<PrometheusFault>, String) {
        let mut inside = self.inside.lock().unwrap();
        let drawn = inside.corrupt.as_mut().map(|chance| WRONG[chance.random_range(0..WRONG.len())]);
        let trouble = inside.troubles.iter().find(|(server, _)| url.contains(**server)).map(|(_, it)| *it);
        let trouble = drawn.or(trouble);
        let mut all = String::new();
        for (server, name) in SERIES {
            if url.contains(server) && url.contains(name) {
                let good = matches!(trouble, None | Some(PrometheusFault::Slow))
                    && matches!(inside.lies.get(name), None | Some(SeriesFault::Twice));
                inside.given.insert(name, good);
            }
            if trouble == Some(PrometheusFault::Empty) || !url.contains(server) || !url.contains(name) {
                continue;
            }
            let value = inside.values[name];
            let shown = match inside.lies.get(name) {
                Some(SeriesFault::Missing) => continue,
                Some(SeriesFault::NotANumber) => "NaN".to_owned(),
                Some(SeriesFault::Infinite) => "+Inf".to_owned(),
                Some(SeriesFault::OutOfRange) => "1e9".to_owned(),
                Some(SeriesFault::Text) => "many".to_owned(),
                Some(SeriesFault::Twice) => {
                    let _ = write!(
                        all,
                        r#"{{"metric":{{"__name__":"{name}","instance":"z"}},"value":[1,"{}"]}},"#,
                        RANGE.1 - value
                    );
                    value.to_string()
                }
                None => value.to_string(),
            };
            let _ =
                write!(all, r#"{{"metric":{{"__name__":"{name}","instance":"a"}},"value":[1,"{shown}"]}},"#);
        }
        let all = all.trim_end_matches(',');
        (trouble, format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{all}]}}}}"#))
    }

    /// The series that a request names, each with true if the last answer had a usable value.
    #[must_use]
    pub fn answered_series(&self, url: &str) -> Vec<(&'static str, bool)> {
        let inside = self.inside.lock().unwrap();
        let about = SERIES.iter().filter(|(server, name)| url.contains(server) && url.contains(name));
        about.map(|(_, name)| (*name, inside.given.get(name).copied().unwrap_or(false))).collect()
    }

    /// Reports the values of an answer to the checker.
    fn record_value(&self, url: &str) {
        let inside = self.inside.lock().unwrap();
        for (server, name) in SERIES {
            let right = matches!(inside.lies.get(name), None | Some(SeriesFault::Twice));
            if right && url.contains(server) && url.contains(name) {
                self.checker.record_value(name, inside.values[name]);
            }
        }
    }
}

#[async_trait]
impl HttpTransport for Prometheus {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let HttpRequest { url, body, deadline, max_response_bytes, .. } = request;
        let query_text = format!("{url}{}", String::from_utf8_lossy(&body));
        let (trouble, text) = self.answer_query(&query_text);
        let takes = match trouble {
            Some(PrometheusFault::Hangs) => Duration::MAX,
            Some(PrometheusFault::Slow) => deadline.mul_f64(0.9),
            _ => LATENCY,
        };
        let good = matches!(trouble, None | Some(PrometheusFault::Slow));
        if good {
            // The servers read the values now, however long the answer takes.
            self.record_value(&query_text);
        }
        tokio::time::sleep(takes.min(deadline)).await;
        if takes >= deadline {
            return Err(HttpError::Deadline { url, deadline });
        }
        let (status, body) = match trouble {
            Some(PrometheusFault::Refuses) => {
                return Err(HttpError::Connect { url, why: "connection refused".to_owned() });
            }
            Some(PrometheusFault::CutOff) => {
                return Err(HttpError::Truncated { url, why: "connection reset".to_owned() });
            }
            Some(PrometheusFault::Status) => (503, "not now".to_owned()),
            Some(PrometheusFault::NotJson) => (200, "<html>welcome</html>".to_owned()),
            Some(PrometheusFault::WrongTypes) => {
                (200, r#"{"status":"success","data":{"resultType":"scalar","result":7}}"#.to_owned())
            }
            _ => (200, text),
        };
        assert!(body.len() <= max_response_bytes, "an answer of this world is short");
        Ok(HttpResponse { status, headers: Vec::new(), body: Bytes::from(body) })
    }
}
