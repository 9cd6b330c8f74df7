//! Clients of the placement API: they create, read, change and delete applications through any instance, and record
//! requests and answers.
//!
//! A client has one call at a time. A name of an object is abandoned after [`CALLS_A_NAME`] calls, or after
//! [`UNKNOWN_A_NAME`] calls with an unknown end, so that its history stays short enough to be judged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio::sync::watch;

use crate::check::linear::{CallResult, ObjectOperation};
use crate::history::{Call, Event, History, RequestEnd};
use crate::pace::ClientPace;
use crate::web::{self, Answer, RequestError, WebRequest};
use crate::world::{NAMESPACE, VALUE, ZONES, application_resource};

/// Calls of an object before its name is abandoned.
const CALLS_A_NAME: u32 = 60;
/// Calls with an unknown end before a name is abandoned: each makes the history harder to judge.
const UNKNOWN_A_NAME: u32 = 4;
/// Time limit of a call: the API itself answers within the time-out of its store, or reports an error.
const WITHIN: Duration = Duration::from_secs(5);
/// Enough clients for several to meet at one object.
pub(crate) const CLIENTS: u32 = 6;

/// An object in current use.
#[derive(Debug, Clone, Default)]
struct ObjectSlot {
    generation: u32,
    calls: u32,
    unknown: u32,
}

#[derive(Debug, Default)]
struct SharedClients {
    slots: BTreeMap<u32, ObjectSlot>,
    value: u64,
}

/// Addresses of the instances by number, through the network with its faults.
pub(crate) type ApiEndpoints = BTreeMap<u32, SocketAddr>;

/// State shared by the clients. A clone shares it.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    history: History,
    endpoints: Arc<ApiEndpoints>,
    shared: Arc<Mutex<SharedClients>>,
}

#[derive(Debug, Clone)]
struct ReadObject {
    body: Value,
    revision: Option<i64>,
    value: u64,
}

impl Clients {
    pub(crate) fn new(history: History, endpoints: ApiEndpoints, objects: u32) -> Self {
        let slots = (1..=objects.max(1)).map(|slot| (slot, ObjectSlot::default())).collect();
        let shared = SharedClients { slots, value: 0 };
        Self { history, endpoints: Arc::new(endpoints), shared: Arc::new(Mutex::new(shared)) }
    }

    pub(crate) async fn fill(&self, mut chance: ChaCha8Rng) {
        let slots: Vec<u32> = self.lock_shared().slots.keys().copied().collect();
        for slot in slots {
            self.create(0, slot, &mut chance).await;
        }
    }

    /// Runs one client with about `rate` calls a second until `stop`.
    pub(crate) async fn run_client(
        self,
        client: u32,
        rate: f64,
        mut chance: ChaCha8Rng,
        stop: watch::Receiver<bool>,
    ) {
        let mut pace = ClientPace::new(rate, chance.random_range(0.0..1.0), stop);
        while pace.wait_for_next_call(&mut chance).await {
            self.send_random_call(client, &mut chance).await;
        }
    }

    async fn send_random_call(&self, client: u32, chance: &mut ChaCha8Rng) {
        let slot = {
            let shared = self.lock_shared();
            let at = chance.random_range(0..shared.slots.len());
            shared.slots.keys().nth(at).copied()
        };
        let Some(slot) = slot else { return };
        match chance.random_range(0..10_u32) {
            0..4 => drop(self.read(client, slot, chance).await),
            4..7 => self.update(client, slot, true, chance).await,
            7 => self.update(client, slot, false, chance).await,
            8 => self.create(client, slot, chance).await,
            _ => self.delete(client, slot, chance).await,
        }
    }

    /// Reads every object once more, through every instance: each acknowledged write must be there. Returns the reads
    /// without an answer.
    pub(crate) async fn read_all(&self) -> Vec<String> {
        let slots: Vec<u32> = self.lock_shared().slots.keys().copied().collect();
        let mut unanswered = Vec::new();
        for slot in slots {
            let name = self.name(slot);
            let path = format!("{}/{name}", list_path());
            for endpoint in &*self.endpoints {
                let (end, _) =
                    self.ask(endpoint, 0, &name, ObjectOperation::Read, WebRequest::get(&path, WITHIN)).await;
                if let RequestEnd::Unknown { .. } | RequestEnd::NotSent = end {
                    unanswered
                        .push(format!("instance={} did not answer a read of {name} in the end", endpoint.0));
                }
            }
        }
        unanswered
    }

    async fn read(&self, client: u32, slot: u32, chance: &mut ChaCha8Rng) -> Option<ReadObject> {
        let name = self.name(slot);
        let path = format!("{}/{name}", list_path());
        let request = WebRequest::get(&path, WITHIN);
        let answer = self.call(client, &name, ObjectOperation::Read, request, chance).await?;
        let body = answer.json();
        let value = value_of_label(&body)?;
        Some(ReadObject { body, revision: answer.revision, value })
    }

    async fn create(&self, client: u32, slot: u32, chance: &mut ChaCha8Rng) {
        let (name, value) = (self.name(slot), self.next_value());
        let zone = chance.random_range(0..=ZONES.len());
        let body = application_resource(&name, ZONES.get(zone).copied(), value);
        let op = ObjectOperation::Create { value };
        let path = list_path();
        let request = WebRequest::send(&Method::POST, &path, &body, WITHIN);
        self.call(client, &name, op, request, chance).await;
        self.retire_name(slot);
    }

    async fn update(&self, client: u32, slot: u32, over: bool, chance: &mut ChaCha8Rng) {
        let name = self.name(slot);
        let Some(ReadObject { mut body, revision, value: is }) = self.read(client, slot, chance).await else {
            return;
        };
        let value = self.next_value();
        body["metadata"]["labels"][VALUE] = value.to_string().into();
        let expected = revision.filter(|_| over);
        let op = ObjectOperation::Write { value, over: expected.map(|_| is) };
        let path = format!("{}/{name}", list_path());
        let request = WebRequest { expected, ..WebRequest::send(&Method::PUT, &path, &body, WITHIN) };
        self.call(client, &name, op, request, chance).await;
        self.retire_name(slot);
    }

    async fn delete(&self, client: u32, slot: u32, chance: &mut ChaCha8Rng) {
        let name = self.name(slot);
        let path = format!("{}/{name}", list_path());
        let request = WebRequest { method: &Method::DELETE, ..WebRequest::get(&path, WITHIN) };
        self.call(client, &name, ObjectOperation::Delete, request, chance).await;
        self.retire_name(slot);
    }

    /// Calls an instance and records the outcome. Returns the answer on success.
    async fn call(
        &self,
        client: u32,
        name: &str,
        op: ObjectOperation,
        request: WebRequest<'_>,
        chance: &mut ChaCha8Rng,
    ) -> Option<Answer> {
        let at = chance.random_range(0..self.endpoints.len().max(1));
        let endpoint = self.endpoints.iter().nth(at)?;
        self.ask(endpoint, client, name, op, request).await.1
    }

    /// Calls one instance and records the outcome.
    async fn ask(
        &self,
        (instance, endpoint): (&u32, &SocketAddr),
        client: u32,
        name: &str,
        op: ObjectOperation,
        ask: WebRequest<'_>,
    ) -> (RequestEnd, Option<Answer>) {
        let (instance, expected, called) = (*instance, ask.expected, self.history.now());
        let answer = web::send_request(*endpoint, ask).await;
        let returned = self.history.now();
        let (end, answer) = outcome_of(op, answer);
        self.note(name, &end);
        let object = format!("/kubernetes/applications/{NAMESPACE}/{name}");
        let call = Call { client, instance, object, op, expected, called, returned, end: end.clone() };
        self.history.note(Event::Call(call));
        (end, answer)
    }

    fn note(&self, name: &str, end: &RequestEnd) {
        let mut shared = self.lock_shared();
        let slot =
            shared.slots.iter_mut().find(|(number, slot)| object_name(**number, slot.generation) == name);
        if let Some((_, slot)) = slot {
            slot.calls += 1;
            slot.unknown += u32::from(matches!(end, RequestEnd::Unknown { .. }));
        }
    }

    /// Abandons a name that was used long enough. Its object stays, or disappears if it is being deleted.
    fn retire_name(&self, slot: u32) {
        let mut shared = self.lock_shared();
        if let Some(slot) = shared.slots.get_mut(&slot)
            && (slot.calls >= CALLS_A_NAME || slot.unknown >= UNKNOWN_A_NAME)
        {
            *slot = ObjectSlot { generation: slot.generation + 1, ..ObjectSlot::default() };
        }
    }

    fn name(&self, slot: u32) -> String {
        let generation = self.lock_shared().slots.get(&slot).map_or(0, |slot| slot.generation);
        object_name(slot, generation)
    }

    fn next_value(&self) -> u64 {
        let mut shared = self.lock_shared();
        shared.value += 1;
        shared.value
    }

    // No panic happens under the lock.
    fn lock_shared(&self) -> MutexGuard<'_, SharedClients> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn client_generator(seed: u64, client: u32) -> ChaCha8Rng {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(CLIENT_STREAMS + u64::from(client));
    chance
}

/// Number of the first stream of the clients' generators.
const CLIENT_STREAMS: u64 = 1_000;

fn object_name(slot: u32, generation: u32) -> String {
    format!("app-{slot}-{generation}")
}

pub(crate) fn list_path() -> String {
    format!("/kubernetes/namespaces/{NAMESPACE}/applications")
}

fn value_of_label(body: &Value) -> Option<u64> {
    body["metadata"]["labels"][VALUE].as_str()?.parse().ok()
}

/// The meaning of an answer for the object, and the answer on success.
fn outcome_of(op: ObjectOperation, answer: Result<Answer, RequestError>) -> (RequestEnd, Option<Answer>) {
    let answer = match answer {
        Ok(answer) => answer,
        Err(RequestError::NotSent(..)) => return (RequestEnd::NotSent, None),
        Err(error) => return (RequestEnd::Unknown { why: error.to_string() }, None),
    };
    let status = answer.status;
    let body = answer.json();
    let deleting = !body["metadata"]["deleted"].is_null() && body["metadata"].is_object();
    let result = match (status, op) {
        // A value that cannot be read is an answer that no state allows.
        (status, ObjectOperation::Read) if status.is_success() => {
            CallResult::Done { value: value_of_label(&body), deleting }
        }
        (status, _) if status.is_success() => CallResult::Done { value: None, deleting },
        (StatusCode::NOT_FOUND, _) => CallResult::Absent,
        (StatusCode::CONFLICT, ObjectOperation::Create { .. }) => CallResult::Exists,
        (StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED, _) => CallResult::Changed,
        // It is unknown whether the call took effect before the error.
        (status, _) if status.is_server_error() => {
            return (RequestEnd::Unknown { why: format!("status {status}") }, None);
        }
        _ => CallResult::Refused,
    };
    let done = matches!(result, CallResult::Done { .. });
    let revision = answer.revision.filter(|_| done);
    (RequestEnd::Answered { status: status.as_u16(), result, revision }, done.then_some(answer))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn answer(status: u16, body: &Value) -> Result<Answer, RequestError> {
        Ok(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            revision: Some(7),
            body: Bytes::from(body.to_string()),
        })
    }

    #[test]
    fn answers_are_read_as_results_of_operations() {
        let there = json!({"metadata": {"labels": {VALUE: "5"}, "deleted": null}});
        let leaving = json!({"metadata": {"labels": {VALUE: "5"}, "deleted": "2026-01-01T00:00:00Z"}});
        let done = |value, deleting| Some(CallResult::Done { value, deleting });
        let write = ObjectOperation::Write { value: 6, over: Some(5) };
        for (op, status, body, result) in [
            (ObjectOperation::Read, 200, &there, done(Some(5), false)),
            (ObjectOperation::Read, 200, &leaving, done(Some(5), true)),
            (ObjectOperation::Read, 404, &Value::Null, Some(CallResult::Absent)),
            (ObjectOperation::Create { value: 5 }, 200, &there, done(None, false)),
            (ObjectOperation::Create { value: 5 }, 409, &Value::Null, Some(CallResult::Exists)),
            (write, 412, &Value::Null, Some(CallResult::Changed)),
            (write, 409, &Value::Null, Some(CallResult::Changed)),
            (write, 400, &Value::Null, Some(CallResult::Refused)),
            (ObjectOperation::Delete, 200, &leaving, done(None, true)),
            (write, 503, &Value::Null, None),
            (ObjectOperation::Read, 503, &there, None),
            (ObjectOperation::Read, 200, &Value::Null, done(None, false)),
            (ObjectOperation::Read, 400, &there, Some(CallResult::Refused)),
            (ObjectOperation::Read, 403, &Value::Null, Some(CallResult::Refused)),
            (ObjectOperation::Read, 302, &Value::Null, Some(CallResult::Refused)),
        ] {
            let (end, answer) = outcome_of(op, answer(status, body));
            assert_eq!(answer.is_some(), matches!(result, Some(CallResult::Done { .. })), "{op:?} {status}");
            match end {
                RequestEnd::Answered { result: is, .. } => assert_eq!(Some(is), result, "{op:?} {status}"),
                end => {
                    assert!(result.is_none() && matches!(end, RequestEnd::Unknown { .. }), "{op:?} {status}")
                }
            }
        }
    }
}
