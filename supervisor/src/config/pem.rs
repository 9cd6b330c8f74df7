//! Reads certificates and keys that the configuration file names, within a limit, and finds mistakes in them at the
//! start.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::settings::ConfigFindings;
use super::{OTHERS_READ, OTHERS_WRITE};
use crate::limits::MAX_PEM;

/// Text and mode of a file. The error says what was expected.
pub(super) fn read_file(path: &str) -> Result<(String, Option<u32>), String> {
    let readable = |error: std::io::Error| format!("a file that can be read ({error})");
    let file = File::open(path).map_err(readable)?;
    let facts = file.metadata().map_err(readable)?;
    let mut text = String::new();
    file.take(MAX_PEM + 1).read_to_string(&mut text).map_err(readable)?;
    if text.len() as u64 > MAX_PEM {
        return Err(format!("a file of at most {MAX_PEM} bytes"));
    }
    Ok((text, facts.is_file().then(|| facts.permissions().mode())))
}

/// Text of a file with keys. Reports a file that cannot be read or that others can access.
pub(super) fn read_private(field: &str, path: &str, findings: &mut ConfigFindings) -> Option<String> {
    match read_file(path) {
        Ok((text, mode)) => {
            if let Some(mode) = mode.filter(|mode| mode & (OTHERS_READ | OTHERS_WRITE) != 0) {
                let got = format!("{path:?}, whose mode is {:04o}", mode & 0o7777);
                findings.report(field, got, "a file without access for others (chmod o-rwx)");
            }
            Some(text)
        }
        Err(expected) => {
            findings.report(field, format!("{path:?}"), expected);
            None
        }
    }
}

/// True if there is at least one certificate, and all are valid.
pub(super) fn has_certificates(pem: &str) -> bool {
    let mut certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).peekable();
    certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok())
}

/// True if the text is a private key of a kind that TLS supports.
pub(super) fn is_key(pem: &str) -> bool {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).is_ok_and(|key| any_supported_type(&key).is_ok())
}

/// False if the key does not match the first certificate. Keys that cannot be compared are left to the handshake.
pub(super) fn may_match(certificate: &str, key: &str) -> bool {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let (Ok(chain), Ok(key)) = (chain, PrivateKeyDer::from_pem_slice(key.as_bytes())) else { return true };
    !matches!(
        CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch))
    )
}
