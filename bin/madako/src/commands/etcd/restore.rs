//! `madako etcd restore`: asks the service to restore the cluster's etcd from a snapshot.

mod dry_run;

use madako_domain::cluster::Cluster;
use madako_domain::keys;
use madako_domain::restore::RestoreRequest;
use madako_protocol::ports::Clock as _;
use madako_supervisor::clock::SystemClock;

use crate::access::{concurrent_change_failure, decode, get_entry, open_store, put_if, unchanged_condition};
use crate::cli::Global;
use crate::failure::Failure;
use crate::limits::MAX_SNAPSHOT_PATH;
use crate::output::print_text;

/// Restores etcd from a snapshot on a control plane node, after the loss of the majority of its members.
///
/// All data that etcd got after the snapshot are lost. The command stores a request (madako/etcd/restore), which the
/// leader takes in its next pass, as the operation etcd-restore. The leader refuses it while a majority of the members
/// answers, if ADDRESS is not a control plane node, or if the snapshot is missing or its checksum is wrong. The leader
/// proves both before it touches anything; `madako ops` shows the reason, and only another request can change it. A
/// request that does not begin within an hour is deleted.
///
/// The leader stops etcd on all reachable control plane nodes, and makes a cluster of one member of the snapshot, with the
/// users in it. The former data of that node stay in its volume, in the directory before-restore-NUMBER. The other control
/// plane nodes are then added anew, one after another, which removes their former data. Control plane nodes that do not
/// answer must not serve clients meanwhile: make sure that they are off. When they come back, the leader stops etcd on them
/// and adds them anew.
///
/// --dry-run shows each step, the snapshot and what would be lost, and asks for nothing. The dry run connects to the
/// nodes with the keys of the service.
///
/// Exit codes: 0: the request is stored; 1: there is no cluster, the store does not answer, or the restore would be refused
/// (--dry-run); 2: ADDRESS is not a control plane node, or the confirmation is wrong.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  madako etcd restore --node 10.0.0.11 --path /var/backup/etcd.backup --confirm \
                        production --dry-run\n  madako etcd restore --node 10.0.0.11 --path /var/backup/etcd.backup \
                        --confirm production"
)]
pub(crate) struct Args {
    /// Address of the control plane node with the snapshot
    #[arg(long, value_name = "ADDRESS")]
    node: String,
    /// Absolute path of the snapshot on that node
    #[arg(long, value_name = "FILE", value_parser = snapshot_path)]
    path: String,
    /// Name of the cluster, as a confirmation
    #[arg(long, value_name = "CLUSTER")]
    confirm: String,
    /// Shows the steps and what would be lost; asks for nothing
    #[arg(long)]
    dry_run: bool,
}

/// A path that docker takes as the source of a mount.
fn snapshot_path(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_control() && !matches!(c, ',' | '"');
    let fits = text.starts_with('/') && text.len() <= MAX_SNAPSHOT_PATH && text.chars().all(is_plain);
    match fits {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected an absolute path of at most {MAX_SNAPSHOT_PATH} bytes, without commas, double quotes and control \
             characters"
        )),
    }
}

pub(super) async fn run(args: &Args, global: &Global) -> Result<(), Failure> {
    if args.dry_run {
        return dry_run::run(args, global).await;
    }
    let store = open_store(global)?;
    let stored = get_entry(&store, keys::CLUSTER).await?;
    let stored =
        stored.ok_or_else(|| Failure::failed("no cluster configuration is stored, so there is no etcd to restore (madako cluster set stores one)"))?;
    check_arguments(args, &decode(keys::CLUSTER, &stored)?)?;
    let present = get_entry(&store, keys::ETCD_RESTORE).await?;
    let request = restore_request(args);
    // A node that leaves the control plane at this moment gets no request.
    let conditions = vec![
        unchanged_condition(keys::ETCD_RESTORE, present.as_ref()),
        unchanged_condition(keys::CLUSTER, Some(&stored)),
    ];
    if !put_if(&store, keys::ETCD_RESTORE, serde_json::to_vec(&request)?, conditions).await? {
        return Err(concurrent_change_failure(keys::ETCD_RESTORE));
    }
    let former = if present.is_some() { "; it replaces an earlier request" } else { "" };
    print_text(&format!(
        "{}: the leader restores {} in its next passes{former}; `madako ops` and `madako history` show it\n",
        args.node, args.path
    ))
}

fn restore_request(args: &Args) -> RestoreRequest {
    RestoreRequest {
        address: args.node.clone(),
        path: args.path.clone(),
        requested_at: SystemClock.now(),
        refused: None,
    }
}

/// Checks the confirmation and the node.
fn check_arguments(args: &Args, cluster: &Cluster) -> Result<(), Failure> {
    if args.confirm != cluster.name {
        return Err(Failure::bad_input(format_args!(
            "--confirm: got {:?}, expected {:?}, the name of the cluster: nothing is restored",
            args.confirm, cluster.name
        )));
    }
    let members: Vec<&str> = cluster.control_plane().map(|node| node.address.as_str()).collect();
    if members.contains(&args.node.as_str()) {
        return Ok(());
    }
    Err(Failure::bad_input(format_args!(
        "{} is not a control plane node: expected one of {}",
        args.node,
        members.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_path_is_absolute_and_has_no_special_characters() {
        for path in ["/a", "/var/cke/etcd-20260101-000000.backup", "/a b/ü"] {
            assert_eq!(snapshot_path(path).as_deref(), Ok(path));
        }
        let long = format!("/{}", "a".repeat(MAX_SNAPSHOT_PATH));
        for path in ["", "a", "./a", "/a,b", "/a\"b", "/a\nb", &long] {
            snapshot_path(path).unwrap_err();
        }
    }
}
