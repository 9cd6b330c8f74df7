//! Connects the requests to Vault to the real HTTP client.

use std::sync::Arc;

use madako_http_client::ReqwestTransport;
use madako_pki::vault::Transports;
use madako_protocol::ports::HttpTransport;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// HTTP over TCP and TLS.
#[derive(Debug, Clone, Copy)]
pub struct VaultTransports;

impl Transports for VaultTransports {
    fn transport(&self, ca_cert: &str) -> Result<Arc<dyn HttpTransport>, String> {
        let transport = if ca_cert.is_empty() {
            ReqwestTransport::new()
        } else {
            ReqwestTransport::with_roots(read_roots(ca_cert)?)
        };
        match transport {
            Ok(transport) => Ok(Arc::new(transport)),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn read_roots(ca_cert: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_cert.as_bytes()) {
        let certificate = certificate.map_err(|_| "expected certificates in PEM".to_owned())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("expected a certificate in PEM".to_owned()) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_one_or_more_pem_certificates_or_the_system_store() {
        let pem = rcgen::generate_simple_self_signed(vec!["vault".to_owned()]).unwrap().cert.pem();
        for (given, works) in [
            (String::new(), true),
            (pem.clone(), true),
            (format!("{pem}{pem}"), true),
            ("hunter2".to_owned(), false),
        ] {
            let made = VaultTransports.transport(&given).map(drop);
            assert_eq!(made.is_ok(), works, "{made:?}");
        }
        let Err(why) = VaultTransports.transport("hunter2") else { panic!("no certificate") };
        assert_eq!(why, "expected a certificate in PEM");
    }
}
