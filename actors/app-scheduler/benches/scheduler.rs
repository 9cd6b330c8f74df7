//! Cost of a pass, and its growth.
//!
//! `cargo bench -p madako-app-scheduler --bench scheduler` prints a table; with `-- 10000` it measures only cases
//! with that many applications. The measured part is the call of `pass` on one thread, without making its input and
//! freeing its result: in wall-clock time, and in CPU time of the thread, which other processes disturb less. Each
//! cluster has five of the metrics, and in `all metrics` all of them; each application has one of 60 sets of
//! constraints, and in `own constraints` a set of its own.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark's output is its table")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use madako_app_scheduler::{Memory, Pass, PassInput, SchedulerConfig, Snapshot, make_pass};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::metrics::{MetricKey, MetricState, MetricsObserved, Trust, Value};
use madako_domain::placement::object_value::Object;
use madako_domain::placement::objects::{Change, Stored};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value as Json, json};
use time::OffsetDateTime;

/// Timed runs of each case after one untimed run; the median of this many varies by a few percent.
const RUNS: usize = 11;
const NAMESPACE: &str = "bench";

#[derive(Clone, Copy, PartialEq)]
enum MeasuredPass {
    /// No application is bound.
    First,
    /// All applications were bound long ago, and values changed.
    Again,
    /// Like `Again`, with all metrics on each cluster.
    AllMetrics,
    /// Like `Again`, with a distinct set of constraints for each application.
    OwnConstraints,
}

impl MeasuredPass {
    fn name(self) -> &'static str {
        match self {
            Self::First => "first bindings",
            Self::Again => "rescheduling",
            Self::AllMetrics => "all metrics",
            Self::OwnConstraints => "own constraints",
        }
    }
}

struct BenchmarkCase {
    what: MeasuredPass,
    applications: usize,
    clusters: usize,
    metrics: usize,
    /// The project's promised maximum; `None`: there is none.
    limit: Option<Duration>,
}

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).expect("a time within range")
}

fn metadata_json(name: &str, namespace: Option<&str>, labels: &Json) -> Json {
    json!({"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "labels": labels,
        "created": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z"})
}

fn scramble_number(number: usize) -> usize {
    number.wrapping_mul(2_654_435_761) >> 7
}

fn stored_resource(revision: i64, kind: Kind, value: &Json) -> Arc<Stored> {
    let text = value.to_string();
    let object = Object::from_stored(kind, &text).expect("a resource");
    let key = object.key();
    Arc::new(Stored {
        key,
        create_revision: revision,
        mod_revision: revision,
        object,
        wire: Bytes::from(text),
    })
}

fn make_objects(case: &BenchmarkCase) -> Vec<Arc<Stored>> {
    let mut all = Vec::new();
    let mut add = |kind, value: &Json| {
        let revision = i64::try_from(all.len()).expect("few") + 1;
        all.push(stored_resource(revision, kind, value));
    };
    for number in 0..case.metrics {
        let name = format!("metric-{number}");
        add(
            Kind::GlobalMetric,
            &json!({"api": "core", "kind": "GlobalMetric", "metadata": metadata_json(&name, None, &json!({})),
                "spec": {"min": 0, "max": 1, "allowed_values": [], "provider": {"name": "p", "metric": name}}}),
        );
    }
    for number in 0..case.clusters {
        let name = format!("cluster-{number}");
        let own = if case.what == MeasuredPass::AllMetrics { case.metrics } else { 5.min(case.metrics) };
        let metrics: Vec<_> = (0..own)
            .map(|step| {
                let metric = if own == case.metrics {
                    step
                } else {
                    scramble_number(number * 7 + step) % case.metrics
                };
                json!({"name": format!("metric-{metric}"), "weight": 1.0 + (number % 5) as f64})
            })
            .collect();
        let labels = json!({"location": format!("l{}", number % 10), "tier": format!("t{}", number % 3),
            "name": name, "rack": format!("r{}", number % 40)});
        add(
            Kind::Cluster,
            &json!({"api": "kubernetes", "kind": "Cluster", "metadata": metadata_json(&name, Some(NAMESPACE), &labels),
                "spec": {"kubeconfig": {"apiVersion": "v1"}, "metrics": metrics}, "status": {"state": "ONLINE"}}),
        );
    }
    for number in 0..case.applications {
        let name = format!("application-{number}");
        let (mut labels, mut metrics) = (Vec::new(), Vec::new());
        if case.what == MeasuredPass::OwnConstraints {
            labels.push(format!("name is not cluster-{number}"));
            metrics.push(format!("metric-{} > 0.{number:05}", number % case.metrics));
        } else {
            let set = scramble_number(number) % 60;
            labels.push(format!("location in (l{}, l{})", set % 10, (set + 3) % 10));
            labels.extend(set.is_multiple_of(3).then(|| format!("tier is not t{}", set % 2)));
            metrics.extend(set.is_multiple_of(4).then(|| format!("metric-{} >= 0.1", set % case.metrics)));
        }
        add(
            Kind::Application,
            &json!({"api": "kubernetes", "kind": "Application",
                "metadata": metadata_json(&name, Some(NAMESPACE), &json!({})),
                "spec": {"manifest": [], "constraints": {"cluster": {"labels": labels, "metrics": metrics}}}}),
        );
    }
    all
}

fn observed_metrics(case: &BenchmarkCase, round: usize) -> MetricsObserved {
    let metrics: BTreeMap<_, _> = (0..case.metrics)
        .map(|number| {
            let value = (scramble_number(number + 1_000 * round) % 1_000) as f64 / 1_000.0;
            let value = Value { raw: value, normalized: value, at: now() };
            let trust = Trust { since: now(), range: None, turns: 0 };
            let key = MetricKey { namespace: None, name: format!("metric-{number}") };
            let state = MetricState {
                metric_revision: i64::MAX,
                provider_revision: i64::MAX,
                value: Some(value),
                reason: None,
                undefined: false,
                note: None,
                trust,
            };
            (key, state)
        })
        .collect();
    MetricsObserved { revision: i64::MAX, at: now(), metrics }
}

/// Applies the writes of a pass to the snapshot.
fn apply_writes(snapshot: &mut Snapshot, pass: &Pass) {
    let revision = snapshot.revision() + 1;
    let writes = pass.units.iter().flat_map(|unit| &unit.writes);
    let changes: Vec<_> = writes
        .map(|write| {
            let after = write.object.as_ref().map(|object| {
                let wire = Bytes::from(object.to_json());
                let (key, object) = (write.key.clone(), object.clone());
                Arc::new(Stored { key, create_revision: revision, mod_revision: revision, object, wire })
            });
            Arc::new(Change { revision, key: write.key.clone(), before: None, after })
        })
        .collect();
    snapshot.apply(&changes);
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn measure_pass(case: &BenchmarkCase) -> [Duration; 3] {
    let config = SchedulerConfig::default();
    let memory = Memory::default();
    let mut snapshot = Snapshot::new(1, make_objects(case));
    let first = observed_metrics(case, 0);
    let key =
        |number: usize| ObjectKey::new(Kind::Application, Some(NAMESPACE), format!("application-{number}"));
    let mut metrics = first;
    let mut time = now();
    if case.what != MeasuredPass::First {
        let input = PassInput {
            snapshot: &snapshot,
            metrics: Some(&metrics),
            config: &config,
            memory: &memory,
            now: time,
            seed: 1,
        };
        let bound = make_pass(&input);
        assert!(bound.decisions.contains_key(&key(0)), "the first application is decided");
        apply_writes(&mut snapshot, &bound);
        metrics = observed_metrics(case, 1);
        time += Duration::from_secs(3_600);
    }
    let input = PassInput {
        snapshot: &snapshot,
        metrics: Some(&metrics),
        config: &config,
        memory: &memory,
        now: time,
        seed: 1,
    };
    let runs = (0..=RUNS).map(|_| {
        let (started, began) = (Instant::now(), thread_cpu_time());
        let made = black_box(make_pass(black_box(&input)));
        let took = (started.elapsed(), thread_cpu_time() - began);
        assert_eq!(made.decisions.len(), case.applications);
        let least = if case.what == MeasuredPass::First { case.applications / 2 } else { 1 };
        assert!(made.units.len() >= least.min(case.applications), "{} units", made.units.len());
        took
    });
    let (mut wall, mut core): (Vec<Duration>, Vec<Duration>) = runs.skip(1).unzip();
    wall.sort_unstable();
    core.sort_unstable();
    [wall[RUNS / 2], core[RUNS / 2], core[0]]
}

fn format_time(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    if milliseconds < 9.95 { format!("{milliseconds:.2} ms") } else { format!("{milliseconds:.0} ms") }
}

fn main() {
    let only: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let case = |what, applications, clusters, metrics, limit| BenchmarkCase {
        what,
        applications,
        clusters,
        metrics,
        limit,
    };
    let second = Some(Duration::from_secs(1));
    let cases = [
        case(MeasuredPass::Again, 100, 100, 50, None),
        case(MeasuredPass::Again, 1_000, 100, 50, None),
        case(MeasuredPass::Again, 10_000, 100, 50, None),
        case(MeasuredPass::First, 10_000, 1_000, 50, None),
        case(MeasuredPass::Again, 10_000, 1_000, 50, second),
        case(MeasuredPass::AllMetrics, 10_000, 1_000, 50, second),
        case(MeasuredPass::OwnConstraints, 10_000, 1_000, 50, second),
        case(MeasuredPass::Again, 50_000, 2_000, 100, None),
    ];
    println!(
        "| {:<16} | applications | clusters | metrics | median, wall | median, core | least, core |   limit |",
        ""
    );
    println!(
        "|{:-<18}|-------------:|---------:|--------:|-------------:|-------------:|------------:|--------:|",
        ""
    );
    for case in cases.iter().filter(|case| only.is_empty() || only.contains(&case.applications)) {
        let [wall, median, least] = measure_pass(case);
        println!(
            "| {:<16} | {:>12} | {:>8} | {:>7} | {:>12} | {:>12} | {:>11} | {:>7} |",
            case.what.name(),
            case.applications,
            case.clusters,
            case.metrics,
            format_time(wall),
            format_time(median),
            format_time(least),
            case.limit.map(format_time).unwrap_or_default()
        );
    }
}
