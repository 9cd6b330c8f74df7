//! Metrics of the requests to Vault.

use madako_protocol::vault::VaultError;
use tokio::time::Instant;

madako_protocol::declare_metrics! {
    "Operations on nodes":
    counter madako_vault_requests_total(call, outcome)
        "Requests to Vault. `call`: `login`, `renewal` (of the token), `issue` and `role` (certificates), \
         `secrets`, `tidy` (removal of expired certificates), `health`, `setup`. `outcome`: `ok`, `sealed`, \
         `unreachable`, `denied`, `refused`, `malformed`, `cancelled` (the caller gave up).";
    histogram madako_vault_request_seconds(call) in Seconds "Duration of requests to Vault.";
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
