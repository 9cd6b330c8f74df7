//! Requests and renews permits for tasks with many small, idempotent effects.

use async_trait::async_trait;
use madako_protocol::backup::PermitSource;
use madako_protocol::kubernetes::KubernetesError;
use madako_protocol::leader::ask_leader_for_permit;
use madako_protocol::permit::{Moment, Permit, PermitEnded};

use crate::limits::EFFECT_TRIES;
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
    /// answer. `waits` receives the error before each repetition. The effect must be idempotent, and its user ends it in time.
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
        repeat_effect(|| self.get(), does, waits, u32::MAX).await
    }

    /// The same with a few attempts: an API server that does not answer ends the effect.
    ///
    /// # Errors
    /// As of [`Self::run_effect`].
    pub async fn try_effect<T, F>(&self, does: impl Fn(Permit) -> F) -> Result<T, KubernetesError>
    where
        F: Future<Output = Result<T, KubernetesError>>,
    {
        repeat_effect(|| self.get(), does, |_| (), EFFECT_TRIES).await
    }
}

/// `tries`: attempts without an answer.
async fn repeat_effect<T, F, P>(
    permit: impl Fn() -> P,
    does: impl Fn(Permit) -> F,
    waits: impl Fn(&KubernetesError),
    tries: u32,
) -> Result<T, KubernetesError>
where
    F: Future<Output = Result<T, KubernetesError>>,
    P: Future<Output = Permit>,
{
    let mut unanswered = 0;
    loop {
        let permit = permit().await;
        let error = match does(permit).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let was_ended = match error {
            KubernetesError::Permit(_) => true,
            // The request was cut off at the end of the permit at the latest.
            KubernetesError::Unavailable { .. } => {
                unanswered += 1;
                Moment::now() >= permit.expires_at() && unanswered < tries
            }
            _ => false,
        };
        if !was_ended {
            return Err(error);
        }
        waits(&error);
        tokio::time::sleep(PERMIT_PAUSE).await;
    }
}

#[async_trait]
impl PermitSource for Permits {
    async fn permit(&self) -> Result<Permit, PermitEnded> {
        Ok(self.get().await)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_effect_that_is_never_answered_ends_after_a_few_permits() {
        const PERMIT: Duration = Duration::from_secs(5);
        let error = || KubernetesError::Unavailable { what: "a write".to_owned(), why: "silence".to_owned() };
        let began = Moment::now();
        let permit = || async { Permit::give(1, Moment::now() + PERMIT) };
        let silent = |permit: Permit| async move {
            tokio::time::sleep_until(permit.expires_at()).await;
            Err::<(), _>(error())
        };
        assert_eq!(repeat_effect(permit, silent, |_| (), EFFECT_TRIES).await, Err(error()));
        let took = began.elapsed();
        assert!((PERMIT * EFFECT_TRIES..PERMIT * (EFFECT_TRIES + 1)).contains(&took), "{took:?}");
    }
}
