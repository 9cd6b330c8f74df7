//! Tests of the order of fetches when more fetches are due than slots exist.

use std::collections::{BTreeMap, BTreeSet};

use madako_domain::placement::metrics::MetricKey;
use madako_domain::placement::object_value::Object;
use madako_protocol::placement::providers::FetchError;
use serde_json::json;

use super::schedule::Bench;
use super::store::{cluster, metric, of, prometheus, reference, table};
use crate::schedule::DueFetch;

/// Duration of a round, and of a fetch that hangs, in seconds.
const ROUND: u64 = 15;
const DEADLINE: u64 = 10;

/// A provider in a namespace with one metric of its name, and a cluster that refers to it.
fn one(namespace: &str, name: &str) -> Vec<Object> {
    vec![
        prometheus(Some(namespace), name, "http://p"),
        metric(&of(namespace, name), name, name, 0.0, 10.0),
        cluster(namespace, name, &[reference(name, true)]),
    ]
}

fn late() -> FetchError {
    FetchError::Deadline {
        address: "http://p".to_owned(),
        deadline: std::time::Duration::from_secs(DEADLINE),
    }
}

/// A schedule, and the hanging fetches with their ends.
struct World {
    bench: Bench,
    hanging: Vec<(u64, DueFetch)>,
    answered: BTreeMap<MetricKey, u64>,
}

impl World {
    fn with(objects: Vec<Object>) -> Self {
        let mut bench = Bench::new();
        bench.put(objects);
        Self { bench, hanging: Vec::new(), answered: BTreeMap::new() }
    }

    /// A second passes. Fetches that match `hangs` do not answer; the others answer at once.
    fn second(&mut self, hangs: impl Fn(&DueFetch) -> bool) {
        let now = self.bench.seconds;
        let (ended, hanging) = self.hanging.drain(..).partition(|(end, _)| *end <= now);
        self.hanging = hanging;
        let ended: Vec<(u64, DueFetch)> = ended;
        for (_, fetch) in ended {
            self.bench.answer(&fetch, |_| Err(late()));
        }
        if now > 0 && now.is_multiple_of(ROUND) {
            let moment = self.bench.now();
            self.bench.schedule.begin_round(moment);
        }
        loop {
            let fetches = self.bench.start();
            if fetches.is_empty() {
                break;
            }
            for fetch in fetches {
                if hangs(&fetch) {
                    self.hanging.push((now + DEADLINE, fetch));
                    continue;
                }
                self.bench.answer(&fetch, |_| Ok(1.0));
                for name in &fetch.names {
                    let namespace = fetch.provider.namespace.clone();
                    self.answered.insert(MetricKey { namespace, name: name.clone() }, now);
                }
            }
        }
        self.bench.seconds += 1;
    }
}

#[test]
fn hanging_providers_delay_no_other_namespace() {
    let mut objects: Vec<Object> = (0..120).flat_map(|number| one("bad", &format!("p{number}"))).collect();
    // Tables of the same namespace, too.
    objects.push(table(Some("bad"), "t", &json!({ "listed": 1.0 })));
    objects.push(metric(&of("bad", "listed"), "t", "listed", 0.0, 10.0));
    objects.push(cluster("bad", "listed", &[reference("listed", true)]));
    objects.extend(one("good", "p"));
    let mut world = World::with(objects);
    let hangs = |fetch: &DueFetch| {
        fetch.provider.namespace.as_deref() == Some("bad") && fetch.provider.name.starts_with('p')
    };
    let good = [of("bad", "listed"), of("good", "p")];
    for second in 0..40 * ROUND {
        if second == 100 {
            for object in one("good", "new") {
                world.bench.put(vec![object]);
            }
        }
        world.second(hangs);
        for key in &good {
            assert_eq!(world.answered[key], second - second % ROUND, "{key} after {second} s");
        }
        if second >= 100 {
            assert!(world.answered.contains_key(&of("good", "new")), "it was not asked at once");
        }
    }
    let requested: BTreeSet<&MetricKey> = world.answered.keys().collect();
    assert_eq!(requested.len(), 3);
}

#[test]
fn recently_failed_providers_come_after_all_others() {
    let objects = (0..6).flat_map(|number| one("n", &format!("bad{number}"))).collect();
    let mut world = World::with(objects);
    // All of them fail a first time.
    for _ in 0..6 * DEADLINE {
        world.second(|_| true);
    }
    let good: Vec<String> = (0..6).map(|number| format!("good{number}")).collect();
    world.bench.put(good.iter().flat_map(|name| one("n", name)).collect());
    let rest = 4 * ROUND + 1 - world.bench.seconds % ROUND;
    for _ in 0..rest {
        world.second(|fetch| fetch.provider.name.starts_with("bad"));
    }
    let now = world.bench.seconds - 1;
    for name in good {
        assert_eq!(world.answered[&of("n", &name)], now - now % ROUND, "{name}");
    }
}

#[test]
fn failing_providers_are_retried_in_turn_and_recoveries_are_noticed() {
    let names: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
    let mut world = World::with(names.iter().flat_map(|name| one("n", name)).collect());
    for _ in 0..20 * ROUND {
        world.second(|_| true);
    }
    assert_eq!(world.answered.len(), 0);
    let back = world.bench.seconds;
    // The hanging fetches end first, and the breaker skips three rounds.
    for _ in 0..DEADLINE + 4 * ROUND {
        world.second(|_| false);
    }
    for name in &names {
        assert!(world.answered[&of("n", name)] >= back, "{name}");
    }
}
