//! Tests of creating, reading, updating and deleting resources of every kind.

use super::*;

#[tokio::test]
async fn every_kind_is_created_read_listed_updated_and_deleted() {
    for &kind in Kind::ALL {
        let world = world();
        let collection = collection(kind, "testing");
        let empty = world.ask("GET", &collection).await.with(200).json();
        let (api, name) = (kind.api().name(), kind.name());
        assert_eq!(empty, json!({"api": api, "kind": format!("{name}List"), "metadata": {}, "items": []}));

        let (path, created) = world.created(kind, "one").await;
        assert_eq!((&created["api"], &created["kind"]), (&json!(api), &json!(name)));
        let metadata = &created["metadata"];
        assert_eq!(metadata["name"], "one");
        let namespace = if kind.namespaced() { json!("testing") } else { Value::Null };
        assert_eq!(metadata["namespace"], namespace);
        assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
        assert_eq!(metadata["created"], "2027-01-15T08:00:00.000000+00:00");
        assert_eq!(metadata["modified"], metadata["created"]);
        for (field, expected) in [
            ("deleted", Value::Null),
            ("labels", json!({})),
            ("inherit_labels", json!(false)),
            ("finalizers", json!([])),
            ("owners", json!([])),
        ] {
            assert_eq!(metadata[field], expected, "{kind} {field}");
        }
        assert_eq!(world.objects.value(&stored(kind, "one")), Some(created.clone()), "{kind}");

        let read = world.ask("GET", &path).await.with(200);
        assert_eq!(read.json(), created);
        assert_eq!(read.header("content-type"), "application/json; charset=utf-8");
        assert_eq!(read.header("etag"), "\"2\"");
        assert_eq!(world.ask("GET", &collection).await.json()["items"], json!([created]));

        let mut changed = created.clone();
        changed["metadata"]["labels"] = json!({"team": "a"});
        let updated = world.say("PUT", &path, &changed).await.with(200);
        assert_eq!(updated.header("etag"), "\"3\"");
        let updated = updated.json();
        assert_ne!(updated["metadata"]["modified"], metadata["modified"]);
        changed["metadata"]["modified"] = updated["metadata"]["modified"].clone();
        assert_eq!(updated, changed);

        let deleted = world.ask("DELETE", &path).await.with(200).json();
        assert!(deleted["metadata"]["deleted"].is_string());
        assert_eq!(deleted["metadata"]["finalizers"], json!(["cascade_deletion"]));
        assert_eq!(deleted["metadata"]["modified"], updated["metadata"]["modified"]);
        let again = world.ask("DELETE", &path).await.with(200).json();
        assert_eq!(again, deleted);

        changed = deleted.clone();
        changed["metadata"]["finalizers"] = json!([]);
        let gone = world.say("PUT", &path, &changed).await.with(200);
        assert_eq!(gone.header("etag"), "");
        assert_eq!(gone.json()["metadata"]["name"], "one");
        world.ask("GET", &path).await.with(404);
        assert_eq!(world.objects.value(&stored(kind, "one")), None);
    }
}

#[tokio::test]
async fn an_application_has_krakes_fields_defaults_and_nulls() {
    let (_, created) = world().created(Kind::Application, "echo").await;
    let text = serde_json::to_string(&created["spec"]["constraints"]).unwrap();
    assert_eq!(
        text,
        r#"{"cluster":{"custom_resources":[],"labels":["location is DE"],"metrics":null},"migration":true}"#
    );
    let spec = &created["spec"];
    for (field, expected) in [
        ("tosca", json!({})),
        ("csar", Value::Null),
        ("hooks", json!([])),
        ("shutdown_grace_time", Value::Null),
        ("backoff", json!(2)),
        ("backoff_delay", json!(1)),
        ("backoff_limit", json!(-1)),
        ("auto_cluster_create", json!(false)),
    ] {
        assert_eq!(spec[field], expected, "{field}");
    }
    let status = &created["status"];
    for (field, expected) in [
        ("state", json!("PENDING")),
        ("reason", Value::Null),
        ("scheduled_to", Value::Null),
        ("running_on", Value::Null),
        ("services", json!({})),
        ("retries", Value::Null),
        ("complete_token", Value::Null),
    ] {
        assert_eq!(status[field], expected, "{field}");
    }
}

#[tokio::test]
async fn fields_that_a_request_may_not_set_are_ignored() {
    let world = world();
    let mut body = example(Kind::Application, "echo");
    body["metadata"]["namespace"] = json!("elsewhere");
    for field in ["uid", "created", "modified", "deleted"] {
        body["metadata"][field] = Value::Null;
    }
    body["status"] = json!({"state": "RUNNING", "what": "ever"});
    let created = world.say("POST", &collection(Kind::Application, "testing"), &body).await.with(200).json();
    assert_eq!(created["metadata"]["namespace"], "testing");
    assert_eq!(created["status"]["state"], "PENDING");
    assert_eq!(created["metadata"]["deleted"], Value::Null);

    let mut update = created.clone();
    update["metadata"]["labels"] = json!({"a": "b"});
    update["metadata"]["uid"] = json!("another");
    update["metadata"]["created"] = json!("2000-01-01T00:00:00");
    update["status"] = Value::Null;
    let path = format!("{}/echo", collection(Kind::Application, "testing"));
    let updated = world.say("PUT", &path, &update).await.with(200).json();
    assert_eq!(updated["metadata"]["uid"], created["metadata"]["uid"]);
    assert_eq!(updated["metadata"]["created"], created["metadata"]["created"]);
    assert_eq!(updated["status"], created["status"]);
}

#[tokio::test]
async fn existing_resource_is_not_created_again() {
    let world = world();
    for kind in [Kind::Application, Kind::Role] {
        world.created(kind, "one").await;
        let twice = world.say("POST", &collection(kind, "testing"), &example(kind, "one")).await.with(409);
        assert_eq!(twice.header("content-type"), "application/problem+json; charset=utf-8");
        let problem = twice.json();
        assert_eq!(problem["title"], "RESOURCE_ALREADY_EXISTS");
        assert_eq!(problem["type"], "https://docs/problem.html#resource-already-exists");
        assert_eq!(problem["status"], 409);
    }
    let path = collection(Kind::Application, "testing");
    let application = world.say("POST", &path, &example(Kind::Application, "one")).await;
    assert_eq!(application.json()["detail"], "Application 'one' already exists in namespace 'testing'");
    let role = world.say("POST", "/core/roles", &example(Kind::Role, "one")).await;
    assert_eq!(role.json()["detail"], "Role 'one' already exists");
    // The same name in another namespace is another resource.
    let elsewhere = collection(Kind::Application, "other");
    world.say("POST", &elsewhere, &example(Kind::Application, "one")).await.with(200);
}

#[tokio::test]
async fn bodies_are_refused_in_krakes_order() {
    let world = world();
    let applications = collection(Kind::Application, "testing");
    let absent = format!("{applications}/absent");
    for (method, path) in [("POST", &applications), ("PUT", &absent)] {
        for body in ["", "{", "[1 2]", "'a'", "{}}", "\u{feff}{}"] {
            let answer = world.send(request(method, path, body)).await.with(415).json();
            assert_eq!(
                answer,
                json!({"type": "about:blank", "status": 415, "detail": "415: Unsupported Media Type"}),
                "{body}"
            );
        }
        world.send(request(method, path, &b"{\"a\": \"\xff\"}"[..])).await.with(415);
        for body in ["[]", "null", "1", "{}", "{\"metadata\": {}}"] {
            world.send(request(method, path, body)).await.with(422);
        }
        let deep = "[".repeat(1_000) + &"]".repeat(1_000);
        world.send(request(method, path, deep)).await.with(422);
    }
    let absent = world.say("PUT", &absent, &example(Kind::Application, "absent")).await.with(404).json();
    assert_eq!(absent["detail"], "'Application' 'absent' does not exist in namespace 'testing'");
    assert_eq!(absent["title"], "NOT_FOUND_ERROR");
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let world = world();
    let mut body = example(Kind::Cluster, "-bad");
    body["spec"]["metrics"] = json!([{"name": "a", "weight": -1}, {"name": "a", "weight": "nan"}]);
    body["spec"]["colour"] = json!("red");
    body["spec"]["backoff"] = json!("two");
    body["metadata"]["labels"] = json!({"-": "x"});
    let answer = world.say("POST", &collection(Kind::Cluster, "testing"), &body).await.with(422);
    assert!(answer.json()["detail"].is_string());
    let fields = answer.wrong_fields();
    for field in
        ["metadata.name", "spec.colour", "spec.backoff", "spec.metrics[0].weight", "spec.metrics[1].weight"]
    {
        assert!(fields.iter().any(|known| known == field), "{field} is not among {fields:?}");
    }
    assert_eq!(world.objects.commits(), 0);
    let nan = example(Kind::Cluster, "c").to_string().replace("0.5", "NaN");
    let answer = world.send(request("POST", &collection(Kind::Cluster, "testing"), nan)).await.with(422);
    assert_eq!(answer.wrong_fields(), ["spec.metrics[0].weight"]);
}

#[tokio::test]
async fn names_and_namespaces_follow_krakes_pattern() {
    let world = world();
    let into = |namespace: &str| format!("/kubernetes/namespaces/{namespace}/applications");
    let body = example(Kind::Application, "a:b.c_d-e");
    world.say("POST", &into("system:admin"), &body).await.with(200);
    world.ask("GET", &format!("{}/a%3Ab.c_d-e", into("system%3Aadmin"))).await.with(200);
    for namespace in ["a%20b", "-a", "%C3%A4"] {
        let refused = world.say("POST", &into(namespace), &body).await.with(422);
        assert_eq!(refused.wrong_fields(), ["metadata.namespace"], "{namespace}");
    }
}

#[tokio::test]
async fn a_request_body_may_have_one_mebibyte() {
    let world = world();
    let applications = collection(Kind::Application, "testing");
    let mut body = example(Kind::Application, "big");
    let length = body.to_string().len();
    body["metadata"]["labels"] = json!({});
    let padding =
        |bytes: usize| format!("{}{}", " ".repeat(bytes - length), example(Kind::Application, "big"));
    world.send(request("POST", &applications, padding(1024 * 1024))).await.with(200);
    let refused = world.send(request("POST", &applications, padding(1024 * 1024 + 1))).await.with(413);
    assert_eq!(refused.json()["detail"], "Maximum request body size 1048576 exceeded");
    // Also without a declared length.
    let chunks = (0..3).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 512 * 1024])));
    let stream = Body::from_stream(futures::stream::iter(chunks));
    world.send(request("POST", &applications, stream)).await.with(413);
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_refused() {
    for &kind in Kind::ALL {
        let world = world();
        let (path, created) = world.created(kind, "one").await;
        let same = world.say("PUT", &path, &created).await;
        // Krake accepts an empty update of this kind.
        if kind == Kind::GlobalMetricsProvider {
            assert_eq!(same.with(200).json(), created);
        } else {
            let problem = same.with(400).json();
            assert_eq!(problem["title"], "UPDATE_ERROR");
            assert_eq!(problem["detail"], "The body contained no update.");
        }
        assert_eq!(world.objects.value(&stored(kind, "one")), Some(created));
    }
}

#[tokio::test]
async fn change_of_an_immutable_field_is_refused_by_name() {
    let world = world();
    let (path, created) = world.created(Kind::Application, "echo").await;
    for (field, value) in [("namespace", "override"), ("name", "other")] {
        let mut changed = created.clone();
        changed["metadata"][field] = json!(value);
        let refused = world.say("PUT", &path, &changed).await.with(400);
        assert_eq!(refused.wrong_fields(), [format!("metadata.{field}")]);
        let problem = refused.json();
        assert_eq!(problem["title"], "UPDATE_ERROR");
        assert_eq!(problem["detail"], format!("Trying to update an immutable field: {field}"));
    }
    let (path, mut created) = world.created(Kind::MagnumCluster, "m").await;
    created["spec"]["master_count"] = json!(5);
    let refused = world.say("PUT", &path, &created).await.with(400).json();
    assert_eq!(refused["detail"], "Trying to update an immutable field: master_count");
}

#[tokio::test]
async fn finalizers_only_go_while_a_deletion_is_in_progress() {
    let world = world();
    let (path, mut created) = world.created(Kind::Cluster, "one").await;
    created["metadata"]["finalizers"] = json!(["mine", "other"]);
    world.say("PUT", &path, &created).await.with(200);
    let mut deleted = world.ask("DELETE", &path).await.with(200).json();
    assert_eq!(deleted["metadata"]["finalizers"], json!(["mine", "other", "cascade_deletion"]));

    deleted["metadata"]["finalizers"] = json!(["mine", "another"]);
    let refused = world.say("PUT", &path, &deleted).await.with(409).json();
    assert_eq!(refused["title"], "UPDATE_ERROR");
    assert_eq!(refused["detail"], "Finalizers can only be removed if a deletion is in progress.");

    deleted["metadata"]["finalizers"] = json!(["mine"]);
    let rest = world.say("PUT", &path, &deleted).await.with(200).json();
    assert_eq!(rest["metadata"]["finalizers"], json!(["mine"]));
    deleted["metadata"]["finalizers"] = json!([]);
    world.say("PUT", &path, &deleted).await.with(200);
    assert_eq!(world.objects.value(&stored(Kind::Cluster, "one")), None);
}

#[tokio::test]
async fn forced_deletion_removes_applications_and_clusters_immediately() {
    for &kind in Kind::ALL {
        let world = world();
        let (path, _) = world.created(kind, "one").await;
        // The form that krakectl sends without the option.
        if kind == Kind::Application {
            world.ask("DELETE", &format!("{path}?blocking=False&force=False")).await.with(200);
            assert!(world.objects.value(&stored(kind, "one")).is_some());
        }
        let answer = world.ask("DELETE", &format!("{path}?force=True")).await.with(200).json();
        assert!(answer["metadata"]["deleted"].is_string());
        let gone = world.objects.value(&stored(kind, "one")).is_none();
        assert_eq!(gone, matches!(kind, Kind::Application | Kind::Cluster), "{kind}");
    }
}

#[tokio::test]
async fn a_deletion_waits_for_the_shutdown_hook() {
    let world = world();
    let mut body = example(Kind::Application, "echo");
    body["spec"]["hooks"] = json!(["shutdown"]);
    let applications = collection(Kind::Application, "testing");
    world.say("POST", &applications, &body).await.with(200);
    let deleted = world.ask("DELETE", &format!("{applications}/echo")).await.with(200).json();
    assert_eq!(deleted["status"]["state"], "WAITING_FOR_CLEANING");
}

#[tokio::test]
async fn writes_of_other_clients_are_visible_immediately() {
    let world = world();
    let (path, mut value) = world.created(Kind::Application, "echo").await;
    value["metadata"]["labels"] = json!({"written": "elsewhere"});
    let revision = world.objects.put(&stored(Kind::Application, "echo"), &value.to_string());
    let read = world.ask("GET", &path).await.with(200);
    assert_eq!(read.header("etag"), format!("\"{revision}\""));
    assert_eq!(read.json()["metadata"]["labels"]["written"], "elsewhere");

    value["metadata"]["labels"] = json!({"written": "again"});
    world.objects.put(&stored(Kind::Application, "echo"), &value.to_string());
    let listed = world.ask("GET", &collection(Kind::Application, "testing")).await.json();
    assert_eq!(listed["items"][0]["metadata"]["labels"]["written"], "again");

    world.objects.remove(&stored(Kind::Application, "echo"));
    world.say("PUT", &path, &value).await.with(404);
}

#[tokio::test]
async fn times_are_returned_as_they_were_stored() {
    let world = world();
    let (path, mut value) = world.created(Kind::Role, "r").await;
    value["metadata"]["created"] = json!("2026-01-02 03:04:05");
    value["metadata"]["modified"] = json!("2026-01-02T03:04:05.5+02:00");
    world.objects.put(&stored(Kind::Role, "r"), &value.to_string());
    assert_eq!(world.ask("GET", &path).await.json(), value);
}

#[tokio::test]
async fn a_list_is_of_one_namespace_or_of_all() {
    let world = world();
    for (namespace, name) in [("b", "one"), ("a", "two"), ("a", "one"), ("a.b", "one")] {
        let path = collection(Kind::Application, namespace);
        world.say("POST", &path, &example(Kind::Application, name)).await.with(200);
    }
    let names = |list: Value| {
        let items = list["items"].as_array().unwrap().clone();
        let name = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap().to_owned();
        let mut names: Vec<_> =
            items.iter().map(|item| format!("{}/{}", name(item, "namespace"), name(item, "name"))).collect();
        names.sort();
        names
    };
    let one = world.ask("GET", &collection(Kind::Application, "a")).await.json();
    assert_eq!(names(one), ["a/one", "a/two"]);
    let all = world.ask("GET", "/kubernetes/applications").await.json();
    assert_eq!(names(all), ["a.b/one", "a/one", "a/two", "b/one"]);
}

#[tokio::test]
async fn one_bad_value_fails_no_list_and_is_reported() {
    let world = world();
    world.created(Kind::Role, "good").await;
    world.objects.put("/core/roles/bad", "{\"metadata\": 1}");
    let list = world.ask("GET", "/core/roles").await.with(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    world.say("POST", "/core/roles", &example(Kind::Role, "bad")).await.with(409);
}

#[tokio::test]
async fn unreadable_resource_is_reported_by_every_method_and_deleted_by_force() {
    let world = world();
    let application = stored(Kind::Application, "bad");
    let paths = ["/core/roles/bad", "/kubernetes/namespaces/testing/applications/bad"];
    for (kind, key, path) in
        [(Kind::Role, "/core/roles/bad", paths[0]), (Kind::Application, application.as_str(), paths[1])]
    {
        let revision = world.objects.put(key, "{\"metadata\": 1}");
        let collection = path.rsplit_once('/').unwrap().0;
        let body = example(kind, "bad");
        for (method, path, body) in [
            ("GET", path, &Value::Null),
            ("PUT", path, &body),
            ("DELETE", path, &Value::Null),
            ("POST", collection, &body),
        ] {
            let bad = world.say(method, path, body).await.with(409).json();
            let detail = bad["detail"].as_str().unwrap();
            let named = format!("{} ", kind.name());
            assert!(
                ["cannot be read", "metadata", "force=True", &named].iter().all(|part| detail.contains(part)),
                "{method}: {detail}"
            );
            assert_eq!(bad["title"], Value::Null);
        }
        let by_force = format!("{path}?force=True");
        let mut stale = request("DELETE", &by_force, Body::empty());
        stale.headers_mut().insert("if-match", format!("\"{}\"", revision - 1).parse().unwrap());
        world.send(stale).await.with(412);
        assert!(world.objects.holds(key));
        let gone = world.ask("DELETE", &by_force).await.with(204);
        assert!(gone.body.is_empty() && !world.objects.holds(key));
        world.ask("DELETE", &by_force).await.with(404);
        world.ask("GET", path).await.with(404);
        world.say("POST", collection, &body).await.with(200);
    }
}

#[tokio::test]
async fn forced_deletion_spares_a_resource_repaired_meanwhile() {
    let world = world();
    let key = stored(Kind::Role, "r");
    world.objects.put(&key, "{");
    // After a repair, it is deleted and shown as usual.
    world.objects.rival(|objects| {
        let value = json!({"metadata": {
            "name": "r", "uid": "u", "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00",
            "finalizers": ["mine"],
        }, "rules": []});
        objects.put(&stored(Kind::Role, "r"), &value.to_string());
    });
    let answer = world.ask("DELETE", "/core/roles/r?force=True").await.with(200).json();
    assert_eq!(answer["metadata"]["name"], "r");
}

#[tokio::test]
async fn a_manifest_with_unrepresentable_numbers_is_shown_updated_and_deleted() {
    let world = world();
    let (path, _) = world.created(Kind::Application, "echo").await;
    let key = stored(Kind::Application, "echo");
    let mut value = world.objects.value(&key).unwrap();
    value["spec"]["manifest"][0]["metadata"]["annotations"] = json!({"a": "THERE"});
    for none in ["NaN", "-Infinity", "1e400"] {
        world.objects.put(&key, &value.to_string().replace("\"THERE\"", none));
        let mut shown = world.ask("GET", &path).await.with(200).json();
        assert_eq!(shown["spec"]["manifest"][0]["metadata"]["annotations"], json!({"a": null}), "{none}");
        shown["metadata"]["labels"] = json!({"a": none.replace('-', "")});
        world.say("PUT", &path, &shown).await.with(200);
        world.objects.value(&key).unwrap();
    }
    world.ask("DELETE", &path).await.with(200);
}

#[tokio::test]
async fn a_list_may_be_taken_in_pages_and_by_labels() {
    let world = world();
    let mut expected = Vec::new();
    // In the order of the keys in etcd, where "/" follows "." and "-".
    for (namespace, name, team) in
        [("a.b", "x", "blue"), ("a", "x", "red"), ("a", "y", "blue"), ("b", "x", "red")]
    {
        let mut body = example(Kind::Application, name);
        body["metadata"]["labels"] = json!({"team": team});
        world.say("POST", &collection(Kind::Application, namespace), &body).await.with(200);
        expected.push((format!("{namespace}/{name}"), team));
    }
    let page = async |query: &str| {
        let list = world.ask("GET", &format!("/kubernetes/applications?{query}")).await.with(200).json();
        let names: Vec<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| {
                let field = |field: &str| item["metadata"][field].as_str().unwrap().to_owned();
                format!("{}/{}", field("namespace"), field("name"))
            })
            .collect();
        (names, list["metadata"]["continue"].as_str().map(str::to_owned))
    };
    for limit in 1..=5 {
        let (mut seen, mut query) = (Vec::new(), format!("limit={limit}"));
        loop {
            let (names, next) = page(&query).await;
            assert!(names.len() <= limit);
            seen.extend(names);
            let Some(next) = next else { break };
            query = format!("limit={limit}&continue={next}");
        }
        assert_eq!(seen, expected.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), "{limit}");
    }
    assert_eq!(page("labelSelector=team%3Dblue").await.0, ["a.b/x", "a/y"]);
    assert_eq!(page("labelSelector=team%20in%20(red)&limit=1").await.0, ["a/x"]);
    for (query, field) in
        [("labelSelector=a=b=c", "labelSelector"), ("limit=0", "limit"), ("continue=x", "continue")]
    {
        let refused = world.ask("GET", &format!("/kubernetes/applications?{query}")).await.with(422);
        assert_eq!(refused.wrong_fields(), [field]);
    }
}
