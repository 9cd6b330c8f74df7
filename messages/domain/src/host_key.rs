//! Host keys of nodes, and the keys that were pinned on first use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// A public host key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKey {
    /// The key in the form of OpenSSH: algorithm and Base64.
    pub key: String,
    /// SHA-256 fingerprint in the form of OpenSSH.
    pub fingerprint: String,
}

/// The host key of the machine that had an address at the first connection (`madako/ssh/host-keys/<address>`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedKey {
    /// Serial of the machine; empty if the cluster configuration does not name it.
    #[serde(default)]
    pub serial: String,
    /// The public key that the node proved at its first connection.
    #[serde(flatten)]
    pub host_key: HostKey,
    /// Time of that connection; `None` if unknown.
    #[serde(default, with = "time::serde::rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<OffsetDateTime>,
}

/// Pinned keys with the mod revision of their store keys, by address.
pub type PinnedKeys = BTreeMap<String, (PinnedKey, i64)>;

/// The key that the machine with this serial at this address must prove. A machine with another serial has none.
#[must_use]
pub fn pinned_for<'k>(keys: &'k PinnedKeys, address: &str, serial: &str) -> Option<&'k (PinnedKey, i64)> {
    let pinned = keys.get(address)?;
    let is_other = |known: &str| !known.is_empty() && !serial.is_empty() && known != serial;
    (!is_other(&pinned.0.serial)).then_some(pinned)
}
