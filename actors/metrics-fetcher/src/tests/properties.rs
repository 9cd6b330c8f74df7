//! Property tests: the schedule keeps its guarantees under random events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use madako_domain::placement::metrics::{MetricKey, MetricState};
use madako_domain::placement::object_value::Object;
use madako_protocol::placement::providers::FetchError;
use proptest::prelude::*;

use super::schedule::Bench;
use super::store::{cluster, global, metric, of, prometheus, reference};
use crate::catalog::{DefinitionCatalog, ProviderKey};
use crate::schedule::DueFetch;

#[derive(Debug, Clone)]
enum Step {
    Metric {
        namespaced: bool,
        name: u8,
        provider: u8,
        there: u8,
        max: i8,
    },
    NoMetric {
        namespaced: bool,
        name: u8,
    },
    Provider {
        namespaced: bool,
        name: u8,
        url: u8,
    },
    NoProvider {
        namespaced: bool,
        name: u8,
    },
    Cluster {
        name: u8,
        own: Vec<u8>,
        global: Vec<u8>,
    },
    NoCluster {
        name: u8,
    },
    Relist,
    Wait(u64),
    Round,
    /// The oldest running fetch ends: 0 succeeds, 1 gives an invalid value, 2 fails.
    Answer(u8),
    Start,
}

fn step() -> impl Strategy<Value = Step> {
    let few = || prop::collection::vec(0_u8..5, 0..4);
    prop_oneof![
        3 => (any::<bool>(), 0_u8..5, 0_u8..3, 0_u8..4, -1_i8..3)
            .prop_map(|(namespaced, name, provider, there, max)| Step::Metric { namespaced, name, provider, there, max }),
        1 => (any::<bool>(), 0_u8..5).prop_map(|(namespaced, name)| Step::NoMetric { namespaced, name }),
        2 => (any::<bool>(), 0_u8..3, 0_u8..2).prop_map(|(namespaced, name, url)| Step::Provider { namespaced, name, url }),
        1 => (any::<bool>(), 0_u8..3).prop_map(|(namespaced, name)| Step::NoProvider { namespaced, name }),
        3 => (0_u8..3, few(), few()).prop_map(|(name, own, global)| Step::Cluster { name, own, global }),
        1 => (0_u8..3).prop_map(|name| Step::NoCluster { name }),
        1 => Just(Step::Relist),
        2 => (0_u64..30).prop_map(Step::Wait),
        3 => Just(Step::Round),
        5 => (0_u8..3).prop_map(Step::Answer),
        4 => Just(Step::Start),
    ]
}

fn key(namespaced: bool, name: u8) -> MetricKey {
    if namespaced { of("n", &format!("m{name}")) } else { global(&format!("m{name}")) }
}

/// The schedule and its running fetches.
struct World {
    bench: Bench,
    running: Vec<DueFetch>,
    last: BTreeMap<MetricKey, MetricState>,
    /// The store's catalog, rebuilt after each change.
    catalog: DefinitionCatalog,
}

impl World {
    fn new() -> Self {
        Self {
            bench: Bench::new(),
            running: Vec::new(),
            last: BTreeMap::new(),
            catalog: DefinitionCatalog::default(),
        }
    }

    fn read_store(&mut self) {
        self.catalog = DefinitionCatalog::default();
        for stored in self.bench.store.objects.values() {
            self.catalog.put(stored);
        }
    }

    fn put(&mut self, object: Object) {
        let change = self.bench.store.put(object);
        let now = self.bench.now();
        self.bench.schedule.change(&[change], now);
        self.read_store();
    }

    fn delete(&mut self, object: &Object) {
        let change = self.bench.store.delete(&object.key());
        let now = self.bench.now();
        self.bench.schedule.change(&[change], now);
        self.read_store();
    }

    fn answer(&mut self, how: u8) {
        if self.running.is_empty() {
            return;
        }
        let fetch = self.running.remove(0);
        self.bench.answer(&fetch, |_| match how {
            0 => Ok(0.5),
            1 => Ok(1e6),
            _ => Err(FetchError::CutOff { address: "p".to_owned(), why: String::new() }),
        });
    }

    fn start(&mut self) {
        let fetches = self.bench.start();
        self.running.extend(fetches);
        let schedule = &self.bench.schedule;
        self.running.retain(|fetch| schedule.is_awaiting(fetch.id));
        assert!(self.running.len() <= 4);
        let providers: BTreeSet<&ProviderKey> = self.running.iter().map(|fetch| &fetch.provider).collect();
        assert_eq!(providers.len(), self.running.len(), "no provider is asked twice at once");
    }

    fn take(&mut self, step: &Step) {
        let namespace = |namespaced: &bool| namespaced.then_some("n");
        match step {
            Step::Metric { namespaced, name, provider, there, max } => {
                let key = key(*namespaced, *name);
                self.put(metric(&key, &format!("p{provider}"), &format!("t{there}"), 0.0, f64::from(*max)));
            }
            Step::NoMetric { namespaced, name } => {
                self.delete(&metric(&key(*namespaced, *name), "", "", 0.0, 1.0))
            }
            Step::Provider { namespaced, name, url } => {
                self.put(prometheus(namespace(namespaced), &format!("p{name}"), &format!("http://{url}")));
            }
            Step::NoProvider { namespaced, name } => {
                self.delete(&prometheus(namespace(namespaced), &format!("p{name}"), ""));
            }
            Step::Cluster { name, own, global } => {
                let own = own.iter().map(|name| reference(&format!("m{name}"), true));
                let global = global.iter().map(|name| reference(&format!("m{name}"), false));
                self.put(cluster("n", &format!("c{name}"), &own.chain(global).collect::<Vec<_>>()));
            }
            Step::NoCluster { name } => self.delete(&cluster("n", &format!("c{name}"), &[])),
            Step::Relist => {
                let (revision, all, now) =
                    (self.bench.store.revision, self.bench.store.all(), self.bench.now());
                self.bench.schedule.list(revision, &all, now);
            }
            Step::Wait(seconds) => self.bench.seconds += seconds,
            Step::Round => {
                let now = self.bench.now();
                self.bench.schedule.begin_round(now);
            }
            Step::Answer(how) => self.answer(*how),
            Step::Start => self.start(),
        }
        self.check();
    }

    /// Checks the properties that hold after every step.
    fn check(&mut self) {
        let wanted = self.catalog.wanted_metrics();
        let (observed, now) = (self.bench.observed(), self.bench.now());
        assert!(observed.revision <= self.bench.store.revision);
        for (key, state) in &observed.metrics {
            assert!(wanted.contains(key), "{key} is not wanted");
            let resolved = self.catalog.resolve(key);
            if let Err(undefined) = &resolved {
                assert!(state.undefined && state.value.is_none(), "{key}: {state:?}");
                assert_eq!(state.reason.as_ref(), Some(&undefined.reason));
            }
            assert!(state.value.is_some() || state.reason.is_some(), "{key} says nothing: {state:?}");
            if let Some(value) = state.value {
                assert!((now.at - value.at).whole_seconds() < 45, "{key} is too old: {state:?}");
                assert!((0.0..=1.0).contains(&value.normalized) && value.raw == 0.5, "{key}: {state:?}");
            }
        }
        if observed.revision == self.bench.store.revision {
            let answered: BTreeSet<&MetricKey> = observed.metrics.keys().collect();
            assert_eq!(answered, wanted.iter().collect(), "all that is referred to is answered");
            for (key, state) in &observed.metrics {
                let present = match self.catalog.resolve(key) {
                    Ok(source) => (source.metric_revision, source.provider_revision),
                    Err(undefined) => (undefined.metric_revision, undefined.provider_revision),
                };
                assert_eq!(
                    (state.metric_revision, state.provider_revision),
                    present,
                    "{key} is as it is defined"
                );
            }
        }
        self.last = observed.metrics;
    }

    /// All providers answer from now on: finally every defined metric has a value, and a round fetches each once.
    fn heal(&mut self) {
        for _ in 0..6 {
            self.take(&Step::Round);
            self.take(&Step::Start);
            while !self.running.is_empty() {
                self.take(&Step::Answer(0));
                self.take(&Step::Start);
            }
            self.take(&Step::Wait(15));
        }
        let mut sources = BTreeSet::new();
        for key in self.catalog.wanted_metrics() {
            if let Ok(source) = self.catalog.resolve(&key) {
                assert!(
                    self.last[&key].value.is_some(),
                    "{key} has no value after all: {:?}",
                    self.last[&key]
                );
                sources.insert((source.provider.clone(), source.name_at_provider().to_owned()));
            }
        }
        let observed = self.bench.observed();
        assert_eq!(observed.revision, self.bench.store.revision);
        let now = self.bench.now();
        self.bench.schedule.begin_round(now);
        let mut requested = Vec::new();
        loop {
            let fetches = self.bench.start();
            if fetches.is_empty() {
                break;
            }
            for fetch in fetches {
                requested.extend(fetch.names.iter().map(|name| (fetch.provider.clone(), name.clone())));
                self.bench.answer(&fetch, |_| Ok(0.5));
            }
        }
        requested.sort();
        assert_eq!(requested, sources.into_iter().collect::<Vec<_>>(), "each exactly once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_schedule_keeps_its_promises(steps in prop::collection::vec(step(), 1..50)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.heal();
    }

    #[test]
    fn the_same_history_gives_the_same_observations(steps in prop::collection::vec(step(), 1..20)) {
        let run = || {
            let mut world = World::new();
            for step in &steps {
                world.take(step);
            }
            let requested: Vec<(u64, BTreeSet<String>)> =
                world.running.iter().map(|fetch| (fetch.id, fetch.names.clone())).collect();
            (world.bench.observed(), requested)
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn changes_outside_the_watched_keys_wake_no_actor() {
    let mut world = World::new();
    world.put(prometheus(None, "p0", "http://p"));
    world.put(metric(&key(false, 0), "p0", "t", 0.0, 1.0));
    world.put(cluster("n", "c", &[reference("m0", false)]));
    world.start();
    world.answer(0);
    let changes: Vec<Arc<_>> =
        (0..1000).map(|number| world.bench.store.put(cluster("n", &format!("x{number}"), &[]))).collect();
    let now = world.bench.now();
    world.bench.schedule.change(&changes, now);
    assert_eq!(world.bench.start().len(), 0);
    assert_eq!(world.bench.observed().revision, world.bench.store.revision);
}
