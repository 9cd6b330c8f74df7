//! State of every metric in use, and the schedule of fetches.
//!
//! The actor passes in store changes, answers and the time; [`FetchSchedule::start`] returns the fetches to run, and
//! [`FetchSchedule::observe_metrics`] the known values.

mod providers;
mod track;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use madako_domain::placement::core::MetricsProviderKind;
use madako_domain::placement::metrics::{MetricKey, MetricsObserved};
use madako_domain::placement::objects::{Change, Stored};
use madako_json::krake::tagged::Variants;
use madako_protocol::placement::providers::{FetchError, Samples};
use strum::VariantNames as _;
use time::OffsetDateTime;

use self::providers::{EndedFetch, Providers};
pub use self::track::Condition;
use self::track::MetricTrack;
use crate::catalog::{DefinitionCatalog, ProviderKey, Source};

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Maximum age of a kept value.
    pub max_age: Duration,
    pub deadline: Duration,
    /// Maximum concurrent fetches, without tables.
    pub at_once: usize,
}

/// An instant on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// Wall clock, for display.
    pub at: OffsetDateTime,
    /// Monotonic time since the fetcher began, for ages.
    pub elapsed: Duration,
}

#[derive(Debug, Clone)]
pub struct DueFetch {
    pub id: u64,
    pub provider: ProviderKey,
    pub kind: Arc<MetricsProviderKind>,
    /// Names on the provider.
    pub names: BTreeSet<String>,
    pub deadline: Duration,
}

/// A change to report once.
#[derive(Debug, Clone, PartialEq)]
pub enum ProviderNotice {
    /// A provider counts as down: it is fetched in fewer rounds.
    Down {
        provider: ProviderKey,
        why: FetchError,
    },
    Up {
        provider: ProviderKey,
    },
}

/// State of the metrics of one kind of provider.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FetchSummary {
    /// Metrics in each [`Condition`], in its order.
    pub conditions: [usize; Condition::VARIANTS.len()],
    /// Age of the oldest current value.
    pub oldest: Duration,
    /// Number of providers that count as down.
    pub down: usize,
}

#[derive(Debug)]
pub struct FetchSchedule {
    settings: Settings,
    catalog: DefinitionCatalog,
    revision: i64,
    /// The newest revision for which every metric was answered.
    answered: i64,
    tracks: BTreeMap<MetricKey, MetricTrack>,
    providers: Providers,
    notices: Vec<ProviderNotice>,
}

impl FetchSchedule {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            catalog: DefinitionCatalog::default(),
            revision: 0,
            answered: 0,
            tracks: BTreeMap::new(),
            providers: Providers::default(),
            notices: Vec::new(),
        }
    }

    /// Replaces the catalog by a list of all resources. Known values stay.
    pub fn list(&mut self, revision: i64, objects: &[Arc<Stored>], now: ClockReading) {
        self.catalog = DefinitionCatalog::default();
        for stored in objects {
            self.catalog.put(stored);
        }
        self.revision = revision;
        self.answered = self.answered.min(revision);
        self.follow_catalog(now);
    }

    pub fn change(&mut self, changes: &[Arc<Change>], now: ClockReading) {
        let mut differs = false;
        for change in changes {
            differs |= self.catalog.apply(change);
            self.revision = self.revision.max(change.revision);
        }
        if differs {
            self.follow_catalog(now);
        }
        self.forget_unused();
    }

    /// Begins a metrics round: every metric is due unless a breaker skips it or its fetch is running.
    pub fn begin_round(&mut self, now: ClockReading) {
        // A fetch that never ends, contrary to the port's promise, must not block its provider.
        for (fetch, names) in self.providers.lost_fetches(now.elapsed, self.settings.deadline) {
            let error = FetchError::Deadline { address: "it".to_owned(), deadline: self.settings.deadline };
            let samples = names.into_iter().map(|name| (name, Err(error.clone()))).collect();
            self.record_answer(fetch, samples, now);
        }
        let mut names: BTreeMap<&ProviderKey, BTreeSet<&str>> = BTreeMap::new();
        for source in self.tracks.values().filter_map(MetricTrack::source) {
            names.entry(&source.provider).or_default().insert(source.name_at_provider());
        }
        for (provider, names) in names {
            self.providers.begin_round(provider, &names);
        }
        for track in self.tracks.values_mut() {
            track.expire_old_values(now, self.settings.max_age);
        }
    }

    /// Fetches to run now. The caller passes each result to [`FetchSchedule::record_answer`].
    pub fn start(&mut self, now: ClockReading) -> Vec<DueFetch> {
        self.providers.start(now.elapsed, self.settings.deadline, self.settings.at_once)
    }

    /// True if the answer of a fetch is needed.
    #[must_use]
    pub fn is_awaiting(&self, fetch: u64) -> bool {
        self.providers.is_awaiting(fetch)
    }

    /// Applies the result of a fetch, unless it is no longer needed.
    pub fn record_answer(&mut self, fetch: u64, mut samples: Samples, now: ClockReading) {
        let Some(EndedFetch { provider, revision, names }) = self.providers.end_fetch(fetch) else { return };
        // The port promises an answer for each name, and for no other.
        samples.retain(|name, _| names.contains(name));
        for name in names {
            let missing = FetchError::NotFound { expected: "an answer for each name" };
            samples.entry(name).or_insert(Err(missing));
        }
        self.notices.extend(self.providers.update_breaker(&provider, &samples));
        for (key, track) in &mut self.tracks {
            if let Some(source) = track.source()
                && source.provider == provider
                && source.provider_revision == revision
                && let Some(sample) = samples.get(source.name_at_provider())
            {
                track.record_answer(key, sample, now);
            }
        }
        self.forget_unused();
    }

    pub fn observe_metrics(&mut self, now: ClockReading) -> MetricsObserved {
        for track in self.tracks.values_mut() {
            track.expire_old_values(now, self.settings.max_age);
        }
        let states = self.tracks.iter().filter_map(|(key, track)| Some((key.clone(), track.metric_state()?)));
        MetricsObserved { revision: self.answered, at: now.at, metrics: states.collect() }
    }

    /// Time until the next value expires, without other changes.
    #[must_use]
    pub fn next_too_old(&self, now: ClockReading) -> Option<Duration> {
        let ends =
            self.tracks.values().filter_map(|track| Some(track.time_of_value()? + self.settings.max_age));
        ends.min().map(|end| end.saturating_sub(now.elapsed))
    }

    pub fn take_notices(&mut self) -> Vec<ProviderNotice> {
        std::mem::take(&mut self.notices)
    }

    /// State by kind of provider; `none` for metrics without one.
    #[must_use]
    pub fn summarize_by_kind(&self, now: ClockReading) -> BTreeMap<&'static str, FetchSummary> {
        let kinds = MetricsProviderKind::VARIANTS.iter().map(|(kind, _)| *kind).chain(["none"]);
        let mut all: BTreeMap<&'static str, FetchSummary> =
            kinds.map(|kind| (kind, FetchSummary::default())).collect();
        for track in self.tracks.values() {
            let summary = all.entry(track.source().map_or("none", |source| source.kind.tag())).or_default();
            summary.conditions[track.metric_condition() as usize] += 1;
            if let Some(since) = track.time_of_value() {
                summary.oldest = summary.oldest.max(now.elapsed.saturating_sub(since));
            }
        }
        for kind in self.providers.providers_down() {
            all.entry(kind.tag()).or_default().down += 1;
        }
        all
    }

    /// Updates tracks and providers from the catalog.
    fn follow_catalog(&mut self, now: ClockReading) {
        let wanted = self.catalog.wanted_metrics();
        self.tracks.retain(|key, _| wanted.contains(key));
        for key in wanted {
            let resolved = self.catalog.resolve(&key);
            self.tracks.entry(key).or_insert_with(|| MetricTrack::new(now)).set_definition(resolved);
        }
        let sources: Vec<&Source> = self.tracks.values().filter_map(MetricTrack::source).collect();
        self.providers.keep(&sources);
        for track in self.tracks.values().filter(|track| track.is_pending()) {
            if let Some(source) = track.source() {
                self.providers.schedule_at_once(source);
            }
        }
        self.forget_unused();
    }

    /// Advances the answered revision when no answer is awaited.
    fn forget_unused(&mut self) {
        if !self.tracks.values().any(MetricTrack::is_pending) {
            self.answered = self.revision;
        }
    }
}
