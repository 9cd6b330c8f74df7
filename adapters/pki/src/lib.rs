//! Certificate authorities of the cluster, kept in the store of the service: the port
//! [`Authorities`](madako_protocol::authorities::Authorities).
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
//!
//! Assumes: clocks of nodes that differ from this one by less than five minutes.
//!
//! Does not: revoke certificates, cache keys (each request reads the store, so that an import takes effect at once), or
//! draw keys from the seeded generator: keys come from the system's randomness, because a seed must not reveal them.

mod ca;
mod limits;
mod renewal;
mod stored;

pub use ca::Fault;
pub use madako_encryption::{Keys, KeysError};
pub use stored::{BuiltInAuthorities, CaError};

#[cfg(test)]
mod tests;
