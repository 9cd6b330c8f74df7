//! Which provider is asked for what, and when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use madako_messages::placement::core::MetricsProviderKind;
use madako_messages::placement::providers::{FetchError, Samples};

use super::{Fetch, Notice};
use crate::breaker::Breaker;
use crate::catalog::{ProviderKey, Source};

/// A fetch that lasts this many deadlines is lost: the port promises one.
const LOST_AFTER: u32 = 2;

/// The providers of all metrics that something refers to.
#[derive(Debug, Default)]
pub(super) struct Providers {
    all: BTreeMap<ProviderKey, Provider>,
    /// Providers that are not being asked and have something due, in the order in which it became so.
    queue: VecDeque<ProviderKey>,
    /// Number of the last fetch.
    last: u64,
}

#[derive(Debug)]
struct Provider {
    revision: i64,
    kind: Arc<MetricsProviderKind>,
    breaker: Breaker,
    due: BTreeSet<String>,
    asked: Option<Asked>,
}

#[derive(Debug)]
struct Asked {
    fetch: u64,
    since: Duration,
    names: BTreeSet<String>,
}

/// A fetch that ended.
pub(super) struct Ended {
    pub(super) provider: ProviderKey,
    /// Revision of the provider's definition that it was made by.
    pub(super) revision: i64,
    pub(super) names: BTreeSet<String>,
}

impl Providers {
    /// Forgets providers that nothing comes from any more, and begins anew with those that changed.
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
                asked: None,
            });
        }
    }

    /// A metric is to be asked for at once. Why it is not, if its provider is down; otherwise an answer will come.
    pub(super) fn want(&mut self, source: &Source) -> Option<FetchError> {
        let provider = self.all.get_mut(&source.provider)?;
        if let Some(why) = provider.breaker.open() {
            return Some(why.clone());
        }
        let is_asked = provider.asked.as_ref().is_some_and(|asked| asked.names.contains(source.there()));
        if !is_asked {
            provider.due.insert(source.there().to_owned());
            self.enqueue(&source.provider);
        }
        None
    }

    /// A round begins for a provider.
    pub(super) fn round(&mut self, key: &ProviderKey, names: &BTreeSet<&str>) {
        let Some(provider) = self.all.get_mut(key) else { return };
        if !provider.breaker.round() {
            return;
        }
        let is_asked = |name: &str| provider.asked.as_ref().is_some_and(|asked| asked.names.contains(name));
        let due: Vec<String> =
            names.iter().filter(|name| !is_asked(name)).map(|name| (*name).to_owned()).collect();
        provider.due.extend(due);
        self.enqueue(key);
    }

    /// Fetches to begin now, as many as may run.
    pub(super) fn start(&mut self, elapsed: Duration, deadline: Duration, at_once: usize) -> Vec<Fetch> {
        let running = self.all.values().filter(|provider| provider.asked.is_some()).count();
        let mut fetches = Vec::new();
        while running + fetches.len() < at_once {
            let Some(key) = self.queue.pop_front() else { break };
            let Some(provider) = self.all.get_mut(&key) else { continue };
            if provider.asked.is_some() || provider.due.is_empty() {
                continue;
            }
            self.last += 1;
            let names = std::mem::take(&mut provider.due);
            provider.asked = Some(Asked { fetch: self.last, since: elapsed, names: names.clone() });
            let kind = Arc::clone(&provider.kind);
            fetches.push(Fetch { id: self.last, provider: key, kind, names, deadline });
        }
        fetches
    }

    /// Whether a fetch runs whose answer is wanted.
    pub(super) fn awaits(&self, fetch: u64) -> bool {
        self.all.values().any(|provider| provider.asked.as_ref().is_some_and(|asked| asked.fetch == fetch))
    }

    /// A fetch ended; `None` for one that is not awaited.
    pub(super) fn ended(&mut self, fetch: u64) -> Option<Ended> {
        let (key, provider) = self
            .all
            .iter_mut()
            .find(|(_, provider)| provider.asked.as_ref().is_some_and(|asked| asked.fetch == fetch))?;
        let asked = provider.asked.take()?;
        let ended = Ended { provider: key.clone(), revision: provider.revision, names: asked.names };
        self.enqueue(&ended.provider);
        Some(ended)
    }

    /// Fetches that must have ended long ago, with what they were to bring.
    pub(super) fn lost(&self, elapsed: Duration, deadline: Duration) -> Vec<(u64, BTreeSet<String>)> {
        let asked = self.all.values().filter_map(|provider| provider.asked.as_ref());
        asked
            .filter(|asked| elapsed.saturating_sub(asked.since) > deadline * LOST_AFTER)
            .map(|asked| (asked.fetch, asked.names.clone()))
            .collect()
    }

    /// Judges a provider by what it answered.
    pub(super) fn judge(&mut self, key: &ProviderKey, samples: &Samples) -> Option<Notice> {
        let breaker = &mut self.all.get_mut(key)?.breaker;
        let provider = key.clone();
        let mut errors = samples.values().map(|sample| sample.as_ref().err());
        let answered = errors.clone().any(|error| error.is_none_or(|error| !error.is_providers()));
        if answered {
            return breaker.answered().then_some(Notice::Up { provider });
        }
        let why = errors.next().flatten().filter(|error| !error.is_definition())?.clone();
        breaker.failed(why.clone()).then_some(Notice::Down { provider, why })
    }

    /// The kinds of those that count as down.
    pub(super) fn down(&self) -> impl Iterator<Item = &MetricsProviderKind> {
        self.all.values().filter(|provider| provider.breaker.is_down()).map(|provider| &*provider.kind)
    }

    /// Puts a provider at the end of the queue, unless it waits already or has nothing due.
    fn enqueue(&mut self, key: &ProviderKey) {
        let idle =
            self.all.get(key).is_some_and(|provider| provider.asked.is_none() && !provider.due.is_empty());
        if idle && !self.queue.contains(key) {
            self.queue.push_back(key.clone());
        }
    }
}
