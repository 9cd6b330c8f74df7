use madako_domain::placement::decision::{LeftAlone, Outcome};
use madako_domain::placement::kind::{Kind, ObjectKey};
use madako_domain::placement::kubernetes::{Application, ApplicationState, Cluster};
use madako_domain::placement::metadata::{CASCADE_DELETION, Metadata, ResourceRef};
use madako_json::krake::timestamp::Timestamp;

use proptest::prelude::*;

use crate::Deletion;
use crate::testing::{NAMESPACE, World, begin, cloud};

fn cluster(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::Cluster, Some(NAMESPACE), name)
}

fn deleted(metadata: &mut Metadata) {
    metadata.deleted = Some(Timestamp::new(begin()));
    metadata.finalizers.push(CASCADE_DELETION.to_owned());
}

fn there(world: &World) -> Vec<&str> {
    world.snapshot.all().map(|stored| stored.key.name.as_str()).collect()
}

#[test]
fn dependents_are_deleted_before_their_owner() {
    let mut world = World::new();
    world.put(cloud("sky", &[]));
    let sky = ResourceRef::from_key(&ObjectKey::new(Kind::Cloud, Some(NAMESPACE), "sky"));
    world.cluster("c", |cluster| cluster.metadata.owners.push(sky));
    world.application("a", |application| {
        application.metadata.finalizers = vec!["kubernetes_resources_deletion".to_owned()];
    });
    world.run();
    assert_eq!(world.bound("a"), Some("c"));
    world.change::<madako_domain::placement::infrastructure::Cloud>("sky", |cloud| {
        deleted(&mut cloud.metadata);
    });
    let pass = world.run();
    let a = ObjectKey::new(Kind::Application, Some(NAMESPACE), "a");
    assert_eq!(pass.decisions[&a].outcome, Outcome::LeftAlone { why: LeftAlone::DeletedWithOwner });
    // Both dependents are marked, each with its owner.
    let rules: Vec<_> = pass.units.into_iter().filter_map(|unit| unit.deletion).collect();
    let with = |owner| Deletion::WithOwner { owner };
    let sky = ObjectKey::new(Kind::Cloud, Some(NAMESPACE), "sky");
    assert_eq!(rules, [(a.clone(), with(cluster("c"))), (cluster("c"), with(sky))]);
    // The application waits for its controller, and the others wait for the application.
    world.settle();
    assert_eq!(there(&world), ["sky", "a", "c"]);
    let finalizers = &world.get::<Application>("a").metadata.finalizers;
    assert_eq!(finalizers, &["kubernetes_resources_deletion"]);
    world.change::<Application>("a", |application| application.metadata.finalizers.clear());
    let pass = world.run();
    assert_eq!(pass.units[0].deletion, Some((a, Deletion::Done)));
    assert_eq!(there(&world), ["sky", "c"]);
    world.run();
    assert_eq!(there(&world), ["sky"]);
    world.run();
    assert!(there(&world).is_empty());
}

#[test]
fn applications_are_not_bound_to_a_cluster_whose_owner_is_deleted() {
    let mut world = World::new();
    world.put(cloud("sky", &[]));
    let sky = ResourceRef::from_key(&ObjectKey::new(Kind::Cloud, Some(NAMESPACE), "sky"));
    world.cluster("c", |cluster| cluster.metadata.owners.push(sky));
    world.change::<madako_domain::placement::infrastructure::Cloud>("sky", |cloud| {
        deleted(&mut cloud.metadata);
    });
    world.application("a", |_| {});
    world.settle();
    assert_eq!((world.bound("a"), there(&world)), (None, vec!["a"]));
}

#[test]
fn a_finalizer_that_was_added_later_is_waited_for() {
    let mut world = World::new();
    world.cluster("c", |cluster| {
        deleted(&mut cluster.metadata);
        cluster.metadata.finalizers.push("later".to_owned());
    });
    assert_eq!(world.run().units, []);
}

#[test]
fn a_shutdown_hook_is_waited_for() {
    let mut world = World::new();
    world.cluster("c", |_| {});
    world.application("a", |application| application.spec.hooks = vec!["shutdown".to_owned()]);
    world.run();
    world.change::<Cluster>("c", |cluster| deleted(&mut cluster.metadata));
    world.run();
    let application = world.get::<Application>("a");
    assert_eq!(application.status.state, ApplicationState::WaitingForCleaning);
    assert!(application.metadata.deleted.is_some());
}

#[test]
fn an_application_that_is_bound_elsewhere_survives_its_former_cluster() {
    let mut world = World::new();
    world.cluster("former", |_| {});
    world.cluster("new", |_| {});
    world.application("a", |application| {
        application.metadata.owners =
            ["former", "new"].map(|name| ResourceRef::from_key(&cluster(name))).to_vec();
        application.status.scheduled_to = Some(ResourceRef::from_key(&cluster("new")));
        application.status.running_on = Some(ResourceRef::from_key(&cluster("former")));
        application.status.scheduled = Some(Timestamp::new(begin()));
        application.status.kube_controller_triggered = Some(Timestamp::new(begin()));
    });
    world.change::<Cluster>("former", |cluster| deleted(&mut cluster.metadata));
    world.settle();
    // The application still runs there: the cluster waits.
    assert_eq!(there(&world), ["a", "former", "new"]);
    assert!(world.get::<Application>("a").metadata.deleted.is_none());
    let new = ResourceRef::from_key(&cluster("new"));
    world.change::<Application>("a", |application| application.status.running_on = Some(new));
    world.settle();
    assert_eq!(there(&world), ["a", "new"]);
    let owners = &world.get::<Application>("a").metadata.owners;
    assert_eq!(owners, &[ResourceRef::from_key(&cluster("new"))]);
}

#[test]
fn applications_of_a_cluster_that_was_removed_by_force_move() {
    let mut world = World::new();
    let key = world.cluster("forced", |_| {});
    world.application("a", |_| {});
    world.run();
    assert_eq!(world.bound("a"), Some("forced"));
    // A forced deletion: the API removes the cluster at once, without the collector.
    world.remove(&key);
    world.cluster("other", |_| {});
    world.settle();
    assert_eq!((world.bound("a"), there(&world)), (Some("other"), vec!["a", "other"]));
    assert_eq!(world.get::<Application>("a").metadata.owners, [ResourceRef::from_key(&cluster("other"))]);
}

#[test]
fn cycles_of_owners_are_reported_and_not_deleted() {
    let mut world = World::new();
    world.cluster("one", |one| {
        deleted(&mut one.metadata);
        one.metadata.owners = vec![ResourceRef::from_key(&cluster("two"))];
    });
    world.cluster("two", |two| two.metadata.owners = vec![ResourceRef::from_key(&cluster("one"))]);
    world.cluster("self", |own| {
        deleted(&mut own.metadata);
        own.metadata.owners = vec![ResourceRef::from_key(&cluster("self"))];
    });
    world.cluster("simple", |simple| deleted(&mut simple.metadata));
    let pass = world.run();
    assert_eq!(pass.circular.into_iter().collect::<Vec<_>>(), ["one", "self", "two"].map(cluster));
    world.settle();
    assert_eq!(there(&world), ["one", "self", "two"]);
    assert!(world.get::<Cluster>("two").metadata.deleted.is_none());
}

#[test]
fn deleted_resource_without_a_finalizer_is_removed() {
    let mut world = World::new();
    world.application("a", |application| application.metadata.deleted = Some(Timestamp::new(begin())));
    world.settle();
    assert!(there(&world).is_empty());
}

/// Resources that are deleted with the roots and are in no cycle.
fn goes(owners: &[Vec<usize>], roots: &[bool]) -> Vec<bool> {
    let count = owners.len();
    // `reaches[a][b]`: a is a direct or indirect owner of b.
    let mut reaches = vec![vec![false; count]; count];
    for (dependent, owners) in owners.iter().enumerate() {
        for owner in owners {
            reaches[*owner][dependent] = true;
        }
    }
    for through in 0..count {
        for from in 0..count {
            for to in 0..count {
                reaches[from][to] |= reaches[from][through] && reaches[through][to];
            }
        }
    }
    let circular = |at: usize| reaches[at][at];
    // A resource with a remaining dependent remains, and so does a resource in a cycle.
    (0..count)
        .map(|at| {
            let gone_along = (0..count).any(|root| roots[root] && (root == at || reaches[root][at]));
            gone_along && !circular(at) && !(0..count).any(|other| circular(other) && reaches[at][other])
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn garbage_collection_removes_exactly_the_deletable_resources(
        edges in prop::collection::vec((0..7_usize, 0..7_usize), 0..9),
        roots in prop::collection::vec(prop::bool::weighted(0.4), 7),
    ) {
        let mut world = World::new();
        let mut owners = vec![Vec::new(); 7];
        for (owner, dependent) in edges {
            owners[dependent].push(owner);
        }
        for (number, owners) in owners.iter().enumerate() {
            world.cluster(&format!("c{number}"), |one| {
                one.metadata.owners =
                    owners.iter().map(|owner| ResourceRef::from_key(&cluster(&format!("c{owner}")))).collect();
                if roots[number] {
                    deleted(&mut one.metadata);
                }
            });
        }
        world.settle();
        let left = there(&world);
        // More may remain between a cycle and a deletable resource: check only what must go and what must stay.
        let circles = goes(&owners, &[true; 7]);
        for (number, goes) in goes(&owners, &roots).into_iter().enumerate() {
            let name = format!("c{number}");
            let is_there = left.contains(&name.as_str());
            if circles.iter().all(|free| *free) {
                prop_assert_eq!(is_there, !goes, "{}", name);
            } else if !is_there {
                prop_assert!(goes, "{} is gone", name);
            }
        }
    }
}
