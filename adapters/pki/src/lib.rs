//! Certificate authorities of the cluster: the port [`Authorities`](madako_protocol::authorities::Authorities).
//!
//! [`ChosenAuthorities`] asks Vault if the store has the key `vault`, as CKE does, and else issues with keys in the store
//! ([`BuiltInAuthorities`]). The module [`vault`] also has CKE's secrets in Vault, and its setup.
//!
//! State: `ca/NAME` has the certificate of an authority in PEM, as CKE stores it; `madako/pki/NAME` has its private key
//! in PKCS#8 PEM, encrypted with the keys of the configuration section `pki` (`adapters/encryption`).
//!
//! Guarantees:
//! - An authority's certificate and key are written in one transaction. [`BuiltInAuthorities::init`] never replaces
//!   either, and [`BuiltInAuthorities::import`] writes only a pair that can sign.
//! - A certificate has a new ECDSA key on P-256, the requested names and uses, and ends with its authority at the latest.
//! - A private key is in no error and no `Debug`.
//! - Whether a certificate is due is a pure function of certificates and time.
//! - Roles, paths and requests in Vault are those of CKE. A token is renewed in the second half of its lease, is never used
//!   after its end, and is replaced by a new login where Vault denies it.
//! - An answer of Vault is bounded in size and time. A certificate of Vault is used only if it has the requested names and
//!   the authority of the store. Tokens and secrets are in no error, no log and no `Debug`.
//!
//! Assumes: clocks of nodes that differ from this one by less than five minutes.
//!
//! Does not: revoke certificates, retry a request to Vault (the next reconcile pass asks again), cache keys (each request reads the store, so that an import takes effect at once), or
//! draw keys from the seeded generator: keys come from the system's randomness, because a seed must not reveal them.

mod ca;
mod chosen;
mod kubernetes;
mod limits;
mod login_keys;
mod renewal;
mod stored;
pub mod vault;

pub use ca::{AuthorityFault, read_validity};
pub use chosen::ChosenAuthorities;
pub use kubernetes::SharedSecrets;
pub use login_keys::{LoginKeySources, PutLoginKeyError};
pub use madako_encryption::{ENCRYPTION_KEYS_FORM, Keys, KeysError};
pub use stored::{BuiltInAuthorities, CaError};
pub use vault::METRICS;

#[cfg(test)]
mod tests;
