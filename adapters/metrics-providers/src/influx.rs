//! Fetches metrics from InfluxDB 2: the last value of measurements within an hour, by a Flux query.

use std::collections::BTreeMap;

use madako_domain::placement::core::InfluxSpec;
use madako_protocol::placement::providers::{FetchError, Sample, Samples};
use madako_protocol::ports::{HttpMethod, HttpTransport};
use serde_json::json;

use crate::address::Address;
use crate::annotated_csv::{self, CsvError, CsvRow};
use crate::exchange::{Exchange, Request, hide_secret, server_text};
pub use crate::limits::INFLUX_NAMES;
use crate::prometheus::note_of_choice;
use crate::{AnswersMany, number};

/// Columns that are not labels of a series.
const NO_LABELS: [&str; 7] = ["result", "table", "_start", "_stop", "_time", "_value", "_measurement"];

impl AnswersMany for InfluxSpec {
    const NAMES_IN_A_REQUEST: usize = INFLUX_NAMES;

    async fn ask<T: HttpTransport + ?Sized>(
        &self,
        names: &[&str],
        exchange: &Exchange<'_, T>,
    ) -> Result<Samples, FetchError> {
        let address = Address::read(&self.url)?;
        let dialect = json!({
            "header": true,
            "delimiter": ",",
            "annotations": ["datatype", "group", "default"],
            "commentPrefix": "#",
            "dateTimeFormat": "RFC3339",
        });
        let body = json!({ "query": flux_query(&self.bucket, names), "type": "flux", "dialect": dialect })
            .to_string();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let token = self.token.reveal();
        let request = Request {
            address: &address,
            method: HttpMethod::Post,
            url: address.build_url("api/v2/query", &[("org", self.org.as_str())]),
            headers: vec![
                header("authorization", &format!("Token {token}")),
                header("content-type", "application/json"),
                header("accept", "application/csv"),
            ],
            body,
            secret: token,
        };
        let body = exchange.send(request).await?;
        let mut found: BTreeMap<&str, FirstSeries> = BTreeMap::new();
        let read = annotated_csv::read_rows(&body, |row| take_row(&row, names, token, &mut found));
        match read {
            Ok(()) => {}
            Err(CsvError::Malformed { line, why }) => {
                let why = format!("line {line}: {why}");
                return Err(FetchError::Malformed { address: address.shown.clone(), why });
            }
            Err(CsvError::Refused { message }) => {
                let message = server_text(&address, token, &message);
                return Err(FetchError::Refused { address: address.shown.clone(), message });
            }
        }
        let sample = |name: &&str| {
            let missing =
                FetchError::NotFound { expected: "a point of this measurement within the last hour" };
            ((*name).to_owned(), found.remove(*name).map_or(Err(missing), FirstSeries::sample))
        };
        Ok(names.iter().map(sample).collect())
    }
}

/// First series of a measurement in label order; its field counts as a label.
struct FirstSeries {
    labels: BTreeMap<String, String>,
    value: String,
    datatype: &'static str,
    series: usize,
}

/// Records a row if its measurement was requested. Removes the token from labels and values, because they are shown.
fn take_row<'n>(
    row: &CsvRow<'_>,
    names: &[&'n str],
    token: &str,
    found: &mut BTreeMap<&'n str, FirstSeries>,
) -> Result<(), String> {
    let measurement = row.get("_measurement").ok_or("no column _measurement")?;
    let (value, datatype) = (row.get("_value"), row.datatype_of("_value"));
    let (value, datatype) = value.zip(datatype).ok_or("no column _value")?;
    let Ok(at) = names.binary_search(&measurement) else { return Ok(()) };
    let labels: BTreeMap<String, String> = row
        .named_cells()
        .filter(|(name, _)| !NO_LABELS.contains(name))
        .map(|(name, value)| (hide_secret(name, token), hide_secret(value, token)))
        .collect();
    let new =
        FirstSeries { labels, value: hide_secret(value, token), datatype: known_type(datatype), series: 1 };
    match found.get_mut(names[at]) {
        None => {
            found.insert(names[at], new);
        }
        Some(first) => {
            let series = first.series + 1;
            if new.labels < first.labels {
                *first = new;
            }
            first.series = series;
        }
    }
    Ok(())
}

/// `number` for a datatype that may be numeric, else a description.
fn known_type(datatype: &str) -> &'static str {
    match datatype {
        "double" | "long" | "unsignedLong" | "string" => "number",
        "boolean" => "a boolean",
        "duration" => "a duration",
        _ if datatype.starts_with("dateTime") => "a time",
        _ => "of a type that is not a number",
    }
}

impl FirstSeries {
    fn sample(self) -> Result<Sample, FetchError> {
        let value = match self.datatype {
            "number" if self.value.is_empty() => Err(FetchError::NotANumber { got: "null".to_owned() }),
            "number" => number::from_text(&self.value),
            other => Err(FetchError::NotANumber { got: other.to_owned() }),
        }?;
        Ok(Sample { value, note: note_of_choice(self.series, &self.labels) })
    }
}

/// The Flux query for the last values of some measurements.
pub(crate) fn flux_query(bucket: &str, names: &[&str]) -> String {
    let tests: Vec<String> = names.iter().map(|name| format!("r._measurement == {}", quote(name))).collect();
    format!(
        "from(bucket: {}) |> range(start: -1h) |> filter(fn: (r) => {}) |> last()",
        quote(bucket),
        tests.join(" or ")
    )
}

/// A string literal of Flux. A dollar sign is written by its code, because `${` would start an expression.
pub(crate) fn quote(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => literal.extend(['\\', character]),
            '$' | '\0'..='\x1f' | '\x7f' => literal.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => literal.push(character),
        }
    }
    literal.push('"');
    literal
}
