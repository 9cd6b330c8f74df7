//! Tests of the placement API from the view of a client: requests, and watches that end cleanly, with an error or not
//! at all.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::NAMESPACE;
use crate::program::PATIENCE;

/// Time limit of an answer: whatever the store does, the API answers by then. Its own deadline is a few seconds; the
/// rest is for a busy machine.
const ANSWER: Duration = Duration::from_secs(30);

/// A client of one instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api(SocketAddr);

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// The revision in the ETag.
    pub(super) revision: Option<i64>,
    pub(super) body: Value,
}

impl Reply {
    /// The resource, after success.
    pub(super) fn done(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.body
    }
}

impl Api {
    pub(super) fn at(address: SocketAddr) -> Self {
        Self(address)
    }

    /// A request with more headers, and its answer.
    pub(super) async fn tell(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> io::Result<Reply> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{headers}\r\n{body}",
            self.0,
            body.len()
        );
        let asking = async {
            let mut stream = TcpStream::connect(self.0).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<String, io::Error>(answer)
        };
        let answer = timeout(ANSWER, asking).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: \"")?.strip_suffix('"'));
        Ok(Reply {
            status: status.ok_or(io::ErrorKind::InvalidData)?,
            revision: tag.and_then(|tag| tag.parse().ok()),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        })
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.tell(method, path, "", body).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    pub(super) async fn get(&self, application: &str) -> Reply {
        self.ask("GET", &one("applications", application), &Value::Null).await
    }

    /// Names of all applications.
    pub(super) async fn names(&self) -> Vec<String> {
        let list = self.ask("GET", &all("applications"), &Value::Null).await.done();
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn create(&self, application: &str) -> Reply {
        self.ask("POST", &all("applications"), &described(application)).await
    }

    /// Creates a cluster and reports its state.
    pub(super) async fn cluster(&self, name: &str, state: &str) {
        let made = self.ask("POST", &all("clusters"), &cluster(name)).await.done();
        self.says(made, state).await;
    }

    /// Reports the state of a cluster.
    pub(super) async fn becomes(&self, name: &str, state: &str) {
        let cluster = self.ask("GET", &one("clusters", name), &Value::Null).await.done();
        self.says(cluster, state).await;
    }

    async fn says(&self, mut cluster: Value, state: &str) {
        cluster["status"]["state"] = state.into();
        let name = cluster["metadata"]["name"].as_str().unwrap();
        self.ask("PUT", &format!("{}/status", one("clusters", name)), &cluster).await.done();
    }

    /// Watches applications from now on.
    pub(super) async fn watch(&self) -> Watch {
        let opening = async {
            let mut stream = TcpStream::connect(self.0).await.unwrap();
            let path = all("applications");
            let request = format!("GET {path}?watch&heartbeat=1 HTTP/1.1\r\nhost: {}\r\n\r\n", self.0);
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut watch = Watch { stream: BufReader::new(stream) };
            let head = watch.read().await.expect("it answers");
            assert!(head.contains(" 200 "), "{head}");
            while !watch.read().await.expect("its headers end").trim().is_empty() {}
            watch
        };
        timeout(PATIENCE, opening).await.expect("a watch opens")
    }
}

/// The path of all resources of a kind.
pub(super) fn all(plural: &str) -> String {
    format!("/kubernetes/namespaces/{NAMESPACE}/{plural}")
}

/// The path of one resource.
pub(super) fn one(plural: &str, name: &str) -> String {
    format!("{}/{name}", all(plural))
}

/// An application that fits every cluster.
pub(super) fn described(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "manifest": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}],
            "constraints": {"cluster": {"labels": []}},
        },
    })
}

/// A cluster with a kubeconfig that contains a password.
pub(super) fn cluster(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "kubeconfig": {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
                "users": [{"name": "admin", "user": {"password": format!("hunter2-{name}")}}],
                "clusters": [{"name": name, "cluster": {"server": format!("https://{name}.invalid:6443")}}],
            },
            "constraints": {"cloud": {"labels": [], "metrics": []}},
        },
    })
}

/// A watch as its client reads it: chunks of one line each.
pub(super) struct Watch {
    stream: BufReader<TcpStream>,
}

/// A message of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// `ADDED`, `MODIFIED` or `DELETED`, and the application's name.
    Event(String, String),
    /// The end; `broken`: clients take it for an error.
    End { broken: bool },
}

impl Watch {
    /// The next line; `None` at the end of the connection.
    async fn read(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }

    /// The next message. Not cancel safe.
    pub(super) async fn next(&mut self) -> Said {
        loop {
            let Some(line) = self.read().await else { return Said::End { broken: true } };
            if line == "0\r\n" {
                return Said::End { broken: false };
            }
            if !line.starts_with('{') {
                // Skips sizes of chunks, and heartbeats.
                continue;
            }
            let event: Value = serde_json::from_str(&line).unwrap();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            return Said::Event(text(&event["type"]), text(&event["object"]["metadata"]["name"]));
        }
    }

    /// Waits until it delivers this event of an application; returns all messages until then.
    pub(super) async fn until(&mut self, kind: &str, application: &str) -> Vec<Said> {
        let mut message = Vec::new();
        let reading = async {
            loop {
                let next = self.next().await;
                let last = match &next {
                    Said::Event(of, name) => of == kind && name == application,
                    Said::End { .. } => {
                        panic!("{next:?} instead of {kind} of {application} after {message:?}")
                    }
                };
                message.push(next);
                if last {
                    return;
                }
            }
        };
        let read = timeout(PATIENCE, reading).await;
        assert!(read.is_ok(), "within {PATIENCE:?}: {kind} of {application} after {message:?}");
        message
    }
}
