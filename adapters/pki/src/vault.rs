//! CKE's use of Vault: the role of CKE, its certificates, and its secrets.
//!
//! Access is the key `vault` of the store, read for each request, so that a changed one takes effect at once.

mod client;
mod issuing;
mod requests;
mod secrets;
mod session;
mod set_up;
mod telemetry;
mod token;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use madako_domain::keys;
use madako_domain::vault::VaultAccess;
use madako_protocol::store::Store;
use madako_protocol::vault::VaultError;

pub use self::client::Transports;
pub use self::secrets::VaultSecrets;
pub(crate) use self::secrets::{change_keys, generate_first_keys};
use self::session::Session;
pub use self::set_up::{Operator, Role, SetUp};
pub use self::telemetry::METRICS;

/// Vault, where the store has access to it.
pub struct Vault {
    store: Arc<dyn Store>,
    transports: Arc<dyn Transports>,
    /// The session with the newest access.
    session: Mutex<Option<(VaultAccess, Arc<Session>)>>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").finish_non_exhaustive()
    }
}

impl Vault {
    /// The Vault that the key `vault` of `store` names.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, transports: Arc<dyn Transports>) -> Self {
        Self { store, transports, session: Mutex::new(None) }
    }

    /// The present access; `None` if the store has none.
    ///
    /// # Errors
    /// The store does not answer, or the value of the key is unusable.
    pub async fn read_access(&self) -> Result<Option<VaultAccess>, VaultError> {
        let unusable = |why: String| VaultError::Access { why };
        let mut snapshot = self.store.list(keys::VAULT).await.map_err(|error| unusable(error.to_string()))?;
        let Some(entry) = snapshot.entries.remove(keys::VAULT) else { return Ok(None) };
        // serde's message could quote the secret.
        let access: Option<VaultAccess> = serde_json::from_slice(&entry.value).ok();
        access.map(Some).ok_or_else(|| unusable("it is not a JSON object with texts".to_owned()))
    }

    /// The session with the present access; `None` if the store has none.
    pub(crate) async fn open_session(&self) -> Result<Option<Arc<Session>>, VaultError> {
        let Some(access) = self.read_access().await? else {
            *self.lock_present_session() = None;
            return Ok(None);
        };
        let mut present = self.lock_present_session();
        if let Some((_, session)) = present.as_ref().filter(|(of, _)| *of == access) {
            return Ok(Some(Arc::clone(session)));
        }
        let session = Arc::new(open_session(&access, &*self.transports)?);
        *present = Some((access, Arc::clone(&session)));
        Ok(Some(session))
    }

    fn lock_present_session(&self) -> std::sync::MutexGuard<'_, Option<(VaultAccess, Arc<Session>)>> {
        // No code panics while it holds the lock.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that is not logged in yet.
fn open_session(access: &VaultAccess, transports: &dyn Transports) -> Result<Session, VaultError> {
    let unusable = |why: String| VaultError::Access { why: format!("its ca-cert is not usable: {why}") };
    Session::new(access, transports.transport(&access.ca_cert).map_err(unusable)?)
}
