//! Schedules the fetches of each provider.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_protocol::placement::providers::Samples;

use super::{DueFetch, ProviderNotice};
use crate::breaker::Breaker;
use crate::catalog::{ProviderKey, Source};

/// Divisor: one namespace gets at most this part of the slots, so that the others can always be fetched.
const NAMESPACE_PART: usize = 2;

/// Divisor: providers whose last fetch failed get at most this part of the slots, as they usually run into their
/// deadline. It is less than a namespace's part, so that healthy providers of that namespace are fetched as well.
const FAILING_PART: usize = 3;

const _: () = assert!(FAILING_PART > NAMESPACE_PART);

/// A fetch that lasts this many deadlines is lost: the port promises one.
const LOST_AFTER: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Providers {
    all: BTreeMap<ProviderKey, Provider>,
    /// Idle providers with due names, in FIFO order.
    queue: VecDeque<ProviderKey>,
    last: u64,
}

#[derive(Debug)]
struct Provider {
    revision: i64,
    kind: Arc<MetricsProviderKind>,
    breaker: Breaker,
    due: BTreeSet<String>,
    running: Option<RunningFetch>,
}

#[derive(Debug)]
struct RunningFetch {
    id: u64,
    since: Duration,
    names: BTreeSet<String>,
}

pub(super) struct EndedFetch {
    pub(super) provider: ProviderKey,
    /// Revision of the provider's definition for this fetch.
    pub(super) revision: i64,
    pub(super) names: BTreeSet<String>,
}

impl Providers {
    /// Forgets unused providers, and resets changed ones.
    pub(super) fn keep(&mut self, sources: &[&Source]) {
        let needed: BTreeMap<&ProviderKey, &Source> =
            sources.iter().map(|source| (&source.provider, *source)).collect();
        self.all.retain(|key, provider| {
            needed.get(key).is_some_and(|source| source.provider_revision == provider.revision)
        });
        for (key, source) in needed {
            self.all.entry(key.clone()).or_insert_with(|| Provider {
                revision: source.provider_revision,
                kind: Arc::clone(&source.kind),
                breaker: Breaker::default(),
                due: BTreeSet::new(),
                running: None,
            });
        }
    }

    /// Schedules a metric at once, even if its provider counts as down: errors of other metrics are not an answer for it.
    pub(super) fn schedule_at_once(&mut self, source: &Source) {
        let Some(provider) = self.all.get_mut(&source.provider) else { return };
        let is_asked = provider
            .running
            .as_ref()
            .is_some_and(|running| running.names.contains(source.name_at_provider()));
        if !is_asked {
            provider.due.insert(source.name_at_provider().to_owned());
            self.enqueue(&source.provider);
        }
    }

    pub(super) fn begin_round(&mut self, key: &ProviderKey, names: &BTreeSet<&str>) {
        let Some(provider) = self.all.get_mut(key) else { return };
        if !provider.breaker.begin_round() {
            return;
        }
        let is_asked =
            |name: &str| provider.running.as_ref().is_some_and(|running| running.names.contains(name));
        let due: Vec<String> =
            names.iter().filter(|name| !is_asked(name)).map(|name| (*name).to_owned()).collect();
        provider.due.extend(due);
        self.enqueue(key);
    }

    /// Fetches to begin now: all tables, which do not block, and as many others as slots allow.
    pub(super) fn start(&mut self, elapsed: Duration, deadline: Duration, at_once: usize) -> Vec<DueFetch> {
        let all = &self.all;
        self.queue.retain(|key| all.get(key).is_some_and(Provider::is_due));
        let (tables, others): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|key| all.get(key).is_some_and(Provider::is_table));
        self.queue = others;
        let mut places = Slots::new(at_once);
        for (key, provider) in all.iter().filter(|(_, provider)| provider.running.is_some()) {
            places.take(key, provider);
        }
        let mut begun: Vec<ProviderKey> = tables.into();
        while let Some(at) = places.next_startable(&self.queue, all) {
            let Some(key) = self.queue.remove(at) else { break };
            if let Some(provider) = all.get(&key) {
                places.take(&key, provider);
            }
            begun.push(key);
        }
        begun.into_iter().filter_map(|key| self.begin(key, elapsed, deadline)).collect()
    }

    fn begin(&mut self, key: ProviderKey, elapsed: Duration, deadline: Duration) -> Option<DueFetch> {
        let provider = self.all.get_mut(&key)?;
        self.last += 1;
        let names = std::mem::take(&mut provider.due);
        provider.running = Some(RunningFetch { id: self.last, since: elapsed, names: names.clone() });
        let kind = Arc::clone(&provider.kind);
        Some(DueFetch { id: self.last, provider: key, kind, names, deadline })
    }

    /// True if the answer of a running fetch is needed.
    pub(super) fn is_awaiting(&self, fetch: u64) -> bool {
        self.all.values().any(|provider| provider.running.as_ref().is_some_and(|running| running.id == fetch))
    }

    /// Ends a fetch; `None`: its answer is not needed.
    pub(super) fn end_fetch(&mut self, fetch: u64) -> Option<EndedFetch> {
        let (key, provider) = self
            .all
            .iter_mut()
            .find(|(_, provider)| provider.running.as_ref().is_some_and(|running| running.id == fetch))?;
        let running = provider.running.take()?;
        let ended = EndedFetch { provider: key.clone(), revision: provider.revision, names: running.names };
        self.enqueue(&ended.provider);
        Some(ended)
    }

    /// Fetches beyond their time, with their names.
    pub(super) fn lost_fetches(&self, elapsed: Duration, deadline: Duration) -> Vec<(u64, BTreeSet<String>)> {
        let running = self.all.values().filter_map(|provider| provider.running.as_ref());
        running
            .filter(|fetch| elapsed.saturating_sub(fetch.since) > deadline * LOST_AFTER)
            .map(|fetch| (fetch.id, fetch.names.clone()))
            .collect()
    }

    pub(super) fn update_breaker(&mut self, key: &ProviderKey, samples: &Samples) -> Option<ProviderNotice> {
        let breaker = &mut self.all.get_mut(key)?.breaker;
        let provider = key.clone();
        let mut errors = samples.values().map(|sample| sample.as_ref().err());
        let answered = errors.clone().any(|error| error.is_none_or(|error| !error.is_providers()));
        if answered {
            return breaker.record_answer().then_some(ProviderNotice::Up { provider });
        }
        let why = errors.next().flatten().filter(|error| !error.is_definition())?.clone();
        breaker.record_failure().then_some(ProviderNotice::Down { provider, why })
    }

    pub(super) fn providers_down(&self) -> impl Iterator<Item = &MetricsProviderKind> {
        self.all.values().filter(|provider| provider.breaker.is_down()).map(|provider| &*provider.kind)
    }

    /// Appends a provider to the queue, unless it is queued or has nothing due.
    fn enqueue(&mut self, key: &ProviderKey) {
        if self.all.get(key).is_some_and(Provider::is_due) && !self.queue.contains(key) {
            self.queue.push_back(key.clone());
        }
    }
}

impl Provider {
    /// True if it has due names and no running fetch.
    fn is_due(&self) -> bool {
        self.running.is_none() && !self.due.is_empty()
    }

    fn is_table(&self) -> bool {
        matches!(*self.kind, MetricsProviderKind::Static(_))
    }

    fn has_failed_last_fetch(&self) -> bool {
        self.breaker.failures() > 0
    }
}

/// Slots of running fetches. A hanging provider must not take the slots of others: one namespace (or the global
/// scope) gets at most half of them, and all providers whose last fetch failed get a third.
struct Slots {
    at_once: usize,
    taken: usize,
    by_failing: usize,
    by_namespace: BTreeMap<Option<String>, usize>,
}

impl Slots {
    fn new(at_once: usize) -> Self {
        Self { at_once, taken: 0, by_failing: 0, by_namespace: BTreeMap::new() }
    }

    fn take(&mut self, key: &ProviderKey, provider: &Provider) {
        if provider.is_table() {
            return;
        }
        self.taken += 1;
        self.by_failing += usize::from(provider.has_failed_last_fetch());
        *self.by_namespace.entry(key.namespace.clone()).or_default() += 1;
    }

    fn taken_by_namespace(&self, key: &ProviderKey) -> usize {
        self.by_namespace.get(&key.namespace).copied().unwrap_or_default()
    }

    /// The next provider: last fetch succeeded before failed, then fewest slots of its namespace, then fewest
    /// failures, then longest wait.
    fn next_startable(
        &self,
        queue: &VecDeque<ProviderKey>,
        all: &BTreeMap<ProviderKey, Provider>,
    ) -> Option<usize> {
        if self.taken >= self.at_once {
            return None;
        }
        let of_failing = (self.at_once / FAILING_PART).max(1);
        let of_namespace = (self.at_once / NAMESPACE_PART).max(1);
        let waiting = queue.iter().enumerate().filter_map(|(at, key)| Some((at, key, all.get(key)?)));
        waiting
            .filter(|(_, key, provider)| {
                self.taken_by_namespace(key) < of_namespace
                    && (self.by_failing < of_failing || !provider.has_failed_last_fetch())
            })
            .min_by_key(|(at, key, provider)| {
                (
                    provider.has_failed_last_fetch(),
                    self.taken_by_namespace(key),
                    provider.breaker.failures(),
                    *at,
                )
            })
            .map(|(at, ..)| at)
    }
}
