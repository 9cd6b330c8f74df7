//! Tests of the HTTP client that need a real socket: redirects, TLS, wrong lengths, requests that cannot be sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use madako_protocol::ports::{HttpError, HttpMethod, HttpRequest, HttpResponse, HttpTransport};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::ReqwestTransport;

fn request(url: String) -> HttpRequest {
    HttpRequest {
        method: HttpMethod::Post,
        url,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: Bytes::from_static(b"{}"),
        max_response_bytes: 1000,
        deadline: Duration::from_secs(10),
    }
}

fn plain() -> ReqwestTransport {
    ReqwestTransport::with_roots(RootCertStore::empty()).unwrap()
}

/// Reads one request with the body `{}`; returns its head.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n{}") {
        let byte = stream.read_u8().await.unwrap();
        read.push(byte);
    }
    String::from_utf8(read).unwrap()
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str) -> String {
    let request = read_request(&mut stream).await;
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    request
}

/// Sends a request to a server that sends each answer on its own connection.
async fn exchange(answers: &[&str]) -> (Result<HttpResponse, HttpError>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/graphql", listener.local_addr().unwrap());
    let serve = async {
        let mut requests = Vec::new();
        for text in answers {
            let (stream, _) = listener.accept().await.unwrap();
            requests.push(answer(stream, &text.replace("SELF", &url)).await);
        }
        requests
    };
    let client = plain();
    tokio::join!(client.send(request(url.clone())), serve)
}

#[tokio::test]
async fn request_has_the_form_that_sabakan_expects() {
    let (result, requests) = exchange(&["HTTP/1.1 200 OK\r\nX-One: a\r\nContent-Length: 2\r\n\r\nok"]).await;
    let response = result.unwrap();
    assert_eq!((response.status, &response.body[..]), (200, &b"ok"[..]));
    assert!(response.headers.contains(&("x-one".to_owned(), "a".to_owned())), "{:?}", response.headers);
    let head = &requests[0];
    assert!(head.starts_with("POST /graphql HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-length: 2\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n{}"), "{head}");
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_the_body() {
    let there = "HTTP/1.1 307 Temporary Redirect\r\nLocation: SELF/there\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (result, requests) = exchange(&[there, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]).await;
    assert_eq!(result.unwrap().status, 200);
    assert!(requests[1].starts_with("POST /graphql/there "), "{}", requests[1]);
}

#[tokio::test]
async fn a_redirect_elsewhere_or_without_end_is_not_followed() {
    let elsewhere = "HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let (result, _) = exchange(&[elsewhere]).await;
    assert_eq!(result.unwrap().status, 307);
    let again = "HTTP/1.1 307 x\r\nLocation: SELF\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (result, requests) = exchange(&[again; 4]).await;
    assert_eq!(result.unwrap().status, 307);
    assert_eq!(requests.len(), 4, "the first and three more");
}

#[tokio::test]
async fn an_answer_that_promises_too_much_is_refused_before_it_is_read() {
    let (result, _) = exchange(&["HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"]).await;
    assert!(matches!(result, Err(HttpError::TooLarge { limit: 1000, .. })), "{result:?}");
    let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}", "x".repeat(1000));
    let (result, _) = exchange(&[&whole]).await;
    assert_eq!(result.unwrap().body.len(), 1000, "just as long as allowed");
}

#[tokio::test]
async fn an_answer_that_ends_early_is_truncated() {
    for text in ["HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf", "HTTP/1.1 200 OK\r\nConte", ""] {
        let (result, _) = exchange(&[text]).await;
        assert!(matches!(result, Err(HttpError::Truncated { .. })), "{text:?}: {result:?}");
    }
}

#[tokio::test]
async fn errors_of_unsendable_requests_contain_no_secrets() {
    for url in ["sabakan", "/graphql", "ftp://user:hunter2@host/"] {
        let result = plain().send(request(url.to_owned())).await;
        assert!(matches!(result, Err(HttpError::Invalid { .. })), "{url}: {result:?}");
        assert!(!result.unwrap_err().to_string().contains("hunter2"));
    }
    let mut odd = request("http://127.0.0.1:1/".to_owned());
    odd.headers.push(("authorization".to_owned(), "hunter2\n".to_owned()));
    let error = plain().send(odd).await.unwrap_err().to_string();
    assert!(error.contains("authorization") && !error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn passwords_in_urls_are_not_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = plain().send(request(format!("http://user:hunter2@{address}/"))).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn tls_works_with_an_authority_that_is_trusted_and_no_other() {
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/graphql", listener.local_addr().unwrap().port());
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let trusting = ReqwestTransport::with_roots(roots).unwrap();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let (stream, _) = listener.accept().await.unwrap();
        assert!(acceptor.accept(stream).await.is_err(), "the client does not trust the certificate");
    };
    let ask = async {
        assert_eq!(trusting.send(request(url.clone())).await.unwrap().status, 200);
        plain().send(request(url.clone())).await
    };
    let ((), refused) = tokio::join!(serve, Box::pin(ask));
    assert!(matches!(refused, Err(HttpError::Connect { .. })), "{refused:?}");
}

#[test]
fn the_operating_systems_authorities_can_be_loaded() {
    ReqwestTransport::new().expect("also where there are none");
}
