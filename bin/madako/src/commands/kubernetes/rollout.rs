//! `madako kubernetes pause` and `resume`: the roll of kubelets and proxies.

use madako_domain::keys;
use madako_domain::rollout::Rollout;
use madako_protocol::store::Store;

use crate::access::{decode, modify_entry, open_store};
use crate::cli::Global;
use crate::failure::Failure;

/// Pauses the roll of kubelets and proxies: no further wave of restarts begins.
///
/// The nodes of the present wave go on. API servers, controller managers and schedulers restart as before, and stopped
/// components start. The pause is in the store (madako/kubernetes/rollout), so that it counts for the next leader and the
/// next image, too. `madako kube status` shows it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako kube pause")]
pub(crate) struct PauseArgs {}

/// Resumes the roll of components after a pause, or after too many nodes or an API server failed.
///
/// The leader halts the roll of kubelets and proxies when three nodes, or 5 % of all nodes if that is more, failed after their
/// restart. It restarts no healthy API server while one did not pass its health checks within five minutes of a start. The
/// command forgets these failures: the next wave has one node.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  madako kube resume")]
pub(crate) struct ResumeArgs {}

pub(crate) async fn pause(global: &Global) -> Result<(), Failure> {
    change(&open_store(global)?, |rollout| rollout.paused = true).await
}

pub(crate) async fn resume(global: &Global) -> Result<(), Failure> {
    change(&open_store(global)?, Rollout::resume).await
}

async fn change(store: &dyn Store, alter: impl Fn(&mut Rollout)) -> Result<(), Failure> {
    modify_entry(store, keys::ROLLOUT, |entry| {
        let mut rollout: Rollout = match entry {
            // The first wave names the image.
            None => Rollout::new(""),
            Some(entry) => decode(keys::ROLLOUT, entry)?,
        };
        alter(&mut rollout);
        Ok((serde_json::to_vec(&rollout)?, ()))
    })
    .await
}
