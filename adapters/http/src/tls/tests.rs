//! Tests of TLS handshakes over loopback, with a certificate authority of the test.

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::*;
use crate::Limits;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, common_name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Serves the name in a client's certificate, or `nobody`.
async fn served(tls: Tls) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let who = |request: Request| async move {
        request.extensions().get::<ClientCertificate>().map_or("nobody", |it| &it.common_name).to_owned()
    };
    let router = Router::new().route("/who", get(who));
    let identify = |peer: &TlsPeer| peer.certificate().cloned();
    tokio::spawn(crate::serve(
        tls.wrap_listener(listener),
        router,
        Limits::DEFAULT,
        identify,
        std::future::pending(),
    ));
    address
}

/// Requests the client's name, with or without a certificate.
async fn ask(address: SocketAddr, trusted: &str, shown: Option<&(String, String)>) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    for authority in read_certificates(trusted, "test").unwrap() {
        roots.add(authority).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                read_certificates(certificate, "test").unwrap(),
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET /who HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn client_has_the_name_in_its_certificate() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("server");
    let address = served(Tls::new(&certificate, &key, Some(&authority.pem)).unwrap()).await;
    let alice = authority.issue("system:alice");
    assert_eq!(ask(address, &authority.pem, Some(&alice)).await.unwrap(), "system:alice");
    assert_eq!(ask(address, &authority.pem, None).await.unwrap(), "nobody");
}

#[tokio::test]
async fn another_authoritys_certificate_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.issue("server");
    let address = served(Tls::new(&certificate, &key, Some(&authority.pem)).unwrap()).await;
    let mallory = other.issue("system:admin");
    ask(address, &authority.pem, Some(&mallory)).await.unwrap_err();
}

#[tokio::test]
async fn stalled_handshakes_delay_no_other_client() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("server");
    let address = served(Tls::new(&certificate, &key, None).unwrap()).await;
    let mut silent = Vec::new();
    for _ in 0..HANDSHAKES / 2 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(ask(address, &authority.pem, None).await.unwrap(), "nobody");
}

#[test]
fn a_text_that_is_not_a_certificate_is_named() {
    let (certificate, key) = Authority::new().issue("server");
    let error = |certificate: &str, key: &str, ca: Option<&str>| {
        Tls::new(certificate, key, ca).unwrap_err().to_string()
    };
    assert!(error("", &key, None).contains("certificate"));
    assert!(error(&certificate, "", None).contains("private key"));
    assert!(error(&certificate, &key, Some("x")).contains("client CA"));
}
