//! A listener with TLS. Clients may present a certificate, whose common name becomes their user.
//!
//! Guarantees: a handshake has a deadline and does not delay others. Only a limited number runs at a time; further ones
//! wait in the backlog. A certificate of another CA ends the handshake. A client without a certificate continues
//! unnamed, as in Krake's server (Python's `CERT_OPTIONAL`).
//!
//! Does not: check whether a certificate was revoked.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::serve::Listener;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::limits::{HANDSHAKE_DEADLINE, HANDSHAKES};
use crate::placement::ClientCertificate;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text is not valid PEM, or is empty.
    #[error("cannot read the {what} of the HTTP server as PEM: {why}")]
    Pem { what: &'static str, why: String },
    /// Certificate and key do not match, or their kind is not supported.
    #[error("cannot use the certificate of the HTTP server (`tls-cert`) with its private key (`tls-key`)")]
    Certificate(#[source] rustls::Error),
    /// The CA of the clients cannot be used.
    #[error("cannot verify clients of the HTTP server with the CA certificates in `tls-ca`: {0}")]
    ClientCa(String),
}

/// Certificate and key of a server, and the CA of its clients.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From PEM texts: the chain with the server's own certificate first, its key, and the CA certificates of the
    /// clients.
    pub fn new(certificate: &str, key: &str, client_ca: Option<&str>) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = read_certificates(certificate, "certificate (`tls-cert`)")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| TlsError::Pem { what: "private key (`tls-key`)", why: error.to_string() })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Certificate)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in read_certificates(authorities, "client CA (`tls-ca`)")? {
                    roots.add(authority).map_err(|error| TlsError::ClientCa(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| TlsError::ClientCa(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Certificate)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    #[must_use]
    pub fn wrap_listener(&self, listener: TcpListener) -> TlsListener {
        TlsListener { listener, acceptor: TlsAcceptor::from(Arc::clone(&self.0)), handshakes: JoinSet::new() }
    }
}

fn read_certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem { what, why: error.to_string() })?;
    if certificates.is_empty() {
        return Err(TlsError::Pem { what, why: "no certificate".to_owned() });
    }
    Ok(certificates)
}

/// See [`Tls::wrap_listener`].
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, TlsPeer)>>,
}

#[derive(Debug, Clone)]
pub struct TlsPeer {
    address: SocketAddr,
    certificate: Option<ClientCertificate>,
}

impl TlsPeer {
    #[must_use]
    pub fn certificate(&self) -> Option<&ClientCertificate> {
        self.certificate.as_ref()
    }
}

impl fmt::Display for TlsPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = TlsPeer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let room = self.handshakes.len() < HANDSHAKES;
            tokio::select! {
                biased;
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(accepted)) = done {
                        return accepted;
                    }
                }
                (stream, address) = Listener::accept(&mut self.listener), if room => {
                    let acceptor = self.acceptor.clone();
                    self.handshakes.spawn(accept_handshake(acceptor, stream, address));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(TlsPeer { address: self.listener.local_addr()?, certificate: None })
    }
}

async fn accept_handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<(TlsStream<TcpStream>, TlsPeer)> {
    match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let certificate = shown.and_then(|certificate| common_name(certificate));
            Some((stream, TlsPeer { address, certificate }))
        }
        Ok(Err(error)) => {
            // A client without TLS, or with a refused certificate, is not an event for an operator.
            tracing::debug!(peer = %address, %error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(peer = %address, "a TLS handshake took too long");
            None
        }
    }
}

/// The common name of the subject; `None` if the certificate has none.
fn common_name(certificate: &CertificateDer<'_>) -> Option<ClientCertificate> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    // Python's server shows the last of several.
    let name = certificate.subject().iter_common_name().last()?.as_str().ok()?;
    Some(ClientCertificate { common_name: name.to_owned() })
}

#[cfg(test)]
mod tests;
