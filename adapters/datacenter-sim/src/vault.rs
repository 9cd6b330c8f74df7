//! A simulated Vault behind the port [`HttpTransport`]: the requests of CKE, with roles, tokens that end, and seals.
//!
//! For: the simulation, and tests of everything that asks Vault. One contract suite (`adapters/pki/tests`) checks that it
//! answers as a real Vault does.
//!
//! Guarantees: a history depends only on the requests with their times. Tokens are known only to their holders, end with
//! their lease by tokio's clock, and permit what the policy of CKE permits. The certificates come from any [`Authorities`].
//!
//! Does not: check certificates of clients, keep two versions of a secret, follow leases, or implement what CKE does not ask.

mod answers;
mod engine;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use madako_protocol::authorities::Authorities;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout};

/// The token of the operator; it has no end.
pub const ROOT_TOKEN: &str = "root";

/// The simulated server. Clones share it.
#[derive(Clone)]
pub struct SimulatedVault {
    authorities: Arc<dyn Authorities>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultRequest {
    /// Method and path.
    pub what: String,
    pub status: u16,
    /// The token of the request had ended by itself.
    pub ended: bool,
}

#[derive(Default)]
struct State {
    sealed: bool,
    /// Nothing is answered.
    gone: bool,
    delay: Duration,
    /// Lease ends of tokens; the tokens of ended leases stay, so that they differ from unknown ones.
    tokens: BTreeMap<String, Option<Instant>>,
    issued_tokens: u64,
    /// Period of tokens of the role; `None`: there is no role.
    period: Option<Duration>,
    role_secrets: BTreeSet<String>,
    /// Kinds of engines, by mount.
    mounts: BTreeMap<String, String>,
    /// Mounts with a root.
    roots: BTreeSet<String>,
    /// Roles of authorities, by path.
    roles: BTreeMap<String, Map<String, Value>>,
    secrets: BTreeMap<String, Map<String, Value>>,
    users: BTreeMap<String, String>,
    requests: Vec<VaultRequest>,
}

impl SimulatedVault {
    /// An unsealed server without engines. `authorities` issue its certificates.
    #[must_use]
    pub fn new(authorities: Arc<dyn Authorities>) -> Self {
        Self { authorities, state: Arc::default() }
    }

    /// Seals the server, or unseals it. Tokens outlive a seal.
    pub fn seal(&self, sealed: bool) {
        self.lock().sealed = sealed;
    }

    /// Lets the server vanish, or return.
    pub fn set_unreachable(&self, gone: bool) {
        self.lock().gone = gone;
    }

    /// Makes each answer late.
    pub fn set_delay(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    /// Revokes all tokens except the operator's.
    pub fn lose_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// The requests so far, in the order of their answers.
    #[must_use]
    pub fn received_requests(&self) -> Vec<VaultRequest> {
        self.lock().requests.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl HttpTransport for SimulatedVault {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (gone, delay) = {
            let state = self.lock();
            (state.gone, state.delay)
        };
        let url = request.url.clone();
        if gone {
            return Err(HttpError::Connect { url, why: "connection refused".to_owned() });
        }
        let deadline = request.deadline;
        let late = HttpError::Deadline { url, deadline };
        timeout(deadline, sleep(delay)).await.map_err(|_| late.clone())?;
        timeout(deadline, self.answer_http(request)).await.map_err(|_| late)
    }
}
