//! Requests and renews permits for tasks with many small, idempotent effects.

use async_trait::async_trait;
use madako_protocol::backup::PermitSource;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::leader::ask_leader_for_permit;
use madako_protocol::permit::{Moment, Permit, PermitEnded};

pub use crate::limits::PERMIT_PAUSE;

/// A source of permits.
#[derive(Debug, Clone)]
pub struct Permits {
    /// Registered name of the leader.
    pub leader: String,
    /// Number of the epoch.
    pub epoch: i64,
}

impl Permits {
    /// Waits for a permit. After the end of the epoch it never returns; the end of the reign stops the task.
    pub async fn get(&self) -> Permit {
        loop {
            match ask_leader_for_permit(&self.leader, self.epoch).await {
                Ok(permit) => return permit,
                Err(_) => tokio::time::sleep(PERMIT_PAUSE).await,
            }
        }
    }

    /// Executes an effect on Kubernetes, and repeats it with a new permit as long as permits expire before the
    /// answer. `waits` receives the error before each repetition. The effect must be idempotent.
    ///
    /// # Errors
    /// Kubernetes refused the effect, or did not answer while the permit was valid.
    pub async fn run_effect<T, F>(
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
                // The request was cut off at the end of the permit at the latest.
                KubernetesError::Unavailable { .. } => Moment::now() >= permit.expires_at(),
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

#[async_trait]
impl PermitSource for Permits {
    async fn permit(&self) -> Result<Permit, PermitEnded> {
        Ok(self.get().await)
    }
}
