//! Reports the facts of a simulated run to the oracle in order of time: the store's history, requests to the registry
//! and to the providers, effects on hosts and on Kubernetes, actions of users, and faults.
//!
//! Guarantees: answers of the registry are parsed here, not by the service's own client.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use etcd_client::{Event, EventType};
use madako_datacenter_sim::nodes::SimulatedNodes;
use madako_domain::keys;
use madako_judges::registry::{machines_in_answer, question_of_request};
use madako_judges::{
    Change, Exemptions, Fact, FactTime, FaultPlace, MachineReport, Oracle, Promise, PromiseTerms,
    RegistryQuestion, Verdict,
};
use madako_protocol::permit::Permit;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use serde_json::Value;
use tokio::time::Instant;

use crate::history::History;
use crate::node_facts::fact_of_node;
use crate::prometheus::Prometheus;
use crate::revisions::follow_revisions_from;
use crate::store_process::StoreProcess;
use crate::world::PREFIX;

struct FactsState {
    oracle: Mutex<Oracle>,
    /// Leases of leaders, by epoch.
    leases: Mutex<BTreeMap<i64, i64>>,
    history: History,
    began: Instant,
    /// Number of the next fact of the nodes.
    next: Mutex<u64>,
}

/// Receiver of facts. Clones share their state. The default value ignores facts, for a world without an oracle.
#[derive(Clone, Default)]
pub struct Facts(Option<Arc<FactsState>>);

impl Facts {
    #[must_use]
    pub fn for_terms(terms: PromiseTerms, history: History) -> Self {
        Self::for_oracle(Oracle::new(terms), history)
    }

    /// Knows the leader and the faults alone, for a world whose promises are not judged.
    #[must_use]
    pub fn without_promises(terms: PromiseTerms, history: History) -> Self {
        Self::for_oracle(Oracle::without_promises(terms), history)
    }

    fn for_oracle(oracle: Oracle, history: History) -> Self {
        let (oracle, leases) = (Mutex::new(oracle), Mutex::default());
        let next = Mutex::default();
        Self(Some(Arc::new(FactsState { oracle, leases, history, began: Instant::now(), next })))
    }

    pub fn report(&self, fact: &Fact) {
        let Some(inner) = &self.0 else { return };
        self.report_at(inner.history.now(), fact);
    }

    fn report_at(&self, at: FactTime, fact: &Fact) {
        let Some(inner) = &self.0 else { return };
        let news = inner.oracle.lock().unwrap().observe(at, fact);
        for (promise, what) in news {
            inner.history.note("oracle", format_args!("{}: {what}", promise.name()));
        }
    }

    /// Reports the facts of the nodes since the last call. The world of the nodes and the run begin at the same time.
    pub fn read_nodes(&self, nodes: &SimulatedNodes) {
        let Some(inner) = &self.0 else { return };
        let mut next = inner.next.lock().unwrap();
        for fact in nodes.facts_since(*next) {
            *next = fact.number + 1;
            if let Some(node_fact) = fact_of_node(&fact.what) {
                self.report_at(fact.at, &node_fact);
            }
        }
    }

    /// Reports a fault of a place that ends at once.
    pub fn report_strike(&self, place: &FaultPlace) {
        for begins in [true, false] {
            self.report(&Fact::Troubled { place: place.clone(), clock: false, begins });
        }
    }

    /// Reports that an instance is about to act with a permit.
    pub fn note_permit(&self, instance: &str, permit: &Permit, store: &StoreProcess) {
        let Some(inner) = &self.0 else { return };
        let lease = inner.leases.lock().unwrap().get(&permit.epoch()).copied();
        let rest = lease.and_then(|lease| store.running_etcd()?.lease_remaining(lease));
        let Some(rest) = rest else { return };
        let until = permit.expires_at().saturating_duration_since(inner.began);
        let lease_ends = inner.began.elapsed() + rest;
        self.report(&Fact::Permitted { instance: instance.to_owned(), until, lease_ends });
    }

    /// Reports the history of the whole store, read with its own client.
    pub async fn watch(self, store: StoreProcess) {
        self.watch_from(0, store).await;
    }

    /// As [`Self::watch`], for a copied store: `revision` is the last one before the first write of the run.
    pub async fn watch_from(self, revision: i64, store: StoreProcess) {
        let read = |event: &Event| {
            let kv = event.kv().unwrap();
            let key = kv.key_str().unwrap();
            let is_put = event.event_type() == EventType::Put;
            let value = is_put.then(|| Arc::from(kv.value()));
            let key = key.strip_prefix(PREFIX).unwrap_or(key).to_owned();
            if let Some(inner) = self.0.as_ref().filter(|_| is_put && key.starts_with(keys::LEADER)) {
                inner.leases.lock().unwrap().insert(kv.create_revision(), kv.lease());
            }
            Change { key, value }
        };
        follow_revisions_from(revision + 1, store, "", read, |revision, changes| {
            self.report(&Fact::Stored { revision, changes })
        })
        .await;
    }

    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<Promise, Verdict> {
        self.0.as_ref().map(|inner| inner.oracle.lock().unwrap().verdicts()).unwrap_or_default()
    }

    /// True after a broken promise.
    #[must_use]
    pub fn has_findings(&self) -> bool {
        self.verdicts().values().any(|verdict| !verdict.violations.is_empty())
    }

    /// [`Oracle::is_leading_troubled`]; false without an oracle, which alone knows the faults.
    #[must_use]
    pub fn is_leading_troubled(&self, since: FactTime) -> bool {
        self.0.as_ref().is_some_and(|inner| inner.oracle.lock().unwrap().is_leading_troubled(since))
    }

    #[must_use]
    pub fn exemptions(&self) -> Exemptions {
        self.0.as_ref().map(|inner| inner.oracle.lock().unwrap().exemptions()).unwrap_or_default()
    }

    #[must_use]
    pub fn current_time(&self) -> FactTime {
        self.0.as_ref().map(|inner| inner.history.now()).unwrap_or_default()
    }
}

/// The last complete answer to each question of an instance. Clones share their state.
#[derive(Clone, Default)]
pub struct LastAnswers(Arc<Mutex<BTreeMap<RegistryQuestion, Arc<Vec<MachineReport>>>>>);

impl LastAnswers {
    /// The machines with an address in the last answer.
    #[must_use]
    pub fn answer_to(&self, question: RegistryQuestion) -> Arc<Vec<MachineReport>> {
        self.0.lock().unwrap().get(&question).cloned().unwrap_or_default()
    }
}

/// A transport of an instance to the registry that reports requests and parses answers.
pub struct ToRegistry<T> {
    pub inner: T,
    pub instance: &'static str,
    pub facts: Facts,
    pub answers: LastAnswers,
}

/// Parses JSON; `Null` if the text is not JSON.
fn parse_body(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

#[async_trait]
impl<T: HttpTransport> HttpTransport for ToRegistry<T> {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let question = question_of_request(&parse_body(&request.body));
        self.facts.report(&Fact::Polled { instance: self.instance.to_owned(), question });
        let answer = self.inner.send(request).await;
        let machines = answer
            .as_ref()
            .ok()
            .and_then(|answer| machines_in_answer(&parse_body(&answer.body), self.facts.current_time()));
        if let Some(machines) = machines {
            self.answers.0.lock().unwrap().insert(question, Arc::new(machines));
        }
        answer
    }
}

/// Reports the requests of an instance as they arrive at the providers.
pub struct AtProviders<T> {
    pub inner: T,
    pub instance: &'static str,
    pub facts: Facts,
}

#[async_trait]
impl<T: HttpTransport> HttpTransport for AtProviders<T> {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let what = request_text(&request);
        self.facts.report(&Fact::Fetched { instance: self.instance.to_owned(), what });
        self.inner.send(request).await
    }
}

/// A transport of an instance to the providers that reports outcomes.
pub struct ToProviders<T> {
    pub inner: T,
    pub providers: Prometheus,
    pub facts: Facts,
}

fn request_text(request: &HttpRequest) -> String {
    format!("{}{}", request.url, String::from_utf8_lossy(&request.body))
}

#[async_trait]
impl<T: HttpTransport> HttpTransport for ToProviders<T> {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut provided = ProviderRequest {
            providers: &self.providers,
            facts: &self.facts,
            query: request_text(&request),
            answered: false,
        };
        let answer = self.inner.send(request).await;
        provided.answered = answer.is_ok();
        answer
    }
}

/// Reports the outcome of a request on drop, so that an abandoned request has an outcome too.
struct ProviderRequest<'a> {
    providers: &'a Prometheus,
    facts: &'a Facts,
    query: String,
    answered: bool,
}

impl Drop for ProviderRequest<'_> {
    fn drop(&mut self) {
        for (metric, given) in self.providers.answered_series(&self.query) {
            let good = given && self.answered;
            self.facts.report(&Fact::Provided { metric: metric.to_owned(), good });
        }
    }
}
