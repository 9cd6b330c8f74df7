//! Issues certificates of the authorities in Vault.

use madako_domain::authority::Authority;
use madako_domain::vault::authority_mount;
use madako_protocol::authorities::{AuthorityError, CertificateRequest, IssuedCertificate};
use madako_protocol::secret::Secret;
use madako_protocol::vault::VaultError;
use serde_json::Value;

use super::client::{Request, RequestBody};
use super::requests;
use super::session::Session;
use super::telemetry::Call;

/// Time before now at which a certificate must have ended to be removed (CKE's value).
const TIDY_SAFETY: &str = "1m0s";

impl Session {
    /// Issues a certificate as CKE does.
    pub(crate) async fn issue(
        &self,
        wanted: &CertificateRequest,
    ) -> Result<IssuedCertificate, AuthorityError> {
        let issue = requests::issue_request(wanted);
        let engine = authority_mount(wanted.authority);
        let role = format!("{engine}/roles/{}", issue.role);
        // A one-time role that a killed process left names another user's group.
        let is_there =
            !issue.one_time && self.call(&Request::get(Call::Role, role.as_str())).await?.data.is_some();
        if !is_there {
            self.call(&Request::put(Call::Role, role.as_str(), issue.role_body)).await?;
        }
        let request = Request::put(Call::Issue, format!("{engine}/issue/{}", issue.role), issue.body);
        let issued = self.call(&request).await;
        if issue.one_time {
            // Also after a refusal: CKE would take the role that is left for the next user.
            self.call(&Request::delete(Call::Role, role.as_str())).await?;
        }
        let answer = issued?;
        let text =
            |name| answer.text_field(name).ok_or_else(|| self.client.missing_member_error(&request, name));
        let certificate = text("certificate")?.to_owned();
        Ok(IssuedCertificate { certificate, private_key: Secret::new(text("private_key")?) })
    }

    /// Starts the removal of expired certificates. Vault does it in the background.
    pub(crate) async fn tidy(&self, authority: Authority) -> Result<(), VaultError> {
        let members = [
            ("tidy_cert_store", Value::Bool(true)),
            ("tidy_revocation_list", Value::Bool(true)),
            ("safety_buffer", Value::from(TIDY_SAFETY)),
        ];
        let body = RequestBody(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        let request = Request::put(Call::Tidy, format!("{}/tidy", authority_mount(authority)), body);
        let answer = self.call(&request).await?;
        tracing::debug!(%authority, warnings = ?answer.warnings, "Vault removes expired certificates");
        Ok(())
    }
}
