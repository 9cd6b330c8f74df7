//! Tests of watches, and of answers that wait for a state.

use axum::body::BodyDataStream;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::*;

struct LineStream {
    status: StatusCode,
    headers: HeaderMap,
    body: BodyDataStream,
    rest: String,
}

impl World {
    async fn watch(&self, path: &str) -> LineStream {
        self.watch_with(request("GET", path, Body::empty())).await
    }

    async fn watch_with(&self, request: Request<Body>) -> LineStream {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.into_data_stream();
        LineStream { status: parts.status, headers: parts.headers, body, rest: String::new() }
    }
}

impl LineStream {
    /// The next line; `None` at the proper end, an error if the stream was cut off.
    async fn next(&mut self) -> Option<Result<String, axum::Error>> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let line = line.to_owned();
                self.rest = rest.to_owned();
                return Some(Ok(line));
            }
            match timeout(PATIENCE, self.body.next()).await.expect("something comes") {
                Some(Ok(bytes)) => self.rest += std::str::from_utf8(&bytes).unwrap(),
                Some(Err(error)) => return Some(Err(error)),
                None => return None,
            }
        }
    }

    async fn event(&mut self) -> (String, Value) {
        loop {
            let line = self.next().await.expect("it goes on").unwrap();
            if line.is_empty() {
                continue;
            }
            let mut event: Value = serde_json::from_str(&line).unwrap();
            assert!(line.starts_with("{\"type\": \""), "{line}");
            return (event["type"].as_str().unwrap().to_owned(), event["object"].take());
        }
    }

    async fn name(&mut self) -> (String, String) {
        let (kind, object) = self.event().await;
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        (kind, format!("{}/{}", text("namespace"), text("name")))
    }
}

fn is(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn watch_delivers_every_change_after_its_begin() {
    let world = world();
    world.created(Kind::Application, "before").await;
    let all = collection(Kind::Application, "testing");
    let mut lines = world.watch(&format!("{all}?watch&heartbeat=0")).await;
    assert_eq!(lines.status, 200);
    assert_eq!(lines.headers["content-type"], "application/x-ndjson");

    let (path, created) = world.created(Kind::Application, "one").await;
    let elsewhere = collection(Kind::Application, "other");
    world.say("POST", &elsewhere, &example(Kind::Application, "two")).await.with(200);
    world.created(Kind::Cluster, "three").await;
    let deleted = world.ask("DELETE", &path).await.json();
    let last = world.ask("DELETE", &format!("{path}?force=True")).await.with(200);
    assert_eq!(lines.event().await, ("ADDED".to_owned(), created));
    assert_eq!(lines.event().await, ("MODIFIED".to_owned(), deleted.clone()));
    // The last stored state, not the answer to the deletion.
    assert_eq!(lines.event().await, ("DELETED".to_owned(), deleted));
    drop(last);
    world.created(Kind::Application, "one").await;
    assert_eq!(lines.name().await, is("ADDED", "testing/one"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_when_its_headers_come() {
    let world = world();
    let mut lines = world.watch("/kubernetes/applications?watch").await;
    // The body has not been read yet.
    let (_, created) = world.created(Kind::Application, "one").await;
    assert_eq!(lines.event().await.1, created);
}

#[tokio::test(start_paused = true)]
async fn an_idle_watch_sends_heartbeats() {
    let world = world();
    for (query, seconds) in [("watch", 10), ("watch=false&heartbeat=3", 3)] {
        let mut lines = world.watch(&format!("/core/roles?{query}")).await;
        for _ in 0..3 {
            let before = Instant::now();
            assert_eq!(lines.next().await.unwrap().unwrap(), "");
            assert_eq!(before.elapsed(), Duration::from_secs(seconds));
        }
    }
    let mut silent = world.watch("/core/roles?watch&heartbeat=0").await;
    assert!(timeout(PATIENCE / 2, silent.body.next()).await.is_err());
    for wrong in ["-1", "x", ""] {
        let refused = world.ask("GET", &format!("/core/roles?watch&heartbeat={wrong}")).await.with(422);
        assert_eq!(refused.wrong_fields(), ["heartbeat"]);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_with_a_gap_breaks_off() {
    let world = world();
    let mut lines = world.watch("/core/roles?watch").await;
    world.created(Kind::Role, "r").await;
    assert_eq!(lines.name().await, is("ADDED", "/r"));
    world.objects.relist();
    loop {
        match lines.next().await {
            Some(Ok(line)) => assert_eq!(line, ""),
            Some(Err(_)) => break,
            None => panic!("a gap looks like a proper end"),
        }
    }
    let mut lines = world.watch("/core/roles?watch").await;
    world.created(Kind::Role, "s").await;
    assert_eq!(lines.name().await, is("ADDED", "/s"));
}

#[tokio::test(start_paused = true)]
async fn watch_ends_when_the_server_stops() {
    let world = world();
    let (close, closing) = watch::channel(false);
    let mut request = request("GET", "/core/roles?watch", Body::empty());
    request.extensions_mut().insert(ServerClosing::new(closing));
    let mut lines = world.watch_with(request).await;
    world.created(Kind::Role, "r").await;
    assert_eq!(lines.name().await, is("ADDED", "/r"));
    close.send_replace(true);
    assert!(lines.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn watch_slots_are_limited_and_freed() {
    let settings = Settings { streams: 2, ..settings(Authorization::AlwaysAllow) };
    let world = world_with(settings, vec![Arc::new(StaticUser("alice".into()))]);
    let one = world.watch("/core/roles?watch").await;
    let _two = world.watch("/core/roles?watch").await;
    let refused = world.ask("GET", "/core/roles?watch").await.with(503);
    assert_eq!(refused.header("retry-after"), "10");
    world.ask("GET", "/core/roles").await.with(200);
    drop(one);
    assert_eq!(world.watch("/core/roles?watch").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn watch_shows_only_permitted_resources_and_ends_with_the_permission() {
    let world = world_with(settings(Authorization::Rbac), vec![Arc::new(StaticUser("alice".into()))]);
    let metadata = json!({
        "name": "r", "uid": "u", "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00",
    });
    let role = json!({"metadata": metadata, "rules": [
        {"api": "kubernetes", "resources": ["applications"], "namespaces": ["a", "c"], "verbs": ["list", "create"]},
        {"api": "", "resources": [""], "namespaces": ["b"], "verbs": ["create"]},
    ]});
    let binding = json!({"metadata": metadata, "users": ["alice"], "roles": ["r"]});
    world.objects.put("/core/roles/r", &role.to_string());
    world.objects.put("/core/rolebindings/r", &binding.to_string());
    let mut lines = world.watch("/kubernetes/applications?watch").await;
    for namespace in ["a", "b", "c"] {
        let path = collection(Kind::Application, namespace);
        world.say("POST", &path, &example(Kind::Application, "one")).await.with(200);
    }
    assert_eq!(lines.name().await, is("ADDED", "a/one"));
    assert_eq!(lines.name().await, is("ADDED", "c/one"));
    world.objects.remove("/core/rolebindings/r");
    world.objects.catch_up();
    assert!(matches!(lines.next().await, Some(Err(_))));
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_a_state() {
    let world = world();
    let begun = Instant::now();
    let body = example(Kind::Application, "echo");
    let path = format!("{}?blocking=running", collection(Kind::Application, "testing"));
    let creating = world.say("POST", &path, &body);
    let running = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        for state in ["CREATING", "RUNNING"] {
            let key = stored(Kind::Application, "echo");
            let mut value = world.objects.value(&key).unwrap();
            value["status"]["state"] = json!(state);
            world.objects.put(&key, &value.to_string());
            world.objects.catch_up();
        }
    };
    let (created, ()) = tokio::join!(creating, running);
    let created = created.with(200);
    assert_eq!(created.json()["status"]["state"], "RUNNING");
    assert_eq!(created.header("etag"), "\"4\"");
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
    // A state that is already reached needs no wait.
    let path = format!("{}?blocking=Pending", collection(Kind::Application, "testing"));
    world.say("POST", &path, &example(Kind::Application, "other")).await.with(200);
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn an_answer_waits_a_minute_at_most() {
    let world = world();
    let begun = Instant::now();
    let path = format!("{}?blocking=running", collection(Kind::Application, "testing"));
    let created = world.say("POST", &path, &example(Kind::Application, "echo")).await.with(200);
    assert_eq!(created.json()["status"]["state"], "PENDING");
    assert_eq!(begun.elapsed(), BLOCKING);
    let (close, closing) = watch::channel(false);
    close.send_replace(true);
    let mut request = request("POST", &path, example(Kind::Application, "two").to_string());
    request.extensions_mut().insert(ServerClosing::new(closing));
    world.send(request).await.with(200);
    assert_eq!(begun.elapsed(), BLOCKING);
    let path = path.replace("running", "asleep");
    let refused = world.say("POST", &path, &example(Kind::Application, "three")).await.with(422);
    assert_eq!(refused.wrong_fields(), ["blocking"]);
    assert_eq!(world.objects.value(&stored(Kind::Application, "three")), None);
}

#[tokio::test(start_paused = true)]
async fn blocking_deletion_waits_until_the_resource_is_removed() {
    let world = world();
    let (path, _) = world.created(Kind::Application, "echo").await;
    let collecting = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Followers that missed changes read the resource again.
        world.objects.relist();
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.objects.remove(&stored(Kind::Application, "echo"));
        world.objects.catch_up();
    };
    let begun = Instant::now();
    let path = format!("{path}?blocking=deleted");
    let (gone, ()) = tokio::join!(world.ask("DELETE", &path), collecting);
    let gone = gone.with(200);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    assert_eq!(gone.json()["status"]["state"], "DELETED");
    assert_eq!(gone.header("etag"), "");
    // Deletion by force completes at once.
    let (path, _) = world.created(Kind::Application, "other").await;
    world.ask("DELETE", &format!("{path}?blocking=deleted&force=True")).await.with(200);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn watch_by_labels_reports_the_begin_and_end_of_a_match() {
    let world = world();
    let mut lines = world.watch("/core/roles?watch&labelSelector=team%3Da").await;
    let (path, mut role) = world.created(Kind::Role, "r").await;
    for (team, note) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5)] {
        role["metadata"]["labels"] = json!({"team": team, "note": note.to_string()});
        world.say("PUT", &path, &role).await.with(200);
    }
    for (kind, note) in [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "3"), ("ADDED", "5")] {
        let (is, object) = lines.event().await;
        assert_eq!((is.as_str(), &object["metadata"]["labels"]["note"]), (kind, &json!(note)));
    }
    for pages in ["limit=1", "continue=x"] {
        world.ask("GET", &format!("/core/roles?watch&{pages}")).await.with(422);
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_update_ignores_states_before_its_write() {
    let world = world();
    let (path, mut value) = world.created(Kind::Application, "echo").await;
    world.objects.rival(|objects| {
        let key = stored(Kind::Application, "echo");
        let mut value = objects.value(&key).unwrap();
        for state in ["RUNNING", "PENDING"] {
            value["status"]["state"] = json!(state);
            objects.put(&key, &value.to_string());
        }
    });
    value["metadata"]["labels"] = json!({"a": "b"});
    let begun = Instant::now();
    let updated = world.say("PUT", &format!("{path}?blocking=running"), &value).await.with(200).json();
    assert_eq!(updated["status"]["state"], "PENDING");
    assert_eq!(begun.elapsed(), BLOCKING);
}

#[test]
fn open_watches_are_counted_by_kind() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let world = world();
            let open = |kind| {
                let path = format!("{}?watch&heartbeat=0", collection(kind, "testing"));
                let world = &world;
                async move { world.watch(&path).await }
            };
            let counted = |kind: &str| {
                let text = recorder.handle().render();
                let sample = format!("madako_placement_watches{{kind=\"{kind}\"}} ");
                text.lines().find_map(|line| line.strip_prefix(&sample).map(str::to_owned))
            };
            assert_eq!(counted("Application"), None);
            let (first, second) = (open(Kind::Application).await, open(Kind::Application).await);
            let cluster = open(Kind::Cluster).await;
            assert_eq!(counted("Application").as_deref(), Some("2"));
            assert_eq!(counted("Cluster").as_deref(), Some("1"));
            drop(first);
            assert_eq!(counted("Application").as_deref(), Some("1"));
            drop((second, cluster));
            assert_eq!(counted("Application").as_deref(), Some("0"));
            assert_eq!(counted("Cluster").as_deref(), Some("0"));
        });
    });
}
