//! Tests of authorization, of unknown paths, and of requests from pages of other origins (CORS).

use super::*;

pub(super) fn rbac() -> World {
    world_with(settings(Authorization::Rbac), vec![Arc::new(StaticUser("alice".into()))])
}

/// Gives alice a role, in its stored form.
pub(super) fn allow(world: &World, name: &str, api: &str, resource: &str, namespaces: &[&str], verb: &str) {
    let metadata = json!({
        "name": name, "uid": "u", "created": "2026-01-01T00:00:00", "modified": "2026-01-01T00:00:00",
    });
    let role = json!({"metadata": metadata, "rules": [
        {"api": api, "resources": [resource], "namespaces": namespaces, "verbs": [verb]}
    ]});
    let binding = json!({"metadata": metadata, "users": ["alice"], "roles": [name, "absent"]});
    world.objects.put(&format!("/core/roles/{name}"), &role.to_string());
    world.objects.put(&format!("/core/rolebindings/{name}"), &binding.to_string());
}

#[tokio::test]
async fn each_right_opens_exactly_its_paths() {
    for &kind in Kind::ALL {
        let collection = collection(kind, "testing");
        let object = format!("{collection}/absent");
        let mut table = vec![
            ("POST", collection.clone(), kind.plural().to_owned(), "create", 415),
            ("GET", collection.clone(), kind.plural().to_owned(), "list", 200),
            ("GET", object.clone(), kind.plural().to_owned(), "get", 404),
            ("PUT", object.clone(), kind.plural().to_owned(), "update", 415),
            ("DELETE", object.clone(), kind.plural().to_owned(), "delete", 404),
            ("GET", format!("{object}/dependents"), kind.plural().to_owned(), "get", 404),
        ];
        if kind.namespaced() {
            let all = format!("/{}/{}", kind.api().name(), kind.plural());
            table.push(("GET", all, kind.plural().to_owned(), "list", 200));
        }
        for part in route::subresources_of(kind) {
            let (resource, status) = match (kind, part.name()) {
                (_, "retry") => (format!("{}/status", kind.plural()), 404),
                (Kind::MagnumCluster, "binding") => (format!("{}/binding", kind.plural()), 404),
                (_, name) => (format!("{}/{name}", kind.plural()), 415),
            };
            table.push(("PUT", format!("{object}/{}", part.name()), resource, "update", status));
        }
        for (method, path, resource, verb, status) in table {
            let world = rbac();
            world.ask(method, &path).await.with(403);
            let wrong_verb = if verb == "get" { "list" } else { "get" };
            allow(&world, "wrong-verb", kind.api().name(), &resource, &["testing"], wrong_verb);
            allow(&world, "wrong-resource", kind.api().name(), "others", &["testing"], verb);
            if kind.namespaced() && !path.ends_with(&format!("/{}/{}", kind.api().name(), kind.plural())) {
                allow(&world, "wrong-namespace", kind.api().name(), &resource, &["other"], verb);
            }
            let denied = world.ask(method, &path).await.with(403).json();
            assert_eq!(denied, json!({"type": "about:blank", "status": 403, "detail": "403: Forbidden"}));
            allow(&world, "right", kind.api().name(), &resource, &["testing"], verb);
            let answer = world.ask(method, &path).await;
            assert_eq!(answer.status.as_u16(), status, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_list_over_all_namespaces_shows_those_that_the_roles_name() {
    let world = rbac();
    allow(&world, "creator", "", "", &[""], "create");
    for namespace in ["a", "b", "c"] {
        let path = collection(Kind::Application, namespace);
        world.say("POST", &path, &example(Kind::Application, "one")).await.with(200);
    }
    world.ask("GET", "/kubernetes/applications").await.with(403);
    allow(&world, "reader", "kubernetes", "applications", &["a", "c"], "list");
    let list = world.ask("GET", "/kubernetes/applications").await.with(200).json();
    let namespaces: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["namespace"].clone()).collect();
    assert_eq!(namespaces, ["a", "c"]);
    world.ask("GET", &collection(Kind::Application, "b")).await.with(403);
    allow(&world, "everywhere", "kubernetes", "applications", &[""], "list");
    let list = world.ask("GET", "/kubernetes/applications").await.with(200).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn revoked_right_ends_immediately() {
    let world = rbac();
    allow(&world, "reader", "core", "roles", &[], "list");
    world.ask("GET", "/core/roles").await.with(200);
    world.objects.remove("/core/rolebindings/reader");
    world.ask("GET", "/core/roles").await.with(403);
}

#[tokio::test]
async fn requests_without_an_identity_are_refused() {
    let nobody = world_with(settings(Authorization::AlwaysAllow), vec![]);
    let refused = nobody.ask("GET", "/me").await.with(401).json();
    assert_eq!(
        refused,
        json!({"type": "about:blank", "status": 401, "detail": "401: No user has been authenticated."})
    );
    for path in ["/", "/release", "/core/roles", "/nowhere"] {
        nobody.ask("GET", path).await.with(401);
    }
    let allowed = |authorization| Settings { allow_anonymous: true, ..settings(authorization) };
    let anonymous = world_with(allowed(Authorization::AlwaysAllow), vec![]);
    assert_eq!(anonymous.ask("GET", "/me").await.json(), json!({"user": "system:anonymous", "roles": []}));
    anonymous.ask("GET", "/core/roles").await.with(200);
    // With roles, the anonymous user has no rights.
    let anonymous = world_with(allowed(Authorization::Rbac), vec![]);
    anonymous.ask("GET", "/core/roles").await.with(401);
    let denied = world_with(allowed(Authorization::AlwaysDeny), vec![]);
    denied.ask("GET", "/core/roles").await.with(403);
    denied.ask("GET", "/me").await.with(200);
}

#[tokio::test]
async fn root_release_and_me_answer_as_krake_does() {
    let world = rbac();
    assert_eq!(world.ask("GET", "/").await.with(200).json(), json!({"version": "1.2.3"}));
    assert_eq!(world.ask("GET", "/release").await.with(202).body, "\"You released the Krake.\"");
    allow(&world, "z", "core", "roles", &[], "list");
    allow(&world, "a", "core", "roles", &[], "get");
    let me = world.ask("GET", "/me").await.with(200).json();
    assert_eq!(me, json!({"user": "alice", "roles": ["a", "absent", "z"]}));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let world = world();
    world.created(Kind::Role, "r").await;
    for path in ["/", "/me", "/core/roles", "/core/roles/r"] {
        let head = world.ask("HEAD", path).await.with(200);
        assert_eq!(head.headers, world.ask("GET", path).await.headers);
    }
    for path in ["/core", "/core/roles/", "/kubernetes/namespaces/n/clusters/c/retry", "/core/pods"] {
        let answer = world.ask("GET", path).await.with(404).json();
        assert_eq!(answer, json!({"type": "about:blank", "status": 404, "detail": "404: Not Found"}));
    }
    for (method, path, allowed) in [
        ("PATCH", "/core/roles", "GET,HEAD,OPTIONS,POST"),
        ("POST", "/kubernetes/applications", "GET,HEAD,OPTIONS"),
        ("POST", "/core/roles/r", "DELETE,GET,HEAD,OPTIONS,PUT"),
        ("GET", "/kubernetes/namespaces/n/applications/a/status", "OPTIONS,PUT"),
        ("DELETE", "/me", "GET,HEAD,OPTIONS"),
    ] {
        let answer = world.ask(method, path).await.with(405);
        assert_eq!(answer.header("allow"), allowed, "{method} {path}");
        assert_eq!(answer.json()["detail"], "405: Method Not Allowed");
    }
}

#[tokio::test]
async fn pages_of_the_one_origin_may_use_the_api() {
    let origin = "http://valid.com";
    let settings = Settings { cors_origin: origin.to_owned(), ..settings(Authorization::AlwaysAllow) };
    let world = world_with(settings, vec![]);
    let preflight = async |origin: Option<&str>, method: Option<&str>, path: &str| {
        let mut request = request("OPTIONS", path, Body::empty());
        for (name, value) in [("origin", origin), ("access-control-request-method", method)] {
            if let Some(value) = value {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
        }
        request.headers_mut().insert("access-control-request-headers", "X-Requested-With".parse().unwrap());
        world.send(request).await
    };
    // Without authentication, because a browser sends none in a preflight.
    let allowed = preflight(Some(origin), Some("GET"), "/kubernetes/applications").await.with(200);
    assert_eq!(allowed.header("access-control-allow-origin"), origin);
    assert_eq!(allowed.header("access-control-allow-credentials"), "true");
    assert_eq!(allowed.header("access-control-allow-methods"), "GET");
    assert_eq!(allowed.header("access-control-allow-headers"), "X-Requested-With");
    for (origin, method, said) in [
        (Some(origin), Some("PATCH"), "'PATCH'"),
        (Some("http://invalid.com"), Some("GET"), "'http://invalid.com' is not allowed"),
        (Some(origin), None, "Access-Control-Request-Method"),
        (None, Some("GET"), "origin header"),
    ] {
        let answer = preflight(origin, method, "/").await.with(403);
        let refused = answer.json();
        let detail = refused["detail"].as_str().unwrap();
        assert_eq!(answer.header("access-control-allow-origin"), "");
        assert!(detail.starts_with("CORS preflight request failed") && detail.contains(said), "{detail}");
    }
    preflight(Some(origin), Some("GET"), "/nowhere").await.with(404);
    // The origin's pages may read refusals too; other origins may read nothing.
    for (from, shown) in [(origin, origin), ("http://invalid.com", "")] {
        let mut request = request("GET", "/me", Body::empty());
        request.headers_mut().insert("origin", from.parse().unwrap());
        let answer = world.send(request).await.with(401);
        assert_eq!(answer.header("access-control-allow-origin"), shown);
    }
}
