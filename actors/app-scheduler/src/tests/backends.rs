use madako_domain::placement::decision::{Decision, Outcome};
use madako_domain::placement::infrastructure::{CloudKind, CloudState, GlobalCloud};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, ApplicationState, Cluster, ClusterState};
use madako_domain::placement::metadata::{MetricRef, ReasonCode};
use madako_domain::placement::openstack::{MagnumCluster, MagnumClusterState, Project, ProjectState};
use madako_json::krake::free::JsonObject;

use crate::testing::{NAMESPACE, World, cloud, cluster_to_be, global_cloud, magnum_cluster, project};

fn bound_cluster(world: &World, name: &str) -> Option<(String, String)> {
    let to = world.get::<Cluster>(name).status.scheduled_to.as_ref()?;
    Some((to.kind.clone(), to.name.clone()))
}

fn some(kind: &str, name: &str) -> Option<(String, String)> {
    Some((kind.to_owned(), name.to_owned()))
}

#[test]
fn cluster_without_kubeconfig_prefers_a_cloud_of_its_namespace() {
    let mut world = World::new();
    world.metric("good", 1.0);
    world.put(global_cloud("global", &[("good", 1.0)]));
    world.put(cluster_to_be("first"));
    world.run();
    assert_eq!(bound_cluster(&world, "first"), some("GlobalCloud", "global"));
    world.put(cloud("own", &[]));
    world.put(cluster_to_be("second"));
    world.cluster("registered", |_| {});
    world.run();
    assert_eq!(bound_cluster(&world, "second"), some("Cloud", "own"));
    assert_eq!(bound_cluster(&world, "registered"), None);
    let second = world.get::<Cluster>("second");
    assert!(second.status.scheduled.is_some());
    assert_eq!(second.metadata.owners.len(), 1);
}

#[test]
fn clouds_are_filtered_and_ranked() {
    let mut world = World::new();
    for (name, metric, value) in [("low", "l", 0.2), ("high", "h", 0.9), ("dear", "d", 1.0)] {
        world.metric(metric, value);
        let mut cloud = cloud(name, &[(metric, 2.0)]);
        cloud.metadata.labels.insert("tier", if name == "dear" { "gold" } else { "tin" }.to_owned());
        world.put(cloud);
    }
    let mut cluster = cluster_to_be("c");
    cluster.spec.constraints.cloud.labels = Some(vec!["tier is tin".parse().unwrap()]);
    world.put(cluster);
    let mut picky = cluster_to_be("picky");
    picky.spec.constraints.cloud.metrics = Some(vec!["l < 0.5".parse().unwrap()]);
    world.put(picky);
    world.run();
    assert_eq!(bound_cluster(&world, "c"), some("Cloud", "high"));
    assert_eq!(bound_cluster(&world, "picky"), some("Cloud", "low"));
}

#[test]
fn a_cluster_that_no_cloud_takes_fails_but_not_because_of_a_monitoring_outage() {
    let mut world = World::new();
    world.put(cluster_to_be("c"));
    world.metric("m", 1.0);
    world.put(cloud("measured", &[("m", 1.0)]));
    world.lose("m");
    world.run();
    assert_eq!(world.get::<Cluster>("c").status.state, ClusterState::Pending);
    world.metric("m", 1.0);
    world.settle();
    assert_eq!(bound_cluster(&world, "c"), some("Cloud", "measured"));

    let mut world = World::new();
    world.put(cluster_to_be("c"));
    world.run();
    let status = &world.get::<Cluster>("c").status;
    assert_eq!(status.state, ClusterState::Failed);
    assert_eq!(status.reason.as_ref().unwrap().code, ReasonCode::NoSuitableResource);
    world.put(cloud("late", &[]));
    assert_eq!(world.run().units, []);
}

#[test]
fn a_bound_cluster_inherits_labels_and_metrics() {
    let mut world = World::new();
    world.metric("green", 0.9);
    let mut source = global_cloud("source", &[("green", 1.0)]);
    source.metadata.labels.insert("location", "DE".to_owned());
    world.put(source);
    let mut heir = cluster_to_be("heir");
    heir.metadata.inherit_labels = true;
    heir.spec.inherit_metrics = true;
    world.put(heir);
    world.run();
    world.change::<Cluster>("heir", |cluster| cluster.status.state = ClusterState::Online);
    world.scored("other", &[("grey", 0.1)]);
    world.application("a", |application| {
        application.spec.constraints.cluster.labels = Some(vec!["location is DE".parse().unwrap()]);
        application.spec.constraints.cluster.metrics = Some(vec!["green > 0.5".parse().unwrap()]);
    });
    world.run();
    assert_eq!(world.bound("a"), Some("heir"));
    // Its state follows inherited metrics as well.
    world.lose("green");
    world.run();
    assert_eq!(world.get::<Cluster>("heir").status.state, ClusterState::FailingMetrics);
    assert_eq!(world.get::<GlobalCloud>("source").status.state, CloudState::FailingMetrics);
}

#[test]
fn a_global_cloud_cannot_have_metrics_of_a_namespace() {
    let mut world = World::new();
    let mut cloud = global_cloud("g", &[]);
    let refer = |cloud: &mut GlobalCloud, namespaced| {
        let CloudKind::Openstack(spec) = &mut cloud.spec.value;
        spec.metrics = vec![MetricRef::new("m", 1.0, namespaced)];
    };
    refer(&mut cloud, true);
    // A global metric of the same name is a different metric.
    world.metric("m", 1.0);
    world.put(cloud);
    world.put(cluster_to_be("c"));
    world.run();
    let status = &world.get::<GlobalCloud>("g").status;
    assert_eq!(status.state, CloudState::FailingMetrics);
    assert_eq!(status.metrics_reasons.get("m").unwrap().code, ReasonCode::InvalidMetric);
    assert_eq!(bound_cluster(&world, "c"), None);
    world.change::<GlobalCloud>("g", |cloud| refer(cloud, false));
    world.settle();
    let status = &world.get::<GlobalCloud>("g").status;
    assert_eq!((status.state, status.metrics_reasons.len()), (CloudState::Online, 0));
    assert_eq!(bound_cluster(&world, "c"), some("GlobalCloud", "g"));
}

#[test]
fn magnum_cluster_is_bound_to_a_project_of_any_namespace_and_inherits() {
    let mut world = World::new();
    world.metric("good", 0.9);
    let mut target = project("p", "elsewhere");
    target.metadata.labels.insert("location", "DE".to_owned());
    target.metadata.labels.insert("tier", "gold".to_owned());
    target.spec.metrics = vec![MetricRef::new("good", 1.0, false)];
    world.put(target);
    world.put(project("plain", NAMESPACE));
    let mut cluster = magnum_cluster("m");
    cluster.metadata.labels.insert("tier", "own".to_owned());
    cluster.spec.metrics = vec![MetricRef::new("mine", 1.0, false)];
    world.put(cluster);
    world.run();
    let cluster = world.get::<MagnumCluster>("m");
    assert_eq!(cluster.status.project.as_ref().unwrap().name, "p");
    assert_eq!(cluster.status.template.as_deref(), Some("template of p"));
    let label = |name| cluster.metadata.labels.get(name).map(String::as_str);
    assert_eq!((label("location"), label("tier")), (Some("DE"), Some("own")));
    let metrics: Vec<_> = cluster.spec.metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(metrics, ["mine", "good"]);
    assert_eq!(cluster.metadata.owners.len(), 1);
    // A bound cluster stays, even when a better project appears.
    world.metric("best", 1.0);
    let mut better = project("better", NAMESPACE);
    better.spec.metrics = vec![MetricRef::new("best", 1.0, false)];
    world.put(better);
    world.run();
    assert_eq!(world.get::<MagnumCluster>("m").status.project.as_ref().unwrap().name, "p");
}

#[test]
fn magnum_cluster_without_a_fitting_project_fails_until_a_project_fits() {
    let mut world = World::new();
    world.put(magnum_cluster("m"));
    world.run();
    assert_eq!(world.get::<MagnumCluster>("m").status.state, MagnumClusterState::Failed);
    assert_eq!(world.run().units, []);
    world.put(project("p", NAMESPACE));
    world.run();
    let status = &world.get::<MagnumCluster>("m").status;
    assert_eq!((status.state, status.project.is_some()), (MagnumClusterState::Pending, true));
}

#[test]
fn a_project_fails_and_recovers_with_its_metrics() {
    let mut world = World::new();
    world.metric("m", 0.5);
    let mut failing = project("p", NAMESPACE);
    failing.spec.metrics = vec![MetricRef::new("m", 1.0, false)];
    world.put(failing);
    world.lose("m");
    world.run();
    assert_eq!(world.get::<Project>("p").status.state, ProjectState::FailingMetrics);
    world.metric("m", 0.5);
    world.run();
    assert_eq!(world.get::<Project>("p").status.state, ProjectState::Online);
    assert!(world.get::<Project>("p").status.metrics_reasons.is_empty());
}

/// A world that allows new clusters on a cloud with score 0.8.
fn creating() -> World {
    let mut world = World::new();
    world.config.cluster_creation.tosca = Some(JsonObject::from_text(r#"{"tosca": 1}"#).unwrap());
    world.metric("cloudy", 0.8);
    let mut cloud = cloud("sky", &[("cloudy", 1.0)]);
    cloud.metadata.labels.insert("location", "DE".to_owned());
    world.put(cloud);
    world
}

fn auto(application: &mut Application) {
    application.spec.auto_cluster_create = true;
    application.spec.constraints.cluster.labels = Some(vec!["location is DE".parse().unwrap()]);
}

fn created(world: &World) -> Vec<ObjectKey> {
    let all = world.snapshot.of::<Cluster>().filter(|seen| seen.value.spec.auto_generated);
    all.map(|seen| seen.stored.key.clone()).collect()
}

#[test]
fn a_cluster_is_created_when_none_fits_and_the_application_waits_for_it() {
    let mut world = creating();
    world.application("a", auto);
    world.run();
    let [name] = &created(&world)[..] else { panic!("one cluster") };
    let application = world.get::<Application>("a").clone();
    assert_eq!(application.status.state, ApplicationState::WaitingForClusterCreation);
    assert_eq!(application.status.auto_cluster_create_started.as_deref(), Some(name.name.as_str()));
    let number: u32 = name.name.strip_prefix("cluster-").unwrap().parse().unwrap();
    assert!((1_000..=9_999).contains(&number));
    let cluster = world.get::<Cluster>(&name.name).clone();
    assert!(cluster.metadata.inherit_labels && cluster.spec.inherit_metrics && cluster.spec.auto_generated);
    assert_eq!(cluster.spec.constraints.cloud.labels, application.spec.constraints.cluster.labels);
    assert_eq!(cluster.spec.tosca.text(), r#"{"tosca": 1}"#);
    assert_eq!(bound_cluster(&world, &name.name), some("Cloud", "sky"));
    // No second cluster, and no deletion before the first was online.
    world.wait(100_000);
    assert_eq!(world.run().units, []);
    assert_eq!(world.outcome("a"), Outcome::WaitsForCluster { cluster: name.clone() });
    let name = name.name.clone();
    world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Online);
    world.run();
    assert_eq!(world.bound("a"), Some(name.as_str()));
    let status = &world.get::<Application>("a").status;
    assert_eq!((status.state, &status.auto_cluster_create_started), (ApplicationState::Pending, &None));
    world.wait(100_000);
    assert_eq!(world.run().units, []);
}

#[test]
fn created_clusters_have_unique_names() {
    let drawn = |others: &[String]| {
        let mut world = creating();
        for name in others {
            world.cluster(name, |cluster| cluster.status.state = ClusterState::Offline);
        }
        world.application("a", auto);
        world.run();
        let [key] = &created(&world)[..] else { panic!("one cluster beside {others:?}") };
        key.name.clone()
    };
    let mut taken = vec![drawn(&[])];
    for _ in 0..2 {
        let another = drawn(&taken);
        assert!(!taken.contains(&another), "{another} is among {taken:?}");
        taken.push(another);
    }
}

#[test]
fn a_cluster_is_created_when_a_cloud_scores_above_every_fitting_one() {
    for (value, creates) in [(0.79, true), (0.8, false)] {
        let mut world = creating();
        world.scored("there", &[("there", value)]);
        world.change::<Cluster>("there", |cluster| {
            cluster.metadata.labels.insert("location", "DE".to_owned())
        });
        world.application("a", auto);
        world.application("plain", |_| {});
        world.run();
        assert_eq!(created(&world).len(), usize::from(creates), "{value}");
        assert_eq!(world.bound("a").is_none(), creates);
        assert_eq!(world.bound("plain"), Some("there"));
    }
}

/// A world with applications on one cluster, and a cloud that then scores far above it.
fn lifted(count: usize) -> World {
    let mut world = creating();
    world.metric("cloudy", 0.3);
    world.scored("there", &[("there", 0.5)]);
    world.change::<Cluster>("there", |cluster| cluster.metadata.labels.insert("location", "DE".to_owned()));
    for number in 0..count {
        world.application(&format!("a{number:02}"), auto);
    }
    world.run();
    world.wait(60);
    assert_eq!(created(&world), []);
    world.metric("cloudy", 0.9);
    world
}

#[test]
fn a_better_cloud_gets_clusters_only_within_the_move_limit() {
    let mut world = lifted(40);
    let pass = world.run();
    assert_eq!(created(&world).len(), 10);
    let held =
        |decision: &&Decision| matches!(&decision.outcome, Outcome::Held { to, .. } if to.name == "sky");
    assert_eq!(pass.decisions.values().filter(held).count(), 30);
    assert_eq!(world.run().units, []);
    world.wait(59);
    world.run();
    assert_eq!(created(&world).len(), 10);
    world.wait(1);
    world.run();
    assert_eq!(created(&world).len(), 20);
    // First bindings are never delayed.
    for number in 0..15 {
        world.application(&format!("new{number}"), auto);
    }
    world.run();
    assert_eq!(created(&world).len(), 35);
}

#[test]
fn created_cluster_that_lost_its_advantage_gets_no_application_and_is_deleted() {
    // The score of staying is (0.1 + 0.5) / 1.1; without stickiness it would be 0.5.
    for (value, moves) in [(0.9, true), (0.56, true), (0.53, false), (0.1, false)] {
        let mut world = lifted(1);
        world.run();
        let name = created(&world).remove(0).name;
        world.metric("cloudy", value);
        world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Online);
        world.wait(60);
        world.settle();
        assert_eq!(world.bound("a00"), Some(if moves { name.as_str() } else { "there" }));
        assert_eq!(world.get::<Application>("a00").status.auto_cluster_create_started, None);
        world.wait(600);
        world.settle();
        assert_eq!(created(&world).is_empty(), !moves);
    }
}

#[test]
fn no_cloud_has_custom_resources() {
    let mut world = creating();
    world.application("a", |application| {
        auto(application);
        application.spec.constraints.cluster.custom_resources = vec!["crontabs".to_owned()];
    });
    world.run();
    assert_eq!(created(&world), []);
    assert_eq!(world.get::<Application>("a").status.state, ApplicationState::Degraded);
}

#[test]
fn application_whose_created_cluster_was_deleted_gets_another_cluster() {
    let mut world = creating();
    world.application("a", auto);
    world.run();
    let first = created(&world).remove(0);
    world.remove(&first);
    world.wait(1);
    world.run();
    assert_eq!(created(&world).len(), 1);
}

#[test]
fn a_created_cluster_that_is_waited_for_stays() {
    let mut world = creating();
    world.application("a", auto);
    world.run();
    let name = created(&world).remove(0).name;
    // It was online, and its metrics fail since: the application keeps waiting.
    world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::FailingMetrics);
    world.lose("cloudy");
    world.settle();
    world.wait(100_000);
    world.settle();
    assert!(world.get::<Cluster>(&name).metadata.deleted.is_none());
    assert!(matches!(world.outcome("a"), Outcome::WaitsForCluster { .. }));
}

#[test]
fn a_created_cluster_whose_last_application_leaves_it_offline_is_deleted_after_its_retention() {
    // A pass sees it online, or it was online only between two passes.
    for seen in [true, false] {
        let mut world = creating();
        world.application("a", auto);
        world.run();
        let name = created(&world).remove(0).name;
        world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Online);
        if seen {
            world.settle();
        }
        world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Offline);
        world.settle();
        world.wait(100_000);
        world.relist();
        world.settle();
        assert!(world.get::<Cluster>(&name).metadata.deleted.is_none(), "it is used: {seen}");
        world.remove(&ObjectKey::new(Kind::Application, Some(NAMESPACE), "a"));
        world.run();
        world.wait(599);
        world.run();
        assert!(world.get::<Cluster>(&name).metadata.deleted.is_none(), "{seen}");
        world.wait(1);
        world.settle();
        assert!(created(&world).iter().all(|key| key.name != name), "{seen}");
    }
}

#[test]
fn unused_created_cluster_is_deleted_after_its_retention() {
    let mut world = creating();
    world.application("a", auto);
    world.run();
    let name = created(&world).remove(0).name;
    world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Online);
    world.settle();
    world.remove(&ObjectKey::new(Kind::Application, Some(NAMESPACE), "a"));
    let pass = world.run();
    assert_eq!(pass.again, Some(world.now + std::time::Duration::from_secs(600)));
    world.wait(300);
    // Used again, and unused again: the retention starts anew.
    world.application("b", |_| {});
    world.run();
    assert_eq!(world.bound("b"), Some(name.as_str()));
    world.remove(&ObjectKey::new(Kind::Application, Some(NAMESPACE), "b"));
    world.run();
    world.wait(599);
    world.run();
    assert!(world.get::<Cluster>(&name).metadata.deleted.is_none());
    // Offline and still unused.
    world.change::<Cluster>(&name, |cluster| cluster.status.state = ClusterState::Offline);
    world.wait(1);
    world.run();
    assert!(world.get::<Cluster>(&name).metadata.deleted.is_some());
    world.settle();
    assert_eq!(created(&world), []);
}
