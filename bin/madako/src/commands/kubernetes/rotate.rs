//! `madako kubernetes rotate-encryption-key`: asks the leader for another key with which API servers encrypt Secrets.

use madako_domain::cluster::Cluster;
use madako_domain::encryption_rotation::EncryptionRotation;
use madako_domain::keys;
use madako_domain::settings::{OperationMode, OperationModes, Settings};
use madako_protocol::ports::Clock;
use madako_protocol::store::Store;
use madako_supervisor::clock::SystemClock;
use time::format_description::well_known::Rfc3339;

use super::read_cluster;
use crate::access::{concurrent_change_failure, decode, get_entry, open_store, put_if, unchanged_condition};
use crate::cli::Global;
use crate::commands::ops::join_addresses;
use crate::failure::Failure;
use crate::output::print_text;

/// Rotates the key with which API servers encrypt Secrets in etcd.
///
/// The command leaves a request in the store (madako/kubernetes/encryption-rotation) and prints the steps. The leader, and after
/// it the next one, adds a new key, restarts the API servers one at a time, puts the new key first, restarts them again, lets an
/// API server write each Secret anew, drops the earlier keys, and restarts the API servers a last time. Secrets are readable all
/// the time. Each step waits until every API server is healthy; `madako kube status` shows the step and what it waits for, and
/// `madako kube pause` halts the rotation. The leader carries out a rotation only with `operations.mode: act` and
/// `kubernetes.mode: act`; with other modes the command is refused, also with --dry-run.
///
/// With Vault, the keys are in CKE's secret cke/secrets/k8s: do not run `ckecli vault enckey` meanwhile. Secrets in backups of
/// etcd of before the end of the rotation need the earlier keys, which the rotation drops.
///
/// Exit codes: 0: the leader is asked, or the steps of --dry-run are printed; 1: the leader does not act, a rotation is under way,
/// or the store could not be read or written; 2: bad input.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako kube rotate-encryption-key --dry-run\n  madako kube rotate-encryption-key"
)]
pub(crate) struct Args {
    /// Print the steps, and write nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    let store = open_store(global)?;
    let cluster = read_cluster(&store).await?;
    refuse_during_rotation(&store).await?;
    refuse_without_acting_leader(&store).await?;
    let now = SystemClock.now();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    let key = now
        .format(&Rfc3339)
        .map_err(|_| Failure::failed("the clock of this host has a year beyond 9999: correct it"))?;
    if !args.dry_run {
        let value = serde_json::to_vec(&EncryptionRotation::new(&key))?;
        let conditions = vec![unchanged_condition(keys::ENCRYPTION_ROTATION, None)];
        if !put_if(&store, keys::ENCRYPTION_ROTATION, value, conditions).await? {
            return Err(concurrent_change_failure(keys::ENCRYPTION_ROTATION));
        }
    }
    print_text(&describe_steps(&cluster, (!args.dry_run).then_some(&key)))
}

/// Refuses a command that would disturb a rotation.
pub(crate) async fn refuse_during_rotation(store: &dyn Store) -> Result<(), Failure> {
    let Some(entry) = get_entry(store, keys::ENCRYPTION_ROTATION).await? else { return Ok(()) };
    let EncryptionRotation { stage, key, .. } = decode(keys::ENCRYPTION_ROTATION, &entry)?;
    Err(Failure::failed(format_args!(
        "a rotation of the encryption key is under way (new key {key}, last step: {stage}): wait for its end, which madako kube \
         status shows"
    )))
}

/// Refuses a request that the present leader would leave in the store for ever.
async fn refuse_without_acting_leader(store: &dyn Store) -> Result<(), Failure> {
    let entry = get_entry(store, keys::SETTINGS).await?;
    let settings = entry.map(|entry| decode::<Settings>(keys::SETTINGS, &entry)).transpose()?;
    match find_idle_mode(settings.as_ref()) {
        None => Ok(()),
        Some(why) => Err(Failure::failed(format_args!(
            "no leader would rotate the encryption key, so that nothing was written: {why}; set operations.mode and \
             kubernetes.mode to act in the configuration file of each instance, and start them again"
        ))),
    }
}

/// The reason for which the leader with these settings carries out no rotation. `None`: it does.
fn find_idle_mode(settings: Option<&Settings>) -> Option<String> {
    let Some(settings) = settings else {
        return Some(format!("no leader has stored its modes in {}", keys::SETTINGS));
    };
    let Some(OperationModes { operations, kubernetes }) = settings.modes else {
        return Some(format!(
            "the leader has an earlier version, which stores no modes in {}",
            keys::SETTINGS
        ));
    };
    let modes = [("operations.mode", operations), ("kubernetes.mode", kubernetes)];
    let idle = modes.into_iter().find(|(_, mode)| *mode != OperationMode::Act);
    idle.map(|(setting, mode)| format!("the leader has {setting}: {mode} ({})", keys::SETTINGS))
}

/// The steps of a rotation. `key` is the name of the new key; `None`: nothing was written.
fn describe_steps(cluster: &Cluster, key: Option<&String>) -> String {
    let servers: Vec<&str> = cluster.control_plane().map(|node| node.address.as_str()).collect();
    let mut text = match key {
        Some(key) => format!("The leader rotates the encryption key. The name of the new key is {key}.\n"),
        None => "The leader would rotate the encryption key; nothing was written.\n".to_owned(),
    };
    text += &format!(
        "1. add the new key behind the present one, and restart the API servers one at a time: {}\n\
         2. put the new key first, and restart the API servers\n\
         3. write each Secret anew\n\
         4. drop the earlier keys, and restart the API servers\n\
         Secrets in backups of etcd of before then need the earlier keys: keep a copy of them for these backups.\n",
        join_addresses(&servers)
    );
    if servers.len() == 1 {
        text += "No API server answers during each of the three restarts: the cluster has one control plane node.\n";
    }
    text + "madako kube status shows the step; madako kube pause halts the rotation.\n"
}

#[cfg(test)]
mod tests {
    use madako_domain::cluster::Node;

    use super::*;

    #[test]
    fn the_steps_name_the_api_servers_and_a_gap() {
        let node = |number: usize, control_plane: bool| Node {
            address: format!("10.0.0.{number}"),
            control_plane,
            ..Node::default()
        };
        let cluster = |control_plane: usize| Cluster {
            nodes: (1..5).map(|number| node(number, number <= control_plane)).collect(),
            ..Cluster::default()
        };
        let key = "2026-01-01T00:00:00Z".to_owned();
        let requested = describe_steps(&cluster(3), Some(&key));
        assert!(
            requested.contains(&key) && requested.contains("10.0.0.1, 10.0.0.2, 10.0.0.3\n"),
            "{requested}"
        );
        assert!(!requested.contains("No API server answers"), "{requested}");
        let shown = describe_steps(&cluster(1), None);
        assert!(shown.contains("nothing was written") && shown.contains("No API server answers"), "{shown}");
    }
}
