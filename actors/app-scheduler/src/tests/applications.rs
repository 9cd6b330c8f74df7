use madako_messages::placement::decision::{Hold, LeftAlone, Move, Outcome, Stay};
use madako_messages::placement::fit::Compared;
use madako_messages::placement::kind::{Kind, ObjectKey};
use madako_messages::placement::kubernetes::{Application, ApplicationState, Cluster, ClusterState};
use madako_messages::placement::metadata::{MetricRef, Reason, ReasonCode, ResourceRef};
use madako_messages::placement::timestamp::Timestamp;

use crate::testing::{NAMESPACE, World, begin, cluster, metric};
use crate::{Candidates, MaxMoves, Memory, SchedulerConfig, What};

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Cluster, Some(NAMESPACE), name)
}

fn wants(labels: &[&str]) -> impl FnOnce(&mut Application) {
    let labels = labels.iter().map(|text| text.parse().unwrap()).collect();
    |application| application.spec.constraints.cluster.labels = Some(labels)
}

/// A world with an application `a` on the worse of two clusters.
fn bound_to_worse() -> World {
    let mut world = World::new();
    world.scored("low", &[("small", 0.2)]);
    world.application("a", |_| {});
    world.run();
    world.scored("high", &[("great", 0.9)]);
    world
}

#[test]
fn an_application_goes_to_the_cluster_with_the_highest_score() {
    let mut world = World::new();
    world.scored("low", &[("small", 0.2)]);
    world.scored("high", &[("great", 0.9)]);
    world.cluster("none", |_| {});
    world.application("a", |_| {});
    let pass = world.run();
    assert_eq!(world.bound("a"), Some("high"));
    let decision = &pass.decisions[&ObjectKey::new(Kind::Application, Some(NAMESPACE), "a")];
    assert_eq!(decision.outcome, Outcome::Bound { to: key("high") });
    assert_eq!(decision.best.as_ref().map(|best| best.score), Some(0.9));
    assert_eq!(decision.runner_up.as_ref().map(|other| other.target.clone()), Some(key("low")));
    assert_eq!((decision.clusters.considered, decision.clusters.fit), (3, 3));
    let status = &world.get::<Application>("a").status;
    let now = Some(Timestamp::new(world.now));
    assert_eq!((&status.scheduled, &status.kube_controller_triggered), (&now, &now));
}

#[test]
fn clusters_with_metrics_come_before_those_without_even_with_a_score_of_zero() {
    let mut world = World::new();
    world.cluster("none", |_| {});
    world.scored("zero", &[("nothing", 0.0)]);
    world.application("a", |_| {});
    world.run();
    assert_eq!(world.bound("a"), Some("zero"));
}

#[test]
fn weights_of_zero_score_zero() {
    let mut world = World::new();
    world.metric("m", 1.0);
    world.cluster("weightless", |cluster| cluster.spec.metrics = vec![MetricRef::new("m", 0.0, false)]);
    world.scored("little", &[("l", 0.01)]);
    world.application("a", |_| {});
    world.run();
    assert_eq!(world.bound("a"), Some("little"));
}

#[test]
fn a_metric_may_be_named_twice_and_counts_twice() {
    let mut world = World::new();
    world.metric("m", 1.0);
    world.metric("n", 0.0);
    let refs =
        |list: &[(&str, f64)]| list.iter().map(|(m, w)| MetricRef::new(*m, *w, false)).collect::<Vec<_>>();
    world.cluster("twice", |cluster| cluster.spec.metrics = refs(&[("m", 1.0), ("m", 2.0), ("n", 1.0)]));
    world.application("a", |_| {});
    world.run();
    world.wait(60);
    let best = world.decision("a").best.unwrap();
    // (0.1 * 1 + 1 * 1 + 1 * 2 + 0) / (0.1 + 1 + 2 + 1)
    assert!((best.score - 3.1 / 4.1).abs() < 1e-12, "{best:?}");
}

#[test]
fn labels_custom_resources_and_metrics_filter() {
    let mut world = World::new();
    world.scored("plain", &[("load", 0.5)]);
    world.cluster("right", |cluster| {
        cluster.metadata.labels.insert("location", "DE".to_owned());
        cluster.spec.custom_resources = vec!["crontabs.stable.example.com".to_owned()];
        cluster.spec.metrics = vec![MetricRef::new("load", 1.0, false)];
    });
    for (name, labels, resources, metrics, fits) in [
        ("a", &["location is DE"][..], &[][..], &[][..], Some("right")),
        ("b", &["location is not DE"], &[], &[], None),
        ("c", &[], &["crontabs.stable.example.com"], &[], Some("right")),
        ("d", &["location is DE"], &[], &["load > 0.4"], Some("right")),
        ("e", &["location is DE"], &[], &["load > 0.5"], None),
        ("f", &["location is DE"], &[], &["other is not 1"], None),
        ("g", &["location is DE"], &["other"], &[], None),
    ] {
        world.application(name, |application| {
            let constraints = &mut application.spec.constraints.cluster;
            constraints.labels = Some(labels.iter().map(|text: &&str| text.parse().unwrap()).collect());
            constraints.custom_resources = resources.iter().map(|text: &&str| (*text).to_owned()).collect();
            constraints.metrics = Some(metrics.iter().map(|text: &&str| text.parse().unwrap()).collect());
        });
        world.run();
        assert_eq!(world.bound(name), fits, "{name}");
    }
}

#[test]
fn a_stored_constraint_that_cannot_be_read_never_matches() {
    let mut world = World::new();
    world.cluster("c", |cluster| cluster.metadata.labels.insert("a", "b".to_owned()));
    world.application("a", |application| {
        let text = "a is (".to_owned();
        application.spec.constraints.cluster.labels =
            Some(vec![madako_messages::placement::LabelConstraint::stored(text)]);
    });
    world.run();
    assert_eq!(world.get::<Application>("a").status.state, ApplicationState::Degraded);
}

#[test]
fn weighted_constraints_are_compared_as_krake_does() {
    let mut world = World::new();
    world.config.metric_constraints = Compared::Weighted;
    world.metric("load", 0.5);
    world.cluster("c", |cluster| cluster.spec.metrics = vec![MetricRef::new("load", 10.0, false)]);
    world.application("a", |application| {
        application.spec.constraints.cluster.metrics = Some(vec!["load is 5".parse().unwrap()]);
    });
    world.run();
    assert_eq!(world.bound("a"), Some("c"));
}

#[test]
fn equal_scores_are_drawn_and_applications_spread() {
    let mut world = World::new();
    for number in 0..4 {
        world.cluster(&format!("c{number}"), |_| {});
    }
    for number in 0..80 {
        world.application(&format!("a{number}"), |_| {});
    }
    world.run();
    for number in 0..4 {
        let name = format!("c{number}");
        let there = (0..80).filter(|a| world.bound(&format!("a{a}")) == Some(&name)).count();
        assert!((8..=35).contains(&there), "{there} of 80 on {name}");
    }
}

#[test]
fn who_was_bound_not_long_ago_stays_while_its_cluster_fits() {
    let mut world = bound_to_worse();
    assert!(matches!(world.outcome("a"), Outcome::Stays { why: Stay::Recent { .. }, .. }));
    world.wait(59);
    // After an update by its user, too.
    let modified = Timestamp::new(world.now);
    world.change::<Application>("a", |application| application.metadata.modified = modified);
    world.run();
    assert_eq!(world.bound("a"), Some("low"));
    world.wait(1);
    let pass = world.run();
    assert_eq!(world.bound("a"), Some("high"));
    let decision = &pass.decisions[&ObjectKey::new(Kind::Application, Some(NAMESPACE), "a")];
    let gain = decision.gain.unwrap();
    assert!((gain.gain - 0.7).abs() < 1e-12);
    // (0.1 + 0.2) / 1.1 - 0.2
    assert!((gain.stickiness - (0.3 / 1.1 - 0.2)).abs() < 1e-12);
    assert_eq!(decision.runner_up.as_ref().unwrap().target, key("low"));
}

#[test]
fn an_update_that_takes_the_fit_away_moves_at_once() {
    let mut world = bound_to_worse();
    world.cluster("high", |cluster| cluster.metadata.labels.insert("location", "DE".to_owned()));
    world.change::<Application>("a", wants(&["location is DE"]));
    world.run();
    assert_eq!(world.bound("a"), Some("high"));
}

#[test]
fn a_gain_below_the_stickiness_moves_nothing() {
    let mut world = World::new();
    world.scored("own", &[("own", 0.5)]);
    world.application("a", |_| {});
    world.run();
    // (0.1 + 0.5) / 1.1 = 0.545...
    world.scored("other", &[("other", 0.545)]);
    world.wait(60);
    world.run();
    assert_eq!(world.bound("a"), Some("own"));
    assert!(matches!(world.outcome("a"), Outcome::Stays { why: Stay::Best, .. }));
    world.metric("other", 0.546);
    world.run();
    assert_eq!(world.bound("a"), Some("other"));
}

#[test]
fn a_cluster_without_metrics_is_left_for_one_with() {
    let mut world = World::new();
    world.cluster("none", |_| {});
    world.application("a", |_| {});
    world.run();
    world.scored("some", &[("s", 0.01)]);
    world.wait(60);
    world.run();
    assert_eq!(world.bound("a"), Some("some"));
}

#[test]
fn a_cluster_that_is_not_online_is_left_after_a_whole_reschedule_after_without_interruption() {
    let mut world = World::new();
    world.scored("own", &[("own", 0.9)]);
    world.scored("other", &[("other", 0.1)]);
    world.application("a", |_| {});
    world.run();
    world.wait(1_000);
    let state = |world: &mut World, state| world.change::<Cluster>("own", |own| own.status.state = state);
    state(&mut world, ClusterState::Offline);
    world.run();
    world.wait(50);
    let until = begin() + std::time::Duration::from_secs(1_060);
    assert_eq!(world.pass().again, Some(until));
    let stays = Outcome::Stays { on: key("own"), why: Stay::NotOnline { until } };
    assert_eq!(world.outcome("a"), stays);
    state(&mut world, ClusterState::Online);
    world.run();
    assert_eq!(world.memory.clusters, Memory::default().clusters);
    state(&mut world, ClusterState::NotReady);
    world.run();
    world.wait(59);
    world.run();
    assert_eq!(world.bound("a"), Some("own"));
    // Offline in another way is no interruption.
    state(&mut world, ClusterState::Offline);
    world.wait(1);
    let pass = world.run();
    assert_eq!(world.bound("a"), Some("other"));
    let moved = Outcome::Moved { from: key("own"), to: key("other"), why: Move::NotOnline };
    assert_eq!(pass.decisions.values().next().unwrap().outcome, moved);
}

#[test]
fn since_when_a_cluster_is_not_online_is_kept_once() {
    let mut world = World::new();
    world.cluster("c", |cluster| cluster.status.state = ClusterState::Offline);
    let pass = world.run();
    assert_eq!(pass.kept.len(), 1);
    assert_eq!(pass.kept[0].memory.unwrap().not_online_since, Some(begin()));
    world.wait(10);
    assert_eq!(world.run().kept, []);
    world.remove(&key("c"));
    assert_eq!(world.run().kept[0].memory, None);
}

#[test]
fn who_may_not_migrate_stays_wherever_it_is() {
    let mut world = bound_to_worse();
    world.change::<Application>("a", |application| application.spec.constraints.migration = false);
    world.change::<Cluster>("low", |cluster| cluster.status.state = ClusterState::Offline);
    world.run();
    world.wait(1_000);
    world.run();
    assert_eq!(world.bound("a"), Some("low"));
    assert_eq!(world.outcome("a"), Outcome::Stays { on: key("low"), why: Stay::MigrationDisabled });
    // Its first binding is no migration.
    world.application("b", |application| application.spec.constraints.migration = false);
    world.run();
    assert_eq!(world.bound("b"), Some("high"));
}

#[test]
fn whose_migration_failed_stays_until_its_time_is_over() {
    let mut world = bound_to_worse();
    world.wait(60);
    let timeout = world.now.unix_timestamp() + 30;
    world.change::<Application>("a", |application| application.status.migration_timeout = timeout);
    assert!(matches!(world.outcome("a"), Outcome::Stays { why: Stay::MigrationTimeout { .. }, .. }));
    world.wait(30);
    world.run();
    assert_eq!(world.bound("a"), Some("high"));
}

#[test]
fn an_update_is_said_to_be_scheduled_once_even_if_nothing_moves() {
    for migration in [true, false] {
        let mut world = World::new();
        world.cluster("c", |_| {});
        world.application("a", |application| application.spec.constraints.migration = migration);
        world.run();
        let bound = world.get::<Application>("a").status.clone();
        world.wait(100);
        assert_eq!(world.run().units, []);
        let modified = Timestamp::new(world.now);
        world.change::<Application>("a", |application| application.metadata.modified = modified);
        world.wait(1);
        assert_eq!(world.run().units.len(), 1);
        let status = &world.get::<Application>("a").status;
        assert_eq!(status.kube_controller_triggered, Some(Timestamp::new(world.now)));
        assert_eq!(status.scheduled, bound.scheduled);
        world.wait(1);
        assert_eq!(world.run().units, []);
    }
}

#[test]
fn who_fits_nowhere_is_degraded_counts_down_and_fails() {
    let mut world = World::new();
    world.application("a", |application| {
        application.spec.backoff_limit = 2;
        application.spec.backoff = 3;
        application.spec.backoff_delay = 10;
    });
    world.run();
    let status = |world: &World| world.get::<Application>("a").status.clone();
    let retry = |world: &World| status(world).scheduled_retry.map(|retry| retry.instant());
    assert_eq!(status(&world).state, ApplicationState::Degraded);
    assert_eq!(status(&world).reason.unwrap().code, ReasonCode::NoSuitableResource);
    assert_eq!(status(&world).retries, Some(1));
    assert_eq!(retry(&world), Some(begin() + std::time::Duration::from_secs(30)));
    world.wait(29);
    let pass = world.run();
    assert_eq!(pass.units, []);
    assert_eq!(pass.again, Some(begin() + std::time::Duration::from_secs(30)));
    world.wait(1);
    world.run();
    assert_eq!((status(&world).state, status(&world).retries), (ApplicationState::Degraded, Some(0)));
    world.wait(30);
    world.run();
    assert_eq!(status(&world).state, ApplicationState::Failed);
    world.cluster("c", |_| {});
    assert_eq!(world.run().units, []);
    assert_eq!(world.outcome("a"), Outcome::LeftAlone { why: LeftAlone::Failed });
}

#[test]
fn a_limit_of_zero_fails_at_once_and_minus_one_never() {
    let mut world = World::new();
    world.application("none", |application| application.spec.backoff_limit = 0);
    world.application("ever", |application| application.spec.backoff_limit = -1);
    world.run();
    assert_eq!(world.get::<Application>("none").status.state, ApplicationState::Failed);
    let ever = world.get::<Application>("ever").status.clone();
    assert_eq!((ever.state, ever.retries), (ApplicationState::Degraded, Some(-1)));
    // For ever, and not a write a second.
    world.wait(10_000);
    let pass = world.run();
    assert_eq!((pass.units, pass.again), (Vec::new(), None));
}

#[test]
fn a_cluster_ends_a_failure_before_its_retry() {
    let mut world = World::new();
    world.application("a", |application| {
        application.spec.backoff_limit = 5;
        application.spec.backoff_delay = 1_000;
    });
    world.run();
    world.cluster("c", |_| {});
    world.wait(1);
    world.run();
    let status = &world.get::<Application>("a").status;
    assert_eq!(world.bound("a"), Some("c"));
    assert_eq!((status.state, &status.reason), (ApplicationState::Pending, &None));
    assert_eq!((status.retries, &status.scheduled_retry), (Some(5), &None));
}

#[test]
fn success_leaves_the_state_of_what_runs() {
    let mut world = World::new();
    world.application("a", |application| {
        application.status.state = ApplicationState::Degraded;
        application.status.reason = Some(Reason::new(ReasonCode::NoSuitableResource, "none"));
        application.status.running_on = Some(ResourceRef::to(&key("former")));
    });
    world.cluster("c", |_| {});
    world.run();
    let status = &world.get::<Application>("a").status;
    assert_eq!((status.state, &status.reason), (ApplicationState::Degraded, &None));
}

#[test]
fn what_others_say_is_wrong_stays_said() {
    let mut world = World::new();
    world.cluster("c", |_| {});
    world.application("a", |_| {});
    world.run();
    world.change::<Application>("a", |application| {
        application.status.state = ApplicationState::Degraded;
        application.status.reason = Some(Reason::new(ReasonCode::KubernetesError, "refused"));
    });
    assert_eq!(world.run().units, []);
}

#[test]
fn a_bound_application_that_fits_nowhere_is_degraded_where_it_is() {
    let mut world = World::new();
    world.cluster("c", |_| {});
    world.application("a", |_| {});
    world.run();
    world.change::<Application>("a", wants(&["location is DE"]));
    world.run();
    assert_eq!(world.bound("a"), Some("c"));
    assert_eq!(world.get::<Application>("a").status.state, ApplicationState::Degraded);
    world.change::<Application>("a", |application| application.spec.constraints.cluster.labels = None);
    world.run();
    assert_eq!(world.get::<Application>("a").status.state, ApplicationState::Pending);
}

#[test]
fn a_metric_that_was_never_fetched_is_waited_for_but_not_for_ever() {
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
fn a_changed_definition_is_waited_for_and_then_its_former_value_counts() {
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
fn a_monitoring_outage_moves_nothing_and_brings_nothing_new() {
    let mut world = World::new();
    world.scored("measured", &[("m", 0.5)]);
    world.application("a", |_| {});
    world.run();
    world.cluster("none", |_| {});
    world.lose("m");
    let pass = world.run();
    assert_eq!(pass.units.iter().map(|unit| unit.what).collect::<Vec<_>>(), [What::Metrics]);
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
fn only_online_becomes_failing_metrics() {
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

/// A world with applications that all want to move to a better cluster.
fn restless(count: usize) -> World {
    let mut world = World::new();
    world.scored("low", &[("small", 0.2)]);
    for number in 0..count {
        world.application(&format!("a{number:03}"), |_| {});
    }
    world.run();
    world.wait(60);
    world.scored("high", &[("great", 0.9)]);
    world
}

fn moved(world: &World, count: usize) -> usize {
    (0..count).filter(|number| world.bound(&format!("a{number:03}")) == Some("high")).count()
}

#[test]
fn not_more_than_a_part_moves_within_reschedule_after() {
    let mut world = restless(150);
    world.run();
    assert_eq!(moved(&world, 150), 15);
    let held = world.pass().decisions.into_values().filter_map(|decision| match decision.outcome {
        Outcome::Held { rule: Hold::MaxMoves { limit, until }, .. } => Some((limit, until)),
        _ => None,
    });
    let held: Vec<_> = held.collect();
    let until = Some(world.now + std::time::Duration::from_secs(60));
    assert_eq!((held.len(), held[0]), (135, (15, until)));
    assert_eq!(world.pass().again, until);
    world.wait(59);
    world.run();
    assert_eq!(moved(&world, 150), 15);
    // First bindings are never held back.
    world.application("new", |_| {});
    world.run();
    assert_eq!(world.bound("new"), Some("high"));
    world.wait(1);
    world.run();
    assert_eq!(moved(&world, 150), 30);
}

#[test]
fn at_least_ten_may_move() {
    let mut world = restless(12);
    world.run();
    assert_eq!(moved(&world, 12), 10);
}

#[test]
fn who_has_to_leave_moves_first_and_then_who_gains_most() {
    let mut world = restless(3);
    world.config.max_moves = MaxMoves { percent: 0, at_least: 1 };
    world.scored("middle", &[("medium", 0.5)]);
    world.change::<Application>("a000", wants(&["location is DE"]));
    world.cluster("high", |cluster| {
        cluster.metadata.labels.insert("location", "DE".to_owned());
        cluster.spec.metrics = vec![MetricRef::new("great", 1.0, false)];
    });
    // It gains less than the others.
    world.metric("great", 0.3);
    world.metric("medium", 0.8);
    world.run();
    assert_eq!(world.bound("a000"), Some("high"));
    assert_eq!(world.bound("a001"), Some("low"));
    world.wait(60);
    world.scored("best", &[("best", 1.0)]);
    world.change::<Cluster>("best", |cluster| cluster.metadata.labels.insert("only", "two".to_owned()));
    world.change::<Application>("a001", wants(&["only not in (two)"]));
    world.change::<Application>("a002", |_| {});
    world.change::<Cluster>("low", |cluster| cluster.metadata.labels.insert("only", "one".to_owned()));
    world.change::<Cluster>("middle", |cluster| cluster.metadata.labels.insert("only", "one".to_owned()));
    world.run();
    assert_eq!((world.bound("a001"), world.bound("a002")), (Some("low"), Some("best")));
}

#[test]
fn a_deleted_application_is_left_alone() {
    let mut world = World::new();
    world.cluster("c", |_| {});
    world.application("a", |application| {
        application.metadata.deleted = Some(Timestamp::new(begin()));
        application.metadata.finalizers = vec!["kubernetes_resources_deletion".to_owned()];
    });
    assert_eq!(world.run().units, []);
    assert_eq!(world.outcome("a"), Outcome::LeftAlone { why: LeftAlone::Deleted });
}

#[test]
fn clusters_of_other_namespaces_are_other_tenants_where_that_is_set() {
    for (candidates, bound) in [(Candidates::All, true), (Candidates::Namespace, false)] {
        let mut world = World::new();
        world.config.candidates = candidates;
        let mut other = cluster("other");
        other.metadata.namespace = Some("else".to_owned());
        world.put(other);
        world.application("a", |_| {});
        world.run();
        assert_eq!(world.get::<Application>("a").status.scheduled_to.is_some(), bound, "{candidates:?}");
    }
    assert_eq!(SchedulerConfig::default().candidates, Candidates::All);
}

#[test]
fn a_cluster_that_is_gone_is_left_at_once() {
    let mut world = bound_to_worse();
    world.remove(&key("low"));
    world.run();
    assert_eq!(world.bound("a"), Some("high"));
    let owners: Vec<_> =
        world.get::<Application>("a").metadata.owners.iter().map(|owner| owner.name.as_str()).collect();
    assert_eq!(owners, ["high"]);
}
