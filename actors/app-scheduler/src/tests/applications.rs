//! Tests of first bindings, and of applications without a fitting cluster.

use madako_domain::placement::decision::{LeftAlone, Outcome};
use madako_domain::placement::fit::ComparedMetrics;
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, ApplicationState};
use madako_domain::placement::metadata::{MetricRef, Reason, ReasonCode, ResourceRef};
use madako_json::krake::timestamp::Timestamp;

use super::{key, wants};
use crate::testing::{NAMESPACE, World, begin, cluster};
use crate::{Candidates, SchedulerConfig};

#[test]
fn application_is_bound_to_the_cluster_with_the_highest_score() {
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
            Some(vec![madako_domain::placement::LabelConstraint::from_stored(text)]);
    });
    world.run();
    assert_eq!(world.get::<Application>("a").status.state, ApplicationState::Degraded);
}

#[test]
fn weighted_constraints_are_compared_as_krake_does() {
    let mut world = World::new();
    world.config.metric_constraints = ComparedMetrics::Weighted;
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
fn application_without_a_fitting_cluster_is_degraded_and_fails_after_its_retries() {
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
fn retry_limit_of_zero_fails_immediately_and_minus_one_never() {
    let mut world = World::new();
    world.application("none", |application| application.spec.backoff_limit = 0);
    world.application("ever", |application| application.spec.backoff_limit = -1);
    world.run();
    assert_eq!(world.get::<Application>("none").status.state, ApplicationState::Failed);
    let ever = world.get::<Application>("ever").status.clone();
    assert_eq!((ever.state, ever.retries), (ApplicationState::Degraded, Some(-1)));
    let retry = ever.scheduled_retry.unwrap().instant();
    assert_eq!(world.pass().again, Some(retry));
    // Unlimited retries without a write each second: the retry happens, and its time is cleared.
    world.wait(1);
    world.run();
    let ever = world.get::<Application>("ever").status.clone();
    assert_eq!((ever.state, ever.retries), (ApplicationState::Degraded, Some(-1)));
    assert_eq!(ever.scheduled_retry, None);
    world.wait(10_000);
    let pass = world.run();
    assert_eq!((pass.units, pass.again), (Vec::new(), None));
    assert_eq!(world.outcome("ever"), Outcome::Degraded { retries: -1, retry: None });
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
fn binding_keeps_the_state_of_a_running_application() {
    let mut world = World::new();
    world.application("a", |application| {
        application.status.state = ApplicationState::Degraded;
        application.status.reason = Some(Reason::new(ReasonCode::NoSuitableResource, "none"));
        application.status.running_on = Some(ResourceRef::from_key(&key("former")));
    });
    world.cluster("c", |_| {});
    world.run();
    let status = &world.get::<Application>("a").status;
    assert_eq!((status.state, &status.reason), (ApplicationState::Degraded, &None));
}

#[test]
fn reason_of_another_controller_is_kept() {
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
fn deleted_application_is_not_scheduled() {
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
