//! Metrics of the requests to the API server.

use madako_protocol::kubernetes::KubernetesError;
use tokio::time::Instant;

madako_protocol::declare_metrics! {
    "Kubernetes":
    counter madako_kubernetes_requests_total(call, outcome)
        "Requests to the API server. `call`: `nodes` (a page of their list), `watch` (of nodes; timed until it begins), `node`, `namespaces`, `daemonsets`, `pods`, `pod`, `cordon`, \
         `uncordon`, `dry-run` (of an eviction), `evict`, `delete`, `health` (of a component of Kubernetes), \
         `list`, `metrics`, `lease`, `taint`, `version`, `kinds` (discovery), `annotations`, `object`, `apply`, \
         `apply-dry-run`, `change-node`, `remove-node`, `secrets` (a list of names and \
         versions), `rewrite-secret`. `outcome`: `ok`, `not-found`, `budget` (a disruption budget \
         forbids it for now), `unavailable`, `refused`, `malformed`, `cancelled` (the caller stopped waiting: its \
         poll, or its leadership, ended).";
    histogram madako_kubernetes_request_seconds(call) in Seconds "Duration of requests to the API server.";
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
    /// `failed`: the error, and whether a disruption budget forbids the request.
    pub(crate) fn ended(mut self, failed: Option<(&KubernetesError, bool)>) {
        self.outcome = match failed {
            None => "ok",
            Some((_, true)) => "budget",
            Some((KubernetesError::NotFound { .. }, _)) => "not-found",
            Some((KubernetesError::Unavailable { .. } | KubernetesError::Permit(_), _)) => "unavailable",
            Some((KubernetesError::Refused { .. }, _)) => "refused",
            Some((KubernetesError::Malformed { .. }, _)) => "malformed",
        };
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        madako_kubernetes_requests_total(self.call, self.outcome).increment(1);
        madako_kubernetes_request_seconds(self.call).record(self.begun.elapsed());
    }
}
