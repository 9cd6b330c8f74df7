//! The start of a child: bounded in time, and every outcome becomes an answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use ractor::ActorCell;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::tree::roster::{LiveChild, wait_for_flag};
use crate::tree::spec::{ChildSpec, StartError};

/// Starts and links a child within its deadline, unless it is cancelled.
pub(super) async fn start_child(
    spec: &ChildSpec,
    supervisor: ActorCell,
    mut cancelled: watch::Receiver<bool>,
    mut hurried: watch::Receiver<bool>,
) -> Result<LiveChild, StartError> {
    // The function is called inside the future, so that its own panic is caught as well.
    let start = Arc::clone(&spec.start);
    let cell = supervisor.clone();
    let starting = AssertUnwindSafe(async move { start(cell).await }).catch_unwind();
    let result = tokio::select! {
        biased;
        () = wait_for_flag(&mut cancelled) => return Err(StartError::Cancelled),
        () = wait_for_flag(&mut hurried) => return Err(StartError::Cancelled),
        result = timeout(spec.start_deadline, starting) => result,
    };
    let live = match result {
        Err(_) => return Err(StartError::Deadline(spec.start_deadline)),
        Ok(Err(panic)) => return Err(StartError::Failed(text_of_panic(panic.as_ref()).into())),
        Ok(Ok(started)) => started?,
    };
    if live.cell.try_get_supervisor().map(|s| s.get_id()) != Some(supervisor.get_id()) {
        live.cell.link(supervisor);
    }
    Ok(live)
}

fn text_of_panic(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "panicked without a text message".into())
}
