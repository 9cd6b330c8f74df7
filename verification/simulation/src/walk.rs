//! Metrics of a copied system: each value starts at its copied value and takes random steps.
//!
//! The network has a link for each provider, so that providers fail independently. Once a minute a value moves up or
//! down by at most a given share of its range and stays within the bounds of its definition. Values of static providers
//! and values with a list of allowed values stay constant.
//!
//! Guarantees: a value depends only on the seed and the time, not on the requesting instance or the number of requests.

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

use crate::network::{Endpoint, Network};
use crate::routed::LinkedTransport;

/// Time between two steps of a value.
pub const STEP: Duration = Duration::from_secs(60);

/// Duration of an answer without faults.
const LATENCY: Duration = Duration::from_millis(20);

/// First random stream of the values; the run itself draws from lower streams.
const FIRST_STREAM: u64 = 1 << 32;

#[derive(Debug, Clone)]
pub struct CopiedProvider {
    pub name: String,
    pub kind: Arc<MetricsProviderKind>,
    pub metrics: BTreeMap<String, CopiedMetric>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CopiedMetric {
    /// Names in the store of all metrics with this value.
    pub names: BTreeSet<String>,
    /// Minimum of the definition.
    pub least: f64,
    /// Maximum of the definition.
    pub greatest: f64,
    /// True if the value stays constant.
    pub fixed: bool,
    /// Copied value; `None` if it is unknown.
    pub value: Option<f64>,
}

impl CopiedMetric {
    /// First value: the copied one, or the middle of the range.
    #[must_use]
    pub fn initial_value(&self) -> f64 {
        self.value.unwrap_or(self.least / 2.0 + self.greatest / 2.0)
    }
}

impl CopiedProvider {
    /// True if the network lies between the instances and the provider, so that the provider can fail.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        !matches!(*self.kind, MetricsProviderKind::Static(_))
    }
}

struct WalkingMetric {
    value: f64,
    steps: u32,
    stride: f64,
    bounds: (f64, f64),
    chance: ChaCha8Rng,
}

impl WalkingMetric {
    fn value_after(&mut self, steps: u32) -> f64 {
        while self.steps < steps && self.stride > 0.0 {
            self.steps += 1;
            let step = self.chance.random_range(-self.stride..self.stride);
            self.value = (self.value + step).clamp(self.bounds.0, self.bounds.1);
        }
        self.value
    }
}

struct WalkState {
    began: Instant,
    providers: Vec<CopiedProvider>,
    /// Sorted names of the providers that can fail; the index is the provider's number.
    names: Vec<String>,
    values: Mutex<BTreeMap<(usize, String), WalkingMetric>>,
    corrupt: Mutex<BTreeSet<u32>>,
    /// Time at which the values stopped changing.
    stopped: Mutex<Option<Duration>>,
}

/// All providers of a copy. Clones share their state.
#[derive(Clone)]
pub struct RandomWalk(Arc<WalkState>);

impl RandomWalk {
    /// Starts now. A step is at most `percent` of a metric's range.
    #[must_use]
    pub fn new(seed: u64, providers: Vec<CopiedProvider>, percent: f64) -> Self {
        let mut values = BTreeMap::new();
        for (at, provider) in providers.iter().enumerate() {
            for (name, metric) in &provider.metrics {
                let range = metric.greatest - metric.least;
                let walks = range.is_finite() && range > 0.0 && !metric.fixed;
                let mut chance = ChaCha8Rng::seed_from_u64(seed);
                chance.set_stream(FIRST_STREAM + values.len() as u64);
                let walking = WalkingMetric {
                    value: metric.initial_value(),
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
        Self(Arc::new(WalkState {
            began: Instant::now(),
            names: names.into_iter().collect(),
            providers,
            values: Mutex::new(values),
            corrupt: Mutex::default(),
            stopped: Mutex::default(),
        }))
    }

    /// The place of the named provider; `None` if the provider cannot fail.
    #[must_use]
    pub fn endpoint_of(&self, name: &str) -> Option<Endpoint> {
        let at = self.0.names.iter().position(|own| own == name)?;
        Some(Endpoint::ProviderOf(u32::try_from(at).ok()?))
    }

    /// Makes each answer of a provider wrong, or correct again.
    pub fn set_corrupt(&self, provider: u32, corrupt: bool) {
        let mut corrupted = self.0.corrupt.lock().unwrap();
        if corrupt {
            corrupted.insert(provider);
        } else {
            corrupted.remove(&provider);
        }
    }

    pub fn stop(&self) {
        self.0.stopped.lock().unwrap().get_or_insert(self.0.began.elapsed());
    }

    /// The providers behind the links of one instance.
    #[must_use]
    pub fn linked_providers(
        &self,
        network: &Network,
        from: Endpoint,
        requests: &Arc<AtomicU64>,
    ) -> LinkedProviders {
        let numbers = 0..u32::try_from(self.0.names.len()).unwrap_or(u32::MAX);
        let ways = numbers.map(|number| {
            let link = network.link(from, Endpoint::ProviderOf(number));
            LinkedTransport::new(WalkServer, link, Arc::clone(requests))
        });
        LinkedProviders { walk: self.clone(), ways: ways.collect() }
    }

    fn value_of(&self, at: usize, name: &str) -> Option<f64> {
        let elapsed = self.0.stopped.lock().unwrap().unwrap_or_else(|| self.0.began.elapsed());
        let steps = u32::try_from(elapsed.as_secs() / STEP.as_secs()).unwrap_or(u32::MAX);
        self.0
            .values
            .lock()
            .unwrap()
            .get_mut(&(at, name.to_owned()))
            .map(|walking| walking.value_after(steps))
    }
}

/// Answers every request after [`LATENCY`] with an empty body; [`LinkedProviders`] supplies the values.
struct WalkServer;

#[async_trait]
impl HttpTransport for WalkServer {
    async fn send(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        sleep(LATENCY).await;
        Ok(HttpResponse { status: 200, headers: Vec::new(), body: Bytes::new() })
    }
}

/// The providers behind the links of one instance.
pub struct LinkedProviders {
    walk: RandomWalk,
    ways: Vec<LinkedTransport<WalkServer>>,
}

impl LinkedProviders {
    async fn check_reachable(&self, name: &str, deadline: Duration) -> Result<(), FetchError> {
        let Some(Endpoint::ProviderOf(number)) = self.walk.endpoint_of(name) else { return Ok(()) };
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
impl MetricsProviders for LinkedProviders {
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
        if let Err(error) = self.check_reachable(&self.walk.0.providers[at].name, deadline).await {
            return all(&error);
        }
        let sample = |name: &String| match self.walk.value_of(at, name) {
            Some(value) => Ok(Sample { value, note: None }),
            None => Err(FetchError::NotFound { expected: "a metric that was copied" }),
        };
        names.iter().map(|name| (name.clone(), sample(name))).collect()
    }
}

#[cfg(test)]
mod tests;
