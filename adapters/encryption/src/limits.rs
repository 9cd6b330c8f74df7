//! Limits of this crate.

/// Upper bound of encryption keys: one encrypts, the others are former keys until all values are written again.
pub(crate) const MOST_ENCRYPTION_KEYS: usize = 16;
