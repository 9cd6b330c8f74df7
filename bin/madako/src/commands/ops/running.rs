//! `madako ops`: the operations of the leader, from its page `/ops`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use madako_domain::keys;
use madako_http_client::ReqwestTransport;
use madako_protocol::ports::{HttpMethod, HttpRequest, HttpResponse, HttpTransport as _};
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use time::OffsetDateTime;

use super::{ShownHeld, ShownOperation, join_addresses};
use crate::access::get_entry;
use crate::failure::Failure;
use crate::limits::{LIST_PAUSE, MAX_OPS_PAGE, MAX_SERVER_TEXT, OPS_DEADLINE};
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::escape_unprintable;

/// The leader's page. Unknown fields are those of later versions.
#[derive(Debug, Deserialize)]
pub(crate) struct OperationsPage {
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
    pub(crate) held: Vec<ShownHeld>,
    /// Seconds until the next attempt, by the address of a node, or by an operation that failed without a node as its cause.
    #[serde(default)]
    backing_off: BTreeMap<String, f64>,
    #[serde(default)]
    back_off_errors: BTreeMap<String, String>,
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

/// The page as it is, and its parts.
struct LeaderOperations {
    page: Value,
    parts: OperationsPage,
}

impl Serialize for LeaderOperations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.page.serialize(serializer)
    }
}

impl PartialEq for LeaderOperations {
    fn eq(&self, other: &Self) -> bool {
        self.page == other.page
    }
}

pub(super) async fn run(args: &ListArgs, store: &dyn Store) -> Result<(), Failure> {
    let shown = async || {
        let (url, body) = fetch_page("ops", store).await?;
        let read = || -> Result<LeaderOperations, serde_json::Error> {
            Ok(LeaderOperations {
                parts: serde_json::from_slice(&body)?,
                page: serde_json::from_slice(&body)?,
            })
        };
        read().map_err(|error| unreadable_page(&url, &error))
    };
    args.show(list_columns(), &SystemClock, LIST_PAUSE, shown).await
}

/// The operations of the leader.
pub(crate) async fn fetch_operations(store: &dyn Store) -> Result<OperationsPage, Failure> {
    let (url, body) = fetch_page("ops", store).await?;
    serde_json::from_slice(&body).map_err(|error| unreadable_page(&url, &error))
}

impl OperationsPage {
    /// The nodes and operations that back off, with the remaining time and the last error.
    pub(crate) fn back_offs(&self) -> impl Iterator<Item = (&str, String)> {
        self.backing_off.iter().map(|(subject, seconds)| {
            let error = self.back_off_errors.get(subject).map(|error| format!(": {error}"));
            let error = error.unwrap_or_default();
            (subject.as_str(), format!("for {seconds:.0} s: the last command failed{error}"))
        })
    }
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
    let transport = ReqwestTransport::for_url(url).map_err(|error| Failure::Failed(error.into()))?;
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

/// The reason for which an instance has no page.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

fn page_failure(url: &str, answer: &HttpResponse) -> Failure {
    let why: String = String::from_utf8_lossy(&answer.body).trim().chars().take(MAX_SERVER_TEXT).collect();
    Failure::failed(format_args!(
        "the leader answered the request for {url} with status {}: {}",
        answer.status,
        escape_unprintable(&why)
    ))
}

async fn fetch(url: &str) -> Result<Bytes, Failure> {
    let answer = get_page(url, OPS_DEADLINE).await.map_err(|failure| match failure {
        Failure::Failed(error) => Failure::Failed(error.context("cannot read a page of the leader")),
        other => other,
    })?;
    match answer.status {
        200 => Ok(answer.body),
        404 => {
            let problem: Problem =
                serde_json::from_slice(&answer.body).map_err(|error| unreadable_page(url, &error))?;
            let why = escape_unprintable(&problem.error);
            Err(Failure::failed(format_args!("the leader does not show {url}: {why}")))
        }
        _ => Err(page_failure(url, &answer)),
    }
}

pub(crate) fn list_columns() -> List {
    List::new(&["STATE", "OPERATION", "TARGETS", "DETAIL"], &[]).with_whole_reasons()
}

impl AsList for LeaderOperations {
    /// Running, next and held operations, and the nodes on which no operation runs now.
    fn list(&self, _: OffsetDateTime) -> List {
        let parts = &self.parts;
        let mut list = list_columns();
        let mut add = |state: &str, tone: Tone, operation: &str, targets: &[&str], detail: String| {
            let targets = Cell::new(join_addresses(targets)).with_exact_text(targets.join(" "));
            list.add(vec![Cell::new(state).with_tone(tone), operation.into(), targets, detail.into()]);
        };
        if let Some(ObservedRunning { record, operation, command, targets }) = &parts.running {
            add("running", Tone::Good, operation, &texts(targets), format!("{command} (record {record})"));
        }
        for ShownOperation { name, targets, commands } in &parts.next {
            let commands = commands.iter().map(|it| format!("{} {}", it.name, it.target));
            add("next", Tone::Plain, name, &texts(targets), commands.collect::<Vec<_>>().join(", "));
        }
        for ShownHeld { what, reason, targets, why } in &parts.held {
            add("held", Tone::Notice, what, &texts(targets), format!("{reason}: {why}"));
        }
        for (address, node) in parts.nodes.iter().filter(|(_, node)| !node.reachable) {
            let age = node.age_seconds.map(|age| format!("status {age:.0} s old"));
            let details: Vec<String> = age.into_iter().chain(node.error.clone()).collect();
            add("unreachable", Tone::Bad, "-", &[address], details.join(": "));
        }
        for (subject, details) in parts.back_offs() {
            add("backs-off", Tone::Notice, "-", &[subject], details);
        }
        list
    }

    fn summary(&self) -> String {
        let parts = &self.parts;
        let phase = parts.phase.as_deref().unwrap_or("not decided yet");
        let mut text =
            format!("Phase    {} (mode {})\n", escape_unprintable(phase), escape_unprintable(&parts.mode));
        if parts.running.is_none() {
            text.push_str("Running  nothing\n");
        }
        if !parts.nodes.is_empty() {
            let reachable = parts.nodes.values().filter(|node| node.reachable).count();
            text.push_str(&format!("Nodes    {reachable} of {} reachable\n", parts.nodes.len()));
        }
        text
    }
}

fn texts(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}
