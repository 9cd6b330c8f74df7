//! Tests of the conditions under which a bound application stays or moves.

use madako_domain::placement::decision::{Hold, Move, Outcome, Stay};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, Cluster, ClusterState};
use madako_domain::placement::metadata::MetricRef;
use madako_json::krake::timestamp::Timestamp;

use super::{bound_to_worse, key, wants};
use crate::testing::{NAMESPACE, World, begin};
use crate::{MaxMoves, Memory};

#[test]
fn recently_bound_application_stays_while_its_cluster_fits() {
    let mut world = bound_to_worse();
    assert!(matches!(world.outcome("a"), Outcome::Stays { why: Stay::Recent { .. }, .. }));
    world.wait(59);
    // Also after an update by its user.
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
fn update_that_ends_the_fit_moves_the_application_immediately() {
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
fn cluster_with_metrics_is_preferred_to_a_cluster_without() {
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
fn applications_leave_a_cluster_that_is_not_online_for_a_whole_reschedule_after() {
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
    // Another offline state is not an interruption.
    state(&mut world, ClusterState::Offline);
    world.wait(1);
    let pass = world.run();
    assert_eq!(world.bound("a"), Some("other"));
    let moved = Outcome::Moved { from: key("own"), to: key("other"), why: Move::NotOnline };
    assert_eq!(pass.decisions.values().next().unwrap().outcome, moved);
}

#[test]
fn timestamps_of_a_clock_ahead_delay_moves_no_longer_than_configured() {
    let hour = std::time::Duration::from_secs(3600);
    let mut world = World::new();
    world.scored("own", &[("own", 0.1)]);
    world.application("a", |_| {});
    // A leader with a clock an hour ahead binds the application and sees its cluster go offline.
    world.now += hour;
    world.run();
    world.change::<Cluster>("own", |own| own.status.state = ClusterState::Offline);
    world.run();
    world.now -= hour;
    world.scored("other", &[("other", 0.9)]);
    world.wait(1);
    world.run();
    assert_eq!(world.bound("a"), Some("own"));
    world.wait(60);
    world.run();
    assert_eq!(world.bound("a"), Some("other"), "a cluster that is not online is left in time");
    world.now += hour;
    world.scored("best", &[("best", 1.0)]);
    world.run();
    assert_eq!(world.bound("a"), Some("best"));
    world.now -= hour;
    world.metric("best", 0.0);
    world.wait(1);
    world.run();
    assert_eq!(
        world.bound("a"),
        Some("other"),
        "a move noted by a clock ahead does not hold the application"
    );
}

#[test]
fn online_interval_of_a_cluster_restarts_its_offline_time_even_if_unobserved() {
    for watched in [true, false] {
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
        state(&mut world, ClusterState::Online);
        state(&mut world, ClusterState::Offline);
        if !watched {
            world.relist();
        }
        world.run();
        world.wait(59);
        world.run();
        assert_eq!(world.bound("a"), Some("own"), "watched: {watched}");
        world.wait(1);
        world.run();
        assert_eq!(world.bound("a"), Some("other"), "watched: {watched}");
    }
}

#[test]
fn offline_time_survives_changes_of_the_cluster_and_of_the_leader() {
    let mut world = World::new();
    world.scored("own", &[("own", 0.9)]);
    world.scored("other", &[("other", 0.1)]);
    world.application("a", |_| {});
    world.run();
    world.change::<Cluster>("own", |own| own.status.state = ClusterState::Offline);
    world.run();
    world.wait(30);
    world.change::<Cluster>("own", |own| own.metadata.labels.insert("l", "new".to_owned()));
    assert_eq!(world.run().kept.len(), 1);
    world.relist();
    assert_eq!(world.run().kept, []);
    world.wait(30);
    world.run();
    assert_eq!(world.bound("a"), Some("other"));
}

#[test]
fn memory_of_a_deleted_cluster_does_not_apply_to_its_successor() {
    let mut world = World::new();
    world.cluster("c", |cluster| cluster.status.state = ClusterState::Offline);
    world.run();
    world.wait(50);
    world.remove(&key("c"));
    world.cluster("c", |cluster| cluster.status.state = ClusterState::Offline);
    world.relist();
    let pass = world.run();
    assert_eq!(pass.kept[0].memory.unwrap().not_online_since, Some(world.now));
}

#[test]
fn start_of_a_cluster_outage_is_stored_once() {
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
fn application_with_migration_disabled_stays() {
    let mut world = bound_to_worse();
    world.change::<Application>("a", |application| application.spec.constraints.migration = false);
    world.change::<Cluster>("low", |cluster| cluster.status.state = ClusterState::Offline);
    world.run();
    world.wait(1_000);
    world.run();
    assert_eq!(world.bound("a"), Some("low"));
    assert_eq!(world.outcome("a"), Outcome::Stays { on: key("low"), why: Stay::MigrationDisabled });
    // A first binding is not a migration.
    world.application("b", |application| application.spec.constraints.migration = false);
    world.run();
    assert_eq!(world.bound("b"), Some("high"));
}

#[test]
fn an_application_with_a_failed_migration_stays_for_its_time() {
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
fn update_is_marked_as_scheduled_once_even_without_a_move() {
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

/// A world whose applications all gain by a move to a better cluster.
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
    // First bindings are never delayed.
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
fn forced_moves_precede_moves_in_order_of_gain() {
    let mut world = restless(3);
    world.config.max_moves = MaxMoves { percent: 0, at_least: 1 };
    world.scored("middle", &[("medium", 0.5)]);
    world.change::<Application>("a000", wants(&["location is DE"]));
    world.cluster("high", |cluster| {
        cluster.metadata.labels.insert("location", "DE".to_owned());
        cluster.spec.metrics = vec![MetricRef::new("great", 1.0, false)];
    });
    // Its gain is smaller than the others'.
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
fn a_version_that_its_cluster_does_not_take_is_not_deployed_there_while_its_move_waits() {
    let mut world = restless(2);
    world.config.max_moves = MaxMoves { percent: 0, at_least: 1 };
    world.cluster("high", |cluster| {
        cluster.metadata.labels.insert("location", "DE".to_owned());
        cluster.spec.metrics = vec![MetricRef::new("great", 1.0, false)];
    });
    world.run();
    let triggered =
        |world: &World| world.get::<Application>("a001").status.kube_controller_triggered.clone().unwrap();
    assert_eq!(world.bound("a001"), Some("low"));
    let before = triggered(&world);
    world.wait(10);
    let now = Timestamp::new(world.now);
    world.change::<Application>("a001", |application| {
        wants(&["location is DE"])(application);
        application.metadata.modified = now.clone();
    });
    world.run();
    assert!(matches!(world.outcome("a001"), Outcome::Held { why: Move::Misfit, .. }));
    assert_eq!(triggered(&world), before);
    // An application that may stay may be deployed where it is.
    world.change::<Application>("a001", |application| application.spec.constraints.cluster.labels = None);
    assert!(matches!(world.outcome("a001"), Outcome::Held { why: Move::Better, .. }));
    world.run();
    assert!(triggered(&world) >= now);
    world.change::<Application>("a001", wants(&["location is DE"]));
    world.wait(50);
    world.run();
    assert_eq!(world.bound("a001"), Some("high"));
}

#[test]
fn deleted_cluster_loses_its_applications_immediately() {
    let mut world = bound_to_worse();
    world.remove(&key("low"));
    world.run();
    assert_eq!(world.bound("a"), Some("high"));
    let owners: Vec<_> =
        world.get::<Application>("a").metadata.owners.iter().map(|owner| owner.name.as_str()).collect();
    assert_eq!(owners, ["high"]);
}
