//! Tests of access to the embedded store: TCP, TLS, HTTP/1.1, in-memory streams.

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions, WatchOptions};
use madako_embedded_etcd::{Backend, Commit, EmbeddedEtcd, Options, ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::peers::{DEADLINE, Embedded, RealEtcd};
use crate::wire::Wire;

async fn http(address: std::net::SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer)).await.expect("in time").expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let kept = |line: &&str| {
        let line = line.to_lowercase();
        line.starts_with("http/") || line.starts_with("content-type")
    };
    (head.lines().filter(kept).collect::<Vec<_>>().join("\n").to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn health_and_version_are_answered_as_by_etcd_on_the_same_port() {
    let Some(real) = RealEtcd::start().await else { return };
    let embedded = Embedded::start().await;
    for request in ["GET /health", "GET /version"] {
        assert_eq!(
            http(embedded.server.address(), request).await,
            http(real.address, request).await,
            "{request}"
        );
    }
    let (head, _) = http(embedded.server.address(), "POST /health").await;
    assert!(head.starts_with("http/1.1 405"), "{head}");
    embedded.stop().await;
}

struct Pki {
    ca: String,
    server: ServerTls,
    client: Identity,
}

fn pki() -> Pki {
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key")).expect("signed");
    let issue = || {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
        (parameters.signed_by(&key, &authority).expect("signed").pem(), key.serialize_pem())
    };
    let (server, server_key) = issue();
    let (client, client_key) = issue();
    let ca = authority.pem();
    Pki {
        server: ServerTls {
            certificate: server.into_bytes(),
            key: server_key.into_bytes(),
            client_ca: Some(ca.clone().into_bytes()),
        },
        client: Identity::from_pem(client, client_key),
        ca,
    }
}

#[tokio::test]
async fn tls_asks_clients_for_their_certificates() {
    // The client library uses the provider of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Pki { ca, server, client } = pki();
    assert!(!format!("{server:?}").contains("KEY"));
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).expect("opens");
    let handle = store.serve(([127, 0, 0, 1], 0).into(), Some(&server)).await.expect("serves");
    let url = format!("https://{}", handle.address());
    let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
    let put = async |tls: TlsOptions| {
        let options = ConnectOptions::new().with_tls(tls).with_timeout(DEADLINE);
        Client::connect([&url], Some(options)).await?.put("a", "1", None).await
    };
    put(tls.clone().identity(client)).await.expect("a client with a certificate is served");
    put(tls).await.expect_err("one without is not");
    let plain = Client::connect([format!("http://{}", handle.address())], None).await;
    if let Ok(mut plain) = plain {
        plain.put("a", "1", None).await.expect_err("nor is one without TLS");
    }
    store.shutdown().await;
    handle.shutdown().await;
}

async fn over_memory(store: &EmbeddedEtcd) -> Wire {
    let stream = std::sync::Mutex::new(Some(hyper_util::rt::TokioIo::new(store.connect_in_memory())));
    let connector = tower::service_fn(move |_| {
        let stream = stream.lock().expect("not poisoned").take();
        async move { stream.ok_or_else(|| std::io::Error::other("it is used once")) }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://memory");
    Wire::over(endpoint.connect_with_connector(connector).await.expect("connects"))
}

#[tokio::test(start_paused = true)]
async fn a_connection_in_memory_serves_calls_and_streams() {
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).expect("opens");
    let wire = over_memory(&store).await;
    let mut watchers = crate::watchers::Watchers::open(&wire).await;
    watchers.create(crate::generate::watch_request(b"a", b"", 0, 0, &[], false)).await;
    let put =
        etcd_client::proto::PbPutRequest { key: b"a".to_vec(), value: b"1".to_vec(), ..Default::default() };
    wire.put(put.clone()).await.expect("put");
    assert_eq!(watchers.until_events(1).await.len(), 1);
    store.shutdown().await;
    wire.put(put).await.expect_err("the store has stopped");
}

/// A client that pauses its reads gets every change afterwards, from the file for those that memory has evicted.
#[tokio::test]
async fn a_slow_watch_misses_nothing() {
    let store = EmbeddedEtcd::open(Options::new(Backend::Memory, Commit::Inline, 1)).expect("opens");
    let wire = over_memory(&store).await;
    let mut watchers = crate::watchers::Watchers::open(&wire).await;
    watchers.create(crate::generate::watch_request(b"k", b"l", 0, 0, &[], true)).await;
    let mut client = store.direct_client().await.expect("a client");
    const CHANGES: usize = 1_000;
    for number in 0..CHANGES {
        client.put(format!("k{}", number % 10), format!("{number:>8000}"), None).await.expect("put");
    }
    let events = watchers.until_events(CHANGES).await;
    assert_eq!(events.len(), CHANGES);
    for (number, event) in events.iter().enumerate() {
        let kv = event.kv.as_ref().expect("a pair");
        assert_eq!(
            (kv.mod_revision, &kv.value),
            (number as i64 + 2, &format!("{number:>8000}").into_bytes())
        );
        let previous = number.checked_sub(10).map(|previous| format!("{previous:>8000}").into_bytes());
        assert_eq!(event.prev_kv.as_ref().map(|kv| kv.value.clone()), previous);
    }
    store.shutdown().await;
}

#[tokio::test]
async fn stopping_ends_watches_and_connections_soon() {
    let embedded = Embedded::start().await;
    let mut client = Client::connect([embedded.server.address().to_string()], None).await.expect("connects");
    let mut watch = client.watch("a", Some(WatchOptions::new())).await.expect("a watch");
    watch.message().await.expect("an answer");
    timeout(Duration::from_secs(5), embedded.stop()).await.expect("it stops soon");
    let end = timeout(DEADLINE, watch.message()).await.expect("it ends");
    assert!(!matches!(end, Ok(Some(_))), "{end:?}");
}
