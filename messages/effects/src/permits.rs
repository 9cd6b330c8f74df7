//! Permits for tasks that have many small effects, each of which may be had twice.

use madako_protocol::gate::permit;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::permit::{Moment, Permit};

pub use crate::limits::PERMIT_PAUSE;

/// Where permits come from.
#[derive(Debug, Clone)]
pub struct Permits {
    /// Registered name of the leader.
    pub leader: String,
    /// Number of the epoch.
    pub epoch: i64,
}

impl Permits {
    /// Waits for a permit. In an epoch that is over that takes until this task is ended.
    pub async fn get(&self) -> Permit {
        loop {
            match permit(&self.leader, self.epoch).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(PERMIT_PAUSE).await,
            }
        }
    }

    /// Does something to Kubernetes, and asks for it again with another permit when one ended before the answer came, for as long
    /// as this task goes on; `waits` is told what of. Each thing that is done there may be done twice.
    ///
    /// # Errors
    /// Kubernetes refused it, or did not answer while the permit held.
    pub async fn effect<T, F>(
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
                KubernetesError::Unavailable { .. } => Moment::now() >= permit.until(),
                _ => false,
            };
            if !was_ended {
                return Err(error);
            }
            waits(&error);
            tokio::time::sleep(PERMIT_PAUSE).await;
        }
    }
}
