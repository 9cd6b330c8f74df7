//! Injects faults into members of the store: full disks, and compactions.

use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use madako_judges::Exemption;
use madako_judges::player::{FaultRefusal, ImpossibleFault};
use tokio::time::{Instant, sleep, timeout};

use super::{Injector, count_cause, impossible_because, impossible_fault};
use crate::network::Node;
use crate::world::World;

/// Time limit of one compaction.
const COMPACTED_WITHIN: Duration = Duration::from_secs(2);
/// Time for a member to end after a write found its disk full: it ends at once.
const LAST_GASP: Duration = Duration::from_millis(500);
/// Interval of checks of the observer.
const GLANCE: Duration = Duration::from_millis(20);

impl Injector {
    /// Fills the disk of a member, or frees it; then restarts the member if it ended for that reason.
    pub(super) async fn fill_disk(
        &mut self,
        world: &mut World,
        node: &Node,
        begins: bool,
    ) -> Result<(), ImpossibleFault> {
        let (full, since) = self.full.entry(node.clone()).or_insert_with(|| (0, Instant::now()));
        if *full == 0 {
            *since = Instant::now();
        }
        count_cause(full, begins);
        let (full, since) = (*full > 0, *since);
        let Node::Store(number) = node else {
            return Err(impossible_fault("a full disk strikes members of the store only"));
        };
        let member = world
            .members
            .get_mut(number)
            .ok_or_else(|| impossible_fault("the store has no member of this number"))?;
        let disk = member
            .disk
            .as_ref()
            .ok_or_else(|| impossible_fault("the member of the store has no disk of its own"))?;
        let disk = disk.as_ref().map_err(impossible_fault)?;
        if full {
            return if begins {
                disk.fill_disk().map_err(|error| impossible_because(&error))
            } else {
                Ok(())
            };
        }
        disk.clear().map_err(|error| impossible_because(&error))?;
        let process = &mut member.process;
        if process.wait_for_end_within(LAST_GASP).await {
            self.looked.exemptions.record_use(Exemption::FullDisk, since.elapsed());
            process.kill().await.map_err(|error| impossible_because(&error))?;
            process.start_again().map_err(|error| impossible_because(&error))?;
            world.network.register_process(node, process.id());
            if self.held.get(node).is_some_and(|held| held.paused > 0) {
                process.stop(true).map_err(|error| impossible_because(&error))?;
            }
        }
        Ok(())
    }

    /// Compacts the history of a member. Other faults wait meanwhile, so each attempt is short; it is repeated while a
    /// majority or the member itself is away.
    pub(super) async fn compact(&self, world: &World, node: &Node) -> Result<(), FaultRefusal> {
        let Node::Store(number) = node else {
            return Err(impossible_fault("only members of the store can be compacted").into());
        };
        let member = world
            .members
            .get(number)
            .ok_or_else(|| impossible_fault("the store has no member of this number"))?;
        let held = self.held.get(node).is_some_and(|held| held.killed + held.paused > 0);
        let full = self.full.get(node).is_some_and(|(full, _)| *full > 0);
        if held || full {
            return Err(FaultRefusal::NotYet);
        }
        let compacting = async {
            let options = ConnectOptions::new().with_connect_timeout(COMPACTED_WITHIN);
            let mut client = Client::connect([format!("http://{}", member.client)], Some(options)).await?;
            let present = client.get("none", None).await?;
            let revision = present.header().map_or(0, etcd_client::ResponseHeader::revision);
            // The observer must have seen all revisions before they are compacted away.
            while self.observer.last_revision() < revision {
                sleep(GLANCE).await;
            }
            client.compact(revision, None).await
        };
        match timeout(COMPACTED_WITHIN, compacting).await {
            Ok(Ok(_)) => Ok(()),
            // Another client compacted at the same moment, with the same result.
            Ok(Err(error)) if error.to_string().contains("has been compacted") => Ok(()),
            Ok(Err(_)) | Err(_) => Err(FaultRefusal::NotYet),
        }
    }
}
