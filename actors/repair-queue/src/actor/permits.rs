//! Permits for tasks that act for a while.

use std::time::Duration;

use madako_messages::gate::permit;
use madako_messages::kubernetes::KubernetesError;
use madako_messages::permit::Permit;
use tokio::time::Instant;

/// Pause before a permit is asked for again. Who gets none for good is ended with the reign.
const PAUSE: Duration = Duration::from_secs(1);

/// Where permits come from.
#[derive(Clone)]
pub(super) struct Permits {
    pub(super) leader: String,
    pub(super) epoch: i64,
}

impl Permits {
    /// Waits for a permit. In an epoch that is over that takes until this task is ended.
    pub(super) async fn get(&self) -> Permit {
        loop {
            match permit(&self.leader, self.epoch).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Does something to Kubernetes, and asks for it again with another permit when one ended before the answer came, for as long
    /// as this task goes on; `waits` is told what of. Each thing that is done there may be done twice.
    pub(super) async fn effect<T, F>(
        &self,
        does: impl Fn(Permit) -> F,
        waits: impl Fn(&KubernetesError),
    ) -> Result<T, KubernetesError>
    where
        F: Future<Output = Result<T, KubernetesError>>,
    {
        loop {
            let permit = self.get().await;
            let error = match does(permit).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let was_ended = match error {
                KubernetesError::Permit(_) => true,
                // It was cut off then, at the latest.
                KubernetesError::Unavailable { .. } => Instant::now() >= permit.until(),
                _ => false,
            };
            if !was_ended {
                return Err(error);
            }
            waits(&error);
            tokio::time::sleep(PAUSE).await;
        }
    }
}
