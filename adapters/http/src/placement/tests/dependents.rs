//! Tests of the list of dependents that the API shows before a deletion.

use super::access::{allow, rbac};
use super::*;

/// Applications that are bound to `testing/c`, in two namespaces, and one that is bound elsewhere.
async fn bound(world: &World) -> String {
    let (cluster, _) = world.created(Kind::Cluster, "c").await;
    for (namespace, name, to) in [("testing", "a", "c"), ("other", "b", "c"), ("testing", "elsewhere", "d")] {
        let applications = collection(Kind::Application, namespace);
        world.say("POST", &applications, &example(Kind::Application, name)).await.with(200);
        let to = json!({"api": "kubernetes", "kind": "Cluster", "namespace": "testing", "name": to});
        world.say("PUT", &format!("{applications}/{name}/binding"), &json!({"cluster": to})).await.with(200);
    }
    format!("{cluster}/dependents")
}

fn application(namespace: &str, name: &str) -> Value {
    json!({"kind": "Application", "namespace": namespace, "name": name})
}

#[tokio::test]
async fn applications_that_are_bound_to_a_cluster_go_with_it() {
    let world = world();
    let path = bound(&world).await;
    let answer = world.ask("GET", &path).await.with(200).json();
    let both = json!({"dependents": [application("other", "b"), application("testing", "a")], "hidden": 0});
    assert_eq!(answer, both);
    // A dependent that is already being deleted is left out.
    world.ask("DELETE", &format!("{}/b", collection(Kind::Application, "other"))).await.with(200);
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer["dependents"], json!([application("testing", "a")]));
    let none = world.ask("GET", &format!("{}/a/dependents", collection(Kind::Application, "testing"))).await;
    assert_eq!(none.with(200).json(), json!({"dependents": [], "hidden": 0}));
}

#[tokio::test]
async fn dependents_that_the_user_may_not_list_are_counted_and_not_named() {
    let world = rbac();
    allow(&world, "creator", "", "", &[""], "create");
    allow(&world, "binder", "", "", &[""], "update");
    let path = bound(&world).await;
    world.ask("GET", &path).await.with(403);
    allow(&world, "reader", "kubernetes", "clusters", &["testing"], "get");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer, json!({"dependents": [], "hidden": 2}));
    allow(&world, "lister", "kubernetes", "applications", &["testing"], "list");
    let answer = world.ask("GET", &path).await.with(200).json();
    assert_eq!(answer, json!({"dependents": [application("testing", "a")], "hidden": 1}));
}
