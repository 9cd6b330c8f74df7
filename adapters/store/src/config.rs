//! Connection settings of etcd, as in CKE's configuration file, with validation.
//!
//! An endpoint's scheme decides on TLS: `http` without, `https` with it. An endpoint without a scheme uses TLS if a CA
//! or a client certificate is configured. Without a configured CA, the system's certificates verify the server.

use std::time::Duration;

use madako_protocol::secret::Secret;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::encryption::Encryption;
pub use crate::limits::DEFAULT_TIMEOUT;
use crate::limits::{CONNECTION_WINDOW, KEEP_ALIVE_INTERVAL, LONGEST_TIMEOUT, MOST_ENDPOINTS};

/// Default endpoint, as in CKE.
pub const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:2379";

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("endpoints of etcd: {0} given, expected 1 to {MOST_ENDPOINTS}")]
    Endpoints(usize),
    /// An endpoint that cannot be parsed.
    #[error("endpoints: {endpoint:?} cannot be used: {why}")]
    Endpoint {
        /// The value without user and password.
        endpoint: String,
        why: String,
    },
    /// A deadline of zero, or one that is too long.
    #[error("timeout: {0:?} given, expected more than 0 and at most {LONGEST_TIMEOUT:?}")]
    Timeout(Duration),
    /// A certificate or key that cannot be used.
    #[error("{field}: {why}")]
    Tls { field: &'static str, why: String },
    #[error("cannot set up TLS for endpoint {endpoint:?}")]
    Transport { endpoint: String, source: tonic::transport::Error },
}

/// Connection settings of etcd, as in CKE's configuration file. Certificates are PEM text.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Addresses with or without scheme. One is used at a time, the next one after a failure.
    pub endpoints: Vec<String>,
    /// Put before every key unchanged.
    pub prefix: String,
    /// Deadline of each request, and of opening a connection.
    pub timeout: Duration,
    /// User for authentication; needs the password.
    pub username: String,
    /// Password for authentication; needs the user.
    pub password: Secret,
    pub tls_ca: Option<String>,
    /// Client certificate; needs the key.
    pub tls_cert: Option<String>,
    pub tls_key: Option<Secret>,
    pub encryption: Encryption,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            endpoints: vec![DEFAULT_ENDPOINT.to_owned()],
            prefix: String::new(),
            timeout: DEFAULT_TIMEOUT,
            username: String::new(),
            password: Secret::default(),
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            encryption: Encryption::default(),
        }
    }
}

impl StoreConfig {
    /// Validates the settings without opening a connection.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.dial_endpoints().map(drop)
    }

    /// User and password, if both are set. If only one is set, it is ignored, as in CKE's client.
    pub(crate) fn credentials(&self) -> Option<(String, Secret)> {
        (!self.username.is_empty() && !self.password.is_empty())
            .then(|| (self.username.clone(), self.password.clone()))
    }

    pub(crate) fn check_timeout(&self) -> Result<Duration, ConfigError> {
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(ConfigError::Timeout(self.timeout));
        }
        Ok(self.timeout)
    }

    pub(crate) fn dial_endpoints(&self) -> Result<Vec<(String, Endpoint)>, ConfigError> {
        let timeout = self.check_timeout()?;
        if self.endpoints.is_empty() || self.endpoints.len() > MOST_ENDPOINTS {
            return Err(ConfigError::Endpoints(self.endpoints.len()));
        }
        let tls = self.tls_config()?;
        self.endpoints.iter().map(|given| to_endpoint(given.trim(), tls.as_ref(), timeout)).collect()
    }

    /// The TLS configuration; `None` if no TLS setting is set.
    fn tls_config(&self) -> Result<Option<ClientTlsConfig>, ConfigError> {
        let mut tls = ClientTlsConfig::new();
        tls = match &self.tls_ca {
            Some(pem) => {
                require_certificates("tls-ca", pem)?;
                tls.ca_certificate(Certificate::from_pem(pem))
            }
            None => tls.with_native_roots(),
        };
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                require_certificates("tls-cert", cert)?;
                PrivateKeyDer::from_pem_slice(key.reveal().as_bytes()).map_err(|_| ConfigError::Tls {
                    // The parser's message could quote the key.
                    field: "tls-key",
                    why: "expected a private key in PEM".into(),
                })?;
                tls = tls.identity(Identity::from_pem(cert, key.reveal()));
            }
            (None, None) if self.tls_ca.is_none() => return Ok(None),
            (None, None) => {}
            (Some(_), None) => return Err(missing_counterpart("tls-key", "tls-cert")),
            (None, Some(_)) => return Err(missing_counterpart("tls-cert", "tls-key")),
        }
        Ok(Some(tls))
    }
}

fn missing_counterpart(missing: &'static str, given: &str) -> ConfigError {
    ConfigError::Tls { field: missing, why: format!("needed beside {given}") }
}

fn require_certificates(field: &'static str, pem: &str) -> Result<(), ConfigError> {
    let mut found = 0;
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        certificate.map_err(|error| ConfigError::Tls { field, why: format!("not PEM: {error}") })?;
        found += 1;
    }
    if found == 0 {
        return Err(ConfigError::Tls { field, why: "expected a certificate in PEM".into() });
    }
    Ok(())
}

fn to_endpoint(
    given: &str,
    tls: Option<&ClientTlsConfig>,
    timeout: Duration,
) -> Result<(String, Endpoint), ConfigError> {
    let refuse = |why: &str| ConfigError::Endpoint { endpoint: without_user(given), why: why.to_owned() };
    if let Some(path) = given.strip_prefix("unix:") {
        if path.trim_start_matches('/').is_empty() {
            return Err(refuse("expected a path after unix://"));
        }
        let endpoint =
            Endpoint::from_shared(given.to_owned()).map_err(|_| refuse("expected unix:///path"))?;
        return Ok((given.to_owned(), with_common_options(endpoint, timeout)));
    }
    let url = if given.contains("://") {
        given.to_owned()
    } else if tls.is_some() {
        format!("https://{given}")
    } else {
        format!("http://{given}")
    };
    let uri: http::Uri = url.parse().map_err(|_| refuse("expected host:port or http(s)://host:port"))?;
    let authority = uri.authority().ok_or_else(|| refuse("expected a host"))?;
    if authority.as_str().contains('@') {
        return Err(refuse("user and password belong in the fields username and password"));
    }
    if authority.port_u16().is_none() {
        return Err(refuse("expected a port"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(refuse("expected nothing after the port"));
    }
    let name = authority.to_string();
    let endpoint = Endpoint::from(uri.clone());
    let endpoint = match uri.scheme_str() {
        Some("http") => {
            if tls.is_some() {
                tracing::warn!(endpoint = %name, "an http endpoint is reached without TLS, though TLS is configured");
            }
            endpoint
        }
        Some("https") => {
            let tls = tls.cloned().unwrap_or_else(|| ClientTlsConfig::new().with_native_roots());
            endpoint
                .tls_config(tls)
                .map_err(|source| ConfigError::Transport { endpoint: name.clone(), source })?
        }
        _ => return Err(refuse("expected http, https or unix")),
    };
    Ok((name, with_common_options(endpoint, timeout)))
}

/// An endpoint as given, without the part before an `@`.
fn without_user(given: &str) -> String {
    match given.rsplit_once('@') {
        Some((before, host)) => match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://{host}"),
            None => host.to_owned(),
        },
        None => given.to_owned(),
    }
}

pub(crate) fn with_common_options(endpoint: Endpoint, timeout: Duration) -> Endpoint {
    endpoint
        .connect_timeout(timeout)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        // As in CKE's client: twice the deadline.
        .keep_alive_timeout(timeout * 2)
        .keep_alive_while_idle(true)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

#[cfg(test)]
mod tests;
