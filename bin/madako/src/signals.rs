//! The signals that end the service: SIGINT and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};

/// Returns when the process is asked to end.
///
/// Where a signal cannot be listened to (the kernel refuses the handler), the other one still ends it.
pub(crate) async fn stop() {
    let wait = async |kind: SignalKind| match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(error) => {
            tracing::error!(%error, "a signal cannot be listened to");
            std::future::pending().await
        }
    };
    tokio::select! {
        biased;
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
    }
}
