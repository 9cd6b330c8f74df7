//! Tests of concurrent writers, of versions that clients require, and of a failing store.

use super::*;

#[tokio::test]
async fn concurrent_writers_conflict_on_one_version() {
    let world = world();
    let (path, mut value) = world.created(Kind::Application, "echo").await;
    let key = stored(Kind::Application, "echo");
    let rival = |objects: &MemoryObjects| {
        let key = stored(Kind::Application, "echo");
        let mut value = objects.value(&key).unwrap();
        let count = value["status"]["migration_retries"].as_i64().unwrap();
        value["status"]["migration_retries"] = json!(count + 1);
        objects.put(&key, &value.to_string());
    };
    // One conflict: the second attempt applies to the other write and loses nothing of it.
    world.objects.rival(rival);
    value["metadata"]["labels"] = json!({"a": "b"});
    world.say("PUT", &path, &value).await.with(200);
    let both = world.objects.value(&key).unwrap();
    assert_eq!(both["status"]["migration_retries"], 1);
    assert_eq!(both["metadata"]["labels"], json!({"a": "b"}));
    // Two conflicts exceed the number of retries.
    world.objects.rival(rival);
    world.objects.rival(rival);
    value["metadata"]["labels"] = json!({"a": "c"});
    let refused = world.say("PUT", &path, &value).await.with(409).json();
    assert_eq!(refused["title"], "TRANSACTION_ERROR");
    assert_eq!(refused["type"], "https://docs/problem.html#transaction-error");
    assert_eq!(world.objects.value(&key).unwrap()["metadata"]["labels"], json!({"a": "b"}));
}

#[tokio::test]
async fn if_match_applies_to_changes() {
    let world = world();
    let (path, mut value) = world.created(Kind::Application, "echo").await;
    let tag = world.ask("GET", &path).await.header("etag").to_owned();
    let send = async |method: &str, tag: &str, body: &Value| {
        let mut request = request(method, &path, body.to_string());
        request.headers_mut().insert("if-match", tag.parse().unwrap());
        world.send(request).await
    };
    value["metadata"]["labels"] = json!({"a": "b"});
    let next = send("PUT", &tag, &value).await.with(200).header("etag").to_owned();
    value["metadata"]["labels"] = json!({"a": "c"});
    let refused = send("PUT", &tag, &value).await.with(412);
    assert_eq!(refused.header("content-type"), "application/problem+json; charset=utf-8");
    send("DELETE", &tag, &Value::Null).await.with(412);
    send("PUT", "*", &value).await.with(200);
    // A concurrent write changes the version.
    let current = world.ask("GET", &path).await.header("etag").to_owned();
    assert_ne!(current, next);
    world.objects.rival(|objects| {
        let key = stored(Kind::Application, "echo");
        let value = objects.value(&key).unwrap();
        objects.put(&key, &value.to_string());
    });
    send("DELETE", &current, &Value::Null).await.with(412);
    assert_eq!(
        world.objects.value(&stored(Kind::Application, "echo")).unwrap()["metadata"]["deleted"],
        Value::Null
    );
}

#[tokio::test]
async fn if_match_applies_to_reads_and_creations() {
    let world = world();
    let (path, value) = world.created(Kind::Application, "echo").await;
    let collection = collection(Kind::Application, "testing");
    let other = example(Kind::Application, "other");
    let current = world.ask("GET", &path).await.header("etag").to_owned();
    let send = async |method: &str, path: &str, tag: &str, body: &Value| {
        let mut request = request(method, path, body.to_string());
        request.headers_mut().insert("if-match", tag.parse().unwrap());
        world.send(request).await
    };
    for (tag, status) in [("*", 200), (current.as_str(), 200), ("\"1\"", 412), ("W/\"1\"", 412)] {
        send("GET", &path, tag, &Value::Null).await.with(status);
    }
    // A resource to be created does not exist, so no version matches.
    for tag in ["*", current.as_str()] {
        let refused = send("POST", &collection, tag, &other).await.with(412).json();
        assert!(refused["detail"].as_str().unwrap().contains("does not exist"), "{refused}");
    }
    assert!(!world.objects.holds(&stored(Kind::Application, "other")));
    for (tag, status) in [("*", 409), (current.as_str(), 409), ("\"1\"", 412)] {
        send("POST", &collection, tag, &example(Kind::Application, "echo")).await.with(status);
    }
    assert_eq!(world.objects.value(&stored(Kind::Application, "echo")).unwrap(), value);
}

#[tokio::test]
async fn silent_store_is_reported_to_the_client() {
    use madako_domain::store::{StoreError, StoreErrorKind};
    let world = world();
    let (path, value) = world.created(Kind::Application, "echo").await;
    let why = "connection to 10.0.0.1:2379 refused".to_owned();
    world.objects.fail(Some(StoreError { operation: "read".into(), kind: StoreErrorKind::Unavailable, why }));
    for (method, path) in
        [("GET", path.as_str()), ("DELETE", &path), ("GET", "/kubernetes/applications"), ("GET", "/me")]
    {
        let answer = world.ask(method, path).await.with(503);
        assert_eq!(answer.header("retry-after"), "1");
        assert_eq!(answer.json()["detail"], "503: the store does not answer");
    }
    world.say("PUT", &path, &value).await.with(503);
    world.say("POST", "/core/roles", &example(Kind::Role, "r")).await.with(503);
    world.ask("GET", "/").await.with(200);
    world.objects.fail(None);
    world.ask("GET", &path).await.with(200);
}
