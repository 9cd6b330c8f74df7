//! `madako ops`: the operations of the leader, from its page `/ops`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::keys;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::{HttpMethod, HttpRequest, HttpResponse, HttpTransport as _};
use madako_protocol::store::Store;
use serde::Deserialize;
use serde_json::Value;

use super::{ShownHeld, ShownOperation, join_addresses, operation_tables};
use crate::access::get_entry;
use crate::failure::Failure;
use crate::limits::{MAX_OPS_PAGE, MAX_TOLD, OPS_DEADLINE};
use crate::output::{Format, Table, escape_unprintable, print_text, show_value};

/// The leader's page. Unknown fields are those of later versions.
#[derive(Debug, Deserialize)]
struct OperationsPage {
    /// `None` before the first decision of the leader.
    #[serde(default)]
    phase: Option<String>,
    mode: String,
    #[serde(default)]
    nodes: BTreeMap<String, RunningNode>,
    #[serde(default)]
    running: Option<ObservedRunning>,
    #[serde(default)]
    next: Vec<ShownOperation>,
    #[serde(default)]
    held: Vec<ShownHeld>,
    /// Seconds until the next attempt, by address.
    #[serde(default)]
    backing_off: BTreeMap<String, f64>,
}

#[derive(Debug, Deserialize)]
struct RunningNode {
    reachable: bool,
    #[serde(default)]
    error: Option<String>,
    /// Age of the last status.
    #[serde(default)]
    age_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct ObservedRunning {
    record: i64,
    operation: String,
    command: String,
    #[serde(default)]
    targets: Vec<String>,
}

pub(super) async fn run(format: Format, store: &dyn Store) -> Result<(), Failure> {
    let (url, body) = fetch_page("ops", store).await?;
    let unreadable = |error| unreadable_page(&url, &error);
    let page: OperationsPage = serde_json::from_slice(&body).map_err(unreadable)?;
    match format {
        Format::Table => print_text(&page_table(&page)),
        // The page as it is.
        Format::Json => print_text(&format!("{}\n", String::from_utf8_lossy(&body).trim_end())),
        Format::Yaml => {
            let value: Value = serde_json::from_slice(&body).map_err(unreadable)?;
            show_value(format, &value, |_| String::new())
        }
    }
}

/// The held operations of the leader.
pub(crate) async fn fetch_held_operations(store: &dyn Store) -> Result<Vec<ShownHeld>, Failure> {
    let (url, body) = fetch_page("ops", store).await?;
    let page: OperationsPage =
        serde_json::from_slice(&body).map_err(|error| unreadable_page(&url, &error))?;
    Ok(page.held)
}

pub(crate) async fn fetch_page(name: &str, store: &dyn Store) -> Result<(String, Bytes), Failure> {
    let url = get_entry(store, keys::LEADER_URL).await?.ok_or_else(|| {
        Failure::failed("no leader has stored its address (madako/leader-url): no instance of Madako leads")
    })?;
    let url = format!("{}/{name}", String::from_utf8_lossy(&url.value).trim_end_matches('/'));
    let body = fetch(&url).await?;
    Ok((url, body))
}

pub(crate) fn unreadable_page(url: &str, error: &serde_json::Error) -> Failure {
    Failure::failed(format_args!("the answer of {url} cannot be read: {error}"))
}

/// Asks for a page of an instance.
///
/// # Errors
/// There is no complete answer before the deadline. Every status code is an answer.
pub(crate) async fn get_page(url: &str, deadline: Duration) -> Result<HttpResponse, Failure> {
    let transport = ReqwestTransport::new().map_err(|error| Failure::Failed(error.into()))?;
    let request = HttpRequest {
        method: HttpMethod::Get,
        url: url.to_owned(),
        headers: vec![("accept".to_owned(), "application/json".to_owned())],
        body: Bytes::new(),
        max_response_bytes: MAX_OPS_PAGE,
        deadline,
    };
    transport.send(request).await.map_err(|error| Failure::Failed(error.into()))
}

/// The body of a page.
///
/// # Errors
/// There is no complete answer before the deadline, or its status code is not 200.
pub(crate) async fn get_body(url: &str, deadline: Duration) -> Result<Bytes, Failure> {
    let answer = get_page(url, deadline).await?;
    if answer.status != 200 {
        return Err(page_failure(url, &answer));
    }
    Ok(answer.body)
}

fn page_failure(url: &str, answer: &HttpResponse) -> Failure {
    let why: String = String::from_utf8_lossy(&answer.body).trim().chars().take(MAX_TOLD).collect();
    Failure::failed(format_args!("{url} answered {}: {}", answer.status, escape_unprintable(&why)))
}

async fn fetch(url: &str) -> Result<Bytes, Failure> {
    let answer = get_page(url, OPS_DEADLINE).await.map_err(|failure| match failure {
        Failure::Failed(error) => Failure::Failed(error.context("the leader cannot be asked")),
        other => other,
    })?;
    match answer.status {
        200 => Ok(answer.body),
        404 => Err(Failure::failed(format_args!(
            "the leader shows no operations on nodes at {url}: operations.mode is off there, no cluster is stored, or \
             another instance has become the leader"
        ))),
        _ => Err(page_failure(url, &answer)),
    }
}

fn page_table(page: &OperationsPage) -> String {
    let phase = page.phase.as_deref().unwrap_or("not decided yet");
    let mut text =
        format!("Phase    {} (mode {})\n", escape_unprintable(phase), escape_unprintable(&page.mode));
    let running = page.running.as_ref().map_or_else(|| "nothing".to_owned(), running_line);
    text.push_str(&format!("Running  {}\n", escape_unprintable(&running)));
    if !page.nodes.is_empty() {
        let reachable = page.nodes.values().filter(|node| node.reachable).count();
        text.push_str(&format!("Nodes    {reachable} of {} reachable\n", page.nodes.len()));
    }
    text.push_str(&operation_tables("NEXT", &page.next, &page.held));
    let nodes = nodes_left_out(page);
    if !nodes.is_empty() {
        let mut table = Table::new(["NODE", "STATE", "WHY"]);
        for (address, state, why) in nodes {
            table.add_row([address.to_owned(), state, why]);
        }
        text.push('\n');
        text.push_str(&table.to_text());
    }
    text
}

fn running_line(running: &ObservedRunning) -> String {
    let ObservedRunning { record, operation, command, targets } = running;
    format!("{operation} on {}: {command} (record {record})", join_addresses(targets))
}

/// Nodes on which no operation runs now, with state and reason.
fn nodes_left_out(page: &OperationsPage) -> Vec<(&str, String, String)> {
    let mut found: Vec<_> = page
        .nodes
        .iter()
        .filter(|(_, node)| !node.reachable)
        .map(|(address, node)| {
            let age = node.age_seconds.map_or_else(String::new, |age| format!(", status {age:.0} s old"));
            (address.as_str(), format!("unreachable{age}"), node.error.clone().unwrap_or_default())
        })
        .collect();
    found.extend(page.backing_off.iter().map(|(address, seconds)| {
        (address.as_str(), format!("backs off for {seconds:.0} s"), "the last command failed".to_owned())
    }));
    found
}
