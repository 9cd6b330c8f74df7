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
use crate::limits::{
    CERTIFICATE, CERTIFICATE_AGE, CONNECT, KEEP_ALIVE, MOST_CONNECTIONS, RENEWAL_PAUSE, REQUEST,
};

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
    fn lock_clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Client>> {
        // No code panics while it holds the lock, and the map is consistent at any moment.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of the member at this address, which connects at its first request.
    pub(crate) fn client_of(&self, address: &str) -> Result<Client, Failure> {
        let mut clients = self.lock_clients();
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

    /// True if the certificate still lives while a request is under way.
    fn is_valid(&self) -> bool {
        self.made.elapsed() + REQUEST < CERTIFICATE
    }

    /// Closes a connection that may be half-open, after its present requests.
    pub(crate) fn forget(&self, address: &str) {
        self.lock_clients().remove(address);
    }
}

pub(crate) struct Pool {
    authorities: Arc<dyn Authorities>,
    port: u16,
    present: tokio::sync::Mutex<Option<PresentConnections>>,
}

struct PresentConnections {
    connections: Arc<Connections>,
    /// The time of the next certificate.
    renew_at: Instant,
}

impl Pool {
    pub(crate) fn new(authorities: Arc<dyn Authorities>, port: u16) -> Self {
        Self { authorities, port, present: tokio::sync::Mutex::new(None) }
    }

    /// Connections whose certificate is not about to end. Without an answer of the authorities, a certificate stays in use
    /// until its end. `what` names the request in errors.
    pub(crate) async fn open_connections(&self, what: &'static str) -> Result<Arc<Connections>, EtcdError> {
        let mut present = self.present.lock().await;
        let made = Instant::now();
        if let Some(present) = present.as_ref().filter(|present| made < present.renew_at) {
            return Ok(Arc::clone(&present.connections));
        }
        match self.issue_tls_options().await {
            Ok(tls) => {
                let connections =
                    Arc::new(Connections { tls, port: self.port, made, clients: Mutex::default() });
                let renew_at = made + CERTIFICATE_AGE;
                *present = Some(PresentConnections { connections: Arc::clone(&connections), renew_at });
                Ok(connections)
            }
            Err(error) => {
                let valid = present.as_mut().filter(|present| present.connections.is_valid());
                let Some(present) = valid else {
                    return Err(EtcdError::Certificates { what, why: error.to_string() });
                };
                present.renew_at = Instant::now() + RENEWAL_PAUSE;
                Ok(Arc::clone(&present.connections))
            }
        }
    }

    /// Asks for another certificate after connections of which none reached etcd: an authority may have changed.
    pub(crate) async fn discard(&self, failed: &Arc<Connections>) {
        let mut present = self.present.lock().await;
        if let Some(present) = present.as_mut().filter(|it| Arc::ptr_eq(&it.connections, failed)) {
            present.renew_at = Instant::now();
        }
    }

    async fn issue_tls_options(&self) -> Result<TlsOptions, AuthorityError> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;
    use madako_domain::certificate::Validity;
    use madako_protocol::authorities::{IssuedCertificate, RenewalReason};
    use madako_protocol::secret::Secret;
    use tokio::time::advance;

    use super::*;

    /// Authorities that can fail, and count.
    #[derive(Default)]
    struct Failing {
        fails: AtomicBool,
        asked: AtomicUsize,
    }

    #[async_trait]
    impl Authorities for Failing {
        async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let fails = self.fails.load(Ordering::Relaxed);
            if fails { Err(AuthorityError::Missing { authority }) } else { Ok(String::new()) }
        }

        async fn issue(&self, _: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
            Ok(IssuedCertificate { certificate: String::new(), private_key: Secret::default() })
        }

        fn validity(&self, _: &str) -> Option<Validity> {
            None
        }

        fn due(&self, _: Option<&str>, _: &str, _: &CertificateRequest) -> Option<RenewalReason> {
            None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_stays_in_use_until_its_end_while_no_other_is_issued() {
        let authorities = Arc::new(Failing::default());
        let pool = Pool::new(Arc::clone(&authorities) as _, 2379);
        let first = pool.open_connections("status").await.unwrap();
        authorities.fails.store(true, Ordering::Relaxed);
        advance(CERTIFICATE_AGE).await;
        for _ in 0..3 {
            let again = pool.open_connections("status").await.unwrap();
            assert!(Arc::ptr_eq(&first, &again));
        }
        assert_eq!(authorities.asked.load(Ordering::Relaxed), 2, "one more question in a pause");
        pool.discard(&first).await;
        assert!(
            Arc::ptr_eq(&first, &pool.open_connections("status").await.unwrap()),
            "there is no better one"
        );
        advance(CERTIFICATE - CERTIFICATE_AGE).await;
        let error = pool.open_connections("status").await.map(drop).unwrap_err();
        assert!(matches!(error, EtcdError::Certificates { .. }), "{error}");
        authorities.fails.store(false, Ordering::Relaxed);
        let next = pool.open_connections("status").await.unwrap();
        assert!(!Arc::ptr_eq(&first, &next));
        advance(Duration::from_secs(1)).await;
        assert!(Arc::ptr_eq(&next, &pool.open_connections("status").await.unwrap()));
    }
}
