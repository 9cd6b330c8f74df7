//! Fetches metrics from Prometheus by their exact names, in as few requests as possible.

use std::collections::BTreeMap;
use std::fmt;

use madako_domain::placement::core::PrometheusSpec;
use madako_protocol::placement::providers::{FetchError, Sample, Samples};
use madako_protocol::ports::{HttpMethod, HttpTransport};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::address::{Address, encode_query};
use crate::exchange::{Exchange, Request, server_text, shorten_text};
use crate::limits::MAX_IN_URL;
pub use crate::limits::PROMETHEUS_NAMES;
use crate::{AnswersMany, number};

impl AnswersMany for PrometheusSpec {
    const NAMES_IN_A_REQUEST: usize = PROMETHEUS_NAMES;

    async fn ask<T: HttpTransport + ?Sized>(
        &self,
        names: &[&str],
        exchange: &Exchange<'_, T>,
    ) -> Result<Samples, FetchError> {
        let address = Address::read(&self.url)?;
        let query = promql_query(names);
        let parameters = [("query", query.as_str())];
        let encoded = encode_query(&parameters);
        let path = "api/v1/query";
        let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
        let (method, url, body) = if encoded.len() <= MAX_IN_URL {
            (HttpMethod::Get, address.build_url(path, &parameters), String::new())
        } else {
            headers.push(("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
            (HttpMethod::Post, address.build_url(path, &[]), encoded)
        };
        let request = Request { address: &address, method, url, headers, body, secret: "" };
        let body = exchange.send(request).await?;
        let malformed = |why: String| FetchError::Malformed { address: address.shown.clone(), why };
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|error| malformed(shorten_text(&error.to_string())))?;
        if answer.status != "success" {
            let message = server_text(&address, "", answer.error.as_deref().unwrap_or("no reason given"));
            return Err(FetchError::Refused { address: address.shown.clone(), message });
        }
        let data = answer.data.ok_or_else(|| malformed("data: missing".to_owned()))?;
        let mut found = data.result.0;
        let sample =
            |name: &&str| ((*name).to_owned(), found.remove(*name).map_or(MISSING, FirstSeries::sample));
        Ok(names.iter().map(sample).collect())
    }
}

const MISSING: Result<Sample, FetchError> =
    Err(FetchError::NotFound { expected: "a series with this name and a sample of the last minutes" });

/// A query for all series of some metrics.
pub(crate) fn promql_query(names: &[&str]) -> String {
    let alternatives: Vec<String> = names.iter().map(|name| escape_regex(name)).collect();
    format!("{{__name__=~{}}}", quote(&alternatives.join("|")))
}

/// A regular expression (RE2) that matches only this text. Prometheus anchors it at both ends.
pub(crate) fn escape_regex(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for character in text.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}

/// A string literal of PromQL, which has the escapes of Go.
pub(crate) fn quote(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            _ if character.is_control() => literal.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => literal.push(character),
        }
    }
    literal.push('"');
    literal
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    error: Option<String>,
    data: Option<QueryData>,
}

#[derive(Deserialize)]
struct QueryData {
    result: Series,
}

/// The first series of each name in label order. The others are only counted, so that a large answer takes no more
/// memory than its text.
struct Series(BTreeMap<String, FirstSeries>);

struct FirstSeries {
    labels: BTreeMap<String, String>,
    /// Time and value; absent for a histogram.
    value: Option<Value>,
    series: usize,
}

#[derive(Deserialize)]
struct SeriesAnswer {
    metric: BTreeMap<String, String>,
    value: Option<Value>,
}

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fold;
        impl<'de> Visitor<'de> for Fold {
            type Value = Series;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of series")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Series, A::Error> {
                let mut firsts: BTreeMap<String, FirstSeries> = BTreeMap::new();
                while let Some(SeriesAnswer { metric: mut labels, value }) = all.next_element()? {
                    let Some(name) = labels.remove("__name__") else { continue };
                    match firsts.get_mut(&name) {
                        None => {
                            firsts.insert(name, FirstSeries { labels, value, series: 1 });
                        }
                        Some(first) => {
                            first.series += 1;
                            if labels < first.labels {
                                (first.labels, first.value) = (labels, value);
                            }
                        }
                    }
                }
                Ok(Series(firsts))
            }
        }
        deserializer.deserialize_seq(Fold)
    }
}

impl FirstSeries {
    fn sample(self) -> Result<Sample, FetchError> {
        let value = match &self.value {
            None => return Err(FetchError::NotANumber { got: "a histogram, or nothing".to_owned() }),
            Some(Value::Array(pair)) if pair.len() == 2 => number::from_json(&pair[1])?,
            Some(_) => return Err(FetchError::NotANumber { got: "no pair of time and value".to_owned() }),
        };
        Ok(Sample { value, note: note_of_choice(self.series, &self.labels) })
    }
}

/// A note that names the chosen series if there were several.
pub(crate) fn note_of_choice(series: usize, labels: &BTreeMap<String, String>) -> Option<String> {
    if series < 2 {
        return None;
    }
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    let labels = shorten_text(&labels.join(", "));
    Some(format!("the first of {series} series in the order of their labels: {{{labels}}}"))
}
