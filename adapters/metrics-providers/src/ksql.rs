//! Fetches metrics from KSQL: the value of a column in the row whose other column has the metric's name. A request
//! returns one value.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};
use madako_domain::placement::core::KafkaSpec;
use madako_protocol::placement::providers::{FetchError, Sample, Samples};
use madako_protocol::ports::{HttpMethod, HttpTransport};
use serde_json::{Value, json};

use crate::address::Address;
use crate::exchange::{Exchange, Request, server_text, shorten_text};
pub use crate::limits::KSQL_AT_ONCE;
use crate::{fail_all_names, number};

pub(crate) async fn fetch<T: HttpTransport + ?Sized>(
    spec: &KafkaSpec,
    names: &BTreeSet<String>,
    exchange: &Exchange<'_, T>,
) -> Samples {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some((first, others)) = names.split_first() else { return Samples::new() };
    let answer = fetch_value(spec, first, exchange).await;
    if let Err(error) = &answer
        && is_servers(error)
    {
        // The error concerns the server, so the other requests would fail too.
        return fail_all_names(&names, error);
    }
    let others: Vec<String> = others.iter().map(|name| (*name).to_owned()).collect();
    let fetches = stream::iter(others)
        .map(|name| async move {
            let answer = fetch_value(spec, &name, exchange).await;
            (name, answer)
        })
        .buffer_unordered(KSQL_AT_ONCE);
    let mut samples: Samples = fetches.collect().await;
    samples.insert((*first).to_owned(), answer);
    samples
}

/// True if an error concerns the server, so that all other queries would fail too. An error about a query concerns that
/// query only; an unreadable query has status 400.
fn is_servers(error: &FetchError) -> bool {
    match error {
        FetchError::Status { status, .. } => *status != 400,
        FetchError::Refused { .. } | FetchError::Malformed { .. } => false,
        other => other.is_providers(),
    }
}

async fn fetch_value<T: HttpTransport + ?Sized>(
    spec: &KafkaSpec,
    name: &str,
    exchange: &Exchange<'_, T>,
) -> Result<Sample, FetchError> {
    let address = Address::read(&spec.url)?;
    let body = json!({ "ksql": ksql_query(spec, name), "streamsProperties": {} }).to_string();
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let request = Request {
        address: &address,
        method: HttpMethod::Post,
        url: address.build_url("query", &[]),
        headers: vec![header("content-type", "application/json"), header("accept", "application/json")],
        body,
        secret: "",
    };
    let body = exchange.send(request).await?;
    let malformed = |why: String| FetchError::Malformed { address: address.shown.clone(), why };
    let answer: Value =
        serde_json::from_slice(&body).map_err(|error| malformed(shorten_text(&error.to_string())))?;
    let Value::Array(parts) = answer else { return Err(malformed("expected a list".to_owned())) };
    if let Some(error) =
        parts.iter().find_map(|part| part.get("errorMessage")).filter(|error| !error.is_null())
    {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
        let message = server_text(&address, "", message);
        return Err(FetchError::Refused { address: address.shown.clone(), message });
    }
    let Some(row) = parts.get(1).and_then(|part| part.get("row")) else {
        return Err(FetchError::NotFound { expected: "a row with this name" });
    };
    let missing = FetchError::NotFound { expected: "a column in the row with this name" };
    let value = row.pointer("/columns/0").ok_or(missing)?;
    Ok(Sample { value: number::from_json(value)?, note: None })
}

pub(crate) fn ksql_query(spec: &KafkaSpec, name: &str) -> String {
    format!(
        "SELECT {} FROM {} WHERE {} = {};",
        quote_identifier(&spec.value_column),
        quote_identifier(&spec.table),
        quote_identifier(&spec.comparison_column),
        quote(name)
    )
}

/// A name of a column or table. A plain name stays unquoted, because KSQL ignores its case. A quoted name stays as it
/// is. Any other name is quoted.
pub(crate) fn quote_identifier(name: &str) -> String {
    let mut characters = name.chars();
    let plain = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    let quoted = name.strip_prefix('`').and_then(|name| name.strip_suffix('`'));
    if plain || quoted.is_some_and(|inner| !inner.is_empty() && !inner.contains('`')) {
        name.to_owned()
    } else {
        format!("`{}`", name.replace('`', "``"))
    }
}

/// A string literal, in which only the quote is special.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
