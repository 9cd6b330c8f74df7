//! Tests of the placement API beside `/health` and `/metrics`, on a real server over connections in memory.

use async_trait::async_trait;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::*;
use crate::memory::Dialer;
use crate::{Limits, ServeOutcome, memory, router_before, serve};

struct Pages;

#[async_trait]
impl crate::Service for Pages {
    async fn healthy(&self) -> bool {
        true
    }

    fn version(&self) -> String {
        "1.2.3".into()
    }

    fn metrics(&self, _: crate::MetricsScope) -> String {
        "up 1\n".into()
    }

    fn operations(&self) -> Result<String, &'static str> {
        Err("none")
    }

    fn nodes(&self) -> Result<String, &'static str> {
        Err("none")
    }

    fn reboots(&self) -> Result<String, &'static str> {
        Err("none")
    }
}

struct Server {
    dialer: Dialer,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<ServeOutcome>,
}

fn server(world: &World, limits: Limits) -> Server {
    let (dialer, listener) = memory::memory_listener();
    let (stop, stopped) = oneshot::channel::<()>();
    let router = router_before(world.router.clone(), Arc::new(Pages), Duration::from_secs(2));
    let serving =
        tokio::spawn(serve(listener, router, limits, crate::ignore_client_certificate, async move {
            // Dropping the sender stops the server too.
            let _ = stopped.await;
        }));
    Server { dialer, stop: Some(stop), serving }
}

impl Server {
    async fn open(&self, method: &str, path: &str, body: &str) -> DuplexStream {
        let mut io = self.dialer.connect().await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        io.write_all(request.as_bytes()).await.unwrap();
        io
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> String {
        to_end(&mut self.open(method, path, body).await).await
    }
}

async fn to_end(io: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    timeout(PATIENCE, io.read_to_end(&mut answer)).await.expect("it ends").unwrap();
    String::from_utf8(answer).unwrap()
}

/// Reads until the text arrives.
async fn until(io: &mut DuplexStream, text: &str) -> String {
    let mut message = String::new();
    while !message.contains(text) {
        let byte = timeout(PATIENCE, io.read_u8()).await.expect("something comes").unwrap();
        message.push(char::from(byte));
    }
    message
}

#[tokio::test(start_paused = true)]
async fn the_pages_need_no_user_and_everything_else_does() {
    let world = world_with(settings(Authorization::Rbac), vec![]);
    let server = server(&world, Limits::PLACEMENT);
    for (path, said) in [("/health", "healthy"), ("/version", "1.2.3"), ("/metrics", "up 1")] {
        let answer = server.ask("GET", path, "").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(said), "{answer}");
        let answer = server.ask("PUT", path, "").await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    }
    for path in ["/", "/me", "/core/roles", "/nowhere"] {
        let answer = server.ask("GET", path, "").await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_not_cut_by_the_deadline_and_ends_with_the_server() {
    let world = world();
    let mut server = server(&world, Limits::PLACEMENT);
    let mut io = server.open("GET", "/core/roles?watch&heartbeat=7", "").await;
    let head = until(&mut io, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("transfer-encoding: chunked"), "{head}");
    for _ in 0..10 {
        until(&mut io, "1\r\n\n\r\n").await;
    }
    world.created(Kind::Role, "r").await;
    until(&mut io, "{\"type\": \"ADDED\"").await;
    let begun = Instant::now();
    server.stop.take();
    let end = to_end(&mut io).await;
    assert!(end.ends_with("0\r\n\r\n"), "{end}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(timeout(PATIENCE, &mut server.serving).await.unwrap().unwrap(), ServeOutcome { cut_off: 0 });
}

#[tokio::test(start_paused = true)]
async fn broken_watch_has_no_regular_end_on_the_wire() {
    let world = world();
    let server = server(&world, Limits::PLACEMENT);
    let mut io = server.open("GET", "/core/roles?watch", "").await;
    until(&mut io, "\r\n\r\n").await;
    world.objects.relist();
    let end = to_end(&mut io).await;
    assert!(!end.ends_with("0\r\n\r\n"), "{end}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_state_has_more_time_than_other_requests() {
    let world = world();
    let server = server(&world, Limits::PLACEMENT);
    let begun = Instant::now();
    let path = format!("{}?blocking=running", collection(Kind::Application, "testing"));
    let answer = server.ask("POST", &path, &example(Kind::Application, "echo").to_string()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(begun.elapsed(), BLOCKING);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_its_body_times_out() {
    let world = world();
    let server = server(&world, Limits::PLACEMENT);
    let mut io = server.dialer.connect().await.unwrap();
    io.write_all(b"POST /core/roles HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let answer = until(&mut io, "no answer in time").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("application/problem+json"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn client_that_disconnects_frees_its_watch() {
    let settings = Settings { streams: 1, ..settings(Authorization::AlwaysAllow) };
    let world = world_with(settings, vec![Arc::new(StaticUser("alice".into()))]);
    let server = server(&world, Limits::PLACEMENT);
    let mut io = server.open("GET", "/core/roles?watch&heartbeat=0", "").await;
    until(&mut io, "\r\n\r\n").await;
    let refused = server.ask("GET", "/core/roles?watch", "").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    drop(io);
    // Repeats until the server has noticed it.
    let mut io = loop {
        let mut io = server.open("GET", "/core/roles?watch", "").await;
        if until(&mut io, "\r\n\r\n").await.starts_with("HTTP/1.1 200") {
            break io;
        }
        tokio::task::yield_now().await;
    };
    world.created(Kind::Role, "r").await;
    until(&mut io, "\"ADDED\"").await;
}

#[tokio::test(start_paused = true)]
async fn many_watchers_see_every_change() {
    let world = world();
    let server = server(&world, Limits::PLACEMENT);
    let mut watchers = Vec::new();
    for _ in 0..100 {
        let mut io = server.open("GET", "/core/roles?watch&heartbeat=0", "").await;
        until(&mut io, "\r\n\r\n").await;
        watchers.push(io);
    }
    for number in 0..5 {
        world.created(Kind::Role, &format!("r{number}")).await;
    }
    for io in &mut watchers {
        for number in 0..5 {
            until(io, &format!("\"name\": \"r{number}\"")).await;
        }
    }
}
