//! Limits and times of this crate, with their units and derivations.

use std::time::Duration as StdDuration;

use time::Duration;

/// Upper bound of a PEM text in bytes: an RSA key of 4,096 bits has 3.3 KiB, a certificate with a hundred names 8 KiB.
pub(crate) const MAX_PEM: usize = 64 << 10;

/// Begin of a certificate before the present time: clocks of nodes differ from ours by less, as etcd and Kubernetes
/// need clocks that agree much better.
pub(crate) const SKEW: Duration = Duration::minutes(5);

/// Validity of an authority, as in CKE (`ttl` 876000h).
pub(crate) const CA_VALIDITY: Duration = Duration::hours(876_000);

/// Time for one request to Vault, including the connection: a new key takes it some hundred milliseconds.
pub(crate) const VAULT_DEADLINE: StdDuration = StdDuration::from_secs(10);
/// Upper bound of an answer of Vault in bytes: the SSH keys of 300 nodes with RSA keys of 4,096 bits.
pub(crate) const MAX_VAULT_ANSWER: usize = 1 << 20;
/// Divisor of the lease of a token, after which time it is renewed: the other half leaves time for retries.
pub(crate) const RENEWED_AFTER: u32 = 2;
/// Pause after a failed renewal of a token that is still valid: about as long as Vault needs to elect another leader.
pub(crate) const RENEWAL_PAUSE: StdDuration = StdDuration::from_secs(30);
/// Messages of Vault that an error names: one cause seldom gives more.
pub(crate) const MAX_VAULT_MESSAGES: usize = 3;
/// Characters of one of these messages: a sentence or two.
pub(crate) const MAX_VAULT_MESSAGE: usize = 300;
/// Bytes of a key with which Kubernetes encrypts its secrets (AES-256).
pub(crate) const ENCRYPTION_KEY_BYTES: usize = 32;
/// Keys that a rotation keeps: the new one, and the one before it, which decrypts what is stored (CKE's number).
pub(crate) const KEPT_ENCRYPTION_KEYS: usize = 2;
/// Validity of the certificate of service accounts, as in CKE. Its end matters to no program.
pub(crate) const SERVICE_ACCOUNT_VALIDITY: StdDuration = StdDuration::from_secs(87_600 * 3600);

const _: () = assert!(
    VAULT_DEADLINE.as_secs() < RENEWAL_PAUSE.as_secs(),
    "a renewal has ended before the next one begins"
);
const _: () = assert!(MAX_VAULT_MESSAGES * MAX_VAULT_MESSAGE < MAX_VAULT_ANSWER);
const _: () = assert!(
    SERVICE_ACCOUNT_VALIDITY.as_secs() < CA_VALIDITY.whole_seconds().unsigned_abs(),
    "an authority outlives its certificates"
);
