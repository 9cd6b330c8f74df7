//! TLS of the listener: certificate and key, and optionally the CA of client certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

/// Certificate and key of the listener, and the CA of its clients, all in PEM. `Debug` omits the key.
#[derive(Clone)]
pub struct ServerTls {
    /// The certificate, followed by its CA certificates.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// If set, clients must present a certificate of this CA.
    pub client_ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("client_ca", &self.client_ca.is_some()).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the {what} of the embedded store as PEM")]
    Pem { what: &'static str, source: rustls::pki_types::pem::Error },
    #[error("the {what} of the embedded store contains no certificate in PEM")]
    Empty { what: &'static str },
    /// Certificate and key do not match, or their kind is not supported.
    #[error(
        "cannot use the certificate of the embedded store (`embedded.tls-cert`) with its private key (`embedded.tls-key`)"
    )]
    Certificate(#[source] rustls::Error),
    #[error("cannot verify clients of the embedded store with the CA certificates in `embedded.tls-ca`")]
    ClientCa(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ServerTls {
    /// Configuration for rustls. Offers HTTP/2 and HTTP/1.1, as etcd does.
    pub(crate) fn load_config(&self) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = read_certificates(&self.certificate, "certificate (`embedded.tls-cert`)")?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|source| TlsError::Pem { what: "private key (`embedded.tls-key`)", source })?;
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Certificate)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates(authority, "client CA (`embedded.tls-ca`)")? {
                    roots.add(certificate).map_err(|error| TlsError::ClientCa(error.into()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| TlsError::ClientCa(error.into()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Certificate)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read_certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if certificates.is_empty() { Err(TlsError::Empty { what }) } else { Ok(certificates) }
}
