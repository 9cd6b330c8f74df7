//! Metrics that begin where other ones are, and walk: what providers of a copied system give.
//!
//! Each provider is asked over a link of its own, so that it can fail by itself. A value makes a step of at most so much, up or
//! down by chance, once a minute, and stays between the bounds of its definition; what stands in a table, or may only have certain
//! values, stays as it is.
//!
//! Guarantees: a value depends on the seed and on the time alone: not on who asks, nor on how often.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use madako_domain::placement::core::MetricsProviderKind;
use madako_protocol::placement::providers::{FetchError, MetricsProviders, Sample, Samples};
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use tokio::time::{Instant, sleep};

use crate::network::{Network, Place};
use crate::routed::Routed;

/// Time between two steps of a value.
pub const STEP: Duration = Duration::from_secs(60);

/// What an answer takes when nothing is wrong.
const LATENCY: Duration = Duration::from_millis(20);

/// The first stream of the seed that values draw from: below are those of a run.
const FIRST_STREAM: u64 = 1 << 32;

/// A provider, and the metrics that are asked of it.
#[derive(Debug, Clone)]
pub struct CopiedProvider {
    /// Its name, as a fault has it.
    pub name: String,
    /// What it is.
    pub kind: Arc<MetricsProviderKind>,
    /// Its metrics, by their names there.
    pub metrics: BTreeMap<String, CopiedMetric>,
}

/// A metric.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiedMetric {
    /// The metrics that it is the value of, by their names in the store.
    pub names: BTreeSet<String>,
    /// The least value that counts.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
    /// Whether it keeps the value that it has.
    pub fixed: bool,
    /// The value that it begins with; `None`: it is not known.
    pub value: Option<f64>,
}

impl CopiedMetric {
    /// The value that it begins with: the known one, or the middle between its bounds.
    #[must_use]
    pub fn begins(&self) -> f64 {
        self.value.unwrap_or(self.least / 2.0 + self.greatest / 2.0)
    }
}

impl CopiedProvider {
    /// Whether it is asked over the network, so that it can fail.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        !matches!(*self.kind, MetricsProviderKind::Static(_))
    }
}

struct Walking {
    value: f64,
    steps: u32,
    stride: f64,
    bounds: (f64, f64),
    chance: ChaCha8Rng,
}

impl Walking {
    fn after(&mut self, steps: u32) -> f64 {
        while self.steps < steps && self.stride > 0.0 {
            self.steps += 1;
            let step = self.chance.random_range(-self.stride..self.stride);
            self.value = (self.value + step).clamp(self.bounds.0, self.bounds.1);
        }
        self.value
    }
}

struct Inside {
    began: Instant,
    providers: Vec<CopiedProvider>,
    /// Names of those that can fail, in order: their numbers are their places.
    names: Vec<String>,
    values: Mutex<BTreeMap<(usize, String), Walking>>,
    corrupt: Mutex<BTreeSet<u32>>,
    /// When the values stopped.
    stopped: Mutex<Option<Duration>>,
}

/// All providers of a copy. Clones are the same.
#[derive(Clone)]
pub struct Walk(Arc<Inside>);

impl Walk {
    /// Begins now. A step is at most so much of a metric's range.
    #[must_use]
    pub fn new(seed: u64, providers: Vec<CopiedProvider>, percent: f64) -> Self {
        let mut values = BTreeMap::new();
        for (at, provider) in providers.iter().enumerate() {
            for (name, metric) in &provider.metrics {
                let range = metric.greatest - metric.least;
                let walks = range.is_finite() && range > 0.0 && !metric.fixed;
                let mut chance = ChaCha8Rng::seed_from_u64(seed);
                chance.set_stream(FIRST_STREAM + values.len() as u64);
                let walking = Walking {
                    value: metric.begins(),
                    steps: 0,
                    stride: if walks { range * percent / 100.0 } else { 0.0 },
                    bounds: (metric.least, metric.greatest),
                    chance,
                };
                values.insert((at, name.clone()), walking);
            }
        }
        let elsewhere = providers.iter().filter(|provider| provider.is_elsewhere());
        let names: BTreeSet<String> = elsewhere.map(|provider| provider.name.clone()).collect();
        Self(Arc::new(Inside {
            began: Instant::now(),
            names: names.into_iter().collect(),
            providers,
            values: Mutex::new(values),
            corrupt: Mutex::default(),
            stopped: Mutex::default(),
        }))
    }

    /// Where the provider of a name is, if there is one that can fail.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<Place> {
        let at = self.0.names.iter().position(|own| own == name)?;
        Some(Place::ProviderOf(u32::try_from(at).ok()?))
    }

    /// From now on each answer of a provider is wrong, or right again.
    pub fn corrupt(&self, provider: u32, corrupt: bool) {
        let mut corrupted = self.0.corrupt.lock().unwrap();
        if corrupt {
            corrupted.insert(provider);
        } else {
            corrupted.remove(&provider);
        }
    }

    /// From now on each value stays as it is.
    pub fn stop(&self) {
        self.0.stopped.lock().unwrap().get_or_insert(self.0.began.elapsed());
    }

    /// As one instance reaches them.
    #[must_use]
    pub fn over(&self, network: &Network, from: Place, requests: &Arc<AtomicU64>) -> Fetching {
        let numbers = 0..u32::try_from(self.0.names.len()).unwrap_or(u32::MAX);
        let ways = numbers.map(|number| {
            let link = network.link(from, Place::ProviderOf(number));
            Routed::new(Answering, link, Arc::clone(requests))
        });
        Fetching { walk: self.clone(), ways: ways.collect() }
    }

    fn value(&self, at: usize, name: &str) -> Option<f64> {
        let elapsed = self.0.stopped.lock().unwrap().unwrap_or_else(|| self.0.began.elapsed());
        let steps = u32::try_from(elapsed.as_secs() / STEP.as_secs()).unwrap_or(u32::MAX);
        self.0.values.lock().unwrap().get_mut(&(at, name.to_owned())).map(|walking| walking.after(steps))
    }
}

/// Answers every request in the time that an answer takes: what it would say is known here.
struct Answering;

#[async_trait]
impl HttpTransport for Answering {
    async fn send(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        sleep(LATENCY).await;
        Ok(HttpResponse { status: 200, headers: Vec::new(), body: Bytes::new() })
    }
}

/// The providers, as one instance reaches them.
pub struct Fetching {
    walk: Walk,
    ways: Vec<Routed<Answering>>,
}

impl Fetching {
    async fn reach(&self, name: &str, deadline: Duration) -> Result<(), FetchError> {
        let Some(Place::ProviderOf(number)) = self.walk.place(name) else { return Ok(()) };
        let address = format!("provider {name}");
        let request = HttpRequest {
            method: HttpMethod::Get,
            url: address.clone(),
            headers: Vec::new(),
            body: Bytes::new(),
            deadline,
            max_response_bytes: 0,
        };
        match self.ways[number as usize].send(request).await {
            Ok(_) if self.walk.0.corrupt.lock().unwrap().contains(&number) => {
                Err(FetchError::Malformed { address, why: "the rehearsal makes it so".to_owned() })
            }
            Ok(_) => Ok(()),
            Err(HttpError::Deadline { deadline, .. }) => Err(FetchError::Deadline { address, deadline }),
            Err(HttpError::Connect { why, .. }) => Err(FetchError::Unreachable { address, why }),
            Err(other) => Err(FetchError::CutOff { address, why: other.to_string() }),
        }
    }
}

#[async_trait]
impl MetricsProviders for Fetching {
    async fn fetch(
        &self,
        provider: &MetricsProviderKind,
        names: &BTreeSet<String>,
        deadline: Duration,
    ) -> Samples {
        let all = |error: &FetchError| {
            names.iter().map(|name| (name.clone(), Err(error.clone()))).collect::<Samples>()
        };
        let Some(at) = self.walk.0.providers.iter().position(|copied| *copied.kind == *provider) else {
            let why = "it was not there when the system was copied".to_owned();
            return all(&FetchError::Definition { why });
        };
        if let Err(error) = self.reach(&self.walk.0.providers[at].name, deadline).await {
            return all(&error);
        }
        let sample = |name: &String| match self.walk.value(at, name) {
            Some(value) => Ok(Sample { value, note: None }),
            None => Err(FetchError::NotFound { expected: "a metric that was copied" }),
        };
        names.iter().map(|name| (name.clone(), sample(name))).collect()
    }
}

#[cfg(test)]
mod tests;
