//! The errors of requests to Vault, for every port whose adapter uses Vault.
//!
//! No error contains a token, a secret or a part of a key: the texts are those of Vault's own errors, shortened.

/// The reason why Vault did not carry out a request. `what` is the method and path of the request, `address` the URL of
/// the server without credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// The key `vault` is unusable, or cannot be read.
    #[error(
        "cannot use the access to Vault in the key `vault`: {why}; store a valid one with madako vault config"
    )]
    Access {
        /// The fault of the stored value, without its secrets.
        why: String,
    },
    /// The server is sealed, or not initialized.
    #[error(
        "{what}: Vault at {address} is sealed, and an operator must unseal it (vault operator unseal): {why}"
    )]
    Sealed {
        /// The request in words, for messages.
        what: String,
        /// URL of the server.
        address: String,
        /// The messages of Vault.
        why: String,
    },
    /// No complete answer came.
    #[error("{what}: Vault at {address} did not answer: {why}")]
    Unreachable {
        /// The request in words, for messages.
        what: String,
        /// URL of the server.
        address: String,
        /// The failure of the connection or of the exchange.
        why: String,
    },
    /// Vault denied the permission, also after a new login.
    #[error("{what}: Vault at {address} denied permission: {why}")]
    Denied {
        /// The request in words, for messages.
        what: String,
        /// URL of the server.
        address: String,
        /// The messages of Vault.
        why: String,
    },
    /// Vault answered with another error.
    #[error("{what}: Vault at {address} answered with status {status}: {why}")]
    Refused {
        /// The request in words, for messages.
        what: String,
        /// URL of the server.
        address: String,
        /// HTTP status code, such as 500.
        status: u16,
        /// The messages of Vault.
        why: String,
    },
    /// The answer does not have the expected form.
    #[error("{what}: the answer of Vault at {address} is malformed: {why}")]
    Malformed {
        /// The request in words, for messages.
        what: String,
        /// URL of the server.
        address: String,
        /// The form that the answer should have.
        why: String,
    },
}
