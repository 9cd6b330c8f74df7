//! Generates load in a thread of its own, and measures the CPU time of the thread.

use std::time::Duration;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// The result of a thread.
pub(super) struct LoadResult<T> {
    pub(super) value: T,
    /// CPU time of the thread.
    pub(super) core: Duration,
}

/// Runs a future on a single-threaded runtime of its own.
pub(super) async fn run_in_own_thread<T, W, F>(work: W) -> anyhow::Result<LoadResult<T>>
where
    T: Send + 'static,
    W: FnOnce() -> F + Send + 'static,
    F: Future<Output = anyhow::Result<T>>,
{
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let done = runtime.context("no runtime").and_then(|runtime| {
            let began = cpu_time_of_thread();
            let value = LocalSet::new().block_on(&runtime, work())?;
            Ok(LoadResult { value, core: cpu_time_of_thread().saturating_sub(began) })
        });
        // The receiver is gone if the measurement was given up.
        let _ = sender.send(done);
    };
    #[allow(clippy::disallowed_methods, reason = "a thread of its own is what shows its time on a core")]
    drop(std::thread::spawn(run));
    receiver.await.context("the thread ended early")?
}

fn cpu_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A share of a core, such as `12 % of a core`.
pub(super) fn part_of_core(core: Duration, wall: Duration) -> String {
    format!("{:.0} % of a core", 100.0 * core.as_secs_f64() / wall.as_secs_f64())
}
