//! Metrics of the requests to Vault.

use madako_protocol::vault::VaultError;
use tokio::time::Instant;

madako_protocol::declare_metrics! {
    counter madako_vault_requests_total(call, outcome)
        "Requests to Vault by call (login, renewal, issue, role, secrets, tidy, health, setup) and outcome: ok, sealed, \
         unreachable, denied, refused, malformed, or cancelled by the caller.";
    histogram madako_vault_request_seconds(call) "Duration of requests to Vault, by call.";
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Call {
    Login,
    Renewal,
    Issue,
    Role,
    Secrets,
    Tidy,
    Health,
    Setup,
}

/// A running request. It is counted and timed when it ends or when its caller drops it.
pub(crate) struct RunningCall {
    call: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl RunningCall {
    pub(crate) fn new(call: Call) -> Self {
        Self { call: call.into(), begun: Instant::now(), outcome: "cancelled" }
    }

    /// Records the end of the request; a drop without this call counts as cancelled.
    pub(crate) fn record_end(mut self, error: Option<&VaultError>) {
        self.outcome = match error {
            None => "ok",
            Some(VaultError::Sealed { .. }) => "sealed",
            Some(VaultError::Unreachable { .. }) => "unreachable",
            Some(VaultError::Denied { .. }) => "denied",
            Some(VaultError::Refused { .. } | VaultError::Access { .. }) => "refused",
            Some(VaultError::Malformed { .. }) => "malformed",
        };
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        madako_vault_requests_total(self.call, self.outcome).increment(1);
        madako_vault_request_seconds(self.call).record(self.begun.elapsed());
    }
}
