//! Metrics of the requests to the API server.

use madako_protocol::kubernetes::KubernetesError;
use tokio::time::Instant;

use crate::exchange::FailedExchange;

madako_protocol::declare_metrics! {
    counter madako_kubernetes_requests_total(call, outcome)
        "Requests to the API server of Kubernetes by call (nodes, node, namespaces, daemonsets, pods, pod, cordon, uncordon, dry-run, evict, \
         delete, health, list, metrics, lease, taint, version, kinds, annotations, object, apply, apply-dry-run, change-node, remove-node) and outcome: ok, not-found, budget, unavailable, refused, malformed, or cancelled by the caller.";
    histogram madako_kubernetes_request_seconds(call) "Duration of requests to the API server of Kubernetes, by call.";
}

/// A running request. It is counted and timed when it ends or when its caller drops it.
pub(crate) struct RunningRequest {
    call: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl RunningRequest {
    pub(crate) fn new(call: &'static str) -> Self {
        Self { call, begun: Instant::now(), outcome: "cancelled" }
    }

    /// Records the end of the request; a drop without this call counts as cancelled.
    pub(crate) fn ended(mut self, failed: Option<&FailedExchange>) {
        self.outcome = match failed.map(|failed| &failed.error) {
            None => "ok",
            Some(_) if failed.is_some_and(|failed| failed.budget.is_some()) => "budget",
            Some(KubernetesError::NotFound { .. }) => "not-found",
            Some(KubernetesError::Unavailable { .. } | KubernetesError::Permit(_)) => "unavailable",
            Some(KubernetesError::Refused { .. }) => "refused",
            Some(KubernetesError::Malformed { .. }) => "malformed",
        };
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        madako_kubernetes_requests_total(self.call, self.outcome).increment(1);
        madako_kubernetes_request_seconds(self.call).record(self.begun.elapsed());
    }
}
