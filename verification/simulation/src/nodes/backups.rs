//! The port of backups over the link of an instance: an instance that is cut off gets no snapshot, and can compare none.
//!
//! Does not: slow down single parts of a snapshot. Its files are on the instance's host, which no link separates.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use madako_domain::backup::EtcdContents;
use madako_protocol::backup::{Backup, BackupError, EtcdBackups, PermitSource};
use madako_protocol::etcd::EtcdError;
use madako_protocol::permit::Permit;
use time::OffsetDateTime;

use super::ports::{MAX_SILENCE, pass_link};
use crate::link::Link;

pub(crate) struct LinkedBackups {
    pub(crate) inner: Arc<dyn EtcdBackups>,
    pub(crate) link: Link,
}

impl LinkedBackups {
    /// Works on one connection to etcd.
    async fn run_while_connected<R>(
        &self,
        what: &'static str,
        work: impl Future<Output = Result<R, BackupError>> + Send,
    ) -> Result<R, BackupError> {
        let unavailable = |why: String| BackupError::from(EtcdError::Unavailable { what, why });
        let lost = |error: io::Error| unavailable(error.kind().to_string());
        let generation = tokio::select! {
            biased;
            () = self.link.wait_until_silent(MAX_SILENCE) => return Err(unavailable("connection timed out".to_owned())),
            passed = self.link.wait_until_passed() => passed.map_err(lost)?,
        };
        let exchange = async {
            pass_link(&self.link, generation).await.map_err(lost)?;
            let answer = work.await;
            pass_link(&self.link, generation).await.map_err(lost)?;
            answer
        };
        tokio::select! {
            biased;
            () = self.link.wait_until_broken(generation) => Err(unavailable("connection reset".to_owned())),
            () = self.link.wait_until_silent(MAX_SILENCE) => Err(unavailable("connection timed out".to_owned())),
            answer = exchange => answer,
        }
    }
}

#[async_trait]
impl EtcdBackups for LinkedBackups {
    async fn take(
        &self,
        permit: &Permit,
        addresses: &[String],
        directory: &Path,
        at: OffsetDateTime,
    ) -> Result<Backup, BackupError> {
        self.run_while_connected("snapshot", self.inner.take(permit, addresses, directory, at)).await
    }

    async fn prove(
        &self,
        permits: &dyn PermitSource,
        addresses: &[String],
        directory: &Path,
        backup: &Backup,
    ) -> Result<EtcdContents, BackupError> {
        self.run_while_connected("proof", self.inner.prove(permits, addresses, directory, backup)).await
    }

    async fn remove_older_backups(
        &self,
        permit: &Permit,
        directory: &Path,
        keep: usize,
        spared: Option<&str>,
    ) -> Result<Vec<String>, BackupError> {
        self.inner.remove_older_backups(permit, directory, keep, spared).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use madako_datacenter_sim::nodes::{SimulatedBackups, SimulatedNodes};
    use tokio::time::Instant;

    use super::*;
    use crate::link::Mode;

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_is_cut_off_gets_no_snapshot() {
        let link = Link::new();
        let backups = SimulatedBackups::new(&SimulatedNodes::new(1));
        let linked = LinkedBackups { inner: Arc::new(backups.clone()), link: link.clone() };
        for (mode, takes) in [(Mode::Cut, Duration::ZERO), (Mode::Stalled, MAX_SILENCE)] {
            link.set(mode);
            let began = Instant::now();
            let permit = Permit::give(1, began + Duration::from_secs(60));
            let taken = linked.take(&permit, &[], Path::new("/b"), OffsetDateTime::UNIX_EPOCH).await;
            assert!(matches!(taken, Err(BackupError::Etcd(_))), "{taken:?}");
            assert_eq!((began.elapsed(), backups.count_taken()), (takes, 0));
        }
    }
}
