//! The maximum number of encryption keys, with its derivation.

/// Upper bound of encryption keys: one encrypts, the others are former keys until all values are written again.
pub(crate) const MOST_ENCRYPTION_KEYS: usize = 16;
