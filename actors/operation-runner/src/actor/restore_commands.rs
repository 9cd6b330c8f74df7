//! The commands of a restore: the proof that etcd is lost, and the proof of the snapshot.

use std::collections::BTreeSet;

use madako_domain::canary::{Canary, is_planted};
use madako_protocol::etcd::EtcdError;
use madako_protocol::node::{NodeAction, NodeError, SnapshotRestore};

use super::execute::{Basis, Executor, Failure};
use crate::limits::{WAIT_PAUSE, WAIT_TRIES};
use crate::restore::LIVING_MAJORITY;
use crate::wanted::peer_url;

impl Executor {
    pub(super) fn restore(&self, address: &str, path: &str, id: &str, basis: &Basis) -> SnapshotRestore {
        SnapshotRestore {
            image: self.images.etcd.clone(),
            volume: basis.options.etcd_volume.clone(),
            path: path.to_owned(),
            id: id.to_owned(),
            name: address.to_owned(),
            peer_url: peer_url(address),
        }
    }

    /// Asks for some time whether a majority of the members answers. One answer refuses the restore: etcd that is silent
    /// for a moment, as during an election, is not lost.
    pub(super) async fn confirm_loss(&self, members: &[String]) -> Result<(), Failure> {
        if is_planted(Canary::RestoreBesideMajority) {
            return Ok(());
        }
        for attempt in 0..WAIT_TRIES {
            if attempt > 0 {
                tokio::time::sleep(WAIT_PAUSE).await;
            }
            match self.etcd.status(members).await {
                Ok(status) if status.healthy => return Err(restore_failure(LIVING_MAJORITY.to_owned())),
                // A minority answers.
                Ok(_) | Err(EtcdError::Unavailable { .. }) => {}
                Err(error @ EtcdError::Refused { .. }) => {
                    return Err(restore_failure(format!(
                        "etcd answers, and a restore would lose its data: {error}"
                    )));
                }
                // Without certificates, nothing is known of etcd.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Restores the snapshot beside the data of etcd. A snapshot that cannot be restored refuses the whole restore.
    pub(super) async fn stage_restore(
        &self,
        targets: &[String],
        action: impl Fn(&str) -> NodeAction,
    ) -> Result<(), Failure> {
        for address in targets {
            match self.act_on_node(address, action(address)).await {
                Ok(_) => {}
                Err(error @ NodeError::Snapshot { .. }) => return Err(restore_failure(error.to_string())),
                Err(error) => {
                    let nodes = BTreeSet::from([address.clone()]);
                    return Err(Failure { nodes, why: error.to_string(), is_hold: false });
                }
            }
        }
        Ok(())
    }
}

fn restore_failure(why: String) -> Failure {
    Failure { nodes: BTreeSet::new(), why, is_hold: true }
}
