//! Removes expired certificates from a server that keeps them (Vault). The leader starts the removal from time to time.

use std::sync::Arc;
use std::time::Duration;

use madako_domain::authority::Authority;
use madako_effects::Permits;
use madako_protocol::authorities::Authorities;
use madako_protocol::feed::Task;
use tokio::time::sleep;

/// Starts a removal after each interval, as long as the task lives. A failed one is tried again after the next interval.
pub(super) fn tidy_at_interval(
    interval: Duration,
    permits: Permits,
    authorities: Arc<dyn Authorities>,
) -> Task {
    Task::start_anew(async move {
        loop {
            sleep(interval).await;
            tidy(&permits, &*authorities).await;
        }
    })
}

async fn tidy(permits: &Permits, authorities: &dyn Authorities) {
    for authority in Authority::ALL {
        // A permit may end while Vault is slow.
        let permit = permits.get().await;
        match authorities.tidy(&permit, authority).await {
            Ok(true) => tracing::info!(%authority, "started the removal of expired certificates"),
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%authority, %error, "cannot start the removal of expired certificates")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use madako_domain::certificate::Validity;
    use madako_protocol::actors::LeaderMessage;
    use madako_protocol::authorities::{
        AuthorityError, CertificateRequest, IssuedCertificate, RenewalReason,
    };
    use madako_protocol::mailbox::Envelope;
    use madako_protocol::permit::Permit;
    use ractor::{Actor, ActorProcessingErr, ActorRef};
    use tokio::time::Instant;

    use super::*;

    /// Authorities that note each removal. That of the peers fails.
    struct Noting {
        tidied: Mutex<Vec<(Duration, Authority)>>,
        begun: Instant,
        keeps: bool,
    }

    #[async_trait]
    impl Authorities for Noting {
        async fn certificate(&self, authority: Authority) -> Result<String, AuthorityError> {
            Err(AuthorityError::Missing { authority })
        }

        async fn issue(&self, _: &CertificateRequest) -> Result<IssuedCertificate, AuthorityError> {
            Err(AuthorityError::NoIssuer)
        }

        async fn tidy(&self, _: &Permit, authority: Authority) -> Result<bool, AuthorityError> {
            self.tidied.lock().unwrap().push((self.begun.elapsed(), authority));
            match authority {
                Authority::EtcdPeer => Err(AuthorityError::NoIssuer),
                _ => Ok(self.keeps),
            }
        }

        fn validity(&self, _: &str) -> Option<Validity> {
            None
        }

        fn due(&self, _: Option<&str>, _: &str, _: &CertificateRequest) -> Option<RenewalReason> {
            None
        }
    }

    /// A leader that gives each permit.
    struct Giving;

    impl Actor for Giving {
        type Msg = Envelope<LeaderMessage>;
        type State = ();
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<Self::Msg>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }

        async fn handle(
            &self,
            _: ActorRef<Self::Msg>,
            message: Self::Msg,
            (): &mut (),
        ) -> Result<(), ActorProcessingErr> {
            if let LeaderMessage::Permit { epoch, reply } = message.open() {
                reply.send(Some(Permit::give(epoch, Instant::now() + Duration::from_secs(60))))?;
            }
            Ok(())
        }
    }

    async fn tidied(keeps: bool) -> Vec<(Duration, Authority)> {
        let begun = Instant::now();
        let authorities = Arc::new(Noting { tidied: Mutex::default(), begun, keeps });
        let name = format!("leader of tidy, {keeps}");
        let (leader, _) = Actor::spawn(Some(name.clone()), Giving, ()).await.unwrap();
        let permits = Permits { leader: name, epoch: 1 };
        let task = tidy_at_interval(Duration::from_secs(60), permits, Arc::clone(&authorities) as _);
        sleep(Duration::from_secs(150)).await;
        drop(task);
        sleep(Duration::from_secs(300)).await;
        leader.stop(None);
        authorities.tidied.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn all_authorities_are_tidied_in_each_interval_even_if_one_fails() {
        let expected: Vec<(Duration, Authority)> = [60, 120]
            .into_iter()
            .flat_map(|at| Authority::ALL.map(|authority| (Duration::from_secs(at), authority)))
            .collect();
        assert_eq!(tidied(true).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn each_interval_ends_at_the_first_answer_that_no_server_keeps_certificates() {
        let at = |seconds| (Duration::from_secs(seconds), Authority::Server);
        assert_eq!(tidied(false).await, [at(60), at(120)]);
    }
}
