//! A listener with TLS: clients may show a certificate, which then says who they are.
//!
//! Guarantees: a handshake has a deadline and does not hold up others; only so many are under way at a time, more
//! wait in the backlog. A certificate that was not issued by the configured authority ends the handshake; without one
//! the client goes on unnamed, as with Krake's server (Python's `CERT_OPTIONAL`).
//!
//! Does not: look whether a certificate was revoked.

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

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text is no PEM, or has nothing in it.
    #[error("reading the {what} as PEM failed: {why}")]
    Pem {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not fit, or are of a kind that is not supported.
    #[error("using the certificate and its key failed")]
    Certificate(#[source] rustls::Error),
    /// The authority of clients cannot be used.
    #[error("using the authority of clients failed: {0}")]
    ClientCa(String),
}

/// What a server shows, and what it wants to see.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From PEM texts: the chain with the server's own certificate first, its key, and the authorities of clients.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(certificate: &str, key: &str, client_ca: Option<&str>) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates(certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| TlsError::Pem { what: "private key", why: error.to_string() })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Certificate)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(authorities, "authority of clients")? {
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

    /// Encrypts a listener.
    #[must_use]
    pub fn listener(&self, listener: TcpListener) -> TlsListener {
        TlsListener { listener, acceptor: TlsAcceptor::from(Arc::clone(&self.0)), handshakes: JoinSet::new() }
    }
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem { what, why: error.to_string() })?;
    if certificates.is_empty() {
        return Err(TlsError::Pem { what, why: "no certificate".to_owned() });
    }
    Ok(certificates)
}

/// See [`Tls::listener`].
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, TlsPeer)>>,
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub struct TlsPeer {
    address: SocketAddr,
    certificate: Option<ClientCertificate>,
}

impl TlsPeer {
    /// The certificate that it showed.
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
                    self.handshakes.spawn(handshake(acceptor, stream, address));
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(TlsPeer { address: self.listener.local_addr()?, certificate: None })
    }
}

async fn handshake(
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
            // A client that speaks no TLS, or is not let in, is no event for an operator.
            tracing::debug!(peer = %address, %error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(peer = %address, "a TLS handshake took too long");
            None
        }
    }
}

/// The name of the subject; a certificate without one says nothing.
fn common_name(certificate: &CertificateDer<'_>) -> Option<ClientCertificate> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    // Python's server shows the last of several.
    let name = certificate.subject().iter_common_name().last()?.as_str().ok()?;
    Some(ClientCertificate { common_name: name.to_owned() })
}

#[cfg(test)]
mod tests;
