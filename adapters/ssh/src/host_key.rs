//! The host key of a node: its check against the pinned one, and the request for a key of the same kind.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use madako_domain::host_key::HostKey;
use russh::Preferred;
use russh::client::Handler;
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey, PublicKeyOrCertificate};
use tokio::sync::watch;

/// Kinds of host keys, preferred first: the order of OpenSSH. SHA-1 is absent.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// The preferences for a node. A server with several host keys proves the kind that the client prefers, so the kind of
/// the pinned key comes first.
pub(crate) fn preferred_algorithms(pinned: Option<&HostKey>) -> Preferred {
    let kind = pinned.and_then(|pinned| pinned.key.split_whitespace().next());
    let is_pinned = |algorithm: &Algorithm| match algorithm {
        Algorithm::Rsa { .. } => kind == Some("ssh-rsa"),
        other => kind == Some(other.as_str()),
    };
    let (mut first, last): (Vec<_>, Vec<_>) = ALGORITHMS.into_iter().partition(is_pinned);
    first.extend(last);
    Preferred { key: Cow::Owned(first), ..Preferred::DEFAULT }
}

fn host_key(key: &PublicKey) -> Result<HostKey, russh::Error> {
    let mut key = key.clone();
    key.set_comment("");
    let text = key.to_openssh()?;
    Ok(HostKey { key: text.trim_end().to_owned(), fingerprint: key.fingerprint(HashAlg::Sha256).to_string() })
}

/// True if two keys are equal, apart from comments.
fn is_same(one: &HostKey, other: &HostKey) -> bool {
    let words = |host_key: &'_ HostKey| -> Vec<String> {
        host_key.key.split_whitespace().take(2).map(str::to_owned).collect()
    };
    words(one) == words(other)
}

/// Checks the host key of a connection. Its drop means the end of the connection.
pub(crate) struct Verifier {
    pinned: Option<HostKey>,
    offered: Arc<OnceLock<HostKey>>,
    _open: watch::Sender<()>,
}

impl Verifier {
    pub(crate) fn new(pinned: Option<HostKey>, open: watch::Sender<()>) -> (Self, Arc<OnceLock<HostKey>>) {
        let offered = Arc::new(OnceLock::new());
        (Self { pinned, offered: Arc::clone(&offered), _open: open }, offered)
    }
}

impl Handler for Verifier {
    type Error = russh::Error;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = offered else { return Ok(false) };
        let offered = host_key(key)?;
        // A new key exchange on the same connection must show the same key.
        let first = self.offered.get_or_init(|| offered.clone());
        Ok(*first == offered && self.pinned.as_ref().is_none_or(|pinned| is_same(pinned, &offered)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_the_pinned_key_comes_first() {
        let first = |key: &str| {
            let pinned = HostKey { key: format!("{key} AAAA"), fingerprint: String::new() };
            let order = preferred_algorithms(Some(&pinned)).key;
            assert_eq!(order.len(), ALGORITHMS.len(), "every kind stays allowed");
            order[0].clone()
        };
        assert_eq!(first("ssh-rsa"), Algorithm::Rsa { hash: Some(HashAlg::Sha512) });
        assert_eq!(first("ecdsa-sha2-nistp384"), Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 });
        assert_eq!(first("ssh-ed25519"), Algorithm::Ed25519);
        assert_eq!(first("unknown"), Algorithm::Ed25519);
        assert_eq!(preferred_algorithms(None).key[0], Algorithm::Ed25519);
    }

    #[test]
    fn comments_do_not_make_keys_differ() {
        let key = |text: &str| HostKey { key: text.to_owned(), fingerprint: String::new() };
        assert!(is_same(&key("ssh-ed25519 AAAA"), &key("ssh-ed25519 AAAA root@host")));
        assert!(!is_same(&key("ssh-ed25519 AAAA"), &key("ssh-ed25519 AAAB")));
    }
}
