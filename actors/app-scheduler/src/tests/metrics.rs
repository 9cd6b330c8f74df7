//! Tests of decisions that need metrics which fail or were not fetched yet.

use madako_domain::placement::decision::{Outcome, Stay};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Cluster, ClusterState};
use madako_domain::placement::metadata::{MetricRef, Reason, ReasonCode};

use super::key;
use crate::WriteKind;
use crate::testing::{World, begin, metric, provider};

#[test]
fn decisions_wait_for_a_new_metric_for_a_bounded_time() {
    let mut world = World::new();
    world.put(metric("new"));
    world.cluster("measured", |cluster| cluster.spec.metrics = vec![MetricRef::new("new", 1.0, false)]);
    world.cluster("none", |_| {});
    world.application("a", |_| {});
    let pass = world.run();
    assert_eq!(pass.units, []);
    let until = begin() + std::time::Duration::from_secs(20);
    let waits = Outcome::WaitsForMetric { metrics: vec!["new".to_owned()], until };
    assert_eq!((world.outcome("a"), pass.again), (waits, Some(until)));
    world.wait(19);
    assert_eq!(world.run().units, []);
    let mut answered = World { snapshot: world.snapshot.clone(), ..World::new() };
    answered.metric("new", 0.0);
    answered.run();
    assert_eq!(answered.bound("a"), Some("measured"));
    world.wait(1);
    world.run();
    assert_eq!(world.bound("a"), Some("none"));
    // Its state is not known to be wrong.
    assert_eq!(world.get::<Cluster>("measured").status.state, ClusterState::Online);
}

#[test]
fn pass_waits_for_a_changed_metric_definition_and_then_uses_the_former_value() {
    let mut world = World::new();
    world.scored("c", &[("m", 0.5)]);
    world.put(metric("m"));
    world.application("a", |_| {});
    assert!(matches!(world.outcome("a"), Outcome::WaitsForMetric { .. }));
    world.run();
    world.wait(20);
    world.run();
    assert_eq!(world.bound("a"), Some("c"));
}

#[test]
fn a_value_counts_only_if_it_is_by_the_present_definitions_of_metric_and_provider() {
    let mut world = World::new();
    world.put(provider("p"));
    world.put(provider("other"));
    world.scored("c", &[("m", 0.5)]);
    world.application("a", |_| {});
    assert!(matches!(world.outcome("a"), Outcome::Bound { .. }));
    // A change of another provider does not matter.
    world.put(provider("other"));
    assert!(matches!(world.outcome("a"), Outcome::Bound { .. }));
    let known = world.metrics.clone();
    world.put(provider("p"));
    assert!(matches!(world.outcome("a"), Outcome::WaitsForMetric { .. }), "its provider changed");
    assert_eq!(world.run().units, []);
    world.metric("m", 0.5);
    assert!(matches!(world.outcome("a"), Outcome::Bound { .. }), "it was fetched again");
    world.remove(&ObjectKey::new(Kind::GlobalMetricsProvider, None, "p"));
    assert!(matches!(world.outcome("a"), Outcome::WaitsForMetric { .. }), "its provider is gone");
    world.metric("m", 0.5);
    world.remove(&ObjectKey::new(Kind::GlobalMetric, None, "m"));
    assert!(matches!(world.outcome("a"), Outcome::WaitsForMetric { .. }), "it is gone itself");
    world.metrics = known;
    world.put(provider("p"));
    world.put(metric("m"));
    assert!(matches!(world.outcome("a"), Outcome::WaitsForMetric { .. }), "it is another one by now");
    // An answer by a definition newer than the snapshot is valid.
    let newer = world.snapshot.revision() + 1;
    for state in world.metrics.as_mut().unwrap().metrics.values_mut() {
        (state.metric_revision, state.provider_revision) = (newer, newer);
    }
    assert!(matches!(world.outcome("a"), Outcome::Bound { .. }), "its answer came before its definition");
}

#[test]
fn a_monitoring_outage_causes_no_moves_and_no_bindings() {
    let mut world = World::new();
    world.scored("measured", &[("m", 0.5)]);
    world.application("a", |_| {});
    world.run();
    world.cluster("none", |_| {});
    world.lose("m");
    let pass = world.run();
    assert_eq!(pass.units.iter().map(|unit| unit.kind).collect::<Vec<_>>(), [WriteKind::Metrics]);
    let measured = world.get::<Cluster>("measured");
    assert_eq!(measured.status.state, ClusterState::FailingMetrics);
    let reason = measured.status.metrics_reasons.get("m").unwrap();
    assert_eq!(reason.code, ReasonCode::UnreachableMetricsProvider);
    world.application("b", |_| {});
    for _ in 0..3 {
        world.wait(1_000);
        world.run();
    }
    assert_eq!((world.bound("a"), world.bound("b")), (Some("measured"), Some("none")));
    assert_eq!(world.outcome("a"), Outcome::Stays { on: key("measured"), why: Stay::FailingMetrics });
    world.metric("m", 0.5);
    world.run();
    let measured = world.get::<Cluster>("measured");
    assert_eq!(measured.status.state, ClusterState::Online);
    assert!(measured.status.metrics_reasons.is_empty());
}

#[test]
fn changed_error_text_of_a_failing_metric_writes_nothing() {
    let mut world = World::new();
    world.scored("c", &[("m", 0.5)]);
    let fails = |world: &mut World, code, words: &str| {
        world.know("m", None, Some(Reason::new(code, words)), true);
        world.run().units.len()
    };
    assert_eq!(fails(&mut world, ReasonCode::InvalidMetric, "its value 7 is not between 0 and 1"), 1);
    assert_eq!(fails(&mut world, ReasonCode::InvalidMetric, "its value 8 is not between 0 and 1"), 0);
    assert_eq!(fails(&mut world, ReasonCode::UnknownMetric, "there is none"), 1);
    let reasons = &world.get::<Cluster>("c").status.metrics_reasons;
    assert_eq!(reasons.get("m").unwrap().code, ReasonCode::UnknownMetric);
}

#[test]
fn only_an_online_cluster_gets_the_state_failing_metrics() {
    for state in ClusterState::ALL {
        let mut world = World::new();
        world.scored("c", &[("m", 0.5)]);
        world.change::<Cluster>("c", |cluster| cluster.status.state = *state);
        world.lose("m");
        world.run();
        let failing = [ClusterState::Online, ClusterState::FailingMetrics].contains(state);
        let expected = if failing { ClusterState::FailingMetrics } else { *state };
        assert_eq!(world.get::<Cluster>("c").status.state, expected);
    }
}
