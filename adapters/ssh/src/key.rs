//! Reads a private key for logins on nodes, in the form of OpenSSH or PEM.

use std::fmt;
use std::sync::Arc;

use russh::keys::{Algorithm, PrivateKey, decode_secret_key};

use crate::limits::MAX_KEY;

/// A private key without passphrase: RSA, Ed25519 or ECDSA.
#[derive(Clone)]
pub struct SshKey(pub(crate) Arc<PrivateKey>);

impl fmt::Debug for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SshKey({})", self.0.algorithm())
    }
}

/// The fault of a file without a usable private key, as a clause about the file. It repeats nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the private key is encrypted with a passphrase")]
    Encrypted,
    /// The text holds a public key.
    #[error("the key is a public key, not the private key of the pair")]
    Public,
    /// The text is longer than any private key.
    #[error("the text has more than {MAX_KEY} bytes, so it is no private key")]
    TooLong,
    #[error("the private key is neither an RSA, an Ed25519 nor an ECDSA key")]
    Kind,
    /// No private key can be read.
    #[error("the text is not a private key in the form of OpenSSH or PEM")]
    Unreadable,
}

impl KeyError {
    /// The expected content of the file.
    #[must_use]
    pub fn expected_key(self) -> &'static str {
        match self {
            Self::Encrypted => "a private key without passphrase (ssh-keygen -p -N '' -f FILE)",
            Self::Public => "the private key of the pair",
            Self::TooLong => "a file with one private key",
            Self::Kind => "an RSA, Ed25519 or ECDSA key",
            Self::Unreadable => {
                "an RSA, Ed25519 or ECDSA key in the form of OpenSSH or PEM (ssh-keygen -t ed25519)"
            }
        }
    }
}

/// Reads a private key in the form of OpenSSH or PEM (PKCS#1, PKCS#8, SEC1).
///
/// # Errors
/// The text is not a private key without passphrase.
pub fn read_key(text: &str) -> Result<SshKey, KeyError> {
    if text.len() > MAX_KEY {
        return Err(KeyError::TooLong);
    }
    // PEM names the encryption in its first lines; only OpenSSH's form has it inside.
    if text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(KeyError::Encrypted);
    }
    if !text.contains("PRIVATE KEY-----") {
        let is_public = text.trim_start().starts_with("ssh-")
            || text.trim_start().starts_with("ecdsa-")
            || text.contains("PUBLIC KEY-----");
        return Err(if is_public { KeyError::Public } else { KeyError::Unreadable });
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let key = decode_secret_key(&lines.join("\n"), None).map_err(|error| match error {
        russh::keys::Error::KeyIsEncrypted => KeyError::Encrypted,
        russh::keys::Error::UnsupportedKeyType { .. } | russh::keys::Error::UnknownAlgorithm(_) => {
            KeyError::Kind
        }
        _ => KeyError::Unreadable,
    })?;
    if key.is_encrypted() {
        return Err(KeyError::Encrypted);
    }
    match key.algorithm() {
        Algorithm::Rsa { .. } | Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(SshKey(Arc::new(key))),
        _ => Err(KeyError::Kind),
    }
}

#[cfg(test)]
mod tests;
