//! Waits for the signals that end the service: SIGINT and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};

/// Handles both signals from this call on; the future ends at the first of them. If the kernel refuses one handler, the
/// other signal still ends the service.
///
/// A signal without a handler kills the process, so the service calls this before it reports its start.
pub(crate) fn wait_for_stop() -> impl Future<Output = ()> {
    let wait = |kind: SignalKind| {
        let signals = signal(kind).inspect_err(|error| tracing::error!(%error, "cannot listen to signals"));
        async move {
            match signals {
                Ok(mut signals) => {
                    signals.recv().await;
                }
                Err(_) => std::future::pending().await,
            }
        }
    };
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()].map(wait);
    async move {
        tokio::select! {
            biased;
            () = interrupt => {}
            () = terminate => {}
        }
    }
}
