//! Tests of the scheduler's pass: each rule by an example, and properties over random resources.

mod applications;
mod backends;
mod explanations;
mod garbage;
mod metrics;
mod properties;
mod staying;

use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::Application;

use crate::testing::{NAMESPACE, World};

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
