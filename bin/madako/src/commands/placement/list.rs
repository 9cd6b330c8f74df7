//! `madako kube app list` and the other lists of placement's resources.
//!
//! The documents are krakectl's. The columns of applications come from their explanations, too: the score of the cluster, and
//! why an application does not run.

use std::collections::BTreeMap;
use std::pin::pin;

use futures::StreamExt as _;
use futures::stream;
use madako_domain::placement::decision::{Counts, Outcome};
use madako_domain::placement::kind::Kind;
use madako_protocol::ports::Clock;
use serde::{Serialize, Serializer};
use serde_json::Value;
use time::OffsetDateTime;

use super::CommandScope;
use super::client::{ApiClient, Request};
use super::explain::{ExplanationView, describe_wait, explanation_request, read_view};
use super::show::{BASE, Column, parse_instant};
use super::words::Resource;
use crate::commands::node::list::age_cell;
use crate::failure::Failure;
use crate::limits::{EXPLAINED_AT_ONCE, EXPLAINING_TAKES, LIST_PAUSE, MAX_EXPLAINED};
use crate::list::{AsList, Cell, List, ListArgs, Tone};
use crate::output::print_note;

pub(super) async fn run(
    api: &ApiClient,
    place: &CommandScope,
    resource: &'static Resource,
    args: &ListArgs,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    let mut shown_remarks = Vec::new();
    let shown = async || {
        let items = read_items(api, place, resource.many).await?;
        let mut explained = ExplainedPlacement::default();
        if resource.kind == Kind::Application && args.has_columns() {
            explained = explain_all(api, &items).await;
        }
        if explained.remarks != shown_remarks {
            explained.remarks.iter().for_each(print_note);
            shown_remarks.clone_from(&explained.remarks);
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
            "{} has no field `items`: check that the configured address is that of a Krake API",
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
    /// The outcome of the decision, without its time, which is that of the question.
    decided: Option<(Outcome, Counts)>,
}

impl Explanation {
    fn from_view(view: &ExplanationView) -> Self {
        let current = view.clusters.iter().find(|candidate| candidate.current);
        let decision = view.decision.as_ref().or(view.last.as_ref());
        let decided = decision.map(|decision| (decision.outcome.clone(), decision.clusters));
        Self { score: current.and_then(|candidate| candidate.score), decided }
    }
}

/// Namespace and name of at most [`MAX_EXPLAINED`] applications. Those that do not run come first, because their lines need
/// the reason.
fn names_to_explain(items: &[Value]) -> Vec<(String, String)> {
    let mut in_order: Vec<&Value> = items.iter().collect();
    in_order.sort_by_key(|item| item["status"]["state"] == "RUNNING");
    in_order.into_iter().filter_map(key).take(MAX_EXPLAINED).collect()
}

/// Asks for explanations, for at most [`EXPLAINING_TAKES`].
async fn explain_all(api: &ApiClient, items: &[Value]) -> ExplainedPlacement {
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
    let mut answered = 0;
    let answers =
        stream::iter(names_to_explain(items).into_iter().map(explain)).buffer_unordered(EXPLAINED_AT_ONCE);
    let mut answers = pin!(answers.take_until(tokio::time::sleep(EXPLAINING_TAKES)));
    while let Some((name, answer)) = answers.next().await {
        answered += 1;
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
    if items.len() > answered {
        explained.remarks.push(format!(
            "not all of {} applications have their scores and reasons, of which the list shows at most {MAX_EXPLAINED}, and \
             those that the leader tells within {} s: name a namespace (-n) to see others",
            items.len(),
            EXPLAINING_TAKES.as_secs()
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

/// The age of an application, whose narrow form has the age of its binding.
const AGE: [Column; 1] = [Column::for_time("age", "/metadata/created")];

/// The other base columns: labels and times. The age is there once.
fn wide_columns(resource: &Resource) -> impl Iterator<Item = &'static Column> {
    let age = if resource.kind == Kind::Application { &AGE[..] } else { &[] };
    BASE[2..3].iter().chain(age).chain(&BASE[4..])
}

pub(super) fn list_columns(resource: &Resource) -> List {
    let mut headings: Vec<String> = narrow_columns(resource).map(Column::heading_text).collect();
    match resource.kind {
        Kind::Application => headings.extend(OF_APPLICATIONS.map(str::to_owned)),
        _ => headings.push("AGE".to_owned()),
    }
    let wide: Vec<String> = wide_columns(resource).map(Column::heading_text).collect();
    List::new(&headings, &wide)
}

impl AsList for ResourceList {
    fn list(&self, now: OffsetDateTime) -> List {
        let mut list = list_columns(self.resource);
        for item in &self.items {
            let mut cells: Vec<Cell> =
                narrow_columns(self.resource).map(|column| make_cell(column, item, now)).collect();
            match self.resource.kind {
                Kind::Application => {
                    let explanation = key(item).and_then(|key| self.explained.by_name.get(&key));
                    cells.extend(application_cells(item, explanation, now));
                }
                _ => cells.push(age_cell(parse_instant(&item["metadata"]["created"]), now)),
            }
            cells.extend(wide_columns(self.resource).map(|column| make_cell(column, item, now)));
            list.add(cells);
        }
        list
    }
}

fn make_cell(column: &Column, item: &Value, now: OffsetDateTime) -> Cell {
    if let Some(time) = column.time_in(item) {
        return age_cell(Some(time), now);
    }
    let mut cell = Cell::new(column.cell_text(item));
    if column.is_empty_in(item) {
        cell = cell.with_exact_text("");
    }
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
        reason_not_running(item, explanation, now).into(),
    ]
}

fn reason_not_running(item: &Value, explanation: Option<&Explanation>, now: OffsetDateTime) -> String {
    let status = &item["status"];
    let decided = explanation.and_then(|explanation| explanation.decided.as_ref());
    if let Some(wait) = decided.and_then(|(outcome, clusters)| describe_wait(outcome, clusters, now)) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn applications_that_do_not_run_are_explained_first() {
        let app = |name: &str, state: &str| json!({"metadata": {"name": name, "namespace": "n"}, "status": {"state": state}});
        let mut items: Vec<Value> =
            (0..MAX_EXPLAINED).map(|number| app(&format!("runs-{number}"), "RUNNING")).collect();
        items.extend([app("failed", "FAILED"), json!({"metadata": {}}), app("pending", "PENDING")]);
        let names = names_to_explain(&items);
        let first: Vec<&str> = names.iter().take(3).map(|(_, name)| name.as_str()).collect();
        assert_eq!((first, names.len()), (vec!["failed", "pending", "runs-0"], MAX_EXPLAINED));
    }
}
