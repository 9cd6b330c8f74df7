//! Tests of the pages and of the server over connections in memory, and once over TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::memory::Dialer;

const HEALTH_DEADLINE: Duration = Duration::from_secs(2);
/// Far beyond any limit; paused time makes it free.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Fake {
    ill: AtomicBool,
    hangs: AtomicBool,
    runs_operations: AtomicBool,
    waits: AtomicBool,
}

#[async_trait]
impl Service for Fake {
    async fn healthy(&self) -> bool {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        !self.ill.load(Ordering::SeqCst)
    }

    fn waits_for(&self) -> Option<String> {
        self.waits.load(Ordering::SeqCst).then(|| "a lease".to_owned())
    }

    fn version(&self) -> String {
        "1.2.3".into()
    }

    fn metrics(&self, scope: crate::MetricsScope) -> String {
        format!("{scope:?}\n")
    }

    fn operations(&self) -> Result<String, &'static str> {
        let runs = self.runs_operations.load(Ordering::SeqCst);
        runs.then(|| r#"{"phase":"completed"}"#.to_owned()).ok_or("operations.mode is off")
    }

    fn nodes(&self) -> Result<String, &'static str> {
        self.operations().map(|_| "{}".to_owned())
    }

    fn reboots(&self) -> Result<String, &'static str> {
        Ok(r#"{"epoch":7,"entries":[]}"#.to_owned())
    }
}

/// Unix time in seconds.
#[derive(Default)]
pub(crate) struct TestClock(pub(crate) AtomicI64);

impl madako_protocol::ports::Clock for TestClock {
    fn now(&self) -> time::OffsetDateTime {
        time::OffsetDateTime::from_unix_timestamp(self.0.load(Ordering::SeqCst)).unwrap()
    }
}

struct World {
    dialer: Dialer,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<ServeOutcome>,
}

fn world_with(router: Router, limits: Limits) -> World {
    let (dialer, listener) = memory::memory_listener();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving =
        tokio::spawn(serve(listener, router, limits, crate::ignore_client_certificate, async move {
            // Dropping the sender stops the server too.
            let _ = stopped.await;
        }));
    World { dialer, stop: Some(stop), serving }
}

fn world(service: &Arc<Fake>) -> World {
    world_with(router(Arc::clone(service) as Arc<dyn Service>, HEALTH_DEADLINE), Limits::DEFAULT)
}

/// Additional test pages: one never answers, one panics, one is endless.
fn odd_pages() -> Router {
    Router::new()
        .route("/hangs", get(std::future::pending::<String>))
        .route("/slow", get(|| async { tokio::time::sleep(Duration::from_secs(1)).await }))
        .route(
            "/panics",
            get(|| async {
                if true {
                    panic!("no page")
                }
            }),
        )
        .route("/long", get(|| async { "x".repeat(1 << 20) }))
        .route("/quick", get(|| async { "quick" }))
}

impl World {
    /// Sends a request that asks for the end of the connection; returns status, content type and body.
    async fn ask(&self, request: &str) -> (u16, String, String) {
        let answer = self.raw(&format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
        parse(&answer)
    }

    async fn raw(&self, bytes: &str) -> String {
        let mut io = self.dialer.connect().await.unwrap();
        io.write_all(bytes.as_bytes()).await.unwrap();
        to_end(&mut io).await
    }

    async fn stop(mut self) -> ServeOutcome {
        self.stop.take();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("it ends").unwrap()
    }
}

async fn to_end(io: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, io.read_to_end(&mut answer)).await.expect("closed").unwrap();
    String::from_utf8(answer).unwrap()
}

/// One answer on a connection that stays open; its body must be `body`.
async fn answer_with(io: &mut (impl AsyncRead + AsyncWrite + Unpin), body: &str) {
    let mut observed = Vec::new();
    while !observed.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
        let byte = tokio::time::timeout(PATIENCE, io.read_u8()).await.expect("an answer").unwrap();
        observed.push(byte);
    }
}

fn parse(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = head.lines().find_map(|l| l.strip_prefix("content-type: ")).unwrap_or("").to_owned();
    (status, kind, body.to_owned())
}

fn json(status: u16, body: &str) -> (u16, String, String) {
    (status, "application/json".into(), format!("{body}\n"))
}

#[tokio::test(start_paused = true)]
async fn operations_are_shown_where_they_run() {
    let service = Arc::new(Fake::default());
    let world = world(&service);
    let (status, _, body) = world.ask("GET /ops").await;
    assert!(status == 404 && body.contains("operations.mode is off"), "{status} {body}");
    service.runs_operations.store(true, Ordering::SeqCst);
    let shown = world.ask("GET /ops").await;
    assert_eq!(shown, (200, "application/json".to_owned(), r#"{"phase":"completed"}"#.to_owned()));
    assert_eq!(world.ask("GET /nodes").await, (200, "application/json".to_owned(), "{}".to_owned()));
    let reboots = r#"{"epoch":7,"entries":[]}"#.to_owned();
    assert_eq!(world.ask("GET /reboots").await, (200, "application/json".to_owned(), reboots));
}

#[tokio::test(start_paused = true)]
async fn the_pages_answer_as_ckes_do() {
    let fake = Arc::new(Fake::default());
    let world = world(&fake);
    assert_eq!(world.ask("GET /health").await, json(200, r#"{"health":"healthy"}"#));
    assert_eq!(world.ask("GET /health?x=1").await, json(200, r#"{"health":"healthy"}"#));
    assert_eq!(world.ask("GET /version").await, json(200, r#"{"version":"1.2.3"}"#));
    for (query, scope) in [("", "All\n"), ("?x=1&machines=false", "WithoutMachines\n")] {
        let metrics = (200, "text/plain; version=0.0.4; charset=utf-8".to_owned(), scope.to_owned());
        assert_eq!(world.ask(&format!("GET /metrics{query}")).await, metrics);
    }
    fake.waits.store(true, Ordering::SeqCst);
    let waits = json(200, r#"{"health":"healthy","waits_for":"a lease"}"#);
    assert_eq!(world.ask("GET /health").await, waits);
    fake.ill.store(true, Ordering::SeqCst);
    assert_eq!(world.ask("GET /health").await, json(500, r#"{"health":"unhealthy"}"#));
    assert_eq!(world.stop().await, ServeOutcome { cut_off: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_health_that_hangs_is_unhealthy_after_its_deadline() {
    let fake = Arc::new(Fake::default());
    fake.hangs.store(true, Ordering::SeqCst);
    let world = world(&fake);
    let began = Instant::now();
    assert_eq!(world.ask("GET /health").await, json(500, r#"{"health":"unhealthy"}"#));
    assert_eq!(began.elapsed().as_millis(), HEALTH_DEADLINE.as_millis());
}

#[tokio::test(start_paused = true)]
async fn unknown_paths_are_not_found() {
    let world = world(&Arc::default());
    let missing = json(404, r#"{"error":"requested resource is not found","status":404}"#);
    for request in ["GET /nothing", "GET /health/", "GET /healthz", "POST /x"] {
        assert_eq!(world.ask(request).await, missing, "{request}");
    }
    let (status, _, body) = world.ask("HEAD /x").await;
    assert_eq!((status, body.as_str()), (404, ""));
}

#[tokio::test(start_paused = true)]
async fn page_requested_with_a_wrong_method_names_the_allowed_methods() {
    let world = world(&Arc::default());
    for request in ["POST /health", "PUT /version", "DELETE /", "PATCH /metrics"] {
        let answer = world.raw(&format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await;
        let expected = json(405, r#"{"error":"method is not allowed","status":405}"#);
        assert_eq!(parse(&answer), expected, "{request}");
        let allowed = answer.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap_or_default();
        assert_eq!(allowed, "GET,HEAD", "{request}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn head_is_answered_as_get_without_a_body() {
    let fake = Arc::new(Fake::default());
    let world = world(&fake);
    for page in ["/", "/health", "/version", "/metrics"] {
        let (got, asked) =
            (world.ask(&format!("GET {page}")).await, world.ask(&format!("HEAD {page}")).await);
        assert_eq!(asked, (200, got.1, String::new()), "{page}");
    }
    fake.ill.store(true, Ordering::SeqCst);
    let (status, _, body) = world.ask("HEAD /health").await;
    assert_eq!((status, body.as_str()), (500, ""));
}

#[tokio::test(start_paused = true)]
async fn an_error_repeats_the_request_id_unless_it_is_odd() {
    let world = world(&Arc::default());
    let ask = async |id: &str| {
        let request =
            format!("GET /x HTTP/1.1\r\nhost: x\r\nX-Cybozu-Request-ID: {id}\r\nconnection: close\r\n\r\n");
        parse(&world.raw(&request).await)
    };
    let body = r#"{"error":"requested resource is not found","request_id":"abc-1","status":404}"#;
    assert_eq!(ask("abc-1").await, json(404, body));
    let without = json(404, r#"{"error":"requested resource is not found","status":404}"#);
    assert_eq!(ask(&"a".repeat(200)).await, without);
    assert_eq!(ask("ä").await, without);
}

#[tokio::test(start_paused = true)]
async fn the_root_page_links_the_other_pages() {
    let (status, kind, body) = world(&Arc::default()).ask("GET /").await;
    assert_eq!((status, kind.as_str()), (200, "text/html; charset=utf-8"));
    for page in ["/health", "/version", "/metrics", "/ops", "/nodes", "/reboots"] {
        assert!(body.contains(&format!("href=\"{page}\"")), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_stays_open_for_a_while_and_is_closed_when_idle() {
    let world = world(&Arc::default());
    let mut io = world.dialer.connect().await.unwrap();
    for _ in 0..3 {
        io.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        answer_with(&mut io, "{\"version\":\"1.2.3\"}\n").await;
        tokio::time::sleep(Limits::DEFAULT.header_read / 2).await;
    }
    let idle = Instant::now();
    assert_eq!(to_end(&mut io).await, "");
    assert!(idle.elapsed() <= Limits::DEFAULT.header_read, "{:?}", idle.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_slow_or_missing_head_times_out() {
    let world = world(&Arc::default());
    let mut silent = world.dialer.connect().await.unwrap();
    let mut slow = world.dialer.connect().await.unwrap();
    let began = Instant::now();
    let dripping = tokio::spawn(async move {
        slow.write_all(b"GET /version HTTP/1.1\r\n").await.unwrap();
        while slow.write_all(b"a: b\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Instant::now()
    });
    to_end(&mut silent).await;
    let limit = Limits::DEFAULT.header_read;
    assert!(began.elapsed() <= limit + Duration::from_secs(1), "silent: {:?}", began.elapsed());
    let given_up = tokio::time::timeout(PATIENCE, dripping).await.expect("it is given up").unwrap();
    assert!(given_up - began <= limit + Duration::from_secs(2), "slow: {:?}", given_up - began);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_too_long_is_refused() {
    let world = world(&Arc::default());
    let long = "a".repeat(Limits::DEFAULT.header_bytes + 1);
    // The answer may be lost if the client can no longer write the rest of the head; the connection ends anyway.
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(format!("GET /health HTTP/1.1\r\nx: {long}\r\n\r\n").as_bytes()).await.unwrap();
    let answer = to_end(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(world.ask("GET /health").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn malformed_http_is_refused() {
    let world = world(&Arc::default());
    let answer = world.raw("\u{16}\u{3}\u{1} hello\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(world.ask("GET /health").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_long_body_is_not_waited_for() {
    let world = world(&Arc::default());
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\nabc").await.unwrap();
    let began = Instant::now();
    let answer = to_end(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_request_gets_an_answer_at_its_deadline() {
    let world = world_with(odd_pages(), Limits::DEFAULT);
    let began = Instant::now();
    assert_eq!(world.ask("GET /hangs").await, json(503, r#"{"error":"no answer in time","status":503}"#));
    assert_eq!(began.elapsed().as_secs(), Limits::DEFAULT.request.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_page_that_panics_ends_its_connection_only() {
    let world = world_with(odd_pages(), Limits::DEFAULT);
    assert_eq!(world.raw("GET /panics HTTP/1.1\r\nhost: x\r\n\r\n").await, "");
    assert_eq!(world.ask("GET /quick").await.2, "quick");
    assert_eq!(world.stop().await, ServeOutcome { cut_off: 0 });
}

#[tokio::test(start_paused = true)]
async fn unread_answer_is_abandoned_and_its_connection_slot_is_freed() {
    let world = world_with(odd_pages(), Limits { connections: 1, ..Limits::DEFAULT });
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let began = Instant::now();
    assert_eq!(world.ask("GET /quick").await.2, "quick");
    assert_eq!(began.elapsed().as_secs(), Limits::DEFAULT.write_stall.as_secs());
    drop(io);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_slowly_is_not_given_up() {
    let world = world_with(odd_pages(), Limits::DEFAULT);
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let (mut read, mut chunk) = (0, vec![0; 32 * 1024]);
    loop {
        tokio::time::sleep(Limits::DEFAULT.write_stall / 2).await;
        match io.read(&mut chunk).await.unwrap() {
            0 => break,
            some => read += some,
        }
    }
    assert!(read > 1 << 20, "{read}");
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let world = world_with(odd_pages(), Limits { connections: 2, ..Limits::DEFAULT });
    let first = world.dialer.connect().await.unwrap();
    let _second = world.dialer.connect().await.unwrap();
    let began = Instant::now();
    let third = world.ask("GET /quick");
    let freed = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(first);
    };
    let ((status, _, _), ()) = tokio::join!(third, freed);
    assert_eq!((status, began.elapsed().as_secs()), (200, 3));
}

#[tokio::test(start_paused = true)]
async fn after_the_signal_answers_are_finished_idle_connections_closed_and_new_ones_refused() {
    let mut world = world_with(odd_pages(), Limits::DEFAULT);
    let mut idle = world.dialer.connect().await.unwrap();
    let mut busy = world.dialer.connect().await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    world.stop.take();
    let stopped = Instant::now();
    assert_eq!(to_end(&mut idle).await, "");
    assert_eq!(stopped.elapsed(), Duration::ZERO);
    assert!(to_end(&mut busy).await.starts_with("HTTP/1.1 200 "));
    assert!(world.dialer.connect().await.is_err());
    assert_eq!(world.stop().await, ServeOutcome { cut_off: 0 });
    assert_eq!(stopped.elapsed().as_millis(), 300);
}

#[tokio::test(start_paused = true)]
async fn request_is_cut_off_at_the_end_of_the_drain() {
    let world = world_with(odd_pages(), Limits::DEFAULT);
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(b"GET /hangs HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopped = Instant::now();
    assert_eq!(world.stop().await, ServeOutcome { cut_off: 1 });
    assert_eq!(stopped.elapsed(), Limits::DEFAULT.drain);
    assert_eq!(to_end(&mut io).await, "");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_server_cuts_everything_off() {
    let world = world_with(odd_pages(), Limits::DEFAULT);
    let mut io = world.dialer.connect().await.unwrap();
    io.write_all(b"GET /hangs HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.serving.abort();
    assert_eq!(to_end(&mut io).await, "");
    assert!(world.dialer.connect().await.is_err());
}

#[test]
fn requests_and_connections_are_counted_under_few_labels() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let world = world(&Arc::default());
            for request in ["GET /health", "GET /health", "GET /a", "GET /b"] {
                world.ask(request).await;
            }
            let _open = world.dialer.connect().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let text = recorder.handle().render();
            for line in [
                "madako_http_requests_total{endpoint=\"/health\",code=\"200\"} 2",
                "madako_http_requests_total{endpoint=\"other\",code=\"404\"} 2",
                "madako_http_connections 1",
            ] {
                assert!(text.lines().any(|l| l == line), "no {line} in:\n{text}");
            }
        });
    });
}

#[tokio::test]
async fn the_server_serves_over_tcp_and_names_a_taken_address() {
    let listener = bind_listener("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = bind_listener(&address.to_string()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("the HTTP server cannot listen on {address}"));
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);

    let (stop, stopped) = oneshot::channel::<()>();
    let pages = router(Arc::new(Fake::default()), HEALTH_DEADLINE);
    let serving =
        tokio::spawn(serve(listener, pages, Limits::DEFAULT, crate::ignore_client_certificate, async move {
            let _ = stopped.await;
        }));
    let mut io = tokio::net::TcpStream::connect(address).await.unwrap();
    io.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    answer_with(&mut io, "{\"health\":\"healthy\"}\n").await;
    drop(stop);
    assert_eq!(serving.await.unwrap(), ServeOutcome { cut_off: 0 });
    bind_listener(&address.to_string()).await.expect("the address is free again");
}

#[tokio::test]
async fn an_address_without_a_host_is_every_address() {
    let listener = bind_listener(":0").await.unwrap();
    assert!(listener.local_addr().unwrap().ip().is_unspecified());
    for wrong in ["10180", "127.0.0.1", "127.0.0.1:99999", ""] {
        let error = bind_listener(wrong).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the HTTP server cannot listen on {wrong}"));
    }
}
