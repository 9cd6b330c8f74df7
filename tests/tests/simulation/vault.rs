//! Test support: a simulated Vault, set up as by `madako vault init`, behind the port for HTTP.

use std::sync::Arc;

use async_trait::async_trait;
use madako_datacenter_sim::vault::{ROOT_TOKEN, SimulatedVault};
use madako_domain::authority::Authority;
use madako_pki::ChosenAuthorities;
use madako_pki::vault::{Operator, Role, Transports, Vault};
use madako_protocol::authorities::Authorities;
use madako_protocol::ports::{HttpError, HttpRequest, HttpResponse, HttpTransport};
use madako_protocol::secret::Secret;
use madako_protocol::store::Store;

/// The transport to a simulated Vault.
struct Reached(SimulatedVault);

#[async_trait]
impl HttpTransport for Reached {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.send(request).await
    }
}

impl Transports for Reached {
    fn transport(&self, _: &str) -> Result<Arc<dyn HttpTransport>, String> {
        Ok(Arc::new(Self(self.0.clone())))
    }
}

/// Sets an empty server up. Returns the access to it, for the key `vault`.
pub async fn set_up(vault: &SimulatedVault) -> String {
    let reached = Reached(vault.clone());
    let transport = reached.transport("").unwrap();
    let operator = Operator::with_token(transport, "http://vault:8200", Secret::new(ROOT_TOKEN)).unwrap();
    operator.mount(|_| {}).await.unwrap();
    let access = operator.create_role(String::new()).await.unwrap();
    let role = Role::new(&access, &reached).unwrap();
    for authority in Authority::ALL {
        role.create_root(authority).await.unwrap();
    }
    serde_json::to_string(&access).unwrap()
}

/// The authorities of an instance whose store names the server. `own` reads certificates.
pub fn issuing(
    vault: &SimulatedVault,
    store: Arc<dyn Store>,
    own: Arc<dyn Authorities>,
) -> ChosenAuthorities {
    let vault = Vault::new(store, Arc::new(Reached(vault.clone())));
    ChosenAuthorities::new(Arc::new(vault), own, false)
}
