//! Connections to members, with a client certificate that is issued anew before it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use etcd_client::{Channel, Client, Identity, TlsOptions};
use futures::FutureExt as _;
use madako_domain::authority::Authority;
use madako_protocol::authorities::{Authorities, AuthorityError, CertificateRequest, Usage};
use madako_protocol::etcd::EtcdError;
use tokio::time::Instant;
use tonic::transport::{Certificate, Endpoint};

use crate::failure::Failure;
use crate::limits::{CERTIFICATE, CERTIFICATE_AGE, CONNECT, KEEP_ALIVE, MOST_CONNECTIONS};

/// The user of etcd whose name the client certificate has.
const USER: &str = "root";

/// Connections that share a client certificate.
pub(crate) struct Connections {
    tls: TlsOptions,
    port: u16,
    made: Instant,
    clients: Mutex<BTreeMap<String, Client>>,
}

impl Connections {
    fn clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Client>> {
        // No code panics while it holds the lock, and the map is consistent at any moment.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of the member at this address, which connects at its first request.
    pub(crate) fn client(&self, address: &str) -> Result<Client, Failure> {
        let mut clients = self.clients();
        if let Some(client) = clients.get(address) {
            return Ok(client.clone());
        }
        let invalid = |error: tonic::transport::Error| Failure::Unavailable(error.to_string());
        let endpoint = Endpoint::from_shared(format!("https://{address}:{}", self.port)).map_err(invalid)?;
        let channel = endpoint
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .tls_config(self.tls.clone())
            .map_err(invalid)?
            .connect_lazy();
        // Without a user, no authentication is awaited.
        let client = Client::from_channel(Channel::Tonic(channel), None).now_or_never();
        let client = client.unwrap_or_else(|| {
            Err(etcd_client::Error::Internal("the creation of the client had to wait".into()))
        })?;
        if clients.len() >= MOST_CONNECTIONS {
            clients.clear();
        }
        clients.insert(address.to_owned(), client.clone());
        Ok(client)
    }

    /// Closes a connection that may be half-open, after its present requests.
    pub(crate) fn forget(&self, address: &str) {
        self.clients().remove(address);
    }
}

/// The present connections.
pub(crate) struct Pool {
    authorities: Arc<dyn Authorities>,
    port: u16,
    present: tokio::sync::Mutex<Option<Arc<Connections>>>,
}

impl Pool {
    pub(crate) fn new(authorities: Arc<dyn Authorities>, port: u16) -> Self {
        Self { authorities, port, present: tokio::sync::Mutex::new(None) }
    }

    /// Connections whose certificate is not about to end. `what` names the request in errors.
    pub(crate) async fn connections(&self, what: &'static str) -> Result<Arc<Connections>, EtcdError> {
        let mut present = self.present.lock().await;
        if let Some(connections) = present.as_ref().filter(|present| present.made.elapsed() < CERTIFICATE_AGE)
        {
            return Ok(Arc::clone(connections));
        }
        let made = Instant::now();
        let tls =
            self.tls().await.map_err(|error| EtcdError::Certificates { what, why: error.to_string() })?;
        let connections = Connections { tls, port: self.port, made, clients: Mutex::default() };
        Ok(Arc::clone(present.insert(Arc::new(connections))))
    }

    /// Takes connections out of use of which none reached etcd: an authority may have changed.
    pub(crate) async fn discard(&self, failed: &Arc<Connections>) {
        let mut present = self.present.lock().await;
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, failed)) {
            *present = None;
        }
    }

    async fn tls(&self) -> Result<TlsOptions, AuthorityError> {
        let trusted = self.authorities.certificate(Authority::Server).await?;
        let request = CertificateRequest {
            authority: Authority::EtcdClient,
            common_name: USER.to_owned(),
            organization: String::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            usage: Usage::Client,
            validity: CERTIFICATE,
        };
        let issued = self.authorities.issue(&request).await?;
        let identity = Identity::from_pem(issued.certificate, issued.private_key.reveal());
        Ok(TlsOptions::new().ca_certificate(Certificate::from_pem(trusted)).identity(identity))
    }
}
