//! Secret text: it appears in no `Debug` output and has no `Display`.

use std::fmt;

/// A private key, a password, or another text that no log may contain.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Marks a text as secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The clear text. Callers must not put it into logs, errors or debug output.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// True if there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
