//! Tests of SIGTERM during faults of the store and of clients, and of an abort of the process.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::etcd::RealEtcd;
use super::stage::Serve;
use crate::program::Files;

/// Time limit of the service's end.
const BOUND: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_service_ends_in_time_while_neither_the_store_nor_a_client_answers() {
    let Some(etcd) = RealEtcd::start(&[]).await else { return };
    let files = Files::new();
    let placement = "placement: {api: {authorization: always-allow, insecure: true, \
                     authentication: {strategy: {static: {enabled: true}}}}}\n";
    let config = files.write("config.yml", format!("{}{placement}", etcd.settings()));
    let service = Serve::start(&config, "60s", "1s").await;
    service.until_metric("madako_leader", &[], 1.0).await;

    // A request whose body never comes, and a watch that its client does not read.
    let mut half = TcpStream::connect(service.address()).await.unwrap();
    half.write_all(b"POST /core/roles HTTP/1.1\r\nhost: it\r\ncontent-length: 1000\r\n\r\n{").await.unwrap();
    let mut watch = TcpStream::connect(service.address()).await.unwrap();
    watch.write_all(b"GET /core/roles?watch&heartbeat=1 HTTP/1.1\r\nhost: it\r\n\r\n").await.unwrap();
    // Both are under way: the first waits in the API, the second is answered.
    service.until_metric("madako_http_connections", &[], 3.0).await;

    etcd.signal(Signal::STOP);
    let sent_at = Instant::now();
    let status = service.terminate().await;
    let took = sent_at.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < BOUND, "it took {took:?}");
}

#[tokio::test]
async fn an_aborted_service_leaves_no_core_dump() {
    // The service inherits a limit that permits dumps, as far as this process may permit them.
    let maximum = getrlimit(Resource::Core).maximum;
    setrlimit(Resource::Core, Rlimit { current: maximum, maximum }).unwrap();
    let files = Files::new();
    let config = files.write("config.yml", format!("embedded: {{data-dir: {}}}\n", files.path("data")));
    let mut service = Serve::start(&config, "60s", "1s").await;
    service.signal(Signal::ABORT);
    let status = service.until_ended().await;
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped(), "its memory has keys and tokens");
}
