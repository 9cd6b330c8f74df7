//! Waits for the signals that end the service: SIGINT and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};

/// Returns at the first signal. If the kernel refuses one handler, the other signal still ends the service.
pub(crate) async fn wait_for_stop() {
    let wait = async |kind: SignalKind| match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(error) => {
            tracing::error!(%error, "cannot listen to signals");
            std::future::pending().await
        }
    };
    tokio::select! {
        biased;
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
    }
}
