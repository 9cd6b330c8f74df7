use std::collections::BTreeSet;

use madako_domain::placement::decision::{DropReason, ExplainError, Explanation, Outcome, WhatIf};
use madako_domain::placement::fit::UnmetConstraint;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::ClusterState;
use madako_domain::placement::metadata::MetricRef;
use madako_json::krake::free::JsonObject;

use crate::testing::{NAMESPACE, World, global_cloud, metric};
use crate::{ExplainedPass, PassInput, explain};

fn asked(world: &World, what_if: &WhatIf) -> Result<Explanation, ExplainError> {
    asked_with(world, what_if, &mut ExplainedPass::default())
}

fn asked_with(
    world: &World,
    what_if: &WhatIf,
    pass: &mut ExplainedPass,
) -> Result<Explanation, ExplainError> {
    let input = PassInput {
        snapshot: &world.snapshot,
        metrics: world.metrics.as_ref(),
        config: &world.config,
        memory: &world.memory,
        now: world.now,
        seed: world.seed,
    };
    explain(&input, &ObjectKey::new(Kind::Application, Some(NAMESPACE), "a"), what_if, None, pass)
}

/// An application on the better of two clusters.
fn world() -> World {
    let mut world = World::new();
    world.scored("good", &[("great", 0.75)]);
    world.scored("bad", &[("small", 0.25)]);
    world.application("a", |application| {
        application.spec.constraints.cluster.labels = None;
    });
    world.run();
    world.wait(60);
    world
}

#[test]
fn explanation_names_every_candidate_and_its_obstacle() {
    let mut world = world();
    world.put(metric("new"));
    world.cluster("none", |_| {});
    world.cluster("offline", |cluster| cluster.status.state = ClusterState::Offline);
    world.scored("failing", &[("lost", 0.5)]);
    world.lose("lost");
    world.cluster("waits", |cluster| cluster.spec.metrics = vec![MetricRef::new("new", 1.0, false)]);
    world.cluster("labelled", |cluster| cluster.metadata.labels.insert("l", "other".to_owned()));
    world.change::<madako_domain::placement::kubernetes::Application>("a", |application| {
        application.spec.constraints.cluster.labels = Some(vec!["l is x".parse().unwrap()]);
    });
    for name in ["good", "none", "failing", "waits"] {
        world.change::<madako_domain::placement::kubernetes::Cluster>(name, |cluster| {
            cluster.metadata.labels.insert("l", "x".to_owned());
        });
    }
    let explanation = asked(&world, &WhatIf::default()).unwrap();
    let dropped: Vec<_> =
        explanation.clusters.iter().map(|it| (it.target.name.as_str(), it.dropped.clone())).collect();
    let label = |got: Option<&str>| UnmetConstraint::Label {
        constraint: "l is x".into(),
        got: got.map(str::to_owned),
    };
    assert_eq!(dropped[0], ("bad", Some(DropReason::Unmet { unmet: vec![label(None)] })));
    assert!(
        matches!(&dropped[1], ("failing", Some(DropReason::FailingMetrics { metric, why: Some(_) })) if metric == "lost")
    );
    assert_eq!(dropped[2], ("good", None));
    assert_eq!(dropped[3], ("labelled", Some(DropReason::Unmet { unmet: vec![label(Some("other"))] })));
    assert_eq!(dropped[4], ("none", Some(DropReason::WithoutMetrics)));
    let offline = vec![UnmetConstraint::NotOnline { state: ClusterState::Offline }, label(None)];
    assert_eq!(dropped[5], ("offline", Some(DropReason::Unmet { unmet: offline })));
    assert_eq!(dropped[6], ("waits", Some(DropReason::WaitsForMetric { metric: "new".to_owned() })));
}

#[test]
fn metrics_are_shown_with_value_weight_and_age_and_scores_with_stickiness() {
    let world = world();
    let explanation = asked(&world, &WhatIf::default()).unwrap();
    let good = &explanation.clusters[1];
    assert!(good.current);
    assert_eq!((good.base, good.score), (Some(0.75), Some(0.85 / 1.1)));
    let part = &good.metrics[0];
    assert_eq!((part.metric.as_str(), part.weight, part.value), ("great", 1.0, Some(0.75)));
    assert_eq!((part.normalized, part.age), (Some(0.75), Some(60.0)));
    assert!(matches!(explanation.decision.outcome, Outcome::Stays { .. }));
    let gain = explanation.decision.gain.unwrap();
    assert!((gain.gain + 0.5).abs() < 1e-12);
    // It can be serialized.
    serde_json::to_string(&explanation).unwrap();
}

#[test]
fn explanations_share_a_pass_for_a_second_and_assumptions_do_not() {
    let mut world = world();
    let with = |value| WhatIf { with: vec![("small".to_owned(), value)], ..WhatIf::default() };
    let mut pass = ExplainedPass::default();
    let mut moves = |world: &World, what_if: &WhatIf| {
        let decision = asked_with(world, what_if, &mut pass).unwrap().decision;
        matches!(decision.outcome, Outcome::Moved { .. })
    };
    assert!(!moves(&world, &WhatIf::default()));
    assert!(moves(&world, &with(0.8)), "an assumption has a pass of its own");
    assert!(!moves(&world, &WhatIf::default()), "and leaves none behind");
    world.metric("small", 0.8);
    assert!(!moves(&world, &WhatIf::default()), "the owner of the pass drops it");
    world.wait(1);
    assert!(moves(&world, &WhatIf::default()));
}

#[test]
fn explanation_shows_the_effect_of_another_value_or_a_missing_cluster() {
    let world = world();
    let with = |metric: &str, value| WhatIf { with: vec![(metric.to_owned(), value)], ..WhatIf::default() };
    let without = |name: &str| WhatIf { without: vec![name.to_owned()], ..WhatIf::default() };
    let outcome = |what_if: &WhatIf| asked(&world, what_if).unwrap().decision.outcome;
    assert!(matches!(outcome(&with("small", 0.7)), Outcome::Stays { .. }));
    assert!(matches!(outcome(&with("small", 0.8)), Outcome::Moved { .. }));
    assert!(matches!(outcome(&without("bad")), Outcome::Stays { .. }));
    assert!(matches!(outcome(&without("good")), Outcome::Moved { to, .. } if to.name == "bad"));
    let shown = asked(&world, &without("good")).unwrap();
    assert_eq!(shown.clusters[1].dropped, Some(DropReason::LeftOut));
}

#[test]
fn assumed_metric_is_named_with_or_without_its_namespace() {
    let mut world = world();
    let mut far = crate::testing::cluster("far");
    far.metadata.namespace = Some("else".to_owned());
    far.spec.metrics = vec![MetricRef::new("theirs", 1.0, true)];
    world.put(far);
    world.put(crate::testing::namespaced_metric("theirs", "else"));
    for (candidates, known) in [(crate::Candidates::All, true), (crate::Candidates::Namespace, false)] {
        world.config.candidates = candidates;
        for name in ["theirs", "else/theirs"] {
            let with = WhatIf { with: vec![(name.to_owned(), 1.0)], ..WhatIf::default() };
            let told = asked(&world, &with);
            assert_eq!(told.is_ok(), known, "{name} {candidates:?}");
            let moves = |told: Explanation| matches!(told.decision.outcome, Outcome::Moved { to, .. } if to.name == "far");
            assert_eq!(told.is_ok_and(moves), known, "{name} {candidates:?}");
            let unseen = WhatIf { namespaces: Some(BTreeSet::from([NAMESPACE.to_owned()])), ..with };
            assert!(matches!(asked(&world, &unseen), Err(ExplainError::UnknownMetric { .. })), "{name}");
        }
        let with = WhatIf { with: vec![("other/theirs".to_owned(), 1.0)], ..WhatIf::default() };
        assert!(matches!(asked(&world, &with), Err(ExplainError::UnknownMetric { .. })));
    }
}

#[test]
fn with_values_for_all_its_metrics_a_failing_place_is_online() {
    let mut world = world();
    world.scored("best", &[("lost", 0.9), ("gone", 0.9)]);
    world.lose("lost");
    world.run();
    world.lose("gone");
    let best = |explanation: &Explanation| {
        explanation.clusters.iter().find(|it| it.target.name == "best").unwrap().clone()
    };
    let ask = |with: &[(&str, f64)]| {
        let with = with.iter().map(|(metric, value)| ((*metric).to_owned(), *value)).collect();
        asked(&world, &WhatIf { with, ..WhatIf::default() }).unwrap()
    };
    let one = ask(&[("lost", 1.0)]);
    let fails = |explanation: &Explanation, name: &str| match best(explanation).dropped {
        Some(DropReason::FailingMetrics { metric, .. }) => metric == name,
        _ => false,
    };
    assert!(fails(&one, "gone"));
    let both = ask(&[("lost", 1.0), ("gone", 1.0)]);
    assert_eq!((best(&both).dropped, best(&both).score), (None, Some(1.0)));
    assert!(matches!(both.decision.outcome, Outcome::Moved { to, .. } if to.name == "best"));
    // Both values are back: it still fails by its stored state.
    world.metric("lost", 0.9);
    world.metric("gone", 0.9);
    let shown = asked(&world, &WhatIf::default()).unwrap();
    assert!(fails(&shown, "lost"));
}

#[test]
fn given_metric_values_let_a_failing_global_cloud_take_new_clusters() {
    let mut world = World::new();
    world.config.cluster_creation.tosca = Some(JsonObject::from_text("{}").unwrap());
    world.metric("lost", 0.9);
    world.put(global_cloud("sky", &[("lost", 1.0)]));
    world.lose("lost");
    world.run();
    world.application("a", |application| {
        application.spec.auto_cluster_create = true;
        application.spec.constraints.cluster.labels = None;
    });
    let creates = |with: &[(&str, f64)]| {
        let with = with.iter().map(|(metric, value)| ((*metric).to_owned(), *value)).collect();
        let explanation = asked(&world, &WhatIf { with, ..WhatIf::default() }).unwrap();
        matches!(explanation.decision.outcome, Outcome::Creates { cloud, .. } if cloud.name == "sky")
    };
    assert!(!creates(&[]));
    assert!(creates(&[("lost", 0.5)]));
}

#[test]
fn explanation_shows_the_note_of_a_metric() {
    let mut world = world();
    let note = "of 2 series the first in the order of labels";
    for state in world.metrics.as_mut().unwrap().metrics.values_mut() {
        state.note = Some(note.to_owned());
    }
    let explanation = asked(&world, &WhatIf::default()).unwrap();
    assert_eq!(explanation.clusters[1].metrics[0].note.as_deref(), Some(note));
}

#[test]
fn explanation_rejects_unknown_objects_and_bad_values() {
    let mut world = world();
    let ask = |world: &World, metric: &str, value| {
        asked(world, &WhatIf { with: vec![(metric.to_owned(), value)], ..WhatIf::default() })
    };
    assert!(matches!(ask(&world, "other", 0.5), Err(ExplainError::UnknownMetric { .. })));
    assert!(matches!(ask(&world, "small", 1.5), Err(ExplainError::BadValue { .. })));
    assert!(matches!(ask(&world, "small", f64::NAN), Err(ExplainError::BadValue { .. })));
    let without = WhatIf { without: vec!["other".to_owned()], ..WhatIf::default() };
    assert!(matches!(asked(&world, &without), Err(ExplainError::UnknownCluster { .. })));
    world.remove(&ObjectKey::new(Kind::Application, Some(NAMESPACE), "a"));
    assert!(matches!(asked(&world, &WhatIf::default()), Err(ExplainError::Unknown { .. })));
}

#[test]
fn a_cluster_of_another_namespace_can_be_left_out_where_it_is_a_candidate() {
    let mut world = world();
    let mut other = crate::testing::cluster("far");
    other.metadata.namespace = Some("else".to_owned());
    world.put(other);
    for (candidates, known) in [(crate::Candidates::All, true), (crate::Candidates::Namespace, false)] {
        world.config.candidates = candidates;
        for name in ["far", "else/far"] {
            let without = WhatIf { without: vec![name.to_owned()], ..WhatIf::default() };
            assert_eq!(asked(&world, &without).is_ok(), known, "{name} {candidates:?}");
            // It does not exist for a client without access to its namespace.
            let unseen = WhatIf { namespaces: Some(BTreeSet::from([NAMESPACE.to_owned()])), ..without };
            assert!(matches!(asked(&world, &unseen), Err(ExplainError::UnknownCluster { .. })), "{name}");
        }
    }
}
