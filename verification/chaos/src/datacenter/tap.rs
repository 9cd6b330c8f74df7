//! An HTTP proxy in front of the simulated servers that records their answers, and corrupts them on request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use madako_judges::{MachineReport, RegistryQuestion, registry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::VariantArray;
use time::OffsetDateTime;

use super::journal::{Journal, JournalError, LineContent};

/// Bytes of an answer: 10,000 machines have some 5 MiB.
const MAX_ANSWER: usize = 64 << 20;

/// Kinds of corruption of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum CorruptAnswer {
    /// Ends in the middle.
    CutShort,
    /// Strings become numbers, and numbers strings.
    WrongTypes,
    Empty,
    /// A third of the list is missing.
    PartsMissing,
    /// The server reports an error.
    Error,
}

impl CorruptAnswer {
    /// True if a corrupted answer can be read as a list.
    #[must_use]
    pub fn is_list(self) -> bool {
        matches!(self, Self::Empty | Self::PartsMissing)
    }
}

/// State times of two answers that differ by less than this are the same.
const SAME_BEGINNING: Duration = Duration::from_secs(1);

/// JSON pointers of the lists in the answers of the registry and of the provider.
const LISTS: [&str; 2] = ["/data/searchMachines", "/data/result"];

pub(super) struct AnswerTap {
    pub(super) journal: Journal,
    state: Mutex<TapState>,
}

#[derive(Default)]
struct TapState {
    chance: Option<ChaCha8Rng>,
    /// The machines in the last recorded answer, so that an equal answer is not repeated in the journal.
    last_reports: BTreeMap<RegistryQuestion, Vec<MachineReport>>,
}

impl AnswerTap {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, state: Mutex::default() }
    }

    /// Corrupts every answer from now on, each in a way drawn by the seed; `None` ends it.
    pub(super) fn set_corruption(&self, seed: Option<u64>) -> Result<(), JournalError> {
        self.journal.write(LineContent::Corrupt { on: seed.is_some() })?;
        self.lock_state().chance = seed.map(ChaCha8Rng::seed_from_u64);
        Ok(())
    }

    fn draw_corruption(&self) -> Option<CorruptAnswer> {
        let mut state = self.lock_state();
        let chance = state.chance.as_mut()?;
        Some(CorruptAnswer::VARIANTS[chance.random_range(0..CorruptAnswer::VARIANTS.len())])
    }

    /// Records the registry's answer before the service gets it.
    fn note_poll(
        &self,
        question: RegistryQuestion,
        answer: &Value,
        spoilt: Option<CorruptAnswer>,
    ) -> Result<(), JournalError> {
        let now = (self.journal.now() - OffsetDateTime::UNIX_EPOCH).try_into().unwrap_or_default();
        let mut machines = match spoilt {
            Some(spoilt) if !spoilt.is_list() => None,
            _ => registry::machines_in_answer(answer, now),
        };
        let mut state = self.lock_state();
        if machines
            .as_ref()
            .zip(state.last_reports.get(&question))
            .is_some_and(|(new, last_reports)| are_same(new, last_reports))
        {
            machines = None;
        } else if let Some(machines) = &machines {
            state.last_reports.insert(question, machines.clone());
        }
        self.journal.write(LineContent::Polled { question, machines, spoilt }).map(drop)
    }

    /// Records the provider's answer before the service gets it.
    fn note_fetch(
        &self,
        request: String,
        answer: &Value,
        spoilt: Option<CorruptAnswer>,
    ) -> Result<(), JournalError> {
        let readable = spoilt.is_none_or(CorruptAnswer::is_list);
        let series = answer.pointer(LISTS[1]).and_then(Value::as_array).filter(|_| readable);
        let values = series.into_iter().flatten().filter_map(metric_value).collect();
        self.journal.write(LineContent::Fetched { request, values }).map(drop)
    }

    // No panic happens under the lock.
    fn lock_state(&self) -> MutexGuard<'_, TapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn are_same(one: &[MachineReport], other: &[MachineReport]) -> bool {
    let same = |(one, other): (&MachineReport, &MachineReport)| {
        (&one.address, one.state) == (&other.address, other.state)
            && one.since.abs_diff(other.since) < SAME_BEGINNING
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

fn metric_value(series: &Value) -> Option<(String, f64)> {
    let name = series.pointer("/metric/__name__")?.as_str()?;
    Some((name.to_owned(), series.pointer("/value/1")?.as_str()?.parse().ok()?))
}

/// The mark of an answer without an end, which passes as it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streamed;

pub(super) fn tap_router(server: Router, tap: &Arc<AnswerTap>) -> Router {
    server.layer(from_fn_with_state(Arc::clone(tap), record_and_corrupt))
}

async fn record_and_corrupt(State(tap): State<Arc<AnswerTap>>, request: Request, next: Next) -> Response {
    let request_uri = request.uri().to_string();
    let (mut head, body) = next.run(request).await.into_parts();
    if head.extensions.get::<Streamed>().is_some() {
        return Response::from_parts(head, body);
    }
    let failed = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    let body = match to_bytes(body, MAX_ANSWER).await {
        Ok(body) => body,
        Err(error) => return failed(error.to_string()),
    };
    let spoilt = tap.draw_corruption();
    let mut answer = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let has_values = answer.pointer(LISTS[1]).is_some();
    let text = match spoilt {
        None | Some(CorruptAnswer::Error) => body,
        Some(CorruptAnswer::CutShort) => body.slice(..body.len() / 2),
        Some(way) => {
            spoil_answer(&mut answer, way);
            answer.to_string().into()
        }
    };
    let noted = match head.extensions.get::<RegistryQuestion>() {
        Some(question) => tap.note_poll(*question, &answer, spoilt),
        None if has_values => tap.note_fetch(request_uri, &answer, spoilt),
        None => Ok(()),
    };
    if let Err(error) = noted {
        // An answer that is not recorded must not reach the service.
        tracing::error!(error = &error as &dyn std::error::Error, "cannot write the journal");
        return failed("cannot write the journal".to_owned());
    }
    if spoilt == Some(CorruptAnswer::Error) {
        return failed("out of order".to_owned());
    }
    head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    Response::from_parts(head, Body::from(text))
}

fn spoil_answer(answer: &mut Value, way: CorruptAnswer) {
    if way == CorruptAnswer::WrongTypes {
        return change_kinds(answer);
    }
    for list in LISTS {
        if let Some(Value::Array(items)) = answer.pointer_mut(list) {
            let left = if way == CorruptAnswer::Empty { 0 } else { items.len() - items.len().div_ceil(3) };
            items.truncate(left);
        }
    }
}

fn change_kinds(value: &mut Value) {
    match value {
        Value::String(text) => *value = Value::from(text.len()),
        Value::Number(number) => *value = Value::from(number.to_string()),
        Value::Array(items) => items.iter_mut().for_each(change_kinds),
        Value::Object(members) => members.values_mut().for_each(change_kinds),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_corruption_changes_the_answer_of_the_registry() {
        let machine = |n: usize| json!({"spec": {"ipv4": [format!("10.0.0.{n}")]}});
        let answer = json!({"data": {"searchMachines": (0..6).map(machine).collect::<Vec<_>>()}});
        let spoilt = |way| {
            let mut answer = answer.clone();
            spoil_answer(&mut answer, way);
            let left = answer.pointer(LISTS[0]).unwrap().as_array().unwrap().iter();
            left.filter(|machine| machine.pointer("/spec/ipv4/0").is_some_and(Value::is_string)).count()
        };
        let left = [CorruptAnswer::WrongTypes, CorruptAnswer::Empty, CorruptAnswer::PartsMissing].map(spoilt);
        assert_eq!(left, [0, 0, 4]);
    }

    #[test]
    fn values_are_read_as_prometheus_writes_them() {
        let series = json!({"metric": {"__name__": "free_a"}, "value": [1, "12.5"]});
        assert_eq!(metric_value(&series), Some(("free_a".to_owned(), 12.5)));
        assert_eq!(metric_value(&json!({"metric": {}})), None);
    }
}
