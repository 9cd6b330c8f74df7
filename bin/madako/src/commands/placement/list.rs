//! `madako kube app list` and the other lists of placement's resources.
//!
//! The documents are krakectl's. The columns of applications come from their explanations, too: the score of the cluster, and
//! why an application does not run.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use futures::stream;
use madako_domain::placement::kind::Kind;
use madako_json::krake::timestamp::Timestamp;
use madako_protocol::ports::Clock;
use serde::{Serialize, Serializer};
use serde_json::Value;
use time::OffsetDateTime;

use super::CommandScope;
use super::client::{ApiClient, Request};
use super::explain::{ExplanationView, describe_wait, explanation_request, read_view};
use super::show::{BASE, Column};
use super::words::Resource;
use crate::commands::node::list::age_cell;
use crate::failure::Failure;
use crate::limits::{EXPLAINED_AT_ONCE, LIST_PAUSE, MAX_EXPLAINED};
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::print_note;

pub(super) async fn run(
    api: &ApiClient,
    place: &CommandScope,
    resource: &'static Resource,
    args: &ListArgs,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let mut told = Vec::new();
    let shown = async || {
        let items = read_items(api, place, resource.many).await?;
        let mut explained = ExplainedPlacement::default();
        if resource.kind == Kind::Application && args.has_columns() {
            explained = explain_all(api, &items).await;
        }
        if explained.remarks != told {
            explained.remarks.iter().for_each(print_note);
            told.clone_from(&explained.remarks);
        }
        Ok(ResourceList { resource, items, explained })
    };
    args.show(list_columns(resource), clock, LIST_PAUSE, shown).await
}

/// The names of the resources.
///
/// # Errors
/// The API does not answer.
pub(super) async fn read_names(api: &ApiClient, place: &CommandScope) -> Result<Vec<String>, Failure> {
    let items = read_items(api, place, place.kind.plural()).await?;
    Ok(items.iter().filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).collect())
}

async fn read_items(api: &ApiClient, place: &CommandScope, called: &str) -> Result<Vec<Value>, Failure> {
    let request = Request::new("GET", place.path_segments(&[]), format!("the list of {called}"));
    let mut answer = api.send(&request).await?;
    match answer.body.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(Failure::failed(format_args!(
            "{} has no items: check that the address is that of a Krake API",
            request.subject
        ))),
    }
}

/// The explanations of applications by namespace and name.
#[derive(Debug, Default, PartialEq)]
struct ExplainedPlacement {
    by_name: BTreeMap<(String, String), Explanation>,
    /// Reasons why scores or explanations are missing.
    remarks: Vec<String>,
}

/// The part of an explanation that a line shows.
#[derive(Debug, PartialEq)]
struct Explanation {
    score: Option<f64>,
    wait: Option<String>,
}

impl Explanation {
    fn from_view(view: &ExplanationView) -> Self {
        let current = view.clusters.iter().find(|candidate| candidate.current);
        let decision = view.decision.as_ref().or(view.last.as_ref());
        Self { score: current.and_then(|candidate| candidate.score), wait: decision.and_then(describe_wait) }
    }
}

async fn explain_all(api: &ApiClient, items: &[Value]) -> ExplainedPlacement {
    let names = items.iter().filter_map(key);
    let explain = |(namespace, name): (String, String)| async move {
        let place = CommandScope { kind: Kind::Application, namespace: Some(namespace.clone()) };
        let request = explanation_request(&place, &name);
        let answer = match api.find(&request).await {
            // Deleted meanwhile, or the API is Krake's, which explains nothing.
            Ok(None) => Ok(None),
            Ok(Some(answer)) => read_view(&request, answer).map(|view| Some(Explanation::from_view(&view))),
            Err(failure) => Err(failure),
        };
        ((namespace, name), answer)
    };
    let mut explained = ExplainedPlacement::default();
    let mut first_failure = None;
    let mut answers = stream::iter(names.take(MAX_EXPLAINED).map(explain)).buffered(EXPLAINED_AT_ONCE);
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Ok(Some(explanation)) => drop(explained.by_name.insert(name, explanation)),
            Ok(None) => {}
            Err(failure) => drop(first_failure.get_or_insert(failure)),
        }
    }
    if let Some(failure) = first_failure {
        let why = failure.message().unwrap_or_default();
        explained.remarks.push(format!("scores and reasons are missing: {why}"));
    }
    if items.len() > MAX_EXPLAINED {
        explained.remarks.push(format!(
            "scores and reasons of the first {MAX_EXPLAINED} of {} applications are shown: name a namespace (-n) to see \
             others",
            items.len()
        ));
    }
    explained
}

fn key(item: &Value) -> Option<(String, String)> {
    let text = |name: &str| Some(item["metadata"][name].as_str()?.to_owned());
    Some((text("namespace")?, text("name")?))
}

/// Resources of a kind. The JSON has the documents alone.
struct ResourceList {
    resource: &'static Resource,
    items: Vec<Value>,
    explained: ExplainedPlacement,
}

impl Serialize for ResourceList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(serializer)
    }
}

impl PartialEq for ResourceList {
    fn eq(&self, other: &Self) -> bool {
        (&self.items, &self.explained) == (&other.items, &other.explained)
    }
}

/// Columns of applications in addition to those of the table of kinds.
const OF_APPLICATIONS: [&str; 4] = ["CLUSTER", "SCORE", "SINCE", "WHY NOT RUNNING"];

/// The base columns of the narrow form: the name, and the namespace if there is one.
fn narrow_columns(resource: &Resource) -> impl Iterator<Item = &'static Column> {
    let count = if resource.kind.namespaced() { 2 } else { 1 };
    BASE[..count].iter().chain(resource.columns)
}

/// The other base columns: labels and times.
fn wide_columns() -> &'static [Column] {
    &BASE[2..]
}

fn list_columns(resource: &Resource) -> List {
    let mut headings: Vec<String> = narrow_columns(resource).map(Column::heading_text).collect();
    match resource.kind {
        Kind::Application => headings.extend(OF_APPLICATIONS.map(str::to_owned)),
        _ => headings.push("AGE".to_owned()),
    }
    let wide: Vec<String> = wide_columns().iter().map(Column::heading_text).collect();
    List::new(&headings, &wide)
}

impl AsList for ResourceList {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns(self.resource);
        for item in &self.items {
            let mut cells: Vec<Cell> =
                narrow_columns(self.resource).map(|column| make_cell(column, item)).collect();
            match self.resource.kind {
                Kind::Application => {
                    let explanation = key(item).and_then(|key| self.explained.by_name.get(&key));
                    cells.extend(application_cells(item, explanation, now));
                }
                _ => cells.push(age_cell(parse_instant(&item["metadata"]["created"]), now)),
            }
            cells.extend(wide_columns().iter().map(|column| make_cell(column, item)));
            list.add(cells);
        }
        list
    }
}

fn make_cell(column: &Column, item: &Value) -> Cell {
    let cell = Cell::new(column.cell_text(item));
    match column.value_in(item) {
        Some(Value::Number(number)) => {
            number.as_f64().map_or(cell.clone(), |number| cell.with_order_number(number))
        }
        Some(Value::String(state)) if column.heading_text() == "STATE" => {
            cell.with_tone(tone_of_state(state))
        }
        _ => cell,
    }
}

fn tone_of_state(state: &str) -> Tone {
    match state {
        "RUNNING" | "ONLINE" => Tone::Good,
        "FAILED"
        | "DEGRADED"
        | "OFFLINE"
        | "UNHEALTHY"
        | "NOTREADY"
        | "FAILING_METRICS"
        | "FAILING_RECONCILIATION" => Tone::Bad,
        _ => Tone::Notice,
    }
}

fn parse_instant(value: &Value) -> Option<OffsetDateTime> {
    Some(Timestamp::parse(value.as_str()?)?.instant())
}

/// The cells of [`OF_APPLICATIONS`].
fn application_cells(item: &Value, explanation: Option<&Explanation>, now: OffsetDateTime) -> [Cell; 4] {
    let status = &item["status"];
    let cluster = status["scheduled_to"]["name"].as_str();
    let named = cluster.map(|name| match status["scheduled_to"]["namespace"].as_str() {
        Some(namespace) if item["metadata"]["namespace"] != namespace => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    });
    let score = explanation.and_then(|explanation| explanation.score);
    let bound = cluster.and_then(|_| parse_instant(&status["scheduled"]));
    let shown = score.map_or_else(|| "-".to_owned(), |score| format!("{score:.3}"));
    [
        named.unwrap_or_else(|| "-".to_owned()).into(),
        // The best score first.
        Cell::new(shown).with_order_number(score.map_or(f64::INFINITY, |score| -score)),
        age_cell(bound, now),
        reason_not_running(item, explanation).into(),
    ]
}

fn reason_not_running(item: &Value, explanation: Option<&Explanation>) -> String {
    let status = &item["status"];
    if let Some(wait) = explanation.and_then(|explanation| explanation.wait.clone()) {
        return wait;
    }
    if status["state"] == "RUNNING" {
        return String::new();
    }
    if let Some(message) = status["reason"]["message"].as_str().filter(|message| !message.is_empty()) {
        return message.to_owned();
    }
    match (status["scheduled_to"].is_object(), status["state"].as_str()) {
        (true, Some("PENDING" | "CREATING")) => "waits for its deployment".to_owned(),
        _ => String::new(),
    }
}
