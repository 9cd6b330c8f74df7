//! Tests of the subresources of the placement API: status, binding, hooks and retry.

use super::*;

fn reference(api: &str, kind: &str, name: &str) -> Value {
    json!({"api": api, "kind": kind, "namespace": "testing", "name": name})
}

/// Sets fields of a stored status, as a controller of Krake would.
fn set_status(world: &World, name: &str, fields: &Value) {
    let key = stored(Kind::Application, name);
    let mut value = world.objects.value(&key).unwrap();
    for (field, wanted) in fields.as_object().unwrap() {
        value["status"][field] = wanted.clone();
    }
    world.objects.put(&key, &value.to_string());
}

#[tokio::test]
async fn a_status_is_written_and_nothing_else() {
    for kind in Kind::ALL.iter().copied().filter(|kind| !route::subresources_of(*kind).is_empty()) {
        let world = world();
        let (path, created) = world.created(kind, "one").await;
        let mut body = created.clone();
        let state = query::state_names(kind).unwrap().last().unwrap();
        body["status"]["state"] = json!(state);
        body["metadata"]["labels"] = json!({"not": "taken"});
        let answer = world.say("PUT", &format!("{path}/status"), &body).await.with(200).json();
        let mut expected = created.clone();
        expected["status"]["state"] = json!(state);
        assert_eq!(answer, expected, "{kind}");
        assert_eq!(world.objects.value(&stored(kind, "one")), Some(expected));
        // An equal status is not written again.
        let commits = world.objects.commits();
        world.say("PUT", &format!("{path}/status"), &body).await.with(200);
        assert_eq!(world.objects.commits(), commits);

        let status = format!("{path}/status");
        body["status"]["state"] = json!("ASLEEP");
        let refused = world.say("PUT", &status, &body).await.with(422);
        assert_eq!(refused.wrong_fields(), ["status.state"]);
        body["status"] = Value::Null;
        assert_eq!(world.say("PUT", &status, &body).await.with(422).wrong_fields(), ["status"]);
        let absent = format!("{}/absent/status", collection(kind, "testing"));
        world.say("PUT", &absent, &created).await.with(404);
    }
}

#[tokio::test]
async fn an_application_is_bound_and_moves() {
    let world = world();
    let (path, created) = world.created(Kind::Application, "echo").await;
    let binding = format!("{path}/binding");
    let one = reference("kubernetes", "Cluster", "one");
    let body = json!({"api": "kubernetes", "kind": "ClusterBinding", "cluster": one});
    let bound = world.say("PUT", &binding, &body).await.with(200).json();
    assert_eq!(bound["status"]["scheduled_to"], one);
    assert!(bound["status"]["scheduled"].is_string());
    assert_eq!(bound["status"]["scheduled"], bound["status"]["kube_controller_triggered"]);
    assert_eq!(bound["status"]["running_on"], Value::Null);
    assert_eq!(bound["status"]["state"], "PENDING");
    assert_eq!(bound["metadata"]["owners"], json!([one]));
    assert_eq!(bound["metadata"]["modified"], created["metadata"]["modified"]);
    assert_eq!(world.objects.value(&stored(Kind::Application, "echo")), Some(bound.clone()));

    // Bound to the same cluster again: deployed again, but not rescheduled.
    let again = world.say("PUT", &binding, &body).await.with(200).json();
    assert_eq!(again["status"]["scheduled"], bound["status"]["scheduled"]);
    assert_ne!(again["status"]["kube_controller_triggered"], bound["status"]["kube_controller_triggered"]);

    set_status(&world, "echo", &json!({"running_on": one}));
    let two = reference("kubernetes", "Cluster", "two");
    let moved = world.say("PUT", &binding, &json!({"cluster": two})).await.with(200).json();
    assert_eq!(moved["metadata"]["owners"], json!([one, two]));
    set_status(&world, "echo", &json!({"running_on": two}));
    let three = reference("kubernetes", "Cluster", "three");
    let moved = world.say("PUT", &binding, &json!({"cluster": three})).await.with(200).json();
    assert_eq!(moved["metadata"]["owners"], json!([one, two, three]));
}

#[tokio::test]
async fn clusters_are_bound_to_clouds_and_projects() {
    let world = world();
    let (path, _) = world.created(Kind::Cluster, "c").await;
    let cloud = reference("infrastructure", "Cloud", "cloud");
    let bound = world.say("PUT", &format!("{path}/binding"), &json!({"cloud": cloud})).await.with(200).json();
    assert_eq!(bound["status"]["scheduled_to"], cloud);
    assert!(bound["status"]["scheduled"].is_string());
    assert_eq!(bound["metadata"]["owners"], json!([cloud]));

    let (path, _) = world.created(Kind::MagnumCluster, "m").await;
    let project = reference("openstack", "Project", "p");
    let body = json!({"project": project, "template": "t"});
    let bound = world.say("PUT", &format!("{path}/binding"), &body).await.with(200).json();
    assert_eq!(bound["status"]["project"], project);
    assert_eq!(bound["status"]["template"], "t");
    assert_eq!(bound["metadata"]["owners"], json!([project]));
    // The status endpoint never changes the template.
    let mut status = bound.clone();
    status["status"]["template"] = json!("other");
    let refused = world.say("PUT", &format!("{path}/status"), &status).await.with(400);
    assert_eq!(refused.wrong_fields(), ["status.template"]);
    assert_eq!(refused.json()["detail"], "Trying to update an immutable field: template");
}

#[tokio::test]
async fn a_binding_to_another_kind_of_resource_is_refused() {
    let world = world();
    let (path, created) = world.created(Kind::Application, "echo").await;
    for target in [
        reference("kubernetes", "Application", "x"),
        reference("core", "Cluster", "x"),
        json!({"api": "kubernetes", "kind": "Cluster", "name": "x"}),
    ] {
        let refused =
            world.say("PUT", &format!("{path}/binding"), &json!({"cluster": target})).await.with(422);
        assert_eq!(refused.wrong_fields(), ["cluster"]);
    }
    world.say("PUT", &format!("{path}/binding"), &json!({})).await.with(422);
    assert_eq!(world.objects.value(&stored(Kind::Application, "echo")), Some(created));
}

#[tokio::test]
async fn an_application_completes_with_its_token_only() {
    let world = world();
    let (path, _) = world.created(Kind::Application, "echo").await;
    let complete = format!("{path}/complete");
    let denied = async |token: Value| {
        let answer = world.say("PUT", &complete, &json!({"token": token})).await.with(401).json();
        let expected = "401: No token has been provided or the provided one is invalid.";
        assert_eq!(answer["detail"], expected);
    };
    denied(Value::Null).await;
    denied(json!("t0ken")).await;
    set_status(&world, "echo", &json!({"complete_token": "t0ken"}));
    denied(Value::Null).await;
    for wrong in ["", "t0ke", "t0kenn", "T0ken"] {
        denied(json!(wrong)).await;
    }
    world.say("PUT", &complete, &json!({})).await.with(401);
    let body = json!({"api": "kubernetes", "kind": "Complete", "token": "t0ken"});
    let done = world.say("PUT", &complete, &body).await.with(200).json();
    assert_eq!(done["status"]["state"], "READY_FOR_ACTION");
    assert!(done["metadata"]["deleted"].is_string());
    assert_eq!(done["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn an_application_shuts_down_when_it_is_waited_for() {
    for (state, after) in [
        ("WAITING_FOR_CLEANING", "READY_FOR_ACTION"),
        ("DEGRADED", "READY_FOR_ACTION"),
        ("RUNNING", "RUNNING"),
    ] {
        let world = world();
        let (path, _) = world.created(Kind::Application, "echo").await;
        let grace = "2026-01-01T00:00:00";
        set_status(
            &world,
            "echo",
            &json!({"shutdown_token": "t", "state": state, "shutdown_grace_period": grace}),
        );
        world.say("PUT", &format!("{path}/shutdown"), &json!({"token": "x"})).await.with(401);
        let answer =
            world.say("PUT", &format!("{path}/shutdown"), &json!({"token": "t"})).await.with(200).json();
        assert_eq!(answer["status"]["state"], after);
        let left = if after == "RUNNING" { json!(grace) } else { Value::Null };
        assert_eq!(answer["status"]["shutdown_grace_period"], left);
        assert_eq!(answer["metadata"]["deleted"], Value::Null);
    }
}

#[tokio::test]
async fn only_degraded_applications_are_retried() {
    let world = world();
    let (path, _) = world.created(Kind::Application, "echo").await;
    // krakectl sends no body.
    let refused = world.ask("PUT", &format!("{path}/retry")).await.with(400).json();
    assert_eq!(refused["title"], "UPDATE_ERROR");
    assert_eq!(refused["detail"], "No migration or deletion retry needed");
    set_status(&world, "echo", &json!({"state": "DEGRADED", "shutdown_grace_period": "2026-01-01T00:00:00"}));
    let answer = world.ask("PUT", &format!("{path}/retry")).await.with(200).json();
    assert_eq!(answer["status"]["state"], "WAITING_FOR_CLEANING");
    assert_eq!(answer["status"]["shutdown_grace_period"], Value::Null);
}
