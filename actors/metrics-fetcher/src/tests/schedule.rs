use std::sync::Arc;
use std::time::Duration;

use madako_domain::placement::metadata::ReasonCode;
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved};
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::Change;
use madako_protocol::placement::providers::{FetchError, Sample, Samples};
use serde_json::json;
use strum::VariantNames as _;
use time::macros::datetime;

use super::store::{Store, cluster, global, metric, metric_with, of, prometheus, reference, table};
use crate::schedule::{ClockReading, Condition, DueFetch, FetchSchedule, ProviderNotice, Settings};

const SETTINGS: Settings =
    Settings { max_age: Duration::from_secs(45), deadline: Duration::from_secs(10), at_once: 4 };

/// A schedule with its store and its time.
pub(super) struct Bench {
    pub(super) schedule: FetchSchedule,
    pub(super) store: Store,
    pub(super) seconds: u64,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self { schedule: FetchSchedule::new(SETTINGS), store: Store::default(), seconds: 0 }
    }

    /// One Prometheus `p`, and a cluster with some of its metrics, from 0 to 10.
    fn with(names: &[&str]) -> Self {
        let mut bench = Self::new();
        let mut objects = vec![prometheus(None, "p", "http://p")];
        objects.extend(names.iter().map(|name| metric(&global(name), "p", name, 0.0, 10.0)));
        let references: Vec<_> = names.iter().map(|name| reference(name, false)).collect();
        objects.push(cluster("n", "c", &references));
        bench.put(objects);
        bench
    }

    pub(super) fn now(&self) -> ClockReading {
        let elapsed = Duration::from_secs(self.seconds);
        ClockReading { at: datetime!(2026-01-01 00:00 UTC) + elapsed, elapsed }
    }

    pub(super) fn put(&mut self, objects: Vec<Object>) {
        let changes: Vec<Arc<Change>> = objects.into_iter().map(|object| self.store.put(object)).collect();
        self.schedule.change(&changes, self.now());
    }

    fn delete(&mut self, object: &Object) {
        let change = self.store.delete(&object.key());
        self.schedule.change(&[change], self.now());
    }

    pub(super) fn start(&mut self) -> Vec<DueFetch> {
        let now = self.now();
        self.schedule.start(now)
    }

    fn round(&mut self) -> Vec<DueFetch> {
        let now = self.now();
        self.schedule.begin_round(now);
        self.start()
    }

    /// Provider and names of the one fetch that begins now.
    fn one(&mut self) -> DueFetch {
        let mut fetches = self.start();
        assert_eq!(fetches.len(), 1, "{fetches:?}");
        fetches.remove(0)
    }

    pub(super) fn answer(&mut self, fetch: &DueFetch, each: impl Fn(&str) -> Result<f64, FetchError>) {
        let samples: Samples = fetch
            .names
            .iter()
            .map(|name| (name.clone(), each(name).map(|value| Sample { value, note: None })))
            .collect();
        let now = self.now();
        self.schedule.record_answer(fetch.id, samples, now);
    }

    /// A round with the same result for every name.
    fn whole_round(&mut self, each: &Result<f64, FetchError>) {
        for fetch in self.round() {
            self.answer(&fetch, |_| each.clone());
        }
    }

    pub(super) fn observed(&mut self) -> MetricsObserved {
        let now = self.now();
        self.schedule.observe_metrics(now)
    }

    fn state(&mut self, key: &MetricKey) -> MetricState {
        let observed = self.observed();
        observed.metrics.get(key).unwrap_or_else(|| panic!("no {key} in {observed:?}")).clone()
    }

    fn raw(&mut self, name: &str) -> Option<f64> {
        self.state(&global(name)).value.map(|value| value.raw)
    }
}

fn down() -> FetchError {
    FetchError::Unreachable { address: "http://p".to_owned(), why: "refused".to_owned() }
}

fn names(fetch: &DueFetch) -> Vec<&str> {
    fetch.names.iter().map(String::as_str).collect()
}

#[test]
fn each_distinct_metric_is_fetched_once_a_metrics_round() {
    let mut bench = Bench::new();
    let mut objects = vec![prometheus(None, "p", "http://p"), prometheus(Some("n"), "p", "http://n")];
    let keys: Vec<MetricKey> =
        (0..50).map(|number| global(&format!("m{number}"))).chain([of("n", "m0"), global("alias")]).collect();
    // `alias` is another metric with the same source as `m7`.
    let there = |key: &MetricKey| if key.name == "alias" { "m7".to_owned() } else { key.name.clone() };
    objects.extend(keys.iter().map(|key| metric(key, "p", &there(key), 0.0, 1.0)));
    let references: Vec<_> = keys.iter().map(|key| reference(&key.name, key.namespace.is_some())).collect();
    objects.extend((0..1000).map(|number| cluster("n", &format!("c{number}"), &references)));
    bench.put(objects);
    for round in 0..3 {
        let fetches = if round == 0 { bench.start() } else { bench.round() };
        let requested: Vec<(Option<&str>, usize)> =
            fetches.iter().map(|fetch| (fetch.provider.namespace.as_deref(), fetch.names.len())).collect();
        assert_eq!(requested, vec![(None, 50), (Some("n"), 1)], "round {round}");
        for fetch in &fetches {
            bench.answer(fetch, |_| Ok(0.5));
        }
        assert_eq!(bench.start().len(), 0);
        bench.seconds += 15;
    }
    assert_eq!(bench.observed().metrics.len(), 52);
}

#[test]
fn new_metric_is_fetched_immediately_and_alone() {
    let mut bench = Bench::with(&["a", "b"]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(1.0));
    bench.put(vec![
        metric(&global("c"), "p", "c", 0.0, 10.0),
        cluster("n", "d", &[reference("c", false), reference("a", false)]),
    ]);
    let fetch = bench.one();
    assert_eq!(names(&fetch), ["c"]);
    // Another metric becomes due in the meantime: it is fetched when the provider is idle.
    bench.put(vec![metric(&global("e"), "p", "e", 0.0, 10.0), cluster("n", "f", &[reference("e", false)])]);
    assert_eq!(bench.start().len(), 0, "a provider is asked for one thing at a time");
    bench.answer(&fetch, |_| Ok(1.0));
    assert_eq!(names(&bench.one()), ["e"]);
}

#[test]
fn a_metrics_round_skips_running_fetches() {
    let mut bench = Bench::with(&["a"]);
    let fetch = bench.one();
    bench.seconds = 15;
    assert_eq!(bench.round().len(), 0);
    bench.answer(&fetch, |_| Ok(1.0));
    assert_eq!(bench.start().len(), 0, "its answer is that of this round");

    let fetch = bench.round().remove(0);
    bench.put(vec![metric(&global("b"), "p", "b", 0.0, 10.0), cluster("n", "d", &[reference("b", false)])]);
    bench.seconds = 30;
    assert_eq!(bench.round().len(), 0);
    bench.answer(&fetch, |_| Ok(1.0));
    assert_eq!(names(&bench.one()), ["b"]);
}

#[test]
fn changed_metric_or_provider_is_fetched_immediately() {
    let mut bench = Bench::with(&["a", "b"]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(5.0));
    bench.put(vec![metric(&global("a"), "p", "a", 0.0, 20.0)]);
    assert_eq!(bench.state(&global("a")).value.unwrap().normalized, 0.5, "as it was fetched");
    let fetch = bench.one();
    assert_eq!(names(&fetch), ["a"]);
    bench.answer(&fetch, |_| Ok(5.0));
    assert_eq!(bench.state(&global("a")).value.unwrap().normalized, 0.25);
    bench.put(vec![prometheus(None, "p", "http://elsewhere")]);
    assert_eq!(names(&bench.one()), ["a", "b"]);
}

#[test]
fn answer_to_a_replaced_definition_is_ignored() {
    let mut bench = Bench::with(&["a"]);
    let former = bench.one();
    bench.put(vec![prometheus(None, "p", "http://elsewhere")]);
    assert!(!bench.schedule.is_awaiting(former.id));
    let fetch = bench.one();
    bench.answer(&former, |_| Ok(1.0));
    assert_eq!(bench.observed().metrics.len(), 0);
    bench.answer(&fetch, |_| Ok(2.0));
    assert_eq!(bench.raw("a"), Some(2.0));
}

#[test]
fn observed_revision_has_an_answer_for_each_metric_referred_to_at_it() {
    let mut bench = Bench::with(&["a"]);
    assert_eq!(bench.observed().revision, 0);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(1.0));
    assert_eq!(bench.observed().revision, 3);
    bench.put(vec![cluster("n", "other", &[])]);
    assert_eq!(bench.observed().revision, 4, "nothing new is wanted");
    bench.put(vec![metric(&global("b"), "p", "b", 0.0, 1.0), cluster("n", "d", &[reference("b", false)])]);
    assert_eq!(bench.observed().revision, 4, "b is not answered yet");
    assert!(!bench.observed().metrics.contains_key(&global("b")));
    let fetch = bench.one();
    bench.answer(&fetch, |_| Err(down()));
    assert_eq!(bench.observed().revision, 6, "an error is an answer");
    let state = bench.state(&global("b"));
    assert_eq!((state.metric_revision, state.provider_revision, state.value), (5, 1, None));
    assert_eq!(state.reason.unwrap().code, ReasonCode::UnreachableMetricsProvider);
    assert!(!state.undefined);
}

#[test]
fn a_value_outlives_failures_until_it_is_too_old() {
    let mut bench = Bench::with(&["a"]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(4.0));
    for seconds in [15, 30, 44] {
        bench.seconds = seconds;
        bench.whole_round(&Err(down()));
        let state = bench.state(&global("a"));
        assert_eq!(state.value.map(|value| value.raw), Some(4.0), "after {seconds} s");
        let reason = state.reason.unwrap();
        assert_eq!(reason.code, ReasonCode::UnreachableMetricsProvider);
        assert_eq!(reason.message, "metrics provider p: cannot connect to http://p: refused");
    }
    assert_eq!(bench.schedule.next_too_old(bench.now()), Some(Duration::from_secs(1)));
    bench.seconds = 45;
    let state = bench.state(&global("a"));
    assert_eq!((state.value, state.undefined), (None, false));
    assert_eq!(bench.schedule.next_too_old(bench.now()), None);
    bench.put(vec![prometheus(None, "p", "http://back")]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(5.0));
    assert_eq!((bench.raw("a"), bench.state(&global("a")).reason), (Some(5.0), None));
}

#[test]
fn a_value_that_is_not_allowed_is_a_failure_of_its_fetch() {
    let mut bench = Bench::with(&[]);
    bench.put(vec![
        metric_with(&global("a"), "p", "there", 0.0, 10.0, &[1, 2]),
        cluster("n", "c", &[reference("a", false)]),
    ]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(2.0));
    bench.seconds = 15;
    for (bad, words) in [(11.0, "metric a: its value 11 is not between 0 and 10"), (3.0, "is none of 1, 2")] {
        bench.whole_round(&Ok(bad));
        let state = bench.state(&global("a"));
        assert_eq!(state.value.map(|value| value.raw), Some(2.0));
        let reason = state.reason.unwrap();
        assert_eq!((reason.code, state.undefined), (ReasonCode::InvalidMetric, false));
        assert!(reason.message.contains(words), "{}", reason.message);
        assert_eq!(state.trust.range, Some((2.0, 2.0)), "an ignored value is not remembered");
    }
    bench.whole_round(&Err(FetchError::NotFound { expected: "a series" }));
    let message = bench.state(&global("a")).reason.unwrap().message;
    assert_eq!(
        message,
        "metric a (there on metrics provider p): the metrics provider's answer has no value of the metric: expected a series"
    );
}

#[test]
fn missing_or_invalid_definition_removes_the_value_immediately() {
    let mut bench = Bench::with(&["a", "b"]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(4.0));
    let states = |bench: &mut Bench| {
        let state = bench.state(&global("a"));
        assert_eq!((state.value, state.undefined), (None, true));
        assert_eq!(bench.observed().revision, bench.store.revision);
        state.reason.unwrap().code
    };
    bench.put(vec![metric(&global("a"), "p", "a", 4.0, 4.0)]);
    assert_eq!(states(&mut bench), ReasonCode::InvalidMetric);
    bench.put(vec![metric(&global("a"), "q", "a", 0.0, 10.0)]);
    assert_eq!(states(&mut bench), ReasonCode::UnknownMetricsProvider);
    bench.delete(&metric(&global("a"), "q", "a", 0.0, 10.0));
    assert_eq!(states(&mut bench), ReasonCode::UnknownMetric);
    assert_eq!(bench.raw("b"), Some(4.0), "the other one has nothing to do with it");
    assert_eq!(bench.start().len(), 0);
    bench.put(vec![metric(&global("a"), "p", "a", 0.0, 10.0)]);
    assert_eq!(names(&bench.one()), ["a"]);
}

#[test]
fn a_table_that_lacks_a_metric_or_has_a_wrong_value_is_a_wrong_definition() {
    let mut bench = Bench::new();
    bench.put(vec![
        table(None, "t", &json!({})),
        metric(&global("a"), "t", "a", 0.0, 1.0),
        cluster("n", "c", &[reference("a", false)]),
    ]);
    for answer in [Err(FetchError::Unlisted), Ok(7.0)] {
        bench.whole_round(&Ok(0.5));
        assert_eq!(bench.raw("a"), Some(0.5));
        bench.whole_round(&answer);
        let state = bench.state(&global("a"));
        assert_eq!((state.value, state.undefined), (None, true));
        assert_eq!(state.reason.unwrap().code, ReasonCode::InvalidMetric);
    }
    // The table's new value continues the old one's history.
    bench.put(vec![table(None, "t", &json!({ "a": 0.75 }))]);
    bench.whole_round(&Ok(0.75));
    assert_eq!(bench.state(&global("a")).trust.range, Some((0.5, 0.75)));
}

#[test]
fn after_a_changed_definition_a_failure_keeps_only_applicable_values() {
    for (changed, kept) in [
        (metric(&global("a"), "p", "a", 0.0, 8.0), Some(0.5)),
        (metric(&global("a"), "p", "a", 0.0, 3.0), None),
        (metric(&global("a"), "p", "other", 0.0, 8.0), None),
        (prometheus(None, "p", "http://elsewhere"), None),
    ] {
        let mut bench = Bench::with(&["a"]);
        let fetch = bench.one();
        bench.answer(&fetch, |_| Ok(4.0));
        bench.put(vec![changed.clone()]);
        let fetch = bench.one();
        bench.answer(&fetch, |_| Err(down()));
        let state = bench.state(&global("a"));
        assert_eq!(state.value.map(|value| value.normalized), kept, "{changed:?}");
        let same_series =
            kept.is_some() || matches!(&changed, Object::GlobalMetric(m) if m.spec.provider.metric == "a");
        assert_eq!(state.trust.range.is_some(), same_series, "{changed:?}");
    }
}

#[test]
fn provider_that_is_down_is_asked_seldom_but_immediately_for_new_metrics() {
    let mut bench = Bench::with(&["a"]);
    let mut text = String::new();
    for _ in 0..12 {
        let fetches = bench.round();
        text.push(if fetches.is_empty() { '.' } else { 'y' });
        for fetch in fetches {
            bench.answer(&fetch, |_| Err(down()));
        }
        bench.seconds += 15;
    }
    assert_eq!(text, "yyy.y...y...");
    let provider = crate::catalog::ProviderKey { namespace: None, name: "p".to_owned() };
    assert_eq!(
        bench.schedule.take_notices(),
        [ProviderNotice::Down { provider: provider.clone(), why: down() }]
    );
    assert_eq!(bench.schedule.summarize_by_kind(bench.now())["prometheus"].down, 1);

    bench.whole_round(&Err(down()));
    bench.put(vec![metric(&global("b"), "p", "b", 0.0, 1.0), cluster("n", "d", &[reference("b", false)])]);
    let fetch = bench.one();
    assert_eq!(names(&fetch), ["b"]);
    assert!(
        !bench.observed().metrics.contains_key(&global("b")),
        "a failure of another metric is no observation of this metric"
    );
    bench.answer(&fetch, |_| Err(down()));
    let state = bench.state(&global("b"));
    assert_eq!((state.value, state.undefined), (None, false));
    assert_eq!(state.reason.unwrap().code, ReasonCode::UnreachableMetricsProvider);
    assert_eq!(bench.observed().revision, bench.store.revision);
    assert_eq!(bench.round().len(), 0, "it is spared as before");

    // It recovers before its next round: a new metric finds out.
    bench.put(vec![metric(&global("c"), "p", "c", 0.0, 1.0), cluster("n", "e", &[reference("c", false)])]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(1.0));
    assert_eq!(bench.raw("c"), Some(1.0));
    assert_eq!(bench.schedule.take_notices(), [ProviderNotice::Up { provider }]);
    bench.whole_round(&Ok(1.0));
    assert_eq!(bench.raw("b"), Some(1.0));
    assert_eq!(bench.round().len(), 1);
}

#[test]
fn a_changed_definition_gives_a_provider_another_chance() {
    let mut bench = Bench::with(&["a"]);
    for _ in 0..3 {
        bench.whole_round(&Err(down()));
    }
    assert_eq!(bench.round().len(), 0);
    bench.put(vec![prometheus(None, "p", "http://elsewhere")]);
    assert_eq!(bench.start().len(), 1);
}

#[test]
fn errors_of_single_metrics_do_not_make_a_provider_down() {
    let mut bench = Bench::with(&["a", "b"]);
    for round in 0..10 {
        let fetches = bench.round();
        assert_eq!(fetches.len(), 1, "round {round}");
        bench.answer(&fetches[0], |name| {
            if name == "a" { Err(down()) } else { Err(FetchError::NotFound { expected: "" }) }
        });
    }
    assert_eq!(bench.schedule.take_notices(), []);
}

#[test]
fn concurrent_fetches_are_limited_and_each_provider_has_its_turn() {
    let mut bench = Bench::new();
    let mut objects = Vec::new();
    for number in 0..10 {
        let name = format!("p{number}");
        objects.push(prometheus(None, &name, "http://p"));
        objects.push(metric(&global(&name), &name, "m", 0.0, 1.0));
        objects.push(cluster("n", &name, &[reference(&name, false)]));
    }
    bench.put(objects);
    let mut requested = Vec::new();
    let mut running = bench.start();
    while let Some(fetch) = (!running.is_empty()).then(|| running.remove(0)) {
        assert!(running.len() < SETTINGS.at_once);
        // A round that begins in the meantime fetches no provider twice before all others.
        let now = bench.now();
        bench.schedule.begin_round(now);
        bench.answer(&fetch, |_| Ok(1.0));
        requested.push(fetch.provider.name.clone());
        running.extend(bench.start());
        if requested.len() == 10 {
            break;
        }
    }
    let distinct: std::collections::BTreeSet<_> = requested.iter().collect();
    assert_eq!(distinct.len(), 10, "{requested:?}");
}

#[test]
fn a_fetch_that_never_ends_does_not_keep_its_provider() {
    let mut bench = Bench::with(&["a"]);
    let lost = bench.one();
    bench.seconds = 15;
    assert_eq!(bench.round().len(), 0, "it may still come");
    bench.seconds = 30;
    let fetches = bench.round();
    assert_eq!(fetches.len(), 1);
    assert!(!bench.schedule.is_awaiting(lost.id));
    assert_eq!(bench.state(&global("a")).reason.unwrap().code, ReasonCode::UnreachableMetricsProvider);
}

#[test]
fn an_answer_that_lacks_a_name_or_brings_others_is_completed() {
    let mut bench = Bench::with(&["a", "b"]);
    let fetch = bench.one();
    let sample = |value: f64| Ok(Sample { value, note: Some("first of 2".to_owned()) });
    let samples = Samples::from([("a".to_owned(), sample(1.0)), ("stray".to_owned(), sample(2.0))]);
    let now = bench.now();
    bench.schedule.record_answer(fetch.id, samples, now);
    assert_eq!(bench.state(&global("a")).note.as_deref(), Some("first of 2"));
    assert_eq!(bench.state(&global("b")).reason.unwrap().code, ReasonCode::InvalidMetric);
}

#[test]
fn new_list_of_the_store_keeps_values() {
    let mut bench = Bench::with(&["a", "b"]);
    let fetch = bench.one();
    bench.answer(&fetch, |_| Ok(4.0));
    bench.store.delete(&metric(&global("b"), "p", "b", 0.0, 10.0).key());
    let (revision, all, now) = (bench.store.revision, bench.store.all(), bench.now());
    bench.schedule.list(revision, &all, now);
    assert_eq!(bench.start().len(), 0);
    assert_eq!(bench.raw("a"), Some(4.0));
    assert!(bench.state(&global("b")).undefined);
    // An empty store: nothing is in use.
    bench.schedule.list(2, &[], now);
    assert_eq!((bench.observed().revision, bench.observed().metrics.len()), (2, 0));
}

#[test]
fn the_summary_counts_each_metric_once() {
    let mut bench = Bench::with(&["good", "kept", "failed", "awaited"]);
    bench.put(vec![cluster("n", "d", &[reference("undefined", false)])]);
    let fetch = bench.one();
    bench.answer(&fetch, |name| if name == "failed" { Err(down()) } else { Ok(1.0) });
    bench.seconds = 15;
    for fetch in bench.round() {
        bench.answer(&fetch, |name| if name == "good" || name == "awaited" { Ok(1.0) } else { Err(down()) });
    }
    bench.put(vec![metric(&global("awaited"), "p", "awaited", 0.0, 5.0)]);
    let summary = bench.schedule.summarize_by_kind(bench.now());
    let of = |kind: &str| {
        let counts = summary[kind].conditions;
        Condition::VARIANTS.iter().copied().zip(counts).collect::<Vec<_>>()
    };
    let expected = [("awaited", 1), ("good", 1), ("kept", 1), ("failed", 1), ("undefined", 0)];
    assert_eq!(of("prometheus"), expected);
    assert_eq!(of("none")[4], ("undefined", 1));
    assert_eq!(summary["prometheus"].oldest, Duration::from_secs(15));
    assert_eq!(
        summary.keys().copied().collect::<Vec<_>>(),
        ["influx", "kafka", "none", "prometheus", "static"]
    );
}
