use std::collections::BTreeMap;

use madako_domain::placement::decision::Outcome;
use madako_domain::placement::kind::ObjectKey;
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metadata::{MetricRef, ResourceRef};
use madako_domain::placement::metrics::{MetricKey, Value};
use madako_json::krake::entries::Labels;
use madako_json::krake::free::JsonObject;
use madako_json::krake::timestamp::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;

use crate::testing::{World, begin, cloud, global_cloud, metric};
use crate::{MaxMoves, Pass};

const METRICS: [&str; 4] = ["m0", "m1", "m2", "m3"];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Value(u8),
    Unknown,
    Failing,
    Undefined,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => (0..=4_u8).prop_map(Kind::Value),
        1 => Just(Kind::Unknown),
        1 => Just(Kind::Failing),
        1 => Just(Kind::Undefined),
    ]
}

#[derive(Debug, Clone)]
struct SomeCluster {
    label: Option<&'static str>,
    metrics: Vec<(&'static str, u8)>,
    state: ClusterState,
    deleted: bool,
}

fn some_cluster() -> impl Strategy<Value = SomeCluster> {
    let state = prop_oneof![
        6 => Just(ClusterState::Online),
        1 => Just(ClusterState::Offline),
        1 => Just(ClusterState::FailingMetrics),
        1 => select(ClusterState::ALL),
    ];
    (
        prop::option::of(select(vec!["x", "y"])),
        prop::collection::vec((select(METRICS.to_vec()), 0..3_u8), 0..4),
        state,
        prop::bool::weighted(0.05),
    )
        .prop_map(|(label, metrics, state, deleted)| SomeCluster { label, metrics, state, deleted })
}

#[derive(Debug, Clone)]
struct SomeApplication {
    labels: Vec<&'static str>,
    metrics: Vec<&'static str>,
    /// The cluster that it is bound to, and for how long.
    bound: Option<(usize, u16)>,
    limit: i64,
    migration: bool,
    update: bool,
    creates: bool,
}

fn some_application() -> impl Strategy<Value = SomeApplication> {
    (
        prop::collection::vec(select(vec!["l is x", "l is not x", "l in (x, y)", "k is x", "l is ("]), 0..2),
        prop::collection::vec(
            select(vec!["m0 > 0.4", "m1 is not 0.5", "m2 <= 1", "m3 is 2", "other < 1"]),
            0..2,
        ),
        prop::option::of((0..8_usize, select(vec![0_u16, 30, 60, 500]))),
        select(vec![-1_i64, 0, 1, 2]),
        prop::bool::weighted(0.8),
        any::<bool>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(labels, metrics, bound, limit, migration, update, creates)| SomeApplication {
            labels,
            metrics,
            bound,
            limit,
            migration,
            update,
            creates,
        })
}

prop_compose! {
    fn some_world()(
        kinds in prop::collection::vec(kind(), METRICS.len()),
        clusters in prop::collection::vec(some_cluster(), 0..7),
        applications in prop::collection::vec(some_application(), 0..9),
        at_least in 0..4_u64,
        percent in select(vec![0_u64, 10, 50]),
        seed in any::<u64>(),
        stickiness in select(vec![0.0, 0.1, 1.0]),
        observed in prop::bool::weighted(0.9),
        clouds in prop::collection::vec((select(METRICS.to_vec()), select(vec!["x", "y"]), any::<bool>()), 0..3),
    ) -> World {
        let mut world = World::new();
        world.seed = seed;
        world.config.stickiness = stickiness;
        world.config.max_moves = MaxMoves { percent, at_least };
        for (name, kind) in METRICS.iter().zip(kinds) {
            match kind {
                Kind::Value(quarter) => world.metric(name, f64::from(quarter) / 4.0),
                Kind::Unknown => { world.put(metric(name)); }
                Kind::Failing => { world.put(metric(name)); world.lose(name); }
                Kind::Undefined => {
                    let code = madako_domain::placement::metadata::ReasonCode::UnknownMetric;
                    let reason = madako_domain::placement::metadata::Reason::new(code, "none");
                    world.know(name, None, Some(reason), true);
                }
            }
        }
        for (number, some) in clusters.into_iter().enumerate() {
            world.cluster(&format!("c{number}"), |cluster| {
                if let Some(label) = some.label {
                    cluster.metadata.labels.insert("l", label.to_owned());
                }
                cluster.spec.metrics =
                    some.metrics.iter().map(|(name, weight)| MetricRef::new(*name, f64::from(*weight), false)).collect();
                cluster.status.state = some.state;
                if some.deleted {
                    cluster.metadata.deleted = Some(Timestamp::new(begin()));
                }
            });
        }
        world.config.cluster_creation.tosca = JsonObject::from_text("{}").ok();
        for (number, (metric, label, global)) in clouds.into_iter().enumerate() {
            let (name, metrics) = (format!("o{number}"), [(metric, 1.0)]);
            let label = |labels: &mut Labels| labels.insert("l", label.to_owned());
            if global {
                let mut cloud = global_cloud(&name, &metrics);
                label(&mut cloud.metadata.labels);
                world.put(cloud);
            } else {
                let mut cloud = cloud(&name, &metrics);
                label(&mut cloud.metadata.labels);
                world.put(cloud);
            }
        }
        world.wait(500);
        let now = world.now;
        for (number, some) in applications.into_iter().enumerate() {
            world.application(&format!("a{number}"), |application| {
                let wants = &mut application.spec.constraints.cluster;
                let stored = |text: &&str| madako_domain::placement::LabelConstraint::from_stored((*text).to_owned());
                wants.labels = Some(some.labels.iter().map(stored).collect());
                wants.metrics = Some(some.metrics.iter().map(|text| text.parse().unwrap()).collect());
                application.spec.backoff_limit = some.limit;
                application.spec.constraints.migration = some.migration;
                application.spec.auto_cluster_create = some.creates;
                if let Some((cluster, ago)) = some.bound {
                    let key = ObjectKey::new(
                        madako_domain::placement::kind::Kind::Cluster,
                        Some(crate::testing::NAMESPACE),
                        format!("c{cluster}"),
                    );
                    let cluster = ResourceRef::from_key(&key);
                    let since = now - std::time::Duration::from_secs(ago.into());
                    madako_domain::placement::binding::bind_application(application, cluster, since);
                }
                if some.update {
                    application.metadata.modified = Timestamp::new(now);
                }
            });
        }
        if !observed {
            world.metrics = None;
        }
        world
    }
}

fn moves(pass: &Pass) -> usize {
    pass.units.iter().filter(|unit| unit.moves).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    // The commit checks I11 for each binding.
    #[test]
    fn applications_are_bound_only_to_allowed_clusters(mut world in some_world()) {
        if world.metrics.is_none() {
            let pass = world.pass();
            let metrics = |to| world.snapshot.typed::<Cluster>(to).unwrap().value.spec.metrics.len();
            let bound = pass.units.iter().filter_map(|unit| unit.binding.as_ref());
            prop_assert_eq!(bound.map(|(_, to)| metrics(to)).sum::<usize>(), 0);
            return Ok(());
        }
        for _ in 0..3 {
            world.run();
            world.wait(30);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_pass(world in some_world()) {
        prop_assert_eq!(world.pass(), world.pass());
    }

    #[test]
    fn a_pass_over_the_result_of_a_pass_decides_nothing(mut world in some_world()) {
        // Wait for effects of several steps, such as garbage collection.
        let observed = world.metrics.is_some();
        if observed {
            world.settle();
            prop_assert_eq!(world.run().units, []);
        }
    }

    #[test]
    fn applications_are_decided_once(mut world in some_world()) {
        if world.metrics.is_some() {
            world.run();
            // The next pass may choose a cluster with recovered metrics; after it nothing is left to do.
            let recovered = world.run();
            let later = world.run();
            let left: Vec<_> = later.units.iter().filter(|unit| unit.kind == crate::WriteKind::Application).collect();
            prop_assert!(left.is_empty(), "{left:#?} after {recovered:#?}");
        }
    }

    #[test]
    fn an_equal_score_causes_no_move(
        values in prop::collection::vec(0..=4_u8, 2..6),
        stickiness in select(vec![0.0, 0.1, 5.0]),
        seed in any::<u64>(),
    ) {
        let mut world = World::new();
        world.config.stickiness = stickiness;
        world.seed = seed;
        for (number, value) in values.iter().enumerate() {
            world.scored(&format!("c{number}"), &[(&format!("v{number}"), f64::from(*value) / 4.0)]);
        }
        world.application("a", |_| {});
        world.run();
        let first = world.bound("a").map(str::to_owned);
        let best = values.iter().max().copied().unwrap_or(0);
        let chosen: usize = first.as_deref().unwrap()[1..].parse().unwrap();
        prop_assert_eq!(values[chosen], best);
        for round in 0..5 {
            world.wait(100);
            world.seed = seed.wrapping_add(round);
            world.run();
            prop_assert_eq!(world.bound("a"), first.as_deref());
        }
    }

    #[test]
    fn moves_never_exceed_their_limit_and_first_bindings_are_never_held(
        mut world in some_world(),
        steps in prop::collection::vec((0..61_u64, 0..METRICS.len(), 0..=4_u8), 1..8),
    ) {
        prop_assume!(world.metrics.is_some());
        let limit = world.config.max_moves.limit_for(world.snapshot.of::<Application>().count());
        let mut history: Vec<(time::OffsetDateTime, usize)> = Vec::new();
        for (pause, metric, value) in steps {
            let pass = world.run();
            history.push((world.now, moves(&pass)));
            let since = world.now - world.config.reschedule_after;
            let recent: usize =
                history.iter().filter(|(at, _)| *at > since).map(|(_, count)| count).sum();
            prop_assert!(recent as u64 <= limit, "{recent} of {limit}");
            for resource in world.snapshot.of::<Application>() {
                let unbound = resource.value.status.scheduled_to.is_none();
                let held = matches!(pass.decisions[&resource.stored.key].outcome, Outcome::Held { .. });
                prop_assert!(!(unbound && held));
            }
            world.wait(pause);
            world.metric(METRICS[metric], f64::from(value) / 4.0);
        }
    }

    #[test]
    fn metric_values_of_any_kind_cause_no_panic(
        raw in prop::collection::vec(prop::num::f64::ANY, METRICS.len()),
        weights in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::ZERO, 1..4),
        mut world in some_world(),
    ) {
        if let Some(observed) = &mut world.metrics {
            for (name, raw) in METRICS.iter().zip(raw) {
                let key = MetricKey { namespace: None, name: (*name).to_owned() };
                if let Some(state) = observed.metrics.get_mut(&key) {
                    state.value = Some(Value { raw, normalized: raw, at: begin() });
                }
            }
        }
        for (number, weight) in weights.into_iter().enumerate() {
            let all: Vec<_> = METRICS.iter().map(|name| MetricRef::new(*name, weight, false)).collect();
            // Stores may hold values that the API rejects.
            world.cluster(&format!("odd{number}"), |cluster| cluster.spec.metrics = all);
        }
        let pass = world.pass();
        prop_assert_eq!(&pass, &world.pass());
        let finite = |score: Option<f64>| score.is_none_or(f64::is_finite);
        for decision in pass.decisions.values() {
            prop_assert!(finite(decision.best.as_ref().map(|best| best.score)));
        }
    }

    #[test]
    fn set_of_constraints_matches_like_its_single_constraints(world in some_world()) {
        prop_assume!(world.metrics.is_some());
        let metrics = &world.metrics.as_ref().unwrap().metrics;
        let pass = world.pass();
        for resource in world.snapshot.of::<Application>() {
            let wants = madako_domain::placement::fit::Requirements::from(resource.value);
            let fit: BTreeMap<_, _> = world
                .snapshot
                .of::<Cluster>()
                .filter(|cluster| madako_domain::placement::fit::unavailable_reasons(cluster.value).is_empty())
                .filter(|cluster| {
                    let known = |metric: &MetricRef| {
                        let key = MetricKey { namespace: None, name: metric.name.clone() };
                        metrics.get(&key).is_some_and(|state| state.value.is_some())
                    };
                    cluster.value.spec.metrics.iter().all(known)
                })
                .filter(|cluster| {
                    let compared = world.config.metric_constraints;
                    let offer =
                        madako_domain::placement::fit::Offer::from_cluster(cluster.value, None, metrics, compared);
                    wants.are_met_by(&offer)
                })
                .map(|cluster| (cluster.stored.key.clone(), ()))
                .collect();
            prop_assert_eq!(pass.decisions[&resource.stored.key].clusters.fit, fit.len());
        }
    }
}
