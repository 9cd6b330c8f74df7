//! Sets Vault up for CKE with an operator's token: authorities, secrets engines, policy and AppRole.

use std::sync::Arc;

use madako_domain::authority::Authority;
use madako_domain::vault::{SECRETS, VaultAccess, authority_mount};
use madako_protocol::ports::HttpTransport;
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use serde_json::{Value, json};

use super::client::{Answer, Client, Request, RequestBody};
use super::session::Session;
use super::telemetry::Call;
use super::{Transports, VaultSecrets, open_session};

/// Validity of an authority, and the maximum of its certificates (CKE's values).
const HUNDRED_YEARS: &str = "876000h";
/// Default validity of certificates.
const TEN_YEARS: &str = "87600h";
/// Life of a token without renewal.
const PERIOD: &str = "1h";
const ROLE: &str = "auth/approle/role/cke";
/// The policy of the role.
const POLICY: &str = "path \"cke/*\"\n{\n  capabilities = [\"create\", \"read\", \"update\", \"delete\", \"list\", \
                      \"sudo\"]\n}";

pub struct Operator {
    client: Client,
    endpoint: String,
    token: Secret,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}

/// A step that changed Vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetUp {
    /// An engine for certificates was mounted at this path.
    MountedPki(String),
    /// The store for secrets was mounted at this path.
    MountedSecrets(String),
}

impl Operator {
    /// Uses a token of the operator.
    ///
    /// # Errors
    /// The URL is unusable.
    pub fn with_token(
        transport: Arc<dyn HttpTransport>,
        endpoint: &str,
        token: Secret,
    ) -> Result<Self, VaultError> {
        Ok(Self { client: Client::new(transport, endpoint)?, endpoint: endpoint.to_owned(), token })
    }

    /// Logs in with a user's name and password.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn log_in(
        transport: Arc<dyn HttpTransport>,
        endpoint: &str,
        user: &str,
        password: &Secret,
    ) -> Result<Self, VaultError> {
        let client = Client::new(transport, endpoint)?;
        let path = format!("auth/userpass/login/{user}");
        let request = Request::put(Call::Login, path, [("password", password.reveal())]);
        let answer = client.send(&request, None).await?;
        let token = answer.auth.ok_or_else(|| client.missing_member_error(&request, "auth"))?.client_token;
        Ok(Self { client, endpoint: endpoint.to_owned(), token: Secret::new(token) })
    }

    async fn call(&self, request: &Request) -> Result<Answer, VaultError> {
        self.client.send(request, Some(&self.token)).await
    }

    /// Mounts the engines that are missing, and writes the policy. Reports each mount.
    ///
    /// # Errors
    /// See [`VaultError`]. Steps before the failed one have happened.
    pub async fn mount(&self, mut tell: impl FnMut(SetUp)) -> Result<(), VaultError> {
        let request = Request::get(Call::Setup, "sys/mounts");
        let mounts = self
            .call(&request)
            .await?
            .data
            .ok_or_else(|| self.client.missing_member_error(&request, "data"))?;
        let is_mounted = |path: &str| mounts.contains_key(&format!("{path}/"));
        for authority in Authority::ALL {
            let path = authority_mount(authority);
            if !is_mounted(&path) {
                let config = json!({"max_lease_ttl": HUNDRED_YEARS, "default_lease_ttl": TEN_YEARS});
                self.mount_at(&path, [("type", "pki".into()), ("config", config)]).await?;
                tell(SetUp::MountedPki(path));
            }
        }
        if !is_mounted(SECRETS) {
            let options = json!({"version": "1"});
            self.mount_at(SECRETS, [("type", "kv".into()), ("options", options)]).await?;
            tell(SetUp::MountedSecrets(SECRETS.to_owned()));
        }
        self.call(&Request::put(Call::Setup, "sys/policies/acl/cke", [("policy", POLICY)])).await.map(drop)
    }

    async fn mount_at(&self, path: &str, members: [(&str, Value); 2]) -> Result<(), VaultError> {
        let body = RequestBody(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        self.call(&Request::put(Call::Setup, format!("sys/mounts/{path}"), body)).await.map(drop)
    }

    /// Creates the role of CKE, and a secret for it. `ca_cert` is the authority of the server's certificate in PEM.
    ///
    /// # Errors
    /// See [`VaultError`]; the method `approle` must be enabled.
    pub async fn create_role(&self, ca_cert: String) -> Result<VaultAccess, VaultError> {
        let role = [("policies", "cke"), ("period", PERIOD)];
        self.call(&Request::put(Call::Setup, ROLE, role)).await?;
        let id = Request::get(Call::Setup, format!("{ROLE}/role-id"));
        let role_id = self.read_text(&id, "role_id").await?;
        let secret = Request::put(Call::Setup, format!("{ROLE}/secret-id"), []);
        let secret_id = madako_json::krake::scalar::Secret::new(self.read_text(&secret, "secret_id").await?);
        Ok(VaultAccess { endpoint: self.endpoint.clone(), ca_cert, role_id, secret_id })
    }

    async fn read_text(&self, request: &Request, name: &str) -> Result<String, VaultError> {
        let answer = self.call(request).await?;
        answer
            .text_field(name)
            .map(str::to_owned)
            .ok_or_else(|| self.client.missing_member_error(request, name))
    }
}

/// The role of CKE at a server, without a store.
#[derive(Debug)]
pub struct Role(Arc<Session>);

impl Role {
    /// The role that an access names.
    ///
    /// # Errors
    /// The access is unusable.
    pub fn new(access: &VaultAccess, transports: &dyn Transports) -> Result<Self, VaultError> {
        Ok(Self(Arc::new(open_session(access, transports)?)))
    }

    /// Creates the root of an authority, whose key never leaves Vault. Returns its certificate in PEM.
    ///
    /// # Errors
    /// See [`VaultError`].
    pub async fn create_root(&self, authority: Authority) -> Result<String, VaultError> {
        let path = format!("{}/root/generate/internal", authority_mount(authority));
        let body = [("common_name", authority.common_name()), ("ttl", HUNDRED_YEARS), ("format", "pem")];
        let request = Request::put(Call::Setup, path, body);
        let answer = self.0.call(&request).await?;
        let certificate = answer.text_field("certificate").map(str::to_owned);
        certificate.ok_or_else(|| self.0.client.missing_member_error(&request, "certificate"))
    }

    /// CKE's secrets.
    #[must_use]
    pub fn secrets(&self) -> VaultSecrets {
        VaultSecrets(Arc::clone(&self.0))
    }
}
