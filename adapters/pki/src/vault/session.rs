//! Sends requests to Vault with the token of an AppRole, and logs in anew when the token has ended.

use std::fmt;
use std::sync::Arc;

use madako_domain::vault::VaultAccess;
use madako_protocol::ports::HttpTransport;
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::{Answer, Client, Request};
use super::telemetry::Call;
use super::token::{Token, TokenStep};

const LOGIN: &str = "auth/approle/login";
const RENEWAL: &str = "auth/token/renew-self";

/// The logged-in role at a server.
pub(crate) struct Session {
    pub(crate) client: Client,
    role_id: String,
    secret_id: Secret,
    /// The lock is held during a login, so that callers share it.
    token: Mutex<Option<Token>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(access: &VaultAccess, transport: Arc<dyn HttpTransport>) -> Result<Self, VaultError> {
        Ok(Self {
            client: Client::new(transport, &access.endpoint)?,
            role_id: access.role_id.clone(),
            secret_id: Secret::new(access.secret_id.reveal()),
            token: Mutex::new(None),
        })
    }

    /// Sends a request. If Vault denies it with an earlier token, which may be revoked, sends it once more after a login:
    /// a denied request had no effect.
    pub(crate) async fn call(&self, request: &Request) -> Result<Answer, VaultError> {
        let (token, is_new) = self.valid_token().await?;
        match self.client.send(request, Some(&token)).await {
            Err(VaultError::Denied { .. }) if !is_new => {
                self.forget(&token).await;
                let (token, _) = self.valid_token().await?;
                self.client.send(request, Some(&token)).await
            }
            answer => answer,
        }
    }

    /// True if the server is unsealed and takes the role. A valid token costs no login.
    pub(crate) async fn check_ready(&self) -> Result<(), VaultError> {
        // A standby forwards requests.
        let query = "standbyok=true&perfstandbyok=true";
        let health = Request { query, ..Request::get(Call::Health, "sys/health") };
        self.client.send(&health, None).await?;
        self.valid_token().await.map(drop)
    }

    /// A usable token, and whether this call logged in for it.
    async fn valid_token(&self) -> Result<(Secret, bool), VaultError> {
        let mut present = self.token.lock().await;
        let now = Instant::now();
        let (step, used) = match present.as_ref() {
            Some(token) => (token.step(now), token.text.clone()),
            None => (TokenStep::LogIn, Secret::default()),
        };
        match step {
            TokenStep::Use => return Ok((used, false)),
            TokenStep::LogIn => {}
            TokenStep::Renew => match self.renew_token(&used, now).await {
                Ok(token) => return Ok((present.insert(token).text.clone(), false)),
                Err(VaultError::Denied { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the token of Vault, which is still valid");
                    if let Some(token) = present.as_mut() {
                        token.note_failed_renewal(Instant::now());
                    }
                    return Ok((used, false));
                }
            },
        }
        // A failed login leaves no token that has ended.
        *present = None;
        let token = self.log_in().await?;
        Ok((present.insert(token).text.clone(), true))
    }

    async fn log_in(&self) -> Result<Token, VaultError> {
        let begun = Instant::now();
        let body = [("role_id", self.role_id.as_str()), ("secret_id", self.secret_id.reveal())];
        let request = Request::put(Call::Login, LOGIN, body);
        let answer = match self.client.send(&request, None).await {
            // Vault's status for a role or secret that it does not know.
            Err(VaultError::Refused { what, address, status: 400, why }) => {
                return Err(VaultError::Denied { what, address, why });
            }
            answer => answer?,
        };
        let auth = answer.auth.ok_or_else(|| self.client.missing_member_error(&request, "auth"))?;
        Ok(Token::new(auth, begun))
    }

    async fn renew_token(&self, token: &Secret, now: Instant) -> Result<Token, VaultError> {
        let request = Request::put(Call::Renewal, RENEWAL, []);
        let answer = self.client.send(&request, Some(token)).await?;
        let auth = answer.auth.ok_or_else(|| self.client.missing_member_error(&request, "auth"))?;
        Ok(Token::new(auth, now))
    }

    /// Drops a denied token, unless another caller has replaced it.
    async fn forget(&self, denied: &Secret) {
        let mut present = self.token.lock().await;
        if present.as_ref().is_some_and(|token| token.text == *denied) {
            *present = None;
        }
    }
}
