//! Tests of the placement commands against a server that records requests (addresses, headers, bodies), and their
//! output for its answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::program::{Answer, Files, command, free_port, madako};

#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    /// Method and target.
    pub(crate) line: String,
    pub(crate) if_match: Option<String>,
    pub(crate) body: Value,
}

/// A server on loopback that answers each request with the next of its answers; it ends when dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    pub(crate) files: Files,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// An answer: status, further headers, body.
pub(crate) type Said = (u16, &'static str, String);

pub(crate) fn json_said(status: u16, body: &Value) -> Said {
    (status, "", body.to_string())
}

impl Server {
    pub(crate) async fn answering(answers: impl IntoIterator<Item = Said>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let mut answers: VecDeque<Said> = answers.into_iter().collect();
        let serving = tokio::spawn(async move {
            while let Some(said) = answers.pop_front() {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read(&mut stream).await;
                noted.lock().unwrap().push(request);
                let (status, headers, body) = said;
                let head = format!(
                    "HTTP/1.1 {status} It\r\nContent-Type: application/json\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(body.as_bytes()).await.unwrap();
            }
        });
        let files = Files::new();
        files.write("krakectl.yaml", format!("api_url: http://127.0.0.1:{port}\nuser: system:admin\n"));
        Self { port, asked, files, serving }
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Answer {
        madako(&[args, &["--config", &self.files.path("krakectl.yaml")]].concat()).await
    }

    pub(crate) fn asked(&self) -> Vec<RecordedRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }
}

async fn read(stream: &mut TcpStream) -> RecordedRequest {
    let mut bytes = Vec::new();
    let mut wanted = None;
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|end| end + 4);
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
            let header = |name: &str| {
                text.lines().find_map(|line| {
                    let (known, value) = line.split_once(':')?;
                    known.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
                })
            };
            let length = header("content-length").map_or(0, |length| length.parse().unwrap());
            wanted = Some(head + length);
            if bytes.len() >= head + length {
                let line = text.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
                let body = serde_json::from_slice(&bytes[head..]).unwrap_or_default();
                return RecordedRequest { line, if_match: header("if-match"), body };
            }
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the request ended early: {wanted:?}");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

fn application(labels: &Value) -> Value {
    json!({
        "api": "kubernetes", "kind": "Application",
        "metadata": {"name": "echo", "namespace": "testing", "labels": labels, "created": "2026-11-21T12:34:56.123456+00:00",
                     "modified": "2026-11-21T12:34:56+00:00", "deleted": null},
        "spec": {"manifest": [], "constraints": {"migration": true, "cluster": {"labels": ["location is DE"]}}},
        "status": {"state": "PENDING", "scheduled_to": null},
    })
}

#[tokio::test]
async fn each_command_sends_the_request_of_krakectl() {
    let app = application(&json!({}));
    let role = json!({"metadata": {"name": "r"}, "rules": []});
    let answers = vec![
        json_said(200, &json!({"items": []})),
        json_said(200, &json!({"items": []})),
        json_said(200, &json!({"items": []})),
        json_said(200, &json!({"items": []})),
        json_said(200, &app),
        json_said(200, &app),
        json_said(200, &json!({"dependents": [], "hidden": 0})),
        (204, "", String::new()),
        json_said(200, &app),
        json_said(200, &app),
        json_said(201, &role),
    ];
    let server = Server::answering(answers).await;
    let manifest = server.files.write("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: echo}\n");
    let role = server.files.write("role.yaml", role.to_string());
    for args in [
        &["kube", "app", "list"][..],
        &["kubernetes", "application", "list", "-n", "testing"],
        &["os", "cluster", "list", "--all"],
        &["infra", "gip", "list"],
        &["kube", "app", "get", "a b/ä", "--namespace", "testing"],
        &["kube", "app", "delete", "echo", "-n", "testing", "--wait", "--force"],
        &["infra", "cloud", "delete", "de"],
        &["kube", "app", "retry", "echo"],
        &["kube", "app", "create", "echo", "-f", &manifest, "--wait", "pending"],
        &["core", "role", "create", "-f", &role],
    ] {
        let answer = server.run(args).await;
        assert_eq!((answer.code, answer.err.as_str()), (0, ""), "{args:?}");
    }
    assert_eq!(
        server.lines(),
        [
            "GET /kubernetes/namespaces/system:admin/applications",
            "GET /kubernetes/namespaces/testing/applications",
            "GET /openstack/magnumclusters",
            "GET /infrastructure/globalinfrastructureproviders",
            "GET /kubernetes/namespaces/testing/applications/a%20b%2F%C3%A4",
            "DELETE /kubernetes/namespaces/testing/applications/echo?blocking=deleted&force=True",
            "GET /infrastructure/namespaces/system:admin/clouds/de/dependents",
            "DELETE /infrastructure/namespaces/system:admin/clouds/de",
            "PUT /kubernetes/namespaces/system:admin/applications/echo/retry",
            "POST /kubernetes/namespaces/system:admin/applications?blocking=pending",
            "POST /core/roles",
        ]
    );
    let asked = server.asked();
    assert_eq!(asked[9].body["spec"]["manifest"][0]["metadata"]["name"], "echo");
    assert_eq!(asked[9].body["spec"]["backoff_limit"], -1);
    assert_eq!(asked[10].body["rules"], json!([]));
}

/// The cells of each line.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect()
}

#[tokio::test]
async fn list_has_the_documents_of_krakectl_and_columns_for_people() {
    let app = application(&json!({"location": "DE"}));
    let list = json!({"api": "kubernetes", "kind": "ApplicationList", "items": [app]});
    let cluster = json!({"metadata": {"name": "munich", "namespace": "testing", "labels": {}, "created": "2026-11-21T12:34:56Z",
        "modified": "2026-11-21T12:34:56Z", "deleted": null}, "status": {"state": "ONLINE"}});
    let answers = [
        json_said(200, &list),
        json_said(404, &json!({})),
        json_said(200, &list),
        json_said(200, &list),
        json_said(200, &app),
        json_said(200, &app),
        json_said(200, &json!({"items": [cluster]})),
        json_said(200, &json!({"items": [cluster]})),
    ];
    let server = Server::answering(answers).await;
    // Krake's own API explains nothing.
    let table = server.run(&["kube", "app", "list"]).await.calm();
    assert_eq!(
        rows(&table),
        [
            vec!["NAME", "NAMESPACE", "STATE", "CLUSTER", "SCORE", "SINCE", "WHY NOT RUNNING"],
            vec!["echo", "testing", "PENDING", "-", "-", "-"],
        ]
    );
    let listed = server.run(&["kube", "app", "list", "-o", "json"]).await;
    assert_eq!(listed.json(), json!([app]));
    assert!(
        server.run(&["kube", "app", "list", "-o", "yaml"]).await.calm().starts_with("- api: kubernetes\n")
    );
    let shown = server.run(&["kube", "app", "get", "echo"]).await.calm();
    for line in [
        "state                  PENDING",
        "label constraints      location is DE",
        "allow migration        true",
    ] {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
    assert_eq!(server.run(&["kube", "app", "get", "echo", "-o", "json"]).await.json(), app);
    let table = server.run(&["kube", "cluster", "list", "-o", "wide"]).await.calm();
    let rows = rows(&table);
    assert_eq!(rows[0], ["NAME", "NAMESPACE", "STATE", "AGE", "LABELS", "MODIFIED", "DELETED"], "{table}");
    assert_eq!(rows[1][..3], ["munich", "testing", "ONLINE"]);
    assert_eq!(rows[1][5], rows[1][3], "a table has ages: {table}");
    let csv = server.run(&["kube", "cluster", "list", "-o", "csv"]).await.calm();
    assert!(csv.ends_with("\nmunich,testing,ONLINE,2026-11-21T12:34:56Z,,2026-11-21T12:34:56Z,\n"), "{csv}");
}

#[tokio::test]
async fn update_is_conditional_on_the_read_version_or_starts_again() {
    let (first, second) = (application(&json!({"a": "1"})), application(&json!({"b": "2"})));
    let with_version = |body: &Value, etag: &'static str| (200, etag, body.to_string());
    let server = Server::answering([
        with_version(&first, "ETag: \"7\"\r\n"),
        json_said(412, &json!({"status": 412})),
        with_version(&second, "ETag: \"8\"\r\n"),
        with_version(&second, ""),
        with_version(&second, ""),
    ])
    .await;
    let answer = server.run(&["kube", "app", "update", "echo", "-n", "testing", "-l", "c=3", "--wait"]).await;
    assert_eq!((answer.code, &*answer.err), (0, "madako: warning: the state is PENDING now, not running\n"));
    let asked = server.asked();
    let put = "PUT /kubernetes/namespaces/testing/applications/echo?blocking=running";
    assert_eq!((&*asked[1].line, asked[1].if_match.as_deref()), (put, Some("\"7\"")));
    assert_eq!((&*asked[3].line, asked[3].if_match.as_deref()), (put, Some("\"8\"")));
    let mut expected = second.clone();
    expected["metadata"]["labels"] = json!({"b": "2", "c": "3"});
    assert_eq!(asked[3].body, expected, "everything else as it was read");

    // An update without a change is not sent.
    let message = server.run(&["kube", "app", "update", "echo", "-l", "b=2"]).await.refused(2);
    assert!(message.contains("nothing to change in Application system:admin/echo"), "{message}");
    assert_eq!(server.asked().len(), 5);
}

#[tokio::test]
async fn cluster_is_shown_with_inherited_labels_and_metrics() {
    let cluster = json!({
        "metadata": {"name": "it", "namespace": "n", "labels": {"own": "1"}, "inherit_labels": true},
        "spec": {"metrics": [], "inherit_metrics": false, "constraints": {"cloud": {"labels": [], "metrics": ["heat > 1"]}}},
        "status": {"state": "ONLINE", "scheduled_to": {"kind": "GlobalCloud", "namespace": null, "name": "de"}},
    });
    let cloud = json!({
        "metadata": {"labels": {"location": "DE"}},
        "spec": {"type": "openstack", "openstack": {"metrics": [{"name": "heat", "weight": 1.0}, {"name": "cost", "weight": 1.0}]}},
    });
    let refused = json!({"title": "NOT_FOUND_ERROR", "detail": "gone"});
    let server = Server::answering([
        json_said(200, &cluster),
        json_said(200, &cloud),
        json_said(200, &cluster),
        json_said(404, &refused),
    ])
    .await;
    let shown = server.run(&["kube", "cluster", "get", "it", "-o", "json"]).await.json();
    assert_eq!(server.lines()[1], "GET /infrastructure/globalclouds/de");
    assert_eq!(shown["metadata"]["labels"], json!({"own": "1", "location": "DE (inherited)"}));
    assert_eq!(shown["spec"]["metrics"], json!([{"name": "heat", "weight": 1.0, "inherited": true}]));
    // An unreadable cloud does not prevent the output.
    let answer = server.run(&["kube", "cluster", "get", "it", "-o", "json"]).await;
    assert_eq!((answer.code, answer.json()), (0, cluster));
    assert!(answer.err.contains("404 NOT_FOUND_ERROR: gone"), "{}", answer.err);
}

#[tokio::test]
async fn a_refusal_is_one_message_with_every_wrong_field() {
    let fields = json!({"type": "about:blank", "status": 422, "detail": "wrong", "errors": [
        {"field": "metadata.name", "got": "\"-\u{1b}[31m\"", "expected": "a name"},
        {"field": "spec.max", "got": "", "expected": "a number"},
    ]});
    let krakes = json!({"status": 422, "detail": {"metadata": {"name": ["Invalid"]}}});
    let exists = json!({"title": "RESOURCE_ALREADY_EXISTS", "detail": "Metric 'heat' already exists"});
    let provider = json_said(200, &json!({"metadata": {"name": "p"}}));
    let server = Server::answering([
        provider.clone(),
        json_said(422, &fields),
        provider.clone(),
        json_said(422, &krakes),
        provider,
        json_said(409, &exists),
        json_said(401, &json!({"detail": "nobody"})),
        json_said(403, &Value::Null),
        (200, "", "<html>".to_owned()),
        (500, "", "<html>".to_owned()),
        json_said(200, &json!([])),
        (302, "Location: http://127.0.0.1:1/\r\n", String::new()),
    ])
    .await;
    let create = &["core", "metric", "create", "heat", "--mp-name", "p", "--min", "0", "--max", "1"][..];
    let get = &["core", "metric", "get", "heat"][..];
    for (args, code, parts) in [
        (
            create,
            2,
            &[
                "Metric system:admin/heat is not valid:",
                "\n  metadata.name: got \"-\u{fffd}[31m\", expected a name",
                "\n  spec.max: expected a number",
            ][..],
        ),
        (
            create,
            2,
            &["POST of Metric system:admin/heat was refused: 422: {\"metadata\":{\"name\":[\"Invalid\"]}}"],
        ),
        (create, 1, &["409 RESOURCE_ALREADY_EXISTS: Metric 'heat' already exists"]),
        (get, 1, &["401: nobody; the client certificate under tls"]),
        (get, 1, &["403; roles and role bindings"]),
        (get, 1, &["is not JSON", "of a Krake API"]),
        (get, 1, &["was refused: 500"]),
        (&["core", "metric", "list"][..], 1, &["has no field `items`"]),
        (get, 1, &["was refused: 302"]),
    ] {
        let message = server.run(args).await.refused(code);
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }
}

#[tokio::test]
async fn settings_are_found_where_krakectl_finds_them() {
    let server = Server::answering((0..3).map(|_| json_said(200, &json!({"items": []})))).await;
    let place = Files::new();
    let url = format!("api_url: http://127.0.0.1:{}\n", server.port);
    let named = place.write("named.yaml", format!("{url}user: named\n"));
    let own = Files::new();
    own.write("krakectl.yaml", format!("{url}user: own\n"));
    let run = async |args: &[&str]| {
        let mut command = command(&[&["core", "metric", "list"], args].concat());
        command.current_dir(place.path("")).env("XDG_CONFIG_HOME", own.path("")).env_remove("HOME");
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(&[]).await;
    place.write("krakectl.yaml", format!("{url}user: here\n"));
    run(&[]).await;
    run(&["--config", &named]).await;
    let users = ["own", "here", "named"].map(|user| format!("GET /core/namespaces/{user}/metrics"));
    assert_eq!(server.lines(), users);
    let message = madako(&["core", "metric", "list", "--config", &place.path("none.yaml")]).await.refused(2);
    assert!(message.contains("none.yaml cannot be read"), "{message}");
}

#[tokio::test]
async fn unreachable_api_is_named_with_its_configuration_file() {
    let files = Files::new();
    let port = free_port();
    let config = files.write("krakectl.yaml", format!("api_url: http://127.0.0.1:{port}\nuser: me\n"));
    let message = madako(&["core", "role", "list", "--config", &config]).await.refused(1);
    assert!(message.contains(&format!("the API at http://127.0.0.1:{port}/ (from {config})")), "{message}");
    assert!(message.contains("check the address and that the service runs"), "{message}");
}

#[tokio::test]
async fn a_password_may_come_from_standard_input() {
    let server = Server::answering([json_said(201, &json!({"metadata": {"name": "im"}}))]).await;
    let config = server.files.path("krakectl.yaml");
    let args =
        ["infra", "provider", "register", "im", "--type", "im", "--url", "http://x", "--config", &config];
    let answer = crate::program::madako_fed(&args, b"hunter2\n").await;
    assert!(!answer.calm().contains("hunter2"));
    assert_eq!(server.asked()[0].body["spec"]["im"]["password"], "hunter2");
    let message = madako(&args).await.refused(2);
    assert!(message.contains("give --password"), "{message}");
}
